"""Run under legate on four GPUs: what Legion copies between the signatures of OneFlow's Table 2.

Writes a JSON list with an object a case: bytes copied in each iteration, and those of the plan.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from copies import copied_bytes
from sbp_cases import BATCH, CHANNELS, PAIRS, expected, moved_between, transition

from flexlegion import SGD, Mesh
from flexlegion.machine.running import running_machine
from flexlegion.plan.coherence import moved_bytes


def main() -> None:
    devices = running_machine().devices
    gpus = devices.preferred
    memory_of = dict(zip(gpus, gpus, strict=True))
    meshes = [(Mesh(gpus), Mesh(gpus)), (Mesh(gpus[:2]), Mesh(gpus[2:]))]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((BATCH, CHANNELS), np.float32)
    results = []
    for before, after in PAIRS:
        for first, second in meshes:
            network, strategy = transition(before, after, first, second)
            model = network.model
            model.compile(SGD(0.1), "mean_squared_error", strategy=strategy)
            labels = [x] * len(network.outputs)
            data, _ = model.bind(x, labels if len(labels) > 1 else x)
            between, _ = moved_between(network, model.plan, before, memory_of)
            results.append(
                {
                    "case": f"{before} -> {after} {first} {second}",
                    "copied_bytes": copied_bytes(model, data, BATCH, gpus),
                    "planned_bytes": moved_bytes(model.plan, memory_of),
                    "between": between,
                    "expected": expected(before, after, first, second),
                }
            )
            model.close()
    Path(sys.argv[1]).write_text(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()

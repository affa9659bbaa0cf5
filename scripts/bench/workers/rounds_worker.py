"""Trains a small transformer of so many micro-batches under legate: what each of them costs.

Every micro-batch has as many samples, so the batch grows with their number. The network is small,
so that what the runtime takes shows. Prints a JSON object: milliseconds of the first iteration, in
which Legion records its trace, and of a later one; MiB that the process grew by meanwhile; and how
many launches an iteration issues.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from flexlegion.data.synthetic import made_up
from flexlegion.machine.running import running_machine
from flexlegion.plan.passes import CLOSING
from flexlegion.training.program import TRAIN, Batch
from flexlegion.training.trainer import run_series
from flexlegion.zoo import build

SAMPLES = 8  # of a micro-batch
SIZES: dict[str, Any] = {"steps": 16, "hidden": 48, "heads": 4, "vocabulary": 100}
WARM, ITERATIONS, ROUNDS = 6, 5, 3


def resident() -> int:
    """MiB of memory that the process has."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 >> 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batches", type=int, required=True)
    parser.add_argument("--strategy", required=True)
    args = parser.parse_args()
    model = build("transformer", SAMPLES * args.micro_batches, **SIZES)
    model.compile("sgd", strategy=args.strategy, micro_batches=args.micro_batches)
    data, _ = model.bind(*made_up(model.graph, model.batch_size, seed=0))
    batch = Batch(data, np.arange(model.batch_size))

    def train(iterations: int) -> float:
        begin = time.perf_counter()
        run_series(model.program, TRAIN, [batch] * iterations, lr=0.01)
        model.program.wait()
        return 1e3 * (time.perf_counter() - begin) / iterations

    before = resident()
    first = train(1)
    train(WARM)
    issued = [model.plan.launches[run[0]].pass_ for run in model.program.issued(TRAIN)]
    ends = sum(pass_ in CLOSING for pass_ in issued)
    found = {
        "first_ms": first,
        "iteration_ms": min(train(ITERATIONS) for _ in range(ROUNDS)),
        "grown_mib": resident() - before,
        "launches": args.micro_batches * (len(issued) - ends) + ends,
    }
    if running_machine().rank == 0:
        print(f"found {json.dumps(found)}", flush=True)


if __name__ == "__main__":
    main()

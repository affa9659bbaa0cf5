"""Trains an imported model for a few steps under each of some strategies; runs under legate.

legate --cpus 3 --gpus 0 scripts/bench/workers/imports_worker.py FOLDER MODEL,... STRATEGY...

The folder has the weights to begin with, MODEL.pt, and gets MODEL.npz.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import numpy as np
import torch
from imports_case import CASES, MOMENTUM, Arrays, Case, batches, labels, losses
from pytorch.small import trained

from flexlegion.importers import from_torch
from flexlegion.optimizers import SGD


def main() -> None:
    """Train, and save losses and weights by the module's names."""
    folder, names, *strategies = sys.argv[1:]
    for name in names.split(","):
        try:
            found = run(name, Path(folder), strategies)
        except Exception:
            found = {"error": np.array(traceback.format_exc())}
        np.savez(Path(folder) / f"{name}.npz", allow_pickle=False, **found)


def run(name: str, folder: Path, strategies: list[str]) -> Arrays:
    """What every strategy trains."""
    case = CASES.get(name, Case())
    module, example = trained(name, case.seed)
    module.load_state_dict(torch.load(folder / f"{name}.pt"))
    model = from_torch(module, example)
    arrays: Arrays = {}
    origin = model.origin
    assert origin is not None
    shapes = [tensor.shape for tensor in model.outputs]
    chosen = losses(list(origin.outputs), shapes)
    shapes = [shape for shape, loss in zip(shapes, chosen, strict=True) if loss is not None]
    kinds = [loss for loss in chosen if loss is not None]
    for strategy in strategies:
        model.compile(
            optimizer=SGD(case.rate, MOMENTUM),
            loss=chosen if len(chosen) > 1 else chosen[0],
            strategy=strategy,
        )
        values = []
        for step, batch in enumerate(batches(example)):
            y = labels(step, shapes, kinds)
            x = origin.arrays(batch)
            history = model.fit(x, y if len(y) > 1 else y[0], shuffle=False, progress=False)
            values.append(history.epochs[0]["loss"])
        arrays[f"{strategy}/losses"] = np.array(values)
        weights = model.get_weights()
        for parameter in origin.places:
            value = origin.parameter(parameter, weights)
            for alias in {parameter, *origin.aliases.get(parameter, ())}:
                arrays[f"{strategy}/weight/{alias}"] = value
        model.close()
    return arrays


if __name__ == "__main__":
    main()

"""Trains an imported model for a few steps under each of some strategies; runs under legate.

legate --cpus 3 --gpus 0 scripts/bench/workers/imports_worker.py FOLDER MODEL,... STRATEGY...

The folder has the weights to begin with, MODEL.pt, and gets MODEL.npz. Of "onnx:MODEL", it has the
file MODEL.onnx, and gets MODEL.onnx.npz.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import numpy as np
import torch
from imports_case import CASES, MOMENTUM, Arrays, Case, batches, labels, losses, samples_of
from pytorch.small import trained

from flexlegion.importers import from_onnx, from_torch
from flexlegion.objective.optimizers import SGD


def main() -> None:
    """Train, and save losses and weights by the module's names."""
    folder, names, *strategies = sys.argv[1:]
    for name in names.split(","):
        try:
            found = run(name, Path(folder), strategies)
        except Exception:
            found = {"error": np.array(traceback.format_exc())}
        form, _, model = name.rpartition(":")
        file = f"{model}.{form}.npz" if form else f"{model}.npz"
        np.savez(Path(folder) / file, allow_pickle=False, **found)


def run(name: str, folder: Path, strategies: list[str]) -> Arrays:
    """What every strategy trains."""
    form, _, name = name.rpartition(":")
    case = CASES.get(name, Case())
    module, example = trained(name, case.seed)
    if form == "onnx":
        model = from_onnx(folder / f"{name}.onnx", batch_size=samples_of(example))
    else:
        module.load_state_dict(torch.load(folder / f"{name}.pt"))
        model = from_torch(module, example)
    arrays: Arrays = {}
    origin = model.origin
    assert origin is not None
    orders = list(origin.outputs.values())
    # As the module has them: images have their channels last here.
    shapes = [
        tuple(tensor.shape[d] for d in np.argsort(order))
        for tensor, order in zip(model.outputs, orders, strict=True)
    ]
    chosen = losses(list(origin.outputs), shapes)
    trained_by = [i for i, loss in enumerate(chosen) if loss is not None]
    shapes = [shapes[i] for i in trained_by]
    kinds = [loss for loss in chosen if loss is not None]
    for strategy in strategies:
        model.compile(
            optimizer=SGD(case.rate, MOMENTUM),
            loss=chosen if len(chosen) > 1 else chosen[0],
            strategy=strategy,
        )
        values = []
        for step, batch in enumerate(batches(example)):
            y = [
                label.transpose(orders[i]) if kind == "mean_squared_error" else label
                for i, kind, label in zip(
                    trained_by, kinds, labels(step, shapes, kinds), strict=True
                )
            ]
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

"""Trains an imported model for a few steps under each of some strategies; runs under legate.

legate --cpus 3 --gpus 0 scripts/bench/imports_worker.py OUT.npz MODEL STRATEGY...
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path

import numpy as np
from imports_case import LR, MOMENTUM, Arrays, batches, labels, losses

from flexlegion.importers import from_torch
from flexlegion.importers.export import export
from flexlegion.optimizers import SGD

sys.path.insert(0, str(Path(__file__).parent))


def main() -> None:
    """Train, and save losses and weights by the module's names."""
    out, name, *strategies = sys.argv[1:]
    try:
        arrays = run(name, strategies)
    except Exception:
        arrays = {"error": np.array(traceback.format_exc())}
    np.savez(out, allow_pickle=False, **arrays)


def run(name: str, strategies: list[str]) -> Arrays:
    """What every strategy trains, and how long the import took beyond torch.export."""
    from torch_models import MODELS

    module, example = MODELS[name]()
    started = time.perf_counter()
    export(module, example)
    between = time.perf_counter()
    model = from_torch(module, example)
    seconds = time.perf_counter() - between - (between - started)
    arrays: Arrays = {"import_s": np.array(seconds)}
    origin = model.origin
    assert origin is not None
    for output, order in origin.outputs.items():
        arrays[f"order/{output}"] = np.array(order)
    chosen = losses(list(origin.outputs))
    shapes = [tensor.shape for tensor in model.outputs]
    trained = [shape for shape, loss in zip(shapes, chosen, strict=True) if loss is not None]
    kinds = [loss for loss in chosen if loss is not None]
    for strategy in strategies:
        model.compile(
            optimizer=SGD(LR, MOMENTUM),
            loss=chosen if len(chosen) > 1 else chosen[0],
            strategy=strategy,
        )
        values = []
        for step, batch in enumerate(batches(example)):
            y = labels(step, trained, kinds)
            x = origin.arrays(batch)
            history = model.fit(x, y if len(y) > 1 else y[0], shuffle=False, progress=False)
            values.append(history.epochs[0]["loss"])
        arrays[f"{strategy}/losses"] = np.array(values)
        weights = model.get_weights()
        for parameter, place in origin.places.items():
            weight = weights[place.weight]
            value = place.layout.back(weight, (-1,))
            for alias in {parameter, *origin.aliases.get(parameter, ())}:
                arrays[f"{strategy}/weight/{alias}"] = value
        model.close()
    return arrays


if __name__ == "__main__":
    main()
    if "FLEXLEGION_EXIT" in os.environ:
        os._exit(0)

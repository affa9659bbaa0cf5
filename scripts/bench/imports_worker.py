"""Trains an imported model for a few steps under each of some strategies; runs under legate.

legate --cpus 3 --gpus 0 scripts/bench/imports_worker.py OUT.npz MODEL,... STRATEGY...
"""

from __future__ import annotations

import sys
import time
import traceback

import numpy as np
from imports_case import MOMENTUM, Arrays, batches, labels, learning_rate, losses

from flexlegion.importers import from_torch
from flexlegion.importers.export import export
from flexlegion.optimizers import SGD


def main() -> None:
    """Train, and save losses and weights by the module's names."""
    out, names, *strategies = sys.argv[1:]
    arrays: Arrays = {}
    for name in names.split(","):
        try:
            found = run(name, strategies)
        except Exception:
            found = {"error": np.array(traceback.format_exc())}
        arrays |= {f"{name}/{key}": value for key, value in found.items()}
    np.savez(out, allow_pickle=False, **arrays)


def run(name: str, strategies: list[str]) -> Arrays:
    """What every strategy trains, and how long the import took beyond torch.export."""
    from torch_models import MODELS

    module, example = MODELS[name]()
    exported, _, samples = export(module, example)
    started = time.perf_counter()
    model = from_torch(exported, batch_size=samples)
    seconds = time.perf_counter() - started
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
            optimizer=SGD(learning_rate(module), MOMENTUM),
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

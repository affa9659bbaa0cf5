"""Run under legate: trains the models of losses_cases.py, and saves all that they became.

Keys of the arrays: CASE/STRATEGY/WHAT, where WHAT is "before/WEIGHT", "weight/WEIGHT",
"epoch/EPOCH/NAME", "evaluated/NAME", or "predicted/NUMBER".
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from losses_cases import BATCH, CASES, EPOCHS, STRATEGIES, Data, compiled
from torch.utils.data import DataLoader, TensorDataset

from flexlegion import Model, UserError


class Pairs:
    """Batches of dicts, of sizes that are not the model's."""

    def __init__(self, x: Data, y: Data, size: int) -> None:
        self.x, self.y, self.size = x, y, size
        self.samples = len(next(iter(x.values())))

    def __len__(self) -> int:
        return -(-self.samples // self.size)

    def __iter__(self) -> Any:
        for at in range(0, self.samples, self.size):
            part = slice(at, at + self.size)
            x = {name: torch.tensor(array[part]) for name, array in self.x.items()}
            yield x, {name: torch.tensor(array[part]) for name, array in self.y.items()} or None


def run(name: str, strategy: str) -> dict[str, Any]:
    """One case under a strategy."""
    x, y = CASES[name].data()
    model = compiled(name, strategy)
    result: dict[str, Any] = {f"before/{k}": w for k, w in model.get_weights().items()}
    history = model.fit(
        x, y or None, EPOCHS, validation_data=(x, y or None), shuffle=False, progress=False
    )
    for epoch, values in enumerate(history.epochs):
        result |= {f"epoch/{epoch}/{key}": value for key, value in values.items()}
    result |= {f"weight/{k}": w for k, w in model.get_weights().items()}
    result |= {f"evaluated/{k}": v for k, v in model.evaluate(x, y or None).items()}
    predicted = model.predict({"x": x["x"]})
    several = predicted if isinstance(predicted, list) else [predicted]
    result |= {f"predicted/{i}": array for i, array in enumerate(several)}
    model.close()
    return result


def check_loaders(name: str) -> None:
    """Batches of any size train as arrays do, bit by bit."""
    x, y = CASES[name].data()
    kept = []
    for data in (None, Pairs(x, y, 1), Pairs(x, y, 4), Pairs(x, y, 100)):
        model = compiled(name, "data")
        if data is None:
            history = model.fit(x, y or None, EPOCHS, (x, y or None), False, False)
        else:
            history = model.fit(data, None, EPOCHS, data, progress=False)
        values = {k: v for k, v in history.epochs[-1].items() if "second" not in k}
        kept.append((values, model.get_weights()))
        model.close()
    for values, weights in kept[1:]:
        assert values == kept[0][0], name
        assert all(np.array_equal(weights[key], w) for key, w in kept[0][1].items()), name


def check_shuffled_loader() -> None:
    """PyTorch's order follows from the model's seed, and leaves PyTorch's own state alone."""
    x, y = CASES["autoencoder"].data()
    arrays = torch.tensor(x["x"]), torch.tensor(y["labels"])
    loader = DataLoader(TensorDataset(*arrays), 4, shuffle=True)
    kept = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        model = compiled("autoencoder", "data")
        epochs = model.fit(loader, epochs=2, progress=False).epochs
        kept.append([epoch["loss"] for epoch in epochs])
        assert torch.equal(torch.get_rng_state(), before)
        assert model.predict(loader).shape == x["x"].shape
        assert model.timeline(loader, iterations=4).iterations == 4
        model.close()
    assert kept[0] == kept[1]


def refusals() -> dict[str, str]:
    """What is said about data that do not fit."""
    x, y = CASES["two_heads"].data()
    model = compiled("two_heads", "data")
    loader = DataLoader(TensorDataset(torch.tensor(x["x"])), 4)
    attempts: dict[str, Callable[[], object]] = {
        "unknown_input": lambda: model.fit({"xx": x["x"]}, y),
        "missing_input": lambda: model.predict({}),
        "too_many_inputs": lambda: model.fit([x["x"], x["x"]], y),
        "one_of_two_labels": lambda: model.fit(x, y["kind"]),
        "missing_labels": lambda: model.evaluate(x, {"kind": y["kind"]}),
        "unknown_labels": lambda: model.fit(x, y | {"sized": y["size"]}),
        "no_labels": lambda: model.fit(x),
        "rows": lambda: model.fit(x, [y["kind"], y["size"][1:]]),
        "class": lambda: model.fit(x, [y["kind"] + 1, y["size"]]),
        "loader_without_labels": lambda: model.fit(loader),
        "loader_and_labels": lambda: model.fit(loader, y),
        "generator": lambda: model.fit(iter(loader)),
    }
    said = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except UserError as e:
            said[name] = str(e)
    model.close()
    model = compiled("by_layers", "data")
    try:
        model.fit(CASES["by_layers"].data()[0], y["size"])
    except UserError as e:
        said["labels_of_none"] = str(e)
    model.close()
    model = Model(BATCH)
    h = model.dense(model.input((6,), name="x"), 3, name="aux")
    model.dense(model.input((2,), name="z"), 3, name="other")
    model.set_outputs(h)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.compile(loss="huber")
    said["idle"] = str(caught[-1].message)
    model.fit(x, np.zeros((len(x["x"]), 3)), progress=False)  # z need not be given
    model.close()
    return said


def main() -> None:
    """All cases under all strategies."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    out = parser.parse_args().out
    arrays = {
        f"{name}/{strategy}/{key}": np.asarray(value)
        for name in CASES
        for strategy in STRATEGIES
        for key, value in run(name, strategy).items()
    }
    for name in ("two_heads", "tags", "by_layers"):
        check_loaders(name)
    check_shuffled_loader()
    arrays |= {f"said/{name}": np.array(text) for name, text in refusals().items()}
    np.savez(out, **arrays)


if __name__ == "__main__":
    main()

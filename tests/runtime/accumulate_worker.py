"""Run under legate: `fit(accumulate=)` changes how a batch goes through the network, and no more.

Writes a JSON object: how far weights are from those of the same training in one go; what was
refused, and whether the model then had the weights and went on as if nobody had asked.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

import flexlegion as fl
from flexlegion.machine.running import running_machine

BATCH, SAMPLES, WIDTH = 32, 96, 64
Weights = dict[str, np.ndarray]


def build(normalized: bool = False) -> fl.Model:
    """Layers with dropout, whose draws must not depend on the parts of a batch."""
    model = fl.Model(BATCH, seed=3)
    x = model.input((WIDTH,))
    x = model.dense(x, WIDTH, activation="relu")
    x = model.batch_norm(x) if normalized else model.dropout(x, 0.3)
    model.dense(x, 4)
    model.compile("adam", "mean_squared_error", strategy="data")
    return model


def data(samples: int = SAMPLES) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = (samples, WIDTH), (samples, 4)
    x, y = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    return x, y


def trained(accumulate: list[int | None]) -> Weights:
    """The weights after an epoch with each of these."""
    model = build()
    for number in accumulate:
        model.fit(*data(), progress=False, accumulate=number)
        if number is not None:
            assert model.plan.graph.micro_batches == number
    weights = model.get_weights()
    model.close()
    return weights


def predictions() -> float:
    """How far what a model in parts predicts is from the same model in one go: odd numbers, too."""
    parts, whole = build(), build()
    parts.fit(*data(), progress=False, accumulate=4)
    whole.set_weights(parts.get_weights())
    found = []
    for samples in (1, 8, 45, SAMPLES):
        x, _ = data(samples)
        ours, theirs = parts.predict(x), whole.predict(x)
        assert ours.shape == theirs.shape == (samples, 4)
        found.append(float(np.abs(ours - theirs).max()))
    # Training goes on from there.
    parts.fit(*data(), progress=False)
    parts.close()
    whole.close()
    return max(found)


def off(one: Weights, other: Weights) -> float:
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


def refused(what: Callable[[], object]) -> str:
    try:
        what()
    except fl.UserError as error:
        return str(error)
    return ""


def refusals() -> dict[str, object]:
    """Numbers that do not divide the batch, or a network that mixes its samples."""
    said = {}
    for name, number, normalized in (("odd", 5, False), ("none", 0, False), ("mixed", 2, True)):
        asked, plain = build(normalized), build(normalized)
        for model in (asked, plain):
            model.fit(*data(), progress=False)
        text = refused(lambda m=asked, n=number: m.fit(*data(), progress=False, accumulate=n))
        for model in (asked, plain):
            model.fit(*data(), progress=False)
        said[name] = {"said": text, "off": off(asked.get_weights(), plain.get_weights())}
        asked.close()
        plain.close()
    return said


def too_large() -> dict[str, object]:
    """In parts it fits into memory, and whole it does not."""
    model = fl.Model(4096, seed=3)
    x = model.input((WIDTH,))
    for _ in range(8):
        x = model.dense(x, 512, activation="relu")
    model.dense(x, 4)
    model.compile("adam", "mean_squared_error", strategy="single", micro_batches=16)
    many = data(4096)
    model.fit(*many, progress=False)
    before = model.get_weights()
    said = refused(lambda: model.fit(*many, progress=False, accumulate=1))
    moved = off(before, model.get_weights())
    losses = model.fit(*many, epochs=3, progress=False).epochs
    learns = losses[-1]["loss"] < losses[0]["loss"]
    parts = model.plan.graph.micro_batches
    return {"said": said, "off": moved, "parts": parts, "learns": learns}


def main() -> None:
    out, what = sys.argv[1:]
    if what == "too-large":
        Path(out).write_text(json.dumps(too_large()))
        return
    whole = trained([None, None, None, None])
    parts = trained([None, 4, None, 2])
    back = trained([8, 1, None, 4])
    result = {"parts": off(whole, parts), "back": off(whole, back), "predicted": predictions()}
    result |= refusals()
    Path(f"{out}.{running_machine().rank}").write_text(json.dumps(result))


main()

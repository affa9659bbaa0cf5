"""Runs the models of `special_values` and saves what they compute, and gradients."""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

import numpy as np
from special_values import (
    ELEMENTWISE,
    LOSS_SHAPES,
    OF_CHANNELS,
    POINTS,
    ROWS,
    SAMPLES,
    SHAPES,
    Floats,
    Layers,
    loss_data,
    losses_model,
    over_rows,
)

from flexlegion import SGD, DivergenceError, Model
from flexlegion.objective.losses import BinaryCrossentropy, Written

TIMES_LABELS = Written(lambda net, output, labels: net.multiply([output, labels]))


def main() -> None:
    """Save outputs as GROUP/NAME, and the gradients of their inputs as GROUP/NAME/gradient."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    saved: dict[str, Any] = {}
    run(saved, "elementwise", ELEMENTWISE, POINTS)
    run(saved, "channels", OF_CHANNELS, POINTS.reshape(-1, 1))
    for shape in SHAPES:
        group = "rows_" + "x".join(map(str, shape))
        run(saved, group, over_rows(shape), ROWS.reshape(shape))
    run_losses(saved)
    np.savez(parser.parse_args().out, **saved)


def run(saved: dict[str, Any], group: str, layers: dict[str, Layers], x: Floats) -> None:
    """One sample through all layers of a group, one iteration of training, prediction before."""
    net = Model(1)
    given = net.input(x.shape, name="x")
    outputs = []
    for name, layer in layers.items():
        w = net.parameter(x.shape, np.zeros(x.shape, np.float32), f"w_{name}")
        y = layer(net, net.subtract(given, w))
        outputs.append(net.elementwise("x0", [y], name=f"out_{name}"))
    net.set_outputs(outputs)
    net.compile(SGD(1.0), [TIMES_LABELS] * len(outputs), strategy="single")
    first = dict(zip([f"out_{n}" for n in layers], net.predict(x[None]), strict=True))
    rng = np.random.default_rng(3)
    labels = {f"out_{n}": rng.random(first[f"out_{n}"].shape).astype(np.float32) for n in layers}
    # Outputs that are no numbers end training, after the iteration that found them.
    with contextlib.suppress(DivergenceError):
        net.fit(x[None], labels, epochs=1, progress=False)
    weights = net.get_weights()
    for name in layers:
        count = first[f"out_{name}"][0].size
        saved[f"{group}/{name}"] = first[f"out_{name}"][0]
        saved[f"{group}/{name}/labels"] = labels[f"out_{name}"][0] / count
        saved[f"{group}/{name}/gradient"] = weights[f"w_{name}"].reshape(x.shape)
    net.close()


def run_losses(saved: dict[str, Any]) -> None:
    """Losses of whole batches, and of one whose last samples are padding."""
    net, names = losses_model(Model)
    known = {
        "logits": BinaryCrossentropy(from_logits=True),
        "probabilities": BinaryCrossentropy(from_logits=False),
    }
    losses = {name: known.get(loss, loss) for name, loss in names.items()}
    net.compile(SGD(1.0), losses, strategy="single")
    data = {name: loss_data(name) for name in names}
    x = {f"x_{n}": a.reshape(SAMPLES, -1) if a.ndim == 1 else a for n, (a, _) in data.items()}
    y = {name: b for name, (_, b) in data.items()}
    zeros = {k: v for k, v in net.get_weights().items() if k.startswith("w_")}
    for count in (SAMPLES, SAMPLES - 2):
        some = [{k: v[:count] for k, v in d.items()} for d in (x, y)]
        metrics = net.evaluate(*some)
        net.fit(*some, epochs=1, progress=False)
        weights = net.get_weights()
        for name in names:
            saved[f"losses_{count}/{name}"] = metrics[f"{name}_loss"]
            saved[f"losses_{count}/{name}/gradient"] = weights[f"w_{name}"]
        net.set_weights(net.get_weights() | zeros)
    net.close()
    assert len(names) > len(LOSS_SHAPES)


if __name__ == "__main__":
    main()

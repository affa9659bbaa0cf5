"""Random models of few operators, for searches that can be solved."""

from __future__ import annotations

import random
from collections.abc import Sequence

from flexlegion import Model


def small_model(
    rng: random.Random, batches: Sequence[int], widths: Sequence[int], most: int
) -> Model:
    """Products, sums, joins and activations: at most so many before the last product.

    Parameters
    ----------
    rng
        Draws it.
    batches, widths
        What numbers of samples and of units are drawn from.
    most
        Operators.
    """
    model = Model(rng.choice(batches))
    tensors = [model.input((rng.choice(widths),), name="x")]
    for _ in range(rng.randint(1, most)):
        tensor = rng.choice(tensors[-3:])
        alike = [its for its in tensors if its.shape == tensor.shape and its is not tensor]
        kind = rng.choice(["dense", "dense", "relu", "softmax", "add", "concat"])
        if kind == "add" and alike:
            tensors.append(model.add([tensor, rng.choice(alike)]))
        elif kind == "concat" and alike:
            tensors.append(model.concat([tensor, rng.choice(alike)], 1))
        elif kind == "relu":
            tensors.append(model.relu(tensor))
        elif kind == "softmax":
            tensors.append(model.softmax(tensor))
        else:
            tensors.append(model.dense(tensor, rng.choice(widths)))
    model.set_outputs(model.dense(tensors[-1], 8))
    return model

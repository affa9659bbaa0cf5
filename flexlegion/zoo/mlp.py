"""A multi-layer perceptron: dense layers with ReLU."""

from __future__ import annotations

from flexlegion.model.model import Model


def mlp(
    model: Model,
    input_shape: tuple[int, ...] = (32, 32, 1),
    classes: int = 10,
    hidden: tuple[int, ...] = (512, 256),
) -> None:
    """Add the layers; inputs of several dimensions are flattened.

    Parameters
    ----------
    model
        Where to.
    input_shape
        Shape of a sample.
    classes
        Width of the output.
    hidden
        Widths of the hidden layers.
    """
    x = model.input(input_shape, name="features")
    if len(input_shape) > 1:
        x = model.flatten(x, name="flatten")
    for i, units in enumerate(hidden):
        x = model.dense(x, units, activation="relu", name=f"hidden{i + 1}")
    x = model.dense(x, classes, name="output")
    model.softmax(x, name="softmax")

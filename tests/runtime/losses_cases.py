"""Models of several outputs and losses, each with what it minimises in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from flexlegion import SGD, Model
from flexlegion.graph.tensor import Tensor
from flexlegion.layers.layers import Layers
from flexlegion.objective.losses import (
    BinaryCrossentropy,
    CategoricalCrossentropy,
    MeanSquaredError,
    SparseCategoricalCrossentropy,
    Written,
)

BATCH, SAMPLES, EPOCHS = 5, 13, 2  # a last batch of three
OPTIMIZER = SGD(0.1, momentum=0.9)
CLASS_WEIGHTS = [0.5, 2.0, 0.0, 1.5]
STRATEGIES = ("single", "data", "random:4", "random:11")

Data = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A model and its losses.

    Parameters
    ----------
    build
        Adds the layers, and says the outputs.
    compiled
        Options of `Model.compile`; of a loss that is a tensor of the model, its name.
    inputs, labels
        Shapes of a sample's, by name; of class numbers, a list: the number of classes, what does
        not count, and the shape.
    """

    build: Callable[[Model], None]
    compiled: dict[str, Any]
    inputs: dict[str, tuple[int, ...]]
    labels: dict[str, Any] = field(default_factory=dict)

    def data(self) -> tuple[Data, Data]:
        """Inputs and labels."""
        rng = np.random.default_rng(7)
        x = {
            name: rng.normal(size=(SAMPLES, *shape)).astype(np.float32)
            for name, shape in self.inputs.items()
        }
        y = {}
        for name, shape in self.labels.items():
            if isinstance(shape, list):
                classes, ignored, its = shape
                drawn = rng.integers(-1, classes, (SAMPLES, *its))
                y[name] = np.where(drawn < 0, ignored, drawn)
            else:
                y[name] = rng.random((SAMPLES, *shape)).astype(np.float32)
        return x, y


def _two_heads(m: Model) -> None:
    h = m.dense(m.input((6,), name="x"), 8, activation="tanh", name="trunk")
    m.set_outputs([m.dense(h, 4, activation="softmax", name="kind"), m.dense(h, 2, name="size")])


def _autoencoder(m: Model) -> None:
    x = m.input((4, 3, 1), name="x")
    h = m.dense(m.flatten(x), 5, activation="tanh", name="trunk")
    m.reshape(m.dense(h, 12, name="image"), (4, 3, 1))


def _tags(m: Model) -> None:
    h = m.dense(m.input((6,), name="x"), 8, activation="tanh", name="trunk")
    tags = m.sigmoid(m.dense(h, 5, name="logits"), name="tags")
    sure = m.dense(h, 3, activation="sigmoid", name="sure")
    m.set_outputs([tags, sure])


def _steps(m: Model) -> None:
    h = m.dense(m.input((5, 6), name="x"), 8, activation="tanh", name="trunk")
    m.dense(h, 4, name="kind")


def _smoothed(m: Model) -> None:
    h = m.dense(m.input((6,), name="x"), 8, activation="tanh", name="trunk")
    m.set_outputs([m.softmax(m.dense(h, 4, name="kind")), m.dense(h, 3, name="shares")])


def _by_layers(m: Model) -> None:
    """Errors weighted by sample; the weights and targets are inputs."""
    x, target, weight = m.input((6,), name="x"), m.input((2,), name="t"), m.input((1,), name="w")
    y = m.dense(m.dense(x, 8, activation="tanh", name="trunk"), 2, name="size")
    m.elementwise("(x0 - x1) * (x0 - x1) * x2 * x2", [y, target, weight], name="loss_by_hand")
    m.set_outputs(y)


def _penalty(m: Model) -> None:
    """A loss of the batch as a whole, beside one of each sample."""
    y = m.dense(m.input((6,), name="x"), 3, name="size")
    scale = m.parameter((3,), "ones", name="scale")
    m.set_outputs([m.multiply([y, scale], name="scaled"), m.unary(scale, "square", name="penalty")])


def _frozen(m: Model) -> None:
    h = m.dense(m.input((6,), name="x"), 8, activation="tanh", name="trunk", trainable=False)
    m.dense(h, 2, name="size")


def by_distance(m: Layers, output: Tensor, labels: Tensor) -> Tensor:
    """The distance to a point, of which labels say one coordinate for all."""
    return m.elementwise("abs(x0 - x1) + 0.5 * x0", [output, labels])


CASES: dict[str, Case] = {
    "two_heads": Case(
        _two_heads,
        {
            "loss": ["sparse_categorical_crossentropy", "mean_squared_error"],
            "loss_weights": {"size": 0.3},
            "metrics": ["accuracy", "mean_absolute_error"],
        },
        {"x": (6,)},
        {"kind": [4, -1, ()], "size": (2,)},
    ),
    "one_of_two_is_trained": Case(
        _two_heads,
        {"loss": {"size": "huber"}, "loss_weights": [1.0, 2.0]},
        {"x": (6,)},
        {"size": (2,)},
    ),
    "autoencoder": Case(
        _autoencoder, {"loss": "mean_absolute_error"}, {"x": (4, 3, 1)}, {"labels": (4, 3, 1)}
    ),
    "tags": Case(
        _tags,
        {"loss": "binary_crossentropy", "metrics": {"tags": ["accuracy"]}},
        {"x": (6,)},
        {"tags": (5,), "sure": (3,)},
    ),
    "smoothed": Case(
        _smoothed,
        {"loss": [SparseCategoricalCrossentropy(0.1), CategoricalCrossentropy(0.2)]},
        {"x": (6,)},
        {"softmax_1": [4, -1, ()], "shares": (3,)},
    ),
    "class_weights": Case(
        _two_heads,
        {
            "loss": [
                torch.nn.CrossEntropyLoss(torch.tensor(CLASS_WEIGHTS), label_smoothing=0.1),
                MeanSquaredError(weighted=True),
            ],
            "loss_weights": [0.7, 2.0],
            "metrics": ["accuracy", "mean_squared_error"],
        },
        {"x": (6,)},
        {"kind": [4, -100, ()], "size": (2,), "size.weights": ()},
    ),
    "ignored_class": Case(
        _smoothed,
        {
            "loss": [
                SparseCategoricalCrossentropy(ignore_index=2, weighted=True),
                CategoricalCrossentropy(0.2, weighted=True),
            ],
            "metrics": ["accuracy"],
        },
        {"x": (6,)},
        {
            "softmax_1": [4, 2, ()],
            "softmax_1.weights": (),
            "shares": (3,),
            "shares.weights": (),
        },
    ),
    "steps": Case(
        _steps,
        {
            "loss": SparseCategoricalCrossentropy(
                0.2, ignore_index=255, class_weights=CLASS_WEIGHTS, weighted=True
            )
        },
        {"x": (5, 6)},
        {"labels": [4, 255, (5,)], "weights": (5,)},
    ),
    "rare_tags": Case(
        _tags,
        {
            "loss": [
                BinaryCrossentropy(positive_weight=3.0),
                BinaryCrossentropy(False, positive_weight=0.5, weighted=True),
            ]
        },
        {"x": (6,)},
        {"tags": (5,), "sure": (3,), "sure.weights": ()},
    ),
    "by_layers": Case(_by_layers, {"loss": "loss_by_hand"}, {"x": (6,), "t": (2,), "w": (1,)}),
    "penalty": Case(
        _penalty,
        {"loss": ["mean_squared_error", "penalty"], "loss_weights": [1.0, 0.2]},
        {"x": (6,)},
        {"scaled": (3,)},
    ),
    "function": Case(_frozen, {"loss": by_distance}, {"x": (6,)}, {"labels": (2,)}),
    "function_of_few_labels": Case(
        _frozen, {"loss": Written(by_distance, labels_shape=(1,))}, {"x": (6,)}, {"labels": (1,)}
    ),
}


def compiled(name: str, strategy: str) -> Model:
    """A case's model, ready to train."""
    case = CASES[name]
    model = Model(BATCH, seed=5)
    case.build(model)
    tensors = {op.name: op.output for op in model.graph.operators}
    options = dict(case.compiled)
    loss = options["loss"]
    if isinstance(loss, str):
        options["loss"] = tensors.get(loss, loss)
    if isinstance(loss, list):
        options["loss"] = [tensors.get(each, each) if each else each for each in loss]
    model.compile(OPTIMIZER, strategy=strategy, **options)
    return model

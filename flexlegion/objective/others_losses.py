"""Losses of other libraries: PyTorch's are read as those that compute the same here."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from flexlegion.base.arguments import takes
from flexlegion.base.errors import UserError
from flexlegion.base.quoting import described, printable
from flexlegion.objective.losses import (
    LOSSES,
    BinaryCrossentropy,
    Huber,
    Loss,
    MeanAbsoluteError,
    MeanSquaredError,
    SparseCategoricalCrossentropy,
)

# Libraries whose losses are functions of their own tensors.
_FOREIGN = {"torch", "torchvision", "tensorflow", "keras", "jax", "optax", "flax"}

# Of a loss; each of the functions below takes out what it knows.
Options = dict[str, Any]


def _cross_entropy(options: Options) -> Loss:
    weight = options.pop("weight", None)
    return SparseCategoricalCrossentropy(
        float(options.pop("label_smoothing", 0.0)),
        ignore_index=int(options.pop("ignore_index", -100)),
        class_weights=None if weight is None else [float(w) for w in weight.tolist()],
    )


def _of_logits(options: Options) -> Loss:
    positive = options.pop("pos_weight", None)
    if positive is not None and positive.numel() != 1:
        raise UserError(
            f"pos_weight of BCEWithLogitsLoss has {positive.numel()} numbers, but all labels have "
            "the same weight here; give one number, or write the loss with layers"
        )
    weight = 1.0 if positive is None else float(positive.item())
    return BinaryCrossentropy(from_logits=True, positive_weight=weight)


def _of_probabilities(_: Options) -> Loss:
    return BinaryCrossentropy(from_logits=False)


def _mean_squared_error(_: Options) -> Loss:
    return MeanSquaredError()


def _mean_absolute_error(_: Options) -> Loss:
    return MeanAbsoluteError()


def _huber(options: Options) -> Loss:
    return Huber(float(options.pop("delta", 1.0)))


def _smooth_l1(options: Options) -> Loss:
    beta = float(options.pop("beta", 1.0))
    if beta != 1:
        raise UserError(
            f"SmoothL1Loss with beta={beta:g} is Huber({beta:g}) divided by beta; give that loss, "
            f"and loss_weights={1 / beta if beta else 0:g}"
        )
    return Huber(1.0)


# What computes the same, of a loss's options; by the names of modules and functions.
_OF_TORCH: dict[str, Callable[[Options], Loss]] = {
    "CrossEntropyLoss": _cross_entropy,
    "cross_entropy": _cross_entropy,
    "BCEWithLogitsLoss": _of_logits,
    "binary_cross_entropy_with_logits": _of_logits,
    "BCELoss": _of_probabilities,
    "binary_cross_entropy": _of_probabilities,
    "MSELoss": _mean_squared_error,
    "mse_loss": _mean_squared_error,
    "L1Loss": _mean_absolute_error,
    "l1_loss": _mean_absolute_error,
    "HuberLoss": _huber,
    "huber_loss": _huber,
    "SmoothL1Loss": _smooth_l1,
    "smooth_l1_loss": _smooth_l1,
}
# What is nearest to others, which want outputs of another kind.
_NEAR = {
    "NLLLoss": "sparse_categorical_crossentropy",
    "nll_loss": "sparse_categorical_crossentropy",
}
# Of a module's attributes, its options.
_OPTIONS = ("weight", "pos_weight", "ignore_index", "label_smoothing", "reduction", "delta", "beta")


def loss_of_torch(loss: Any) -> Loss | None:
    """The loss that computes what one of PyTorch's does; None if it is none of these.

    Parameters
    ----------
    loss
        A module, as ``nn.CrossEntropyLoss(ignore_index=0)``; or a function, as ``F.cross_entropy``,
        or a `functools.partial` of one with options.

    Raises
    ------
    UserError
        If it has an option that is not known here.
    """
    options: dict[str, Any] = {}
    function = loss
    if isinstance(loss, functools.partial):
        function = loss.func
        if loss.args:
            function = None  # a prediction, or labels
        options = dict(loss.keywords)
    name = getattr(function, "__name__", type(function).__name__)
    owner = str(getattr(function, "__module__", "")).partition(".")[0]
    if name not in _OF_TORCH or owner != "torch" or isinstance(function, type):
        return None
    if hasattr(function, "reduction"):
        options = {key: getattr(function, key) for key in _OPTIONS if hasattr(function, key)}
    reduction = options.pop("reduction", "mean")
    if reduction != "mean":
        raise UserError(
            f"the loss {name} has reduction='{reduction}', but training minimises the mean over a "
            "batch; leave the reduction out"
        )
    read = _OF_TORCH[name](options)
    for option, value in options.items():
        if option == "weight" and value is not None:
            raise UserError(
                f"'weight' of each value is not known in the loss {name}; give "
                f"{type(read).__name__}(weighted=True), and a weight for each sample with labels"
            )
        if option not in _OPTIONS or value is not None:
            raise UserError(f"the option '{option}' of the loss {name} is not known here")
    return read


def check_written(loss: Any) -> None:
    """Raise `UserError` unless a function may be a loss that is written with layers."""
    names = (getattr(loss, "__module__", None), *(kind.__module__ for kind in type(loss).__mro__))
    owners = {str(name).partition(".")[0] for name in names}
    if owners & _FOREIGN:
        name = getattr(loss, "__name__", type(loss).__name__)
        instead = f"give '{_NEAR[name]}'" if name in _NEAR else f"give one of {', '.join(LOSSES)}"
        raise UserError(
            f"the loss {printable(name)} is another library's and cannot compute of a model's "
            f"tensors; {instead}, or a function (layers, output, labels) that writes it with layers"
        )
    if not takes(loss, 3):
        raise UserError(
            f"a loss of one's own is a function (layers, output, labels), but {described(loss)} "
            "does not take three arguments"
        )

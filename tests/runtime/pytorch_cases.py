"""The networks that are compared with PyTorch: the worker and the test build the same ones."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion.optimizers import SGD, Adam, AdamW, Optimizer

BATCH = 6
MSE, SPARSE, ONE_HOT = (
    "mean_squared_error",
    "sparse_categorical_crossentropy",
    "categorical_crossentropy",
)

# A method of Model, and its options. Layer i is named "l<i>". The option `of` names what the layer
# reads, the tensor before it unless given: 0 is the input, i + 1 the output of layer i. Of an LSTM,
# that is y; its option `after` names the layer that it continues, with the same weights.
Layer = tuple[str, dict[str, Any]]


def sources(layers: Sequence[Layer]) -> Iterator[tuple[str, int | list[int], dict[str, Any]]]:
    """Each layer's kind, what it reads, and its other options."""
    for i, (kind, options) in enumerate(layers):
        yield kind, options.get("of", i), {k: v for k, v in options.items() if k != "of"}


@dataclass(frozen=True)
class Case:
    """A network and its training.

    Parameters
    ----------
    shape
        The input's, without the sample dimension.
    layers
        Applied one after another.
    loss, optimizer
        As for `Model.compile`.
    steps
        Number of training steps, each on a batch of its own.
    last_rows
        Number of samples in the last batch.
    levels
        The input has this many different values; 0 for normally distributed ones.
    """

    shape: tuple[int, ...]
    layers: tuple[Layer, ...]
    loss: str = MSE
    optimizer: Optimizer = SGD(0.1)
    steps: int = 1
    last_rows: int = BATCH
    levels: int = 0

    def rows(self, step: int) -> npt.NDArray[np.int64]:
        """The samples of a step's batch: neither contiguous nor in order."""
        count = self.last_rows if step == self.steps - 1 else BATCH
        return np.arange(step, BATCH * self.steps, self.steps)[::-1][:count].copy()

    def data(self, name: str, output: tuple[int, ...]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Samples and labels, for a model with outputs of shape `output`."""
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        count = BATCH * self.steps
        if self.levels:
            x = rng.integers(self.levels, size=(count, *self.shape)).astype(np.float32)
        else:
            x = rng.normal(size=(count, *self.shape)).astype(np.float32)
        if self.loss == SPARSE:
            return x, rng.integers(output[-1], size=count).astype(np.int32)
        y = rng.normal(size=(count, *output[1:]))
        if self.loss == ONE_HOT:  # soft labels: any probabilities
            y = np.exp(y) / np.exp(y).sum(-1, keepdims=True)
        return x, y.astype(np.float32)


def _biased(kind: str, **options: Any) -> Layer:
    """A layer whose bias is not zero."""
    return kind, {"bias_initializer": "normal", **options}


def conv2d(filters: int, kernel: Any, **options: Any) -> Layer:
    """A convolution."""
    return _biased("conv2d", filters=filters, kernel=kernel, **options)


def dense(units: int, **options: Any) -> Layer:
    """A dense layer."""
    return _biased("dense", units=units, **options)


def pool2d(kernel: Any, kind: str, **options: Any) -> Layer:
    """Pooling."""
    return "pool2d", {"kernel": kernel, "kind": kind, **options}


ACTIVATIONS = (None, "relu", "sigmoid", "tanh", "gelu", "softmax")
FLATTEN: Layer = ("flatten", {})
SOFTMAX: Layer = ("softmax", {})
IMAGE = (7, 8, 3)
CNN = (
    conv2d(4, 3, activation="tanh", padding=1),
    pool2d(2, "max"),
    FLATTEN,
    dense(10, activation="tanh"),
    dense(5),
)


def _conv2d_cases() -> dict[str, Case]:
    cases = {f"conv2d_{a}": Case(IMAGE, (conv2d(5, 3, activation=a),)) for a in ACTIVATIONS}
    for label, layer in {
        "stride_2": conv2d(5, 3, stride=2),
        "stride_2_1": conv2d(5, 3, stride=(2, 1)),
        "stride_2_padded": conv2d(5, 3, stride=2, padding=1, activation="tanh"),
        "padding_2": conv2d(5, 5, padding=2),
        "padding_1_2": conv2d(4, (3, 5), padding=(1, 2)),
        "padding_same": conv2d(4, (5, 3), padding="same", activation="sigmoid"),
        "kernel_2_5": conv2d(4, (2, 5), activation="relu"),
        "kernel_1": conv2d(4, 1),
        "kernel_whole": conv2d(4, (7, 8)),
        "stride_over_kernel": conv2d(4, 2, stride=3),
        "kernel_1_stride_2": conv2d(4, 1, stride=2, activation="tanh"),
        "no_bias": ("conv2d", {"filters": 4, "kernel": 3, "use_bias": False}),
        "no_bias_relu": (
            "conv2d",
            {"filters": 4, "kernel": 3, "use_bias": False, "activation": "relu"},
        ),
    }.items():
        cases[f"conv2d_{label}"] = Case(IMAGE, (layer,))
    for i, o in [(1, 16), (3, 1), (16, 16), (16, 17), (17, 3), (17, 17)]:
        layer = conv2d(o, 3, padding=1, activation="tanh")
        cases[f"conv2d_channels_{i}_{o}"] = Case((6, 5, i), (layer,))
    # Rows longer and shorter than a block of pixels; filters around a vector's eight lanes.
    for filters, width in [(1, 29), (6, 32), (7, 14), (8, 13), (8, 25), (9, 12)]:
        layer = conv2d(filters, 5, padding=(0, 2), activation="relu")
        cases[f"conv2d_{filters}_filters_width_{width}"] = Case((8, width, 1), (layer,))
    # Windows that lie in the padding but for one row or column, or are cut at both ends.
    for label, layer in {
        "stride_1": conv2d(4, 5, padding=4),
        "stride_2": conv2d(6, 5, padding=4, stride=2, activation="tanh"),
        "stride_3": conv2d(17, (4, 5), padding=(3, 4), stride=(3, 1)),
    }.items():
        cases[f"conv2d_mostly_padding_{label}"] = Case((3, 2, 3), (layer,))
    cases["conv2d_deep"] = Case(
        (9, 9, 2),
        (
            conv2d(4, 3, activation="relu"),
            conv2d(6, 3, padding=1, activation="gelu"),
            conv2d(3, (3, 1), stride=(1, 2), activation="sigmoid"),
        ),
    )
    return cases


def _pool2d_cases() -> dict[str, Case]:
    cases = {}
    for kind in ("max", "average"):
        for label, options in {
            "plain": {"kernel": 2},
            "overlapping": {"kernel": 3, "stride": 2},
            "overlapping_padded": {"kernel": 3, "stride": 1, "padding": 1},
            "not_square": {"kernel": (3, 2), "stride": (2, 3), "padding": (1, 0)},
            "stride_over_kernel": {"kernel": 2, "stride": 3},
            "whole": {"kernel": (7, 8)},
        }.items():
            cases[f"pool2d_{kind}_{label}"] = Case(IMAGE, (pool2d(kind=kind, **options),))
        for channels in (1, 16, 17):
            layer = pool2d(3, kind, stride=2, padding=1)
            cases[f"pool2d_{kind}_channels_{channels}"] = Case((6, 5, channels), (layer,))
    for label, options in {
        "overlapping_padded": {"kernel": 3, "stride": 1, "padding": 1},
        "not_square": {"kernel": (3, 2), "stride": (2, 3), "padding": (1, 0)},
    }.items():
        layer = pool2d(kind="average", count_include_pad=False, **options)
        cases[f"pool2d_average_without_padding_{label}"] = Case(IMAGE, (layer,))
    # Of equal values, the first one of the window takes the gradient.
    cases["pool2d_max_ties"] = Case(IMAGE, (pool2d(3, "max", stride=2, padding=1),), levels=3)
    return cases


def _dense_cases() -> dict[str, Case]:
    cases = {}
    for rank, shape in {2: (7,), 3: (4, 7)}.items():
        for a in ACTIVATIONS:
            layers = (dense(5, activation=a), dense(3))
            cases[f"dense_rank_{rank}_{a}"] = Case(shape, layers)
        layer: Layer = ("dense", {"units": 5, "use_bias": False, "activation": "tanh"})
        cases[f"dense_rank_{rank}_no_bias"] = Case(shape, (layer,))
    cases["dense_one_unit"] = Case((1,), (dense(1),))
    cases["dense_rank_4"] = Case((2, 3, 5), (dense(4, activation="sigmoid"),))
    cases["dense_wide"] = Case((130,), (dense(257, activation="relu"), dense(33)))
    return cases


def _layer_cases() -> dict[str, Case]:
    cases = {}
    for rank, shape in {2: (9,), 3: (4, 5), 4: (3, 4, 5)}.items():
        for kind in ("relu", "sigmoid", "tanh", "gelu", "softmax"):
            cases[f"{kind}_rank_{rank}"] = Case(shape, ((kind, {}),))
    cases["lenet"] = Case(
        (32, 32, 1),
        (
            conv2d(6, 5, activation="relu"),
            pool2d(2, "max"),
            conv2d(16, 5, activation="relu"),
            pool2d(2, "max"),
            FLATTEN,
            dense(120, activation="relu"),
            dense(84, activation="relu"),
            dense(10, activation="softmax"),
        ),
        SPARSE,
        steps=3,
        last_rows=4,
    )
    cases["flatten_order"] = Case((3, 4, 5), (FLATTEN, dense(4)))
    cases["flatten_alone"] = Case((3, 4), (FLATTEN,))
    cases["flatten_after_conv2d"] = Case(IMAGE, (conv2d(4, 3), FLATTEN, dense(4)))
    # The softmax's gradient is a full Jacobian's product: what follows mixes the classes.
    cases["softmax_within_rank_2"] = Case((7,), (dense(6), SOFTMAX, dense(4)))
    cases["softmax_within_rank_3"] = Case((3, 7), (dense(6), SOFTMAX, dense(4)))
    return cases


def _merge_cases() -> dict[str, Case]:
    """Tensors that several layers read, one of them the same tensor twice."""
    branches = (
        conv2d(4, 3, padding=1, activation="tanh"),
        conv2d(4, 1, of=0),
        ("add", {"of": [1, 2]}),
        ("concat", {"of": [3, 1, 0]}),
        pool2d(2, "max"),
        pool2d(2, "average", of=4),
        ("concat", {"of": [5, 6], "axis": 1}),
        ("relu", {}),
        ("add", {"of": [7, 8, 7]}),
        FLATTEN,
        dense(3),
    )
    return {
        "merge_branches": Case((6, 8, 2), branches, steps=3, optimizer=SGD(0.001, 0.9)),
        "merge_add": Case((5,), (dense(5), ("add", {"of": [0, 1]}), dense(3))),
        "merge_concat": Case((5,), (dense(4), ("concat", {"of": [0, 1, 0]}), dense(3))),
    }


def lstm(hidden: int, **options: Any) -> Layer:
    """Steps of a recurrent layer."""
    return _biased("lstm", hidden=hidden, **options)


def _recurrent_cases() -> dict[str, Case]:
    """Units and channels around a vector's sixteen lanes; with and without a state."""
    cases = {}
    for steps, d, hidden in [(1, 3, 5), (1, 17, 18), (4, 6, 5), (5, 16, 16), (4, 19, 33)]:
        cases[f"lstm_{steps}_{d}_{hidden}"] = Case((steps, d), (lstm(hidden),))
    unrolled = (lstm(18), lstm(18, after=0), lstm(7, of=1), lstm(7, of=2, after=2))
    joined: Layer = ("concat", {"of": [3, 4], "axis": 1})
    cases["lstm_unrolled"] = Case(
        (2, 18), (*unrolled, joined, FLATTEN, dense(3)), steps=2, last_rows=4
    )
    attention: Layer = ("luong_attention", {"units": 5, "of": [1, 2]})
    cases["luong_attention"] = Case((4, 6), (dense(7, activation="tanh"), lstm(3), attention))
    attention = ("luong_attention", {"units": 18, "of": [1, 1]})
    cases["luong_attention_of_itself"] = Case((1, 19), (dense(17), attention, dense(3)))
    return cases


def _loss_cases() -> dict[str, Case]:
    layers = (dense(8, activation="tanh"), dense(5))
    cases = {
        "softmax_sparse": Case((7,), (*layers, SOFTMAX), SPARSE),
        "softmax_fused_activation_sparse": Case((7,), (dense(5, activation="softmax"),), SPARSE),
        "logits_sparse": Case((7,), layers, SPARSE),
        "softmax_one_hot": Case((7,), (*layers, SOFTMAX), ONE_HOT),
        "logits_one_hot": Case((7,), layers, ONE_HOT),
        "mean_squared_error_rank_4": Case((4, 4, 2), (conv2d(3, 2),)),
    }
    for label, case in {
        "sparse": Case((7,), (*layers, SOFTMAX), SPARSE, steps=2, last_rows=1),
        "one_hot": Case((7,), layers, ONE_HOT, steps=2, last_rows=BATCH - 1),
        "mean_squared_error": Case((7,), layers, MSE, steps=2, last_rows=4),
        # Padding's pixels are zero, but what layers make of them is not.
        "cnn": Case(IMAGE, (*CNN, SOFTMAX), SPARSE, steps=3, last_rows=2),
    }.items():
        cases[f"short_batch_{label}"] = case
    return cases


def _dropout_cases() -> dict[str, Case]:
    twice = (("dropout", {"rate": 0.3}), dense(900), ("dropout", {"rate": 0.3}))
    image = (conv2d(8, 3), ("dropout", {"rate": 0.75}), conv2d(2, 3))
    return {
        "dropout_rank_2": Case((900,), twice, steps=3),
        "dropout_rank_4": Case((20, 20, 2), image, steps=3),
        "dropout_none": Case((9,), (("dropout", {"rate": 0.0}),)),
    }


def _optimizer_cases() -> dict[str, Case]:
    optimizers = {
        "sgd": SGD(0.1),
        "sgd_decay": SGD(0.1, weight_decay=0.1),
        "sgd_momentum": SGD(0.1, momentum=0.9),
        "sgd_momentum_decay": SGD(0.1, momentum=0.9, weight_decay=0.1),
        "sgd_nesterov": SGD(0.1, momentum=0.9, nesterov=True),
        "sgd_nesterov_decay": SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
        "adam": Adam(0.01),
        "adam_betas": Adam(0.01, beta1=0.7, beta2=0.95, epsilon=1e-3),
        "adam_decay": Adam(0.01, weight_decay=0.1),
        "adamw": AdamW(0.01),
        "adamw_decay": AdamW(0.01, weight_decay=0.5),
    }
    return {
        f"optimizer_{name}": Case(IMAGE, CNN, SPARSE, optimizer, steps=3)
        for name, optimizer in optimizers.items()
    }


CASES: dict[str, Case] = (
    _conv2d_cases()
    | _pool2d_cases()
    | _dense_cases()
    | _layer_cases()
    | _merge_cases()
    | _recurrent_cases()
    | _loss_cases()
    | _dropout_cases()
    | _optimizer_cases()
)

"""The networks that are compared with PyTorch: the worker and the test build the same ones."""

from __future__ import annotations

from typing import Any

from pytorch_arithmetic import arithmetic_cases
from pytorch_attention import attention_cases
from pytorch_images import image_cases
from pytorch_layers import (
    BATCH,
    BINARY,
    HUBER,
    L1,
    MSE,
    ONE_HOT,
    SPARSE,
    Case,
    Layer,
    biased,
    conv2d,
    dense,
    lstm,
    pool2d,
)

from flexlegion.objective.losses import (
    CategoricalCrossentropy,
    Huber,
    SparseCategoricalCrossentropy,
)
from flexlegion.objective.optimizers import SGD, Adam, AdamW, LazyAdam

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
        "groups": conv2d(6, 3, padding=1, groups=3),
        "groups_relu": conv2d(9, (3, 2), stride=(2, 1), groups=3, activation="relu"),
        "no_bias": ("conv2d", {"filters": 4, "kernel": 3, "use_bias": False}),
        "no_bias_relu": (
            "conv2d",
            {"filters": 4, "kernel": 3, "use_bias": False, "activation": "relu"},
        ),
    }.items():
        cases[f"conv2d_{label}"] = Case(IMAGE, (layer,))
    for groups, o in [(2, 12), (16, 16), (16, 32)]:
        layer = conv2d(o, 3, padding=1, activation="tanh", groups=groups)
        cases[f"conv2d_{groups}_groups_{o}_filters"] = Case((6, 5, 16), (layer,))
    for label, layer in {
        "3": conv2d(24, 3, padding=1, groups=24),
        "5_stride_2": conv2d(24, 5, stride=2, padding=2, groups=24),
    }.items():
        cases[f"conv2d_depthwise_{label}"] = Case((9, 10, 24), (layer,))
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
    # Large enough that GPUs compute what no whole vectors hold as products of their own.
    layer = ("dense", {"units": 1029, "use_bias": False})
    cases["dense_odd_extents"] = Case((180, 1031), (layer,))
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


def _normalization_cases() -> dict[str, Case]:
    """Several steps, so that gamma and beta are not what they begin with; the last batch short.

    What batch normalisation reads has no bias, or an activation after it: otherwise the bias would
    have no gradient.
    """
    cases = {}
    some_steps: dict[str, Any] = {"steps": 3, "last_rows": 4}
    for label, options in {
        "plain": {},
        "relu": {"activation": "relu"},
        "options": {"activation": "relu", "epsilon": 1e-2, "momentum": 0.7},
        "relu6": {"activation": "relu6"},
        "silu": {"activation": "silu"},
        "hardswish": {"activation": "hardswish"},
    }.items():
        layer: Layer = ("batch_norm", options)
        cases[f"batch_norm_{label}"] = Case(IMAGE, (layer, conv2d(4, 2)), **some_steps)
    for channels in (1, 16, 19):
        layers = (conv2d(channels, 3, use_bias=False), ("batch_norm", {"activation": "relu"}))
        last = conv2d(2, 2)
        cases[f"batch_norm_channels_{channels}"] = Case((9, 8, 2), (*layers, last), **some_steps)
    for label, options in {"residual": {}, "residual_relu": {"activation": "relu"}}.items():
        residuals = (
            conv2d(5, 3, padding=1, use_bias=False),
            conv2d(5, 1, of=0, activation="tanh"),
            ("batch_norm", {"of": 1, "residual": 2, **options}),
            conv2d(5, 1, activation="tanh"),
            ("batch_norm", {"residual": 4, **options}),  # x itself
            ("add", {"of": [5, 2]}),
        )
        cases[f"batch_norm_{label}"] = Case(IMAGE, (*residuals, conv2d(4, 2)), **some_steps)
    for rank, shape in {2: (9,), 3: (4, 5)}.items():
        for kind in ("batch_norm", "layer_norm"):
            inner = dense(4, activation="tanh")
            layers = ((kind, {}), inner, (kind, {"epsilon": 1e-2}), dense(3))
            cases[f"{kind}_rank_{rank}"] = Case(shape, layers, **some_steps)
    # Two readers beside the normalisation's own.
    branches = (
        conv2d(4, 3, padding=1, use_bias=False),
        ("batch_norm", {"activation": "relu"}),
        ("layer_norm", {"of": 1}),
        ("add", {"of": [1, 2, 3]}),
        ("relu", {}),
        ("batch_norm", {}),
        FLATTEN,
        dense(3),
    )
    cases["normalization_branches"] = Case((5, 6, 2), branches, **some_steps)
    return cases


def _shape_cases() -> dict[str, Case]:
    """Elements that move; what follows tells their order."""
    moves: dict[str, Layer] = {
        "reshape_joined": ("reshape", {"shape": (12, 5)}),
        "reshape_cut": ("reshape", {"shape": (3, 2, 2, 5)}),
        "reshape_other_rows": ("reshape", {"shape": (2, 30)}),
        "transpose": ("transpose", {"permutation": (0, 2, 1, 3)}),
        "transpose_last": ("transpose", {"permutation": (0, 3, 1, 2)}),
        "transpose_rows": ("transpose", {"permutation": (0, 1, 3, 2)}),
        "rearrange": (
            "rearrange",
            {"extents": (3, 2, 2, 5), "order": (1, 0, 3, 2), "shape": (6, 10)},
        ),
        "rearrange_split": (
            "rearrange",
            {"extents": (3, 2, 2, 5), "order": (1, 3, 0, 2), "shape": (2, 5, 6)},
        ),
    }
    cases = {
        name: Case((3, 4, 5), (("tanh", {}), layer, FLATTEN, dense(4)))
        for name, layer in moves.items()
    }
    parts: tuple[Layer, ...] = (
        dense(6),
        ("split", {"sizes": (2, 4)}),
        ("concat", {"of": [3, 2, 3]}),
        ("split", {"sizes": (1, 3), "axis": 1}),
        ("concat", {"of": [6, 5, 6], "axis": 1}),
        FLATTEN,
        dense(3),
    )
    cases["split"] = Case((4, 5), parts)
    cases["multiply"] = Case((5,), (dense(5), ("multiply", {"of": [0, 1]}), dense(3)))
    cases["multiply_square"] = Case((5,), (dense(5), ("multiply", {"of": [1, 1]}), dense(3)))
    return cases


def _conv1d_cases() -> dict[str, Case]:
    """One-dimensional images."""
    cases = {}
    for label, layer in {
        "plain": biased("conv1d", filters=5, kernel=3),
        "relu": biased("conv1d", filters=5, kernel=3, padding=1, activation="relu"),
        "stride_2": biased("conv1d", filters=16, kernel=4, stride=2, padding=2),
        "no_bias": ("conv1d", {"filters": 4, "kernel": 1, "use_bias": False}),
    }.items():
        cases[f"conv1d_{label}"] = Case((11, 3), (layer, ("relu", {}), dense(2)))
    for kind in ("max", "average"):
        layer = ("pool1d", {"kernel": 3, "stride": 2, "padding": 1, "kind": kind})
        cases[f"pool1d_{kind}"] = Case((9, 4), (layer,))
    layers: tuple[Layer, ...] = (
        biased("conv1d", filters=3, kernel=3, padding=1),
        ("concat", {"of": [0, 1], "axis": 1}),
        ("concat", {"of": [2, 2]}),
        SOFTMAX,
        dense(2),
    )
    cases["concat_sequences"] = Case((7, 3), layers)
    return cases


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
        "mean_absolute_error": Case((4, 4, 2), (conv2d(3, 2),), L1),
        "huber": Case((7,), layers, HUBER),
        "huber_delta": Case((7,), layers, Huber(0.3)),
        "binary_logits": Case((7,), layers, BINARY),
        "binary_sigmoid": Case((7,), (*layers, ("sigmoid", {})), BINARY),
        "binary_fused_sigmoid": Case((7,), (dense(5, activation="sigmoid"),), BINARY),
        "binary_rank_3": Case((3, 7), layers, BINARY),
        "smoothed_sparse": Case(
            (7,), layers, SparseCategoricalCrossentropy(label_smoothing=0.2), ignored=0.3
        ),
        "smoothed_softmax": Case(
            (3, 7), (*layers, SOFTMAX), SparseCategoricalCrossentropy(0.1), ignored=0.3
        ),
        "smoothed_one_hot": Case((7,), layers, CategoricalCrossentropy(label_smoothing=0.3)),
    }
    for label, case in {
        "sparse": Case((7,), (*layers, SOFTMAX), SPARSE, steps=2, last_rows=1),
        "one_hot": Case((7,), layers, ONE_HOT, steps=2, last_rows=BATCH - 1),
        "mean_squared_error": Case((7,), layers, MSE, steps=2, last_rows=4),
        "mean_absolute_error": Case((7,), layers, L1, steps=2, last_rows=4),
        "binary": Case((7,), layers, BINARY, steps=2, last_rows=4),
        # Padding's pixels are zero, but what layers make of them is not.
        "cnn": Case(IMAGE, (*CNN, SOFTMAX), SPARSE, steps=3, last_rows=2),
    }.items():
        cases[f"short_batch_{label}"] = case
    return cases


def _sequence_cases() -> dict[str, Case]:
    """Tokens in, and a label for each step out, some of which do not count."""
    tokens: Layer = ("embedding", {"vocabulary": 11, "units": 6})
    some_steps: Layer = ("embedding", {"vocabulary": 11, "units": 6, "start": 2, "steps": 3})
    # PyTorch adds epsilon to roots that are not corrected yet: that is the same if it is none.
    lazy_adam = LazyAdam(0.01, epsilon=1e-14)
    positions: Layer = ("position_embedding", {})
    cases = {
        "embedding": Case((5,), (tokens,), vocabulary=11),
        "embedding_one_token": Case((), (tokens, dense(4)), vocabulary=11, steps=2, last_rows=4),
        "embedding_rank_3": Case((3, 2), (tokens,), vocabulary=11, steps=2),
        "embedding_momentum": Case((5,), (tokens, dense(4)), MSE, SGD(0.1, 0.9), 3, vocabulary=11),
        "embedding_adam": Case((), (tokens, dense(4)), MSE, Adam(0.01), 3, vocabulary=11),
        "embedding_lazy_adam": Case(
            (), (tokens, dense(4)), MSE, lazy_adam, 3, last_rows=4, vocabulary=11
        ),
        "embedding_lazy_adam_some_steps": Case(
            (7,), (some_steps, dense(4)), SPARSE, lazy_adam, 3, 2, vocabulary=11, ignored=0.4
        ),
        "embedding_few_tokens": Case((5,), (tokens, dense(4)), vocabulary=3, steps=2, last_rows=4),
        "embedding_some_steps": Case((7,), (some_steps, dense(4)), vocabulary=11),
        "position_embedding": Case((5, 6), (positions,)),
        # What it reads and the next layer's gradient have another reader.
        "position_embedding_within": Case(
            (5, 6), (dense(6), positions, ("add", {"of": [1, 2]}), dense(4)), steps=3
        ),
    }
    logits = (dense(8, activation="tanh"), dense(13))
    for label, case in {
        "sparse": Case((5, 7), logits, SPARSE, steps=2, last_rows=4),
        "sparse_ignored": Case((5, 7), logits, SPARSE, steps=3, last_rows=4, ignored=0.4),
        "sparse_softmax": Case((5, 7), (*logits, SOFTMAX), SPARSE, ignored=0.4),
        "one_hot": Case((5, 7), logits, ONE_HOT, steps=2, last_rows=4),
        "large": Case((3, 20), (dense(10007),), SPARSE, ignored=0.2),
        "clipped": Case(
            (5,), (tokens, *logits), SPARSE, SGD(0.1, clip_norm=0.1), 3, vocabulary=11, ignored=0.4
        ),
        "large_one_hot": Case((3, 20), (dense(5003),), ONE_HOT),
        "model": Case(
            (5,), (tokens, positions, *logits), SPARSE, Adam(0.01), 3, vocabulary=11, ignored=0.4
        ),
    }.items():
        cases[f"sequence_loss_{label}"] = case
    cases["logits_sparse_ignored"] = Case((7,), logits, SPARSE, steps=2, ignored=0.4)
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
        "sgd_clipped": SGD(0.1, momentum=0.9, clip_norm=0.3),
        "lazy_adam": LazyAdam(0.01, weight_decay=0.1),  # without a table, it is Adam
        "adam_clipped": Adam(0.01, clip_norm=0.2),
        "sgd_not_clipped": SGD(0.1, clip_norm=1e3),
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
    | _normalization_cases()
    | _shape_cases()
    | _conv1d_cases()
    | image_cases()
    | attention_cases()
    | _recurrent_cases()
    | _loss_cases()
    | _sequence_cases()
    | _dropout_cases()
    | _optimizer_cases()
    | arithmetic_cases()
)

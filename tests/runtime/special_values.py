"""Models whose inputs are corners of formulas, ties, NaN, infinities, zeros of both signs.

Each model subtracts a parameter of zeros from its input, so that the parameter's gradient is that
of what follows. `test_special_values.py` has what PyTorch makes of the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion import Model
from flexlegion.graph.tensor import Tensor
from flexlegion.ops.formula import FUNCTIONS

Floats = npt.NDArray[np.float32]
Layers = Callable[[Any, Tensor], Tensor]

NAN, INF = float("nan"), float("inf")
POINTS = np.array(
    [
        *(0.0, -0.0, 0.5, -0.5, 1, -1, 2, -2, 3, -3, 6, -6, 10, -10, 30, -30, 100, -100),
        *(1e-30, -1e-30, 1e38, INF, -INF, NAN),
    ],
    np.float32,
)

# Element-wise, by name.
ELEMENTWISE: dict[str, Layers] = {
    **{name: lambda net, x, f=name: net.elementwise(f"{f}(x0)", [x]) for name in FUNCTIONS},
    **{
        f"layer_{name}": lambda net, x, f=name: net.unary(x, f)
        for name in ("relu", "sigmoid", "tanh", "gelu")
    },
    "clamp": lambda net, x: net.elementwise("clamp(x0, -1, 3)", [x]),
    "clamp_below": lambda net, x: net.elementwise("clamp(x0, -1, 1e999)", [x]),
    "hardtanh_of_bounds": lambda net, x: net.elementwise("hardtanh(x0, -2, 6)", [x]),
    "maximum": lambda net, x: net.elementwise("maximum(x0, 1)", [x]),
    "minimum": lambda net, x: net.elementwise("minimum(x0, 1)", [x]),
    "where": lambda net, x: net.elementwise("where(x0 > 1, x0, 2 * x0)", [x]),
    "less": lambda net, x: net.elementwise("(x0 < 1) + 2 * (x0 <= 1) + 4 * (x0 == 1)", [x]),
    "cube": lambda net, x: net.elementwise("x0 ** 3", [x]),
    "power": lambda net, x: net.elementwise("x0 ** 2.5", [x]),
    "quotient": lambda net, x: net.elementwise("2 / x0", [x]),
    "elu_of_slope": lambda net, x: net.elu(x, 0.3),
    "leaky_relu_of_slope": lambda net, x: net.leaky_relu(x, 0.3),
    "prelu": lambda net, x: net.prelu(x, 0.3, channels=1, trainable=False),
}

# Layers that treat the last dimension of (24, 1) as channels, of which there is one.
OF_CHANNELS: dict[str, Layers] = {
    **{
        f"dense_{a}": lambda net, x, a=a: net.dense(
            x, 1, activation=a, kernel_initializer="ones", name=f"dense_{a}"
        )
        for a in ("relu", "sigmoid", "tanh")
    },
    **{
        f"conv1d_{a}": lambda net, x, a=a: net.conv1d(
            x, 1, 1, activation=a, kernel_initializer="ones", name=f"conv1d_{a}"
        )
        for a in ("relu", "sigmoid", "tanh")
    },
    **{
        f"batch_norm_{a}": lambda net, x, a=a: net.batch_norm(x, a, 1e-30, name=f"batch_norm_{a}")
        for a in ("relu", "relu6", "silu", "hardswish")
    },
    "max_pool": lambda net, x: net.pool1d(x, 3, 1, 1),
    "average_pool": lambda net, x: net.pool1d(x, 3, 1, 1, kind="average"),
}

# Rows of four: ordinary ones, ties, and special values by themselves.
ROWS = np.array(
    [
        [0.3, -1.2, 2.5, 0.7],
        [1.0, 1.0, 1.0, -1.0],
        [0.0, 0.0, 0.0, 0.0],
        [500.0, 0.0, -1000.0, 499.0],
        [NAN, 1.0, 2.0, 3.0],
        [3.0, 2.0, NAN, 1.0],
        [INF, 1.0, 2.0, 3.0],
        [-INF, 1.0, 2.0, 2.0],
        [-INF, -INF, -INF, -INF],
        [1e-30, -1e-30, 0.0, -0.0],
        [-100.0, 0.0, -95.0, -200.0],
        [2.0, 2.0, 2.0, 2.0],
    ],
    np.float32,
)
# Of a sample, 48 numbers each; the last extent is a row's.
SHAPES = ((48,), (12, 4), (2, 6, 4), (2, 3, 2, 4))


def over_rows(shape: tuple[int, ...]) -> dict[str, Layers]:
    """Layers over the last dimension, of samples of a shape; and over all dimensions."""
    every = tuple(range(1, len(shape) + 1))
    found: dict[str, Layers] = {
        "softmax": lambda net, x: net.softmax(x),
        "log_softmax": lambda net, x: net.log_softmax(x),
        "layer_norm": lambda net, x: net.layer_norm(x),
        "l2_normalize": lambda net, x: net.l2_normalize(x),
    }
    for kind in ("mean", "sum", "max", "amax"):
        found[f"{kind}_last"] = lambda net, x, k=kind: net.reduce(x, k, -1)
        found[f"{kind}_kept"] = lambda net, x, k=kind: net.reduce(x, k, len(shape), keepdims=True)
        found[f"{kind}_first"] = lambda net, x, k=kind: net.reduce(x, k, 1, keepdims=True)
        found[f"{kind}_all"] = lambda net, x, k=kind: net.reduce(x, k, every)
    return found


# Losses of outputs of these shapes of a sample; of the shape (), one number a sample.
LOSS_SHAPES = ((), (1,), (3,), (2, 3), (2, 1, 3), (2, 1, 3, 1))
LOSSES = ("mean_squared_error", "mean_absolute_error", "huber", "logits", "probabilities")
SAMPLES = 5


def losses_model(build: Callable[..., Any]) -> tuple[Model, dict[str, Any]]:
    """A model with an output of each shape for each loss; and the losses by their names.

    Each output is its input less a parameter of zeros.
    """
    net = build(SAMPLES)
    outputs, losses = [], {}
    for shape in LOSS_SHAPES:
        for loss in LOSSES:
            name = f"{loss}_{len(shape)}_{'x'.join(map(str, shape))}"
            x = net.input(shape or (1,), name=f"x_{name}")
            w = net.parameter(shape or (1,), np.zeros(shape or (1,), np.float32), f"w_{name}")
            if shape:
                outputs.append(net.subtract(x, w, name=name))
            else:
                outputs.append(net.reduce(net.subtract(x, w), "sum", 1, name=name))
            losses[name] = loss
    net.set_outputs(outputs)
    return net, losses


def loss_data(name: str) -> tuple[Floats, Floats]:
    """Outputs and labels of a loss."""
    loss, rank, extents = name.rsplit("_", 2)
    shape = tuple(map(int, extents.split("x"))) if int(rank) else ()
    rng = np.random.default_rng(len(name))
    x = rng.normal(size=(SAMPLES, *shape)) * 2
    y = rng.random((SAMPLES, *shape))
    if loss == "probabilities":
        x = rng.random((SAMPLES, *shape))
        x.reshape(-1)[:2] = 0, 1  # where a logarithm is bounded
    else:  # corners of |x| and of Huber's loss
        x.reshape(-1)[:3] = y.reshape(-1)[:3] + np.array([0, 1, -1])
    return x.astype(np.float32), y.astype(np.float32)

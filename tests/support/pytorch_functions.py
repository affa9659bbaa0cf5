"""The functions of formulas in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": F.hardtanh,
    "relu6": F.relu6,
    "elu": F.elu,
    "selu": F.selu,
    "leaky_relu": F.leaky_relu,
    "softplus": lambda x: F.softplus(x, threshold=1000),
    "log_sigmoid": F.logsigmoid,
    "softsign": F.softsign,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "square": torch.square,
    "reciprocal": torch.reciprocal,
    "neg": torch.neg,
    "abs": torch.abs,
    "sign": torch.sign,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "sin": torch.sin,
    "cos": torch.cos,
    "atan": torch.atan,
    "asin": torch.asin,
    "acos": torch.acos,
    "erf": torch.erf,
    "detach": lambda x: x.detach() + 0 * x,  # whose gradient is 0, and not missing
}


def evaluated(formula: str, inputs: list[torch.Tensor]) -> torch.Tensor:
    """A formula as Python and PyTorch compute it."""

    def tensor(x: Any) -> torch.Tensor:
        return torch.as_tensor(x, dtype=torch.float64)

    names: dict[str, Any] = {name: FUNCTIONS[name] for name in FUNCTIONS}
    names |= {
        "where": lambda c, a, b: torch.where(tensor(c) != 0, tensor(a), tensor(b)),
        "minimum": lambda a, b: torch.minimum(tensor(a), tensor(b)),
        "maximum": lambda a, b: torch.maximum(tensor(a), tensor(b)),
        "clamp": lambda x, low, high: torch.clamp(x, tensor(low), tensor(high)),
    }
    rank = max(x.ndim for x in inputs)
    for i, x in enumerate(inputs):  # samples go with samples
        names[f"x{i}"] = x.reshape(len(x), *[1] * (rank - x.ndim), *x.shape[1:])
    return tensor(eval(formula, {"__builtins__": {}}, names))

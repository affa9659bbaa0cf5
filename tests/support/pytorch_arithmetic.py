"""Element-wise arithmetic, reductions and normalisations, for PyTorch."""

from __future__ import annotations

import numpy as np
from pytorch_layers import Case, Layer, conv2d, dense

from flexlegion.ops.formula import FUNCTIONS

POSITIVE = ("log", "log1p", "sqrt", "rsqrt", "reciprocal")
WITHIN_ONE = ("asin", "acos")


def elementwise(formula: str, *of: int) -> Layer:
    """A formula over earlier tensors."""
    return "elementwise", {"formula": formula, "of": list(of or (-1,))}


def arithmetic_cases() -> dict[str, Case]:
    """Every function, broadcasting in every dimension, numbers, integers, parameters."""
    cases = {}
    for name in FUNCTIONS:
        spread = "abs(x0) * 2 + 0.3" if name in POSITIVE else "x0 * 3"
        spread = "x0" if name.startswith("exp") else spread
        spread = "tanh(x0) * 0.9" if name in WITHIN_ONE else spread
        layers = (elementwise(spread), elementwise(f"{name}(x0)"))
        cases[f"function_{name}"] = Case((4, 5), layers)
    for name in ("silu", "hardswish", "leaky_relu"):
        cases[f"activation_{name}"] = Case(
            (6, 5, 3), (conv2d(4, 3, activation=name), dense(3, activation=name))
        )
    for label, formula in {
        "arithmetic": "(x0 - x1) * x1 / (abs(x0) + 2) - -x0 / 4 + 1.5",
        "same_twice": "x0 * x0 + x1 - x0",
        "powers": "x0**2 + x1**3 + x0**4 + (abs(x0) + 1)**-0.5 + (abs(x1) + 1)**1.7",
        "power": "(abs(x0) + 0.5) ** x1",
        "extremes": "minimum(x0, x1) + maximum(x0, 0.3) * clamp(x1, -0.5, x0)",
        "choices": "where(x0 > x1, x0 * x1, exp(x1)) + (x0 <= 0) * x1 + (x0 != 0) + (x1 == x0)",
        "angles": "sin(x0 * 40) * x1 + cos(x1)",
    }.items():
        layers = (dense(5), elementwise(formula, 0, 1))
        cases[f"formula_{label}"] = Case((4, 5), layers)
    # Beyond what the vectorised sines are made for.
    large = elementwise("sin(x0 * 16384) * x0 + cos(x0 * 8192)")
    cases["formula_large_angles"] = Case((4, 5), (large,), levels=5)
    image = (5, 6, 7)
    scale: Layer = ("parameter", {"shape": (7,)})
    rows: Layer = ("parameter", {"shape": (5, 1, 1)})
    one: Layer = ("parameter", {"shape": (), "initializer": "ones"})
    counts: Layer = ("constant", {"array": np.arange(42).reshape(6, 7) - 20})
    channels: tuple[Layer, ...] = (("reshape", {"shape": (210,)}), dense(7))
    cases |= {
        "broadcast_channels": Case(image, (scale, elementwise("x0 * x1 + x1", 0, 1)), steps=2),
        "broadcast_rows": Case(image, (rows, elementwise("sigmoid(x1 + x0) * x1", 0, 1))),
        "broadcast_number": Case(image, (one, elementwise("x0 * x1", 0, 1)), steps=2),
        "broadcast_constant": Case(image, (counts, elementwise("x0 * x1 - x1", 0, 1))),
        "broadcast_several": Case(
            image, (scale, rows, counts, elementwise("x0 * x1 + x2 * x3", 0, 1, 2, 3))
        ),
        "broadcast_samples": Case(image, (*channels, elementwise("x0 * sigmoid(x1)", 0, 2))),
        "broadcast_both": Case(
            image,
            (
                ("parameter", {"shape": (5, 1, 7)}),
                rows,
                elementwise("x0 / (2 + x1)", 2, 1),
                elementwise("x0 * x1", 3, 0),
            ),
        ),
        "broadcast_to_samples": Case(
            (4, 3),
            (
                ("parameter", {"shape": (1, 3)}),
                ("expand", {"shape": (4, 3)}),
                elementwise("x0 + x1", 0, 2),
            ),
        ),
        "arithmetic_layers": Case(
            (4, 5),
            (
                ("subtract", {"of": [0, 0.5]}),
                ("divide", {"of": [0, 2.0]}),
                ("add", {"of": [0, 1, 1.5]}),
                ("multiply", {"of": [2, 3, -0.5]}),
            ),
        ),
        "tokens": Case((5,), (elementwise("x0 * 0.5 - 1"), dense(4)), vocabulary=9),
    }
    for kind in ("mean", "sum", "max"):
        for label, axes, keepdims in [
            ("rows", (1,), False),
            ("channels", (-1,), True),
            ("plane", (1, 2), False),
            ("outer", (1, 3), True),
            ("all", (1, 2, 3), False),
        ]:
            layers = (("reduce", {"kind": kind, "axes": axes, "keepdims": keepdims}),)
            more = (("reshape", {"shape": (1,)}) if label == "all" else ("flatten", {}), dense(3))
            levels = 4 if kind == "max" else 0
            cases[f"reduce_{kind}_{label}"] = Case(image, (*layers, *more), levels=levels)
    for label, norm in {
        "rms": ("rms_norm", {}),
        "rms_epsilon": ("rms_norm", {"epsilon": 1e-2}),
        "no_bias": ("layer_norm", {"use_bias": False}),
        "no_scale": ("layer_norm", {"use_scale": False}),
        "plain": ("layer_norm", {"use_scale": False, "use_bias": False}),
    }.items():
        layers = (norm, dense(4, activation="tanh"), norm, dense(3))
        cases[f"norm_{label}"] = Case((4, 5), layers, steps=3, last_rows=4)
    for label, shape, channels, options in [
        ("plain", (5, 4), 6, {"groups": 3}),
        ("instance", (5, 4), 5, {"groups": 5, "epsilon": 1e-2}),
        ("whole", (3,), 4, {"groups": 1, "use_bias": False}),
        ("no_scale", (2, 3), 8, {"groups": 2, "use_scale": False}),
    ]:
        norm = ("group_norm", options)
        # Without a bias, which would have no gradient where a channel is a group.
        first: Layer = ("dense", {"units": channels, "use_bias": False})
        layers = (first, norm, ("tanh", {}), norm, ("flatten", {}), dense(3))
        cases[f"group_norm_{label}"] = Case((*shape, 2), layers, steps=3, last_rows=4)
    cases["drop_path"] = Case((4, 3), (("drop_path", {"rate": 0.5}), dense(2)), steps=3)
    return cases

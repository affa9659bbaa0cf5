"""Attention and rotary embedding for PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
from pytorch_layers import Case, Layer, dense


def _plain_cases() -> dict[str, Case]:
    cases = {}
    for causal in (False, True):
        # A bias of the keys would have no gradient: softmax does not see it.
        keys: Layer = ("dense", {"units": 3, "of": 0, "use_bias": False})
        projected = (dense(3), keys, dense(4, of=0))
        attention: Layer = ("multi_head_attention", {"of": [1, 2, 3], "causal": causal})
        cases[f"attention_{causal}"] = Case((7, 2, 5), (*projected, attention, dense(3)))
        # One tensor three times, and more positions than the kernel takes at once.
        itself: Layer = ("multi_head_attention", {"of": [0, 0, 0], "causal": causal})
        cases[f"attention_itself_{causal}"] = Case((70, 2, 3), (itself,))
    matrices = (dense(5), dense(7, of=0), ("matmul", {"of": [1, 2]}), dense(3))
    cases["matmul_rank_3"] = Case((5, 6), matrices)
    cases["matmul_rank_4"] = Case((3, 5, 6), matrices)
    cases["matmul_itself"] = Case((2, 4, 4), (("matmul", {"of": [0, 0]}),))
    return cases


def _grouped(queries: int, keys: int, *bias: Layer, **options: Any) -> Case:
    """Attention of four heads with two groups of keys, over an input (7, 2, 5)."""
    layers = (
        dense(16 * queries // 14),
        ("reshape", {"shape": (queries, 4, 4)}),
        ("dense", {"units": 8 * keys // 14, "of": 0, "use_bias": False}),
        ("reshape", {"shape": (keys, 2, 4)}),
        dense(6 * keys // 14, of=0),
        ("reshape", {"shape": (keys, 2, 3)}),
        *bias,
    )
    if bias:
        options["bias"] = len(layers)
    return Case((7, 2, 5), (*layers, ("attention", {"of": [2, 4, 6], **options}), dense(2)))


def _grouped_cases() -> dict[str, Case]:
    """Also positions before and after each other's last, and biases."""
    flat: Layer = ("flatten", {"of": 0})
    of_scores: tuple[Layer, ...] = (
        dense(14, of=0),
        ("reshape", {"shape": (7, 4, 7)}),
        ("transpose", {"permutation": (0, 2, 1, 3)}),
    )
    cases = {
        "plain": _grouped(7, 7),
        "causal": _grouped(7, 7, causal=True),
        "scaled": _grouped(7, 7, scale=0.2),
        "more_keys": _grouped(7, 14),
        "more_keys_causal": _grouped(7, 14, causal=True),
        "more_queries_causal": _grouped(14, 7, causal=True),
        "bias": _grouped(7, 7, *of_scores, scale=1.0),
        "bias_of_keys": _grouped(
            7, 14, flat, dense(14), ("reshape", {"shape": (1, 1, 14)}), causal=True
        ),
        "bias_of_heads": _grouped(14, 7, flat, dense(28), ("reshape", {"shape": (4, 1, 7)})),
    }
    return {f"attention_grouped_{name}": case for name, case in cases.items()}


def _rotary_cases() -> dict[str, Case]:
    """The angles are of the samples, which are themselves without a gradient then."""
    parts: tuple[Layer, ...] = (("split", {"sizes": (1, 1, 2), "axis": 2}), dense(6, of=3))
    cases = {}
    for interleaved in (False, True):
        rotary: Layer = ("rotary", {"of": [4, 1, 2], "interleaved": interleaved})
        layers = (*parts, rotary, ("add", {"of": [4, 5]}), dense(3))
        cases[f"rotary_{'pairs' if interleaved else 'halves'}"] = Case(
            (5, 4, 6), layers, with_gradient=False
        )
    return cases


def _masked_cases() -> dict[str, Case]:
    """A mask of constants, by which position 4 attends to all alike; weights that are dropped.

    The values of the latter are such that the output are the weights themselves.
    """
    mask = np.where(np.arange(49).reshape(1, 7, 7) % 3 == 0, -1e30, 0.0)
    mask[:, 4] = -1e30
    keys: Layer = ("dense", {"units": 3, "of": 0, "use_bias": False})
    masked: tuple[Layer, ...] = (
        dense(3),
        keys,
        dense(4, of=0),
        ("constant", {"array": mask}),
        ("attention", {"of": [1, 2, 3], "bias": 4}),
    )
    values: tuple[Layer, ...] = (
        ("constant", {"array": np.eye(7).reshape(7, 1, 7)}),
        ("expand", {"shape": (7, 2, 7)}),
    )
    dropped: Layer = ("attention", {"of": [1, 2, 4], "dropout": 0.4})
    return {
        "attention_masked": Case((7, 2, 5), (*masked, dense(3))),
        "attention_dropped": Case((7, 2, 5), (dense(3), keys, *values, dropped, dense(3)), steps=3),
    }


def attention_cases() -> dict[str, Case]:
    """All of them."""
    return _plain_cases() | _grouped_cases() | _rotary_cases() | _masked_cases()

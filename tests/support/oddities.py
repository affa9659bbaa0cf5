"""Values of every kind, to be given where something else is expected."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from flexlegion.base.errors import UserError


class Raising:
    """An object that answers nothing."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise RuntimeError("no array")


ODDITIES: list[Any] = [
    None,
    True,
    0,
    3,
    -1,
    2.5,
    math.nan,
    math.inf,
    10**30,
    10**5000,
    1j,
    "",
    "x",
    "\x1b[31m\n",
    "\0",
    "a" * 5000,
    b"x",
    [],
    [1],
    ["a"],
    [[1], [2, 3]],
    [None],
    (1, 2),
    {},
    {"a": 1},
    {1: None},
    {1, 2},
    range(3),
    object(),
    Raising(),
    lambda: 0,
    lambda *_: None,
    int,
    float,
    np.float32(0.5),
    np.int64(2),
    np.array([1.5, 2]),
    np.zeros((0, 3)),
    np.array(["a"]),
    torch.ones(2, 2),
    torch.nn.CrossEntropyLoss(),
    (one for one in [1]),
    slice(1),
    ValueError("no"),
    ...,
]


def tried(what: str, call: Callable[[Any], Any], ends: bool = True) -> list[str]:
    """Each value is taken or refused by one sentence; otherwise what happened is returned.

    Parameters
    ----------
    what
        For messages.
    call
        Given a value.
    ends
        Whether to raise an `AssertionError` instead of returning.
    """
    failures = []
    for value in ODDITIES:
        try:
            call(value)
        except UserError as e:
            text = str(e)
            if not text or "\n" in text:
                failures.append(f"{what} {_short(value)}: no sentence: {text!r}")
        except Exception as e:
            failures.append(f"{what} {_short(value)}: {type(e).__name__}: {str(e)[:150]}")
    assert not (ends and failures), "\n".join(failures)
    return failures


def _short(value: Any) -> str:
    return type(value).__name__ if isinstance(value, int) and value > 10**100 else repr(value)[:40]

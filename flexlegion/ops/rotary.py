"""Rotary position embedding (Su et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from flexlegion.base.errors import UserError
from flexlegion.graph.operator_type import (
    SAMPLE,
    WHOLE,
    Access,
    Dim,
    DimKind,
    Family,
    OperatorType,
    along,
    require_rank,
)
from flexlegion.graph.tensor import Shape


@dataclass(frozen=True)
class Rotary(OperatorType):
    """x cos + r(x) sin, where r turns each pair of channels (a, b) into (-b, a).

    Inputs: x (n, s, heads, d), cosines and sines (n, s, d) or (n, s, 1, d), where n may be 1.
    Channels i and d / 2 + i are a pair; or, if `interleaved`, channels 2i and 2i + 1.

    The backward pass turns back; cosines and sines have no gradient.
    """

    type: ClassVar[str] = "rotary"
    family: ClassVar[Family] = "elementwise"

    interleaved: bool

    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        x = inputs[0]
        require_rank("rotary", x, 4, "(sample, position, head, channel)")
        n, s, _, d = x
        if d % 2 != 0:
            raise UserError(f"rotary takes pairs of channels, but got {d} channels")
        for angles in inputs[1:]:
            if angles[0] not in (1, n) or angles[1:] not in ((s, d), (s, 1, d)):
                raise UserError(
                    f"rotary takes cosines and sines of shape {[n, s, d]} or {[n, s, 1, d]}, or "
                    f"with a first extent of 1, but got {list(angles)}"
                )
        return x

    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        return (
            SAMPLE,
            Dim("length", DimKind.ATTRIBUTE),
            Dim("head", DimKind.ATTRIBUTE),
            Dim("channel", DimKind.NONE),
        )

    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        x = Access((along(0), along(1), along(2), WHOLE))
        angles = (
            Access(
                (WHOLE if shape[0] == 1 else along(0), along(1), *[WHOLE] * len(shape[2:])),
                saved=True,
            )
            for shape in inputs[1:]
        )
        return (x, *angles)

    def flops(self, inputs: Sequence[Shape]) -> int:
        return 3 * prod(inputs[0])

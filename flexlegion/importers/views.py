"""The normal form of reshape, permute and expand: a stored tensor, seen through its axes.

A value is stored with its samples first, images with their channels last, and seen as PyTorch sees
it. Both are arrangements of the same *axes*: a stored dimension, or one that is seen, is a run of
axes, the major one first. So (n, 4, 16, d) seen where (n, 16, 4 d) is stored needs no operator: nor
do samples that are merged with positions, or steps before samples. What moves elements is asked for
where an operator needs a certain arrangement (`lower.arrange`), after whole chains of views.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from flexlegion.importers.program import SAMPLES, Shape


@dataclass(eq=False)
class Axis:
    """A part of a dimension.

    Parameters
    ----------
    extent
        At least 2; `SAMPLES` for the samples.
    repeated
        Whether it is seen but not stored: the same elements again and again.
    """

    extent: int
    repeated: bool = False

    def __repr__(self) -> str:
        return f"{'n' if self.extent == SAMPLES else self.extent}{'*' if self.repeated else ''}"


Run = tuple[Axis, ...]


@dataclass(frozen=True, eq=False)
class Value:
    """A value of the network that is imported.

    Parameters
    ----------
    source
        What stores it: a `Tensor` of our graph; or a node, a parameter or a constant, which has not
        been brought into the graph yet.
    stored
        The source's dimensions; of a tensor, the first one is the samples', or empty.
    seen
        The dimensions that PyTorch sees. An empty one has extent 1, or is broadcast.
    """

    source: Any
    stored: tuple[Run, ...]
    seen: tuple[Run, ...]

    @property
    def axes(self) -> list[Axis]:
        """All that are stored, in order."""
        return [axis for run in self.stored for axis in run]

    def with_seen(self, seen: Iterable[Run]) -> Value:
        """The same elements, seen otherwise."""
        return replace(self, seen=tuple(seen))

    def split(self, axis: Axis, extents: Sequence[int]) -> tuple[Value, Run]:
        """With an axis cut into several, the major one first; and these."""
        parts = tuple(Axis(extent, axis.repeated) for extent in extents if extent > 1)

        def cut(runs: tuple[Run, ...]) -> tuple[Run, ...]:
            return tuple(
                tuple(p for a in run for p in (parts if a is axis else (a,))) for run in runs
            )

        return Value(self.source, cut(self.stored), cut(self.seen)), parts


def runs_of(shape: Shape) -> tuple[Run, ...]:
    """A new axis for each extent above 1."""
    return tuple((Axis(extent),) if extent > 1 else () for extent in shape)


def plain(source: Any, shape: Shape) -> Value:
    """A value that is stored as it is seen; `shape` is of what is seen."""
    runs = runs_of(shape)
    return Value(source, runs, runs)


def extent_of(run: Iterable[Axis]) -> int:
    """Product of the axes' extents."""
    return prod(axis.extent for axis in run)


def explicit(value: Value, shape: Shape) -> Value:
    """With axes for dimensions that are broadcast to `shape`."""
    return value.with_seen(
        run if run or extent == 1 else (Axis(extent, repeated=True),)
        for run, extent in zip(value.seen, shape, strict=True)
    )


def reshaped(value: Value, shape: Shape) -> Value | None:
    """Seen in another shape; None if that joins what lies apart (as (6, 4) to (4, 6) does)."""
    left = [axis for run in value.seen for axis in run]
    seen: list[Run] = []
    for extent in shape:
        run: list[Axis] = []
        wanted = extent
        while wanted > 1:
            axis = left.pop(0)
            if wanted % axis.extent == 0:
                run.append(axis)
                wanted //= axis.extent
            elif axis.extent % wanted == 0:
                value, (major, minor) = value.split(axis, (wanted, axis.extent // wanted))
                run.append(major)
                left.insert(0, minor)
                wanted = 1
            else:
                return None
        seen.append(tuple(run))
    return value.with_seen(seen) if not left else None


def permuted(value: Value, order: Sequence[int]) -> Value:
    """Dimension d of what is seen is dimension order[d] of what was."""
    return value.with_seen(value.seen[d] for d in order)


def refined(values: list[Value]) -> list[Value] | None:
    """With the dimensions that they see cut alike, where they have them; None if that cannot be.

    All of them see as many dimensions.
    """
    values = list(values)
    for d in range(len(values[0].seen)):
        cuts = sorted({c for value in values for c in _cuts(value.seen[d])})
        if any(b % a for a, b in itertools.pairwise(cuts)):
            return None
        for i, value in enumerate(values):
            values[i] = _cut_at(value, d, cuts)
    return values


def _cuts(run: Run) -> list[int]:
    """Products of the minor axes: where a run is cut, counted from its end."""
    products, product = [], 1
    for axis in reversed(run):
        product *= axis.extent
        products.append(product)
    return products


def _cut_at(value: Value, d: int, cuts: list[int]) -> Value:
    product = 1
    for axis in reversed(value.seen[d]):
        inner = [c // product for c in cuts if product < c <= product * axis.extent]
        product *= axis.extent
        if len(inner) > 1:
            extents = [b // a for a, b in zip([1, *inner], inner, strict=False)]
            value, _ = value.split(axis, extents[::-1])
    return value


def blocks_of(before: Sequence[Run], after: Sequence[Run]) -> list[list[Axis]]:
    """The axes, as long as they follow each other within one dimension on both sides."""
    places = {axis: (d, i) for d, run in enumerate(after) for i, axis in enumerate(run)}
    blocks: list[list[Axis]] = []
    for run in before:
        for i, axis in enumerate(run):
            d, at = places[axis]
            if i and places[run[i - 1]] == (d, at - 1):
                blocks[-1].append(axis)
            else:
                blocks.append([axis])
    return blocks


def neighbours(value: Value, run: Run) -> bool:
    """Whether axes are stored in this order, one after the other."""
    axes = value.axes
    if any(axis.repeated for axis in run):
        return False
    at = axes.index(run[0])
    return axes[at : at + len(run)] == list(run)


def joined(runs: list[Run], seen: Sequence[Run]) -> list[Run]:
    """Neighbours that follow each other in a dimension that is seen, too, made one."""
    before = {b: a for run in seen for a, b in itertools.pairwise(run)}
    result: list[Run] = []
    for run in runs:
        if result and before.get(run[0]) is result[-1][-1]:
            result[-1] = (*result[-1], *run)
        else:
            result.append(run)
    return result


def without(run: Run, others: Run, but: Axis | None) -> Run:
    """Without the other axes, all of them but one."""
    return tuple(axis for axis in run if axis is but or axis not in others)


def replaced(run: Run, old: Run, new: Run) -> Run:
    """With `new` for the first of the old axes, and nothing for the others."""
    return tuple(n for a in run for n in (new if a is old[0] else () if a in old else (a,)))

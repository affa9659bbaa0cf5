"""How operands of operators lie on a mesh, and which collectives lead from one way to another.

These are OneFlow's signatures (section 3.1), a letter for each axis: "R", which is its B; "P"; and
for its S(d) the number d. What leads from one to another is its Table 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import prod
from typing import Literal

from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.operator_type import Access
from flexlegion.graph.tensor import Shape, Tensor, TensorRole
from flexlegion.spmd.axes import Axes, Division

# Along an axis of the mesh: "R" is whole on each device, "P" partial values; a number is the
# dimension of the tensor that is split.
Entry = int | str
Layout = tuple[Entry, ...]
Collective = Literal["all-reduce", "reduce-scatter", "all-gather", "all-to-all"]


def entries(
    division: Division, access: Access, role: TensorRole, gradient: bool = False
) -> list[Entry]:
    """How an operand, or its gradient, lies along each axis of the mesh."""
    return [_entry(access, role, dim, gradient) for dim in division.dims]


def _entry(access: Access, role: TensorRole, dim: int | None, gradient: bool) -> Entry:
    if dim is None:
        return "R"
    for axis, its in enumerate(access.map):
        if its.out_dim == dim and not its.prefix:
            return axis
    if role == "output":
        return "P"
    return "P" if gradient else "R"


def first_reader(graph: Graph, weight: Tensor) -> tuple[Operator, Access]:
    """The operator whose operand a weight is first: a program keeps the weight as that one has it.

    Others that need it otherwise get it moved, each time.
    """
    return next(
        (op, access)
        for op in graph.operators
        for _, tensor, access in op.operands
        if tensor is weight
    )


@cache  # layers are alike, and a search asks for the same layouts again and again
def elements(shape: Shape, layout: Layout, axes: Axes) -> int:
    """Of a tensor that lies so, how many elements the device has whose parts are the largest."""
    return prod(part_of(shape, layout, axes))


@cache
def part_of(shape: Shape, layout: Layout, axes: Axes) -> Shape:
    """The extents of that device's part."""
    degrees = [1] * len(shape)
    for size, entry in zip(axes.sizes, layout, strict=True):
        if isinstance(entry, int):
            degrees[entry] *= size
    return tuple(-(-extent // degree) for extent, degree in zip(shape, degrees, strict=True))


def gradient_of(layout: Layout) -> Layout:
    """How the gradient of a value that lies so is wanted: whole where there are partial values."""
    return tuple("R" if entry == "P" else entry for entry in layout)


def moves(before: Layout, after: Layout) -> Iterator[tuple[Collective, tuple[int, ...], Layout]]:
    """The collectives that lead from one layout to another.

    What makes a tensor smaller comes first, what makes it larger last. To keep a part of what is
    whole on each device moves nothing.

    Yields
    ------
    collective
        Which one.
    axes
        Along which it runs, all at once.
    layout
        What is there after it.
    """
    here = list(before)
    found: dict[Collective, list[int]] = {name: [] for name in _ORDER}
    for axis, (b, c) in enumerate(zip(before, after, strict=True)):
        if (name := _collective(b, c)) is not None:
            found[name].append(axis)
        else:
            here[axis] = c
    for name, axes in found.items():
        if axes:
            for axis in axes:
                here[axis] = after[axis]
            yield name, tuple(axes), tuple(here)


_ORDER: tuple[Collective, ...] = ("reduce-scatter", "all-reduce", "all-to-all", "all-gather")


def _collective(before: Entry, after: Entry) -> Collective | None:
    """What leads from one to the other along an axis; None: each device has what it needs."""
    if before in (after, "R"):
        return None
    if before == "P":
        return "all-reduce" if after == "R" else "reduce-scatter"
    return "all-gather" if after == "R" else "all-to-all"

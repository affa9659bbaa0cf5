"""From one layout to another: OneFlow's Table 2."""

from __future__ import annotations

import pytest

from flexlegion.spmd.axes import Axes
from flexlegion.spmd.layout import elements, gradient_of, moves, part_of


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (("P",), ("R",), ["all-reduce"]),
        (("P",), (0,), ["reduce-scatter"]),
        ((0,), ("R",), ["all-gather"]),
        ((0,), (1,), ["all-to-all"]),
        (("R",), (0,), []),
        (("R",), ("R",), []),
        ((0,), (0,), []),
    ],
)
def test_along_an_axis(before: tuple, after: tuple, expected: list[str]) -> None:
    assert [name for name, _, _ in moves(before, after)] == expected


def test_what_makes_smaller_comes_first() -> None:
    steps = list(moves((0, "P", 1), ("R", 1, 0)))
    assert [(name, along) for name, along, _ in steps] == [
        ("reduce-scatter", (1,)),
        ("all-to-all", (2,)),
        ("all-gather", (0,)),
    ]
    assert steps[-1][2] == ("R", 1, 0)


def test_a_part_is_kept_before_anything_moves() -> None:
    """What is whole on each device is cut for nothing, so that less is reduced."""
    ((name, along, layout),) = moves(("R", "P"), (0, "R"))
    assert (name, along, layout) == ("all-reduce", (1,), (0, "R"))


def test_parts() -> None:
    axes = Axes((2, 4))
    assert part_of((6, 10), (0, 1), axes) == (3, 3)  # the largest of uneven ones
    assert part_of((6, 10), (1, 1), axes) == (6, 2)
    assert elements((6, 10), ("R", "P"), axes) == 60
    assert gradient_of(("P", 0, "R")) == ("R", 0, "R")

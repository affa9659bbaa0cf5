"""Limits that models meet before any native code is loaded are those of the native code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flexlegion.graph.operator_type import MAX_PARTS, MAX_SPACE
from flexlegion.graph.tensor import MAX_ELEMENTS, MAX_RANK
from flexlegion.objective.training import MAX_MICRO_BATCHES
from flexlegion.ops.formula import MAX_INPUTS, MAX_VALUES

NATIVE = Path(__file__).parents[2] / "native"


def stated(file: str, name: str) -> int:
    """A constant of a header: a number, a shift of one, or another constant and a number."""
    text = (NATIVE / file).read_text()
    found = re.search(rf"constexpr [^;]*\b{name} = ([^;,]+)[;,]", text)
    assert found, f"{file} states no {name}"
    value = re.sub(r"std::int64_t\{1\}", "1", found[1])
    value = re.sub(r"k\w+", lambda other: str(stated(file, other[0])), value)
    assert re.fullmatch(r"[\d <+]+", value), value
    return int(eval(value))


@pytest.mark.parametrize(
    ("here", "file", "name"),
    [
        (MAX_RANK, "support/rect.h", "kMaxRank"),
        (MAX_SPACE, "support/rect.h", "kMaxRegionRank"),
        (MAX_ELEMENTS, "plan/api.cc", "kMaxElements"),
        (MAX_PARTS, "plan/graph.h", "kMaxTasks"),
        (MAX_MICRO_BATCHES, "plan/graph.h", "kMaxMicroBatches"),
        (MAX_INPUTS, "ops/expression.h", "kMostInputs"),
        (MAX_VALUES, "ops/expression.h", "kMostValues"),
    ],
)
def test_the_same_limit(here: int, file: str, name: str) -> None:
    assert here == stated(file, name)

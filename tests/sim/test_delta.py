"""The delta algorithm gives the timeline of the full one, bit by bit (FlexFlow, section 5.3).

``scripts/bench/delta_equals_full.py`` does the same at any length.
"""

from __future__ import annotations

import zlib

import pytest
from deltas import APART, SHALLOW, Case, Counts, run

# (cases, proposals to each): small machines thoroughly, large ones at least once.
PLAN = [
    *((Case(name, "p100x4", 5), 60) for name in SHALLOW),
    *((Case(name, "shared"), 40) for name in SHALLOW),
    *((Case(name, "v100x8", 5), 40) for name in SHALLOW),
    *((Case(name, "k80x16"), 30) for name in SHALLOW),
    *((Case(name, "p100x4"), 30) for name in ("inception_v3", "resnet101")),
    *((Case(name, "shared", 5), 15) for name in ("inception_v3", "resnet101")),
    *((Case(name, "p100x64", 5), 10) for name in ("lenet", "rnnlm", "nmt", "images")),
    (Case("alexnet", "k80x64"), 10),
    *((Case(name, "p100x4", fused_launches=1), 30) for name in ("nmt", "resnet101", "transformer")),
    *((Case(name, "p100x4", 5, micro_batches=4), 30) for name in APART),
    *((Case(name, "shared", micro_batches=2), 20) for name in APART),
    *((Case(name, "p100x4", 5, detail="bundles"), 20) for name in SHALLOW),
    *((Case(name, "k80x16", detail="bundles"), 20) for name in SHALLOW),
    *((Case(name, "shared", micro_batches=4, detail="bundles"), 20) for name in APART),
]


@pytest.mark.parametrize(
    ("case", "proposals"), PLAN, ids=[f"{c.network}-{c.machine}" for c, _ in PLAN]
)
def test_delta_equals_full(case: Case, proposals: int) -> None:
    counts = run(case, proposals, zlib.crc32(str(case).encode()))
    assert not counts.failures
    assert counts.proposals == proposals


def test_the_proposals_are_of_all_sorts() -> None:
    """Accepted and rejected, within limits and beyond: else the property says little."""
    counts = Counts()
    for seed in range(4):
        counts.add(run(Case("rnnlm", "p100x4"), 50, seed))
    assert not counts.failures
    assert 20 < counts.accepted < 150
    assert 10 < counts.cut_short < counts.limited < 100

"""A few modules drawn at random, beside PyTorch; tests/long/random_modules.py tries many."""

from __future__ import annotations

import pytest
from random_modules import outcome


@pytest.mark.parametrize("seed", range(0, 60, 10))
def test_modules_are_right_or_refused(seed: int) -> None:
    kinds = [outcome(one) for one in range(seed, seed + 10)]
    for found in kinds:
        assert found.kind in ("right", "refused", "unfit"), f"{found.why}\n{found.source}"
    assert any(found.kind == "right" for found in kinds)

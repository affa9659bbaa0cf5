"""When iterations end, by what ran in them."""

from __future__ import annotations

import numpy as np

from flexlegion.bindings import native
from flexlegion.tuner.timed import ends_of


def test_ends() -> None:
    """Two iterations of three tasks; the batch that is staged meanwhile does not count."""
    rows = [  # launch, part, start, end
        (1, 0, 10, 15),
        (0, 0, 0, 8),
        (0, 1, 0, 9),
        (-1, 0, 9, 90),
        (0, 0, 20, 31),
        (0, 1, 16, 22),
        (1, 0, 31, 36),
    ]
    tasks = np.zeros(len(rows), native.layout("fl_record"))
    for row, (launch, part, start, end) in zip(tasks, rows, strict=True):
        row["launch"], row["part"], row["start_time"], row["end_time"] = launch, part, start, end
    assert ends_of(tasks, 2).tolist() == [15, 36]
    assert ends_of(tasks[::-1], 2).tolist() == [15, 36]
    assert ends_of(tasks[3:4], 2).tolist() == []  # of a rank on which nothing ran

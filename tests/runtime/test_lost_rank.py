"""Ranks do not wait for one that is lost: they end, and say which it was."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest
from lost_rank import Run

HOST = socket.gethostname()
LIMIT = 30  # seconds for all to end
ENDLESS = 10_000  # epochs

pytestmark = pytest.mark.legion


@pytest.mark.parametrize("rank", [0, 1])
def test_killed(rank: int, tmp_path: Path) -> None:
    run = Run(tmp_path, ranks=2, epochs=ENDLESS)
    stage = run.strike(rank, "training", 0.3, signal.SIGKILL)
    end = run.outcome(stage, LIMIT)
    assert end.seconds is not None, "processes were left"
    assert end.status != 0
    assert end.sentences() == [
        f"error: rank {rank} (on {HOST}) is lost: it crashed, was killed, or ran out of memory; "
        "all ranks end"
    ]


@pytest.mark.parametrize("rank", [0, 1])
def test_silent(rank: int, tmp_path: Path) -> None:
    """A rank that is stopped, as is one whose machine has gone."""
    run = Run(tmp_path, ranks=3, epochs=ENDLESS, heartbeat=3)
    stage = run.strike(rank, "training", 0.3, signal.SIGSTOP)
    end = run.outcome(stage, LIMIT)
    assert end.seconds is not None, "processes were left"
    assert end.seconds >= 2.5
    assert end.status == 3
    assert end.sentences() == [
        f"error: rank {rank} (on {HOST}) is lost: nothing was heard of it for 3 s; all ranks end"
    ]


@pytest.mark.parametrize("status", [1, 2])
def test_failed(status: int, tmp_path: Path) -> None:
    """A rank that fails alone, by an exception or by a command's way, takes the others with it."""
    run = Run(tmp_path, ranks=2, epochs=ENDLESS, fault="raise" if status == 1 else "fail")
    end = run.outcome("", 60)
    assert end.seconds is not None, "processes were left"
    assert end.status == status
    assert end.sentences() == [
        f"error: rank 1 (on {HOST}) ended with status {status}; all ranks end"
    ]
    assert ("RuntimeError: this rank alone has had enough" in end.output) == (status == 1)


def test_all_failed(tmp_path: Path) -> None:
    """What all ranks fail of needs no word of the others."""
    end = Run(tmp_path, ranks=2, epochs=ENDLESS, fault="fail-all").outcome("", 60)
    assert (end.seconds is not None, end.status, end.sentences()) == (True, 2, [])


def test_busy(tmp_path: Path) -> None:
    """Python that holds its lock for longer than the limit is not silent; a usual end is quiet."""
    end = Run(tmp_path, ranks=2, epochs=3, fault="hold", heartbeat=3).outcome("", 120)
    assert end.seconds is not None, "processes were left"
    assert end.seconds > 6
    assert (end.status, end.sentences()) == (0, [])


def test_interrupted(tmp_path: Path) -> None:
    """Whoever ends the whole run is told of no rank."""
    run = Run(tmp_path, ranks=2, epochs=ENDLESS)
    run.interrupt("training", signal.SIGINT)
    end = run.outcome("", LIMIT)
    assert end.seconds is not None, "processes were left"
    assert end.status != 0
    assert end.sentences() == []


def test_wrong_limit(tmp_path: Path) -> None:
    end = Run(tmp_path, ranks=2, epochs=1, heartbeat=-1).outcome("", 60)
    assert end.seconds is not None, "processes were left"
    assert end.status != 0
    assert (
        "FLEXLEGION_HEARTBEAT is '-1', but has to be seconds of silence after which a rank is "
        "lost, 1 to 1000000, or 0 for none" in end.output
    )

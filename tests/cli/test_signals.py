"""Signals to commands: a sample of tests/long/signals.py."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "long"))
from signals import COMMANDS, Moment, duration_of, interrupted

SECONDS = 20  # that an end may take on a busy machine; it takes less than one on a quiet one
INT, TERM = signal.SIGINT, signal.SIGTERM


@pytest.fixture(scope="module")
def durations(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """How long it takes a command to get to work."""
    names = ("search", "machine show")
    return {name: duration_of(COMMANDS[name], tmp_path_factory.mktemp("short")) for name in names}


@pytest.mark.parametrize(
    ("name", "moment", "number", "terminal"),
    [
        ("search", "early", INT, True),
        ("search", "working", INT, True),
        ("search", "working", TERM, False),
        ("search", "twice", INT, True),
        ("machine show", "20ms", INT, False),
        ("machine show", "early", TERM, False),
    ],
)
def test_one_sentence(
    tmp_path: Path,
    durations: dict[str, float],
    name: str,
    moment: str,
    number: signal.Signals,
    terminal: bool,
) -> None:
    """It ends, says so once, leaves nothing running, and keeps what it has found."""
    command = COMMANDS[name]
    when = Moment(moment, command, durations[name], tmp_path)
    run = interrupted(command, tmp_path, when, number, terminal, SECONDS)
    assert run.problems == [], run.said

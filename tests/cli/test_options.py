"""What commands are asked for by options is what they do; every option of every command has a row.

Commands that train are in test_options_legion.py.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import Capture
from options import BASES, ROWS, Given, Outcome, words_of
from options_of_training import TRAINING

from flexlegion.cli.command import parser_of
from flexlegion.cli.main import MODULES, main

# A model that says whether imports are verified while it is built, and what it reads recorded.
VERIFYING = """
import sys
from flexlegion import Model
from flexlegion.importers import _VERIFY
from flexlegion.networks.kept import READS


def build(batch_size: int = 8):
    print("a build with a check" if _VERIFY.get() else "a build without a check", file=sys.stderr)
    watched = "that is watched" if READS.recording else "that nobody watches"
    print("a build", watched, file=sys.stderr)
    model = Model(batch_size)
    model.softmax(model.dense(model.input((4,)), 8))
    return model
"""
FIGURES = (
    "iteration_time_ns",
    "bytes_moved",
    "allocated_bytes",
    "memory_of_each_device",
    "strategies",
    "points",
    "fewest",
    "largest",
)


def options_of(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, set[str]]]:
    """Each command, and what it takes."""
    actions = [a for a in parser._actions if not isinstance(a, argparse._HelpAction)]
    groups = [a for a in actions if isinstance(a, argparse._SubParsersAction)]
    for group in groups:
        for word, command in group.choices.items():
            yield from options_of(command, f"{name} {word}".strip())
    if not groups:
        # Those of files of options are the same of all commands; tests/cli/test_config.py has them.
        yield name, {a.dest for a in actions if a.dest not in ("config", "save_config")}


def run(command: str, given: Given, folder: Path, capsys: Capture) -> Outcome:
    """A command in this process."""
    (folder / "verifying.py").write_text(VERIFYING)
    status = main(words_of(command, given, folder))
    out, err = capsys.readouterr()
    facts: Any = json.loads(out) if "--json" in given and given["--json"] and status == 0 else {}
    if command == "strategy" and status == 0:
        written = json.loads((folder / Path(given["--out"]).name).read_text())
        facts = written["found"] | {"strategies": written["operators"]}
    return Outcome(facts, out, err, status, folder)


def figures(outcome: Outcome) -> Any:
    """What was computed, and not said."""
    if not outcome.facts:
        return outcome.out
    return {name: outcome.facts.get(name) for name in FIGURES}


def test_every_option_has_a_row() -> None:
    """A new one has to say where it shows."""
    stated = {name: set(rows) for name, rows in (ROWS | TRAINING).items()}
    assert dict(options_of(parser_of(MODULES))) == stated


@pytest.fixture(scope="module")
def bases() -> dict[str, Outcome]:
    """What commands do without further options."""
    return {}


@pytest.mark.parametrize(
    ("command", "option"), [(command, option) for command in ROWS for option in ROWS[command]]
)
def test_option_arrives(
    command: str, option: str, tmp_path: Path, capsys: Capture, bases: dict[str, Outcome]
) -> None:
    row = ROWS[command][option]
    if command not in bases:
        bases[command] = run(command, BASES[command], tmp_path, capsys)
    base = bases[command]
    assert base.status == 0, base.err
    done = run(command, dict(BASES[command]) | dict(row.given), tmp_path, capsys)
    assert done.status == row.status, done.err
    for key, value in row.told.items():
        assert done.told(key) == value
        assert not _told_alike(base, key, value), "the base's value is the same"
    assert row.shows(done), done.out + done.err
    if row.moves:
        assert figures(done) != figures(base)


def _told_alike(outcome: Outcome, key: str, value: object) -> bool:
    try:
        return bool(outcome.told(key) == value)
    except (KeyError, TypeError):  # it says nothing of it
        return False

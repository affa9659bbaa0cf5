"""Commands that run models: several in one process, or one as a user starts it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch import legate_environment, run_checked, run_legate, run_ranks

WORKER = Path(__file__).with_name("commands_worker.py")


@dataclass(frozen=True)
class Done:
    """What a command did: its arguments, its status, and what it printed."""

    words: list[str]
    status: int
    out: str
    err: str

    @property
    def facts(self) -> Any:
        """Its JSON object."""
        assert self.status == 0, self.err
        return json.loads(self.out)

    @property
    def sentence(self) -> str:
        """Of a mistake."""
        assert self.status == 2, self.out
        assert self.out == "" or self.words[0] == "train"  # which says first what it trains
        (line,) = [line for line in self.err.splitlines() if line.startswith("error: ")]
        return line.removeprefix("error: ")


def run_all(commands: Sequence[Sequence[object]], folder: Path, ranks: int = 1) -> list[Done]:
    """Commands, without options of launches, one after the other on two processors.

    Of two ranks, what the first one printed.
    """
    words = [list(map(str, command)) for command in commands]
    (folder / "commands.json").write_text(json.dumps(words))
    timeout = 60 + 20 * len(words)
    if ranks == 1:
        run_legate(WORKER, folder, cpus=2, timeout=timeout)
    else:
        run_ranks(WORKER, folder, ranks=ranks, timeout=timeout)
    return [Done(**its) for its in json.loads((folder / "rank-0" / "done.json").read_text())]


def started(*words: object, status: int = 0) -> Done:
    """A command as a user starts it, who is in no legate."""
    environment = {k: v for k, v in legate_environment().items() if k != "LEGATE_CONFIG"}
    command = [sys.executable, "-m", "flexlegion", *map(str, words)]
    done = run_checked(command, environment=environment, timeout=120, status=status)
    return Done(list(map(str, words)), done.returncode, done.stdout, done.stderr)

"""Mistakes of a command's users, and what each is told.

``command_mistakes.txt`` has a command line a line, and below it, indented, the message; `...`
stands for lists of names, and words in capitals for a longer command. Each is refused with status 2
and one sentence, at once; nothing is printed beside it, nothing written, and Legion is not started.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from commands import Capture
from imported import no_legate
from wrong_files import write_wrong_files

from flexlegion.cli.main import main

SHORT = {
    "SIMULATE": "simulate --model small.py --machine p100x2",
    "SEARCH": "search --model small.py --machine p100x2 --proposals 5 --chains 1 --out o.json",
    "WHATIF": "what-if --model small.py --machine p100x8 --budget 1s",
    "REPORT": "report data --model small.py --machine p100x2",
    "TRAIN": "train --model small.py",
    "TUNE": "tune --model small.py --out o.json",
    "MANY": ",".join(f"nope{i}" for i in range(3000)),
}
LAUNCH = ("--cpus", "--gpus", "--ranks", "--hosts", "--threads", "--legate")


def mistakes() -> list[tuple[str, str]]:
    lines = Path(__file__).with_name("command_mistakes.txt").read_text().splitlines()
    return [(line, said.strip()) for line, said in zip(lines[::2], lines[1::2], strict=True)]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("wrong")
    write_wrong_files(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("FLEXLEGION_PROFILE_DB", str(folder / "none.sqlite"))
        yield folder


def state_of(folder: Path) -> dict[str, int]:
    """When files were written, but for what Python keeps of modules that it imports."""
    paths = (path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return {str(path): path.lstat().st_mtime_ns for path in paths if not path.is_dir()}


def _too_long(*_: Any) -> NoReturn:
    raise AssertionError("it does not end")


def _started(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("it starts something")


@pytest.mark.parametrize(("line", "said"), mistakes())
def test_mistakes(
    line: str, said: str, here: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [part for word in shlex.split(line) for part in _whole(word)]
    monkeypatch.setattr(subprocess, "Popen", _started)
    if words[0] in ("train", "tune", "accuracy") and not {*LAUNCH} & {*words}:
        monkeypatch.setenv("LEGATE_CONFIG", "")  # as if legate had started it
    before = state_of(here)
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(20)
    try:
        with no_legate():
            status = main(words)
    finally:
        signal.alarm(0)
    out, err = capsys.readouterr()
    assert (status, out) == (2, ""), err
    assert err.count("\n") == 1
    assert len(err) < 1000
    assert state_of(here) == before
    text = err.removeprefix("error: ").rstrip("\n")
    if said.endswith(" ..."):
        assert text.startswith(said.removesuffix(" ..."))
    else:
        assert text == said


def _whole(word: str) -> list[str]:
    return SHORT[word].split() if word in SHORT else [word]


def test_there_are_many() -> None:
    assert len(mistakes()) > 250

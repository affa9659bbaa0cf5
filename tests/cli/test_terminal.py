"""What a command prints where: terminals of any width, pipes, full disks, closed streams."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from flexlegion.cli.main import main
from flexlegion.console import text

ROOT = Path(__file__).parents[2]
FLEXLEGION = f"{sys.executable} -m flexlegion"


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A line for bash, in which ``flexlegion`` is the command."""
    line = line.replace("flexlegion", FLEXLEGION)
    return subprocess.run(
        ["bash", "-c", line],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


TABLES = [
    ["models"],
    ["machine", "list"],
    ["machine", "show", "p100x8"],
    ["simulate", "--model", "alexnet", "--machine", "p100x8", "--strategy", "expert"],
    ["explain", "expert", "--model", "alexnet", "--machine", "p100x4"],
    [],
]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("args", TABLES)
def test_output_fits_the_terminal(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    args: list[str],
    width: int,
) -> None:
    assert main(args) == 0
    whole = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(text, "is_terminal", lambda _: True)
    assert main(args) == 0
    fitted = capsys.readouterr().out
    lines = fitted.splitlines()
    if args:
        assert max(map(len, lines)) <= width
    numbers = {word for word in whole.split() if word[0].isdigit()}
    assert numbers <= set(fitted.split())  # nothing was cut


def test_pipes_get_whole_lines(capsys: pytest.CaptureFixture[str]) -> None:
    row = text.table(("name", "number"), [("word " * 100, "1")])
    assert max(map(len, row.splitlines())) > 500
    assert len(row.splitlines()) == 3
    main(["machine", "list"])
    assert "nodes by 56 Gbit/s Infiniband" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "status", "error"),
    [
        ("flexlegion machine list >/dev/full", 2, "error: standard output cannot be written (No s"),
        ("flexlegion >/dev/full", 2, "error: standard output cannot be written (No space left"),
        ("flexlegion search --help >/dev/full", 2, "error: standard output cannot be written (No"),
        ("flexlegion machine list >&-", 0, ""),
        ("flexlegion machine list 2>&- >/dev/null", 0, ""),
        ("flexlegion fly 2>&-", 2, ""),
        ("flexlegion fly 2>/dev/full", 2, ""),
        ("flexlegion fly <&- >&- 2>&-", 2, ""),
        ("flexlegion machine show p100x64 | true; exit ${PIPESTATUS[0]}", 141, ""),
    ],
)
def test_streams(line: str, status: int, error: str) -> None:
    done = shell(line)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith(error)
    assert done.stderr.count("\n") == bool(error)


def test_a_closed_stream_is_not_the_next_file(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    done = shell(f"flexlegion strategy --model mlp --out {path} >&- 2>&-")
    assert done.returncode == 0
    assert path.read_text().startswith("{")
    assert path.read_text().rstrip().endswith("}")


@pytest.mark.parametrize(
    "locale",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"LC_ALL": "C"},
    ],
)
def test_ascii(tmp_path: Path, locale: dict[str, str]) -> None:
    net = tmp_path / "netz.py"
    net.write_text(
        "import flexlegion as fl\n"
        "def model():\n"
        "    m = fl.Model(8)\n"
        "    x = m.input((4,), name='gr\\u00f6\\u00dfe')\n"
        "    m.softmax(m.dense(x, 3, name='fl\\u00e4che'))\n"
        "    return m\n"
    )
    done = shell(f"flexlegion plan --model {net}; flexlegion machine show p100x2", **locale)
    assert (done.returncode, done.stderr) == (0, "")
    assert "fl" in done.stdout
    assert "Traceback" not in done.stdout


def test_no_colours() -> None:
    """In a terminal of any kind, results have none."""
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}, {}):
        done = shell("script -qec 'flexlegion machine list' /dev/null", **environment)
        assert done.returncode == 0
        phases, _, result = done.stdout.rpartition("\n\x1b[K")  # whose line is erased
        assert "\x1b" not in result
        assert "machine: starting" in phases or environment == {"TERM": "dumb"}


def test_phases_are_said_at_once_and_go_away() -> None:
    """On a terminal; what is left on it is what a pipe gets."""
    line = [sys.executable, "-m", "flexlegion", "simulate", "--model", "lenet"]
    line += ["--machine", "p100x2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "80"}
    ours, theirs = pty.openpty()
    with subprocess.Popen(line, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # at the end
            while part := os.read(ours, 1 << 16):
                shown += part
        assert process.wait(60) == 0
    os.close(ours)
    text = shown.decode()
    order = (
        "simulate: starting",
        "building the model lenet",
        "preparing the sim",
        "iteration time",
    )
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    left = text.rpartition("...\x1b[K\r")[2]
    assert left.startswith("\x1b[Klenet (batch 64) on p100x2")
    assert "\x1b" not in left.removeprefix("\x1b[K")

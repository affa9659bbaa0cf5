"""What the command says of itself, what it makes of misspelt words, and completion in a shell."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Capture, error_of, text_of

from flexlegion.base.suggestions import did_you_mean
from flexlegion.cli.main import EXAMPLES, GROUPS

ROOT = Path(__file__).parents[2]
COMMANDS = [name for group in GROUPS.values() for name in group]


@pytest.mark.parametrize("args", [[], ["help"], ["--help"]])
def test_overview(capsys: Capture, args: list[str]) -> None:
    out, err = text_of(capsys, *args)
    assert err == ""
    assert all(len(line) <= 80 for line in out.splitlines())
    for name in COMMANDS:
        assert f"\n  {name:10}  " in out
    assert all(example in out for example in EXAMPLES)


def test_version(capsys: Capture) -> None:
    out, _ = text_of(capsys, "--version")
    assert out.startswith("flexlegion 0.1")
    assert "legate " in out


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "help"])
def test_help(capsys: Capture, command: str) -> None:
    one, _ = text_of(capsys, command, "--help")
    other, _ = text_of(capsys, "help", command)
    assert one == other
    assert f"usage: flexlegion {command}" in one
    assert all(len(line) <= 100 for line in one.splitlines())


def test_help_imports_little() -> None:
    code = (
        "import sys; from flexlegion.cli.main import main; main([]); main(['--version']); "
        "main(['fly']); "
        "[main([command, '--help']) for command in ('search', 'simulate', 'compare', 'explain')]; "
        "sys.exit(any(name in sys.modules for name in ('numpy', 'rich', 'cffi', 'legate')))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=False)
    assert done.returncode == 0


def test_the_first_line_needs_no_library() -> None:
    """On a terminal, every command says at once that it starts, before it imports anything."""
    code = (
        "import sys; before = {*sys.modules}; from flexlegion.base import phase\n"
        "def first(text): print(text, *{*sys.modules} - before); raise SystemExit\n"
        "phase.phase = first; from flexlegion.cli.main import main; main(['simulate'])"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    )
    said, *modules = done.stdout.split()
    assert said == "simulate:"
    tops = {name.partition(".")[0] for name in modules[1:]} - sys.stdlib_module_names
    python = [name for name in tops if name.startswith("_sysconfigdata")]  # by the machine
    assert tops - {*python} == {"flexlegion"}
    rooms = {name.split(".")[1] for name in modules if name.startswith("flexlegion.")}
    assert rooms <= {"base", "cli", "console", "process"}


LENET = ["--model", "lenet", "--machine", "p100x4"]
MISSPELT = [
    (["serch"], "there is no command 'serch' (did you mean 'search'?)"),
    (["help", "serch"], "(did you mean 'search'?)"),
    (["--vresion"], "(did you mean '--version'?)"),
    (["search", "--modle", "lenet"], "there is no option '--modle' here (did you mean '--model'?)"),
    (["simulate", *LENET, "--strat=data"], ""),  # what argparse completes
    (["simulate", *LENET, "--startegy", "data"], "(did you mean '--strategy'?)"),
    (["simulate", *LENET, "--algorithm", "ful"], "(did you mean 'full'?)"),
    (["machine", "lst"], "command 'lst' does not exist (did you mean 'list'?)"),
    (["plan", "--model", "lennet"], "(did you mean 'lenet'?)"),
    (["plan", "--model", "lenet", "--size", "clases=4"], "(did you mean 'classes'?)"),
    (["simulate", *LENET, "--strategy", "exprt"], "(did you mean 'expert'?)"),
    (["simulate", "--model", "lenet", "--machine", "p10x4"], "(did you mean 'p100x4'?)"),
    (["train", "--data", "sampel"], "(did you mean 'sample'?)"),
    (["plan", "--model", "lenet", "--loss", "mean_square_error"], "'mean_squared_error'?)"),
    (["plan", "--model", "lenet", "--optimizer", "adan"], "(did you mean 'adam'?)"),
    (["search", *LENET, "--out", "/dev/null", "--search", "papr"], "(did you mean 'paper'?)"),
    (["plan", "--model", "lenet", "--\x1b[31m"], "there is no option '--\\x1b[31m' here;"),
]


@pytest.mark.parametrize(("args", "text"), MISSPELT)
def test_misspelt(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, args: list[str], text: str
) -> None:
    monkeypatch.setenv("LEGATE_CONFIG", "")  # training stays in this process
    if text:
        assert text in error_of(capsys, *args)
    else:
        text_of(capsys, *args)


def test_nothing_alike() -> None:
    assert did_you_mean("quux", ["lenet", "mlp"]) == ""
    assert did_you_mean("MLP", ["lenet", "mlp"]) == " (did you mean 'mlp'?)"
    assert did_you_mean("x" * 10**6, ["lenet"]) == ""


# Completion


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For bash."""
    pytest.importorskip("shtab")
    path = tmp_path_factory.mktemp("completion") / "flexlegion.bash"
    command = [sys.executable, "-m", "flexlegion", "completion", "bash"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    path.write_bytes(subprocess.run(command, env=environment, check=True, stdout=-1).stdout)
    return path


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("sea", ["search"]),
        ("mach", ["machine"]),
        ("machine sh", ["show"]),
        ("search --mac", ["--machine"]),
        ("search --model len", ["lenet"]),
        ("search --machine p100", ["p100x4"]),
        ("simulate --algorithm d", ["delta"]),
        ("simulate --strategy exp", ["expert"]),
        ("simulate --strategy m", ["model", "mine.json"]),
        ("completion z", ["zsh"]),
    ],
)
def test_completion_in_bash(script: Path, tmp_path: Path, line: str, expected: list[str]) -> None:
    if shutil.which("bash") is None:
        pytest.skip("no bash")
    (tmp_path / "mine.json").write_text("{}")
    words = ["flexlegion", *line.split()]
    listed = " ".join(map(shlex.quote, words))
    code = (
        f"source {script}; COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; "
        '_shtab_flexlegion; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert set(expected) <= set(done.stdout.split()), done.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells(capsys: Capture, shell: str) -> None:
    pytest.importorskip("shtab")
    out, _ = text_of(capsys, "completion", shell)
    assert "lenet" in out
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=out, text=True, check=True)

"""The command ``flexlegion``: what it prints, and that it needs neither Legion nor legate."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flexlegion import Strategy
from flexlegion.cli.main import main
from flexlegion.known_strategies.registry import strategy_names
from flexlegion.zoo import ZOO

ROOT = Path(__file__).parents[2]


def run(*args: str, cwd: Path = ROOT, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """``python ARGS`` in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *args],
        cwd=cwd,
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


# Without Legion


def test_import_loads_no_legate() -> None:
    done = run("-c", "import sys, flexlegion; assert 'legate' not in sys.modules")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["plan", "strategy"])
def test_commands_load_no_legate(command: str, tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "s.json")] if command == "strategy" else []
    code = (
        "import sys; from flexlegion.cli.main import main; "
        f"status = main({[command, '--model', 'lenet', *out]!r}); "
        "assert not [m for m in sys.modules if m.split('.')[0] in ('legate', 'cupynumeric')]; "
        "sys.exit(status)"
    )
    done = run("-c", code)
    assert (done.returncode, done.stderr) == (0, "")


def test_plan_works_where_legate_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "legate").mkdir()
    (tmp_path / "legate" / "__init__.py").write_text("raise ImportError('broken')")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
        "from flexlegion.cli.main import main; sys.exit(main(['plan', '--model', 'mlp']))"
    )
    assert run("-c", code).returncode == 0


# Help


@pytest.mark.parametrize("command", ["plan", "strategy"])
def test_help_has_an_example_that_works(command: str, tmp_path: Path) -> None:
    done = run("-m", "flexlegion", command, "--help")
    assert done.returncode == 0
    text = " ".join(done.stdout.split())
    assert ", ".join(ZOO) in text
    # Lines end after hyphens, too.
    assert strategy_names().replace(" ", "") in "".join(done.stdout.split())
    example = text.split("example: flexlegion ")[1]
    assert example.startswith(f"{command} --model lenet")
    done = run("-m", "flexlegion", *example.split(), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_names_the_commands() -> None:
    done = run("-m", "flexlegion", "--help")
    assert done.returncode == 0
    assert "plan" in done.stdout
    assert "write a built-in strategy as a file" in done.stdout


@pytest.mark.parametrize("args", [["fly"], ["strategy"], ["plan", "--model", "mlp", "--cpus", "x"]])
def test_usage(args: list[str]) -> None:
    done = run("-m", "flexlegion", *args)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "--help" in done.stderr


# plan


def plan(capsys: pytest.CaptureFixture[str], *args: str) -> list[str]:
    assert main(["plan", *args]) == 0
    return capsys.readouterr().out.splitlines()


def test_plan(capsys: pytest.CaptureFixture[str]) -> None:
    lines = plan(capsys, "--model", "lenet", "--batch-size", "8", "--optimizer", "adam")
    passes = [line for line in lines if not line.startswith(" ")]
    assert passes[:3] == ["load image: 2 tasks", "load labels: 2 tasks", "forward c1: 2 tasks"]
    assert passes[-1] == "memory"
    assert passes.index("backward loss: 2 tasks") < passes.index("backward c1: 2 tasks")
    assert "backward softmax: 2 tasks" not in passes
    start = lines.index("backward c1: 2 tasks")
    task = [line.strip() for line in lines[start + 1 : start + 8]]
    assert task[0] == "task 0 on cpu:0"
    assert "write partial 1 of 2 c1.kernel gradient [0:6 x 0:5 x 0:5 x 0:1]  600 bytes" in task
    start = lines.index("update c1: 1 task")  # too small to be cut into shards
    task = [" ".join(line.split()) for line in lines[start + 1 : start + 6]]
    assert task[1] == "sum 2 partial c1.kernel gradient [0:6 x 0:5 x 0:5 x 0:1] 1,200 bytes"
    assert task[2] == "update exclusive c1.kernel [0:6 x 0:5 x 0:5 x 0:1] 600 bytes"
    assert task[3] == task[4]  # Adam's two states
    assert task[3].startswith("update exclusive c1.kernel state [")
    assert lines[-1].startswith("  cpu:1  ")
    assert lines[-1].endswith(" bytes")


def test_plan_has_the_machine_that_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    lines = plan(capsys, "--model", "mlp", "--cpus", "1", "--gpus", "3")
    assert [line.split()[0] for line in lines[-4:]] == ["cpu:0", "gpu:0", "gpu:1", "gpu:2"]
    assert "forward hidden1: 3 tasks" in lines  # on the GPUs
    assert "forward hidden1: 2 tasks" in plan(capsys, "--model", "mlp")
    assert "forward hidden1: 5 tasks" in plan(capsys, "--model", "mlp", "--cpus", "5")


@pytest.mark.parametrize("strategy", ["single", "data", "model", "random:3"])
@pytest.mark.parametrize("model", ["lenet", "mlp"])
def test_plan_of_every_built_in(
    capsys: pytest.CaptureFixture[str], model: str, strategy: str
) -> None:
    lines = plan(capsys, "--model", model, "--strategy", strategy, "--cpus", "3")
    assert plan(capsys, "--model", model, "--strategy", strategy, "--cpus", "3") == lines


@pytest.mark.parametrize("loss", ["categorical_crossentropy", "mean_squared_error"])
def test_plan_with_another_loss(capsys: pytest.CaptureFixture[str], loss: str) -> None:
    lines = plan(capsys, "--model", "mlp", "--loss", loss)
    assert ("backward softmax: 2 tasks" in lines) == (loss == "mean_squared_error")


# strategy


def test_strategy_writes_a_file_that_plan_reads(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "s.json"
    args = ["--model", "lenet", "--strategy", "random:4", "--cpus", "3"]
    assert main(["strategy", *args, "--out", str(path)]) == 0
    assert capsys.readouterr().out == f"wrote {path}: 12 operators on cpu:0 to cpu:2\n"
    assert len(Strategy.load(path)) == 12
    lines = plan(capsys, "--model", "lenet", "--strategy", str(path), "--cpus", "3")
    assert lines == plan(capsys, *args)


def test_plan_takes_the_machine_from_the_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "s.json"
    main(["strategy", "--model", "mlp", "--strategy", "single", "--out", str(path)])
    document = json.loads(path.read_text())
    document["operators"]["hidden1"]["devices"] = ["gpu:1"]
    document["operators"]["hidden2"]["devices"] = ["cpu:2"]
    path.write_text(json.dumps(document))
    capsys.readouterr()
    lines = plan(capsys, "--model", "mlp", "--strategy", str(path))
    assert [line.split()[0] for line in lines[-5:]] == ["cpu:0", "cpu:1", "cpu:2", "gpu:0", "gpu:1"]


def test_strategy_from_a_pipe(tmp_path: Path) -> None:
    """A pipe can be read only once."""
    path = tmp_path / "s.json"
    main(["strategy", "--model", "mlp", "--strategy", "random:2", "--out", str(path)])
    args = ["-m", "flexlegion", "plan", "--model", "mlp", "--cpus", "2", "--strategy"]
    piped = run(*args, "/dev/stdin", stdin=path.read_text())
    assert (piped.returncode, piped.stderr) == (0, "")
    assert piped.stdout == run(*args, str(path)).stdout
    assert run(*args[:-3], args[-1], "/dev/stdin", stdin=path.read_text()).returncode == 0


def test_output_into_a_pipe_that_closes() -> None:
    """``flexlegion plan | head -1`` is no error to report."""
    command = [sys.executable, "-m", "flexlegion", "plan", "--model", "lenet", "--cpus", "64"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"load image: 64 tasks\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141

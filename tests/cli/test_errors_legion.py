"""Clear errors in a running legate: one sentence, status 2, no backtrace, and nothing hangs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flexlegion.cli.main import main
from flexlegion.known_strategies.registry import strategy_names
from flexlegion.zoo import ZOO

ROOT = Path(__file__).parents[2]
BACKTRACE = ("Traceback", "LEGATE ERROR", "LEGION", "Legion", "backtrace", "Signal", "abort")

pytestmark = pytest.mark.legion


def train(folder: Path, *args: str) -> str:
    """What training on two CPU processors says is wrong."""
    binaries = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    command = ["legate", "--cpus", "2", "--gpus", "0", str(ROOT / "scripts" / "train.py"), *args]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    output = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 2, output
    for sign in BACKTRACE:
        assert sign not in output, output
    lines = [line for line in output.splitlines() if "error: " in line]
    assert len(lines) == 1, output
    assert lines[0].startswith("error: ")
    return lines[0].removeprefix("error: ")


@pytest.fixture
def strategy(tmp_path: Path) -> Path:
    """A strategy file for lenet on two processors."""
    path = tmp_path / "s.json"
    assert main(["strategy", "--model", "lenet", "--cpus", "2", "--out", str(path)]) == 0
    return path


def change(path: Path, operator: str, degrees: list[int], devices: list[str]) -> None:
    document = json.loads(path.read_text())
    document["operators"][operator] = {"degrees": degrees, "devices": devices}
    path.write_text(json.dumps(document))


def test_missing_strategy_file(tmp_path: Path) -> None:
    assert train(tmp_path, "--strategy", "none.json") == (
        "none.json: no such strategy file; give a path, or one of the known strategies "
        f"{strategy_names()}"
    )


def test_truncated_strategy_file(tmp_path: Path, strategy: Path) -> None:
    strategy.write_text(strategy.read_text()[:150])
    text = train(tmp_path, "--strategy", "s.json")
    assert text.startswith("s.json: not JSON, or cut short (line ")


def test_unknown_operator(tmp_path: Path, strategy: Path) -> None:
    strategy.write_text(strategy.read_text().replace('"c3"', '"conv3"'))
    text = train(tmp_path, "--strategy", "s.json")
    assert text.startswith("s.json: this strategy is for another network (lenet): ")
    assert "operator 'conv3' (conv2d 10x10x16) is not here" in text


def test_data_make_another_network_than_was_searched(tmp_path: Path) -> None:
    """As README's first strategy, for a network that the data that come along make smaller."""
    search = ["search", "--model", "rnnlm", "--size", "steps=4", "--machine", "p100x2"]
    done = outside_legate(
        *("-m", "flexlegion", *search, "--proposals", "2", "--no-descent"),
        *("--out", str(tmp_path / "s.json")),
    )
    assert done.returncode == 0, done.stderr
    text = train(tmp_path, "--model", "rnnlm", "--strategy", "s.json")
    assert text.startswith(
        "s.json: it was found for rnnlm of other sizes than the data 'sample' make it: operator "
    )
    assert "; train what was searched by --data synthetic, or search for what these" in text
    assert "--size vocabulary=" in text


def test_device_that_this_run_does_not_have(tmp_path: Path, strategy: Path) -> None:
    change(strategy, "c5", [1, 2], ["cpu:0", "cpu:2"])
    assert train(tmp_path, "--strategy", "s.json") == (
        "s.json: operator 'c5' needs device 'cpu:2', but this run has cpu:0, cpu:1; change the "
        "strategy, or run with more processors (legate --cpus, --gpus)"
    )


def test_batch_smaller_than_a_degree(tmp_path: Path, strategy: Path) -> None:
    change(strategy, "c1", [2, 1, 1, 1, 1], ["cpu:0", "cpu:1"])
    assert train(tmp_path, "--strategy", "s.json", "--batch-size", "1") == (
        "s.json: operator 'c1' splits dimension 'sample' into 2 parts, but it has a batch "
        "of 1; use at most 1"
    )


def test_data_that_do_not_fit_the_model(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.zeros((9, 8, 8), np.float32), y=np.zeros(9, int))
    assert train(tmp_path, "--data", "d.npz", "--model", "lenet") == (
        "lenet takes images (height, width, channel) of at least 16x16 pixels, but the data have "
        "shape [8, 8, 1]"
    )


def test_negative_label(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.zeros((9, 16, 16), np.float32), y=np.arange(9) - 1)
    assert train(tmp_path, "--data", "d.npz") == (
        "d.npz: the label -1 is negative, and class numbers start at 0."
    )


def test_unknown_model(tmp_path: Path) -> None:
    message = train(tmp_path, "--model", "yolo")
    assert message.startswith(
        f"unknown model 'yolo'; choose one of {', '.join(ZOO)}; or your own: "
    )


def outside_legate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python as it is outside of the legate command."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    environment.pop("LEGATE_CONFIG", None)
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment, check=False
    )


def test_without_the_legate_command(tmp_path: Path) -> None:
    """A script runs under plain Python, too, and what it starts is not told what it chose."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        "from flexlegion.machine.running import running_machine\n"
        "print(len(running_machine().devices), 'LEGATE_CONFIG' in os.environ)\n"
    )
    done = outside_legate(str(script))
    assert done.returncode == 0, done.stderr
    number, told = done.stdout.split()
    assert (int(number) >= 1, told) == (True, "False")


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    """Though Legion, when it starts, handles it by a backtrace and the process's end."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal\n"
        "from flexlegion.machine.running import running_machine\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "running_machine()\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "print('goes on')\n"
    )
    done = outside_legate(str(script))
    assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stderr


def test_more_gpus_than_there_are() -> None:
    """The command starts legate by itself: no advice to use it."""
    done = outside_legate("-m", "flexlegion", "train", "--cpus", "2", "--gpus", "64")
    assert done.returncode == 2
    assert done.stderr.count("error: Legion cannot start (") == 1
    assert "legate was asked for '--cpus 2 --gpus 64 " in done.stderr
    assert "Traceback" not in done.stderr


def test_precision_without_a_gpu(tmp_path: Path) -> None:
    message = train(tmp_path, "--model", "lenet", "--epochs", "1", "--precision", "bf16")
    assert message == (
        "precision bf16 is for GPUs, but strategy 'data' uses none; CPU processors compute in fp32"
    )
    message = train(tmp_path, "--precision", "fp16")
    assert message.startswith("unknown precision 'fp16'")


def test_too_little_memory(tmp_path: Path) -> None:
    """One sentence, and below it what needs how much of each memory."""
    binaries = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    command = ["legate", "--cpus", "2", "--gpus", "0", "--sysmem", "64"]
    options = ["--model", "alexnet", "--data", "synthetic", "--batch-size", "8"]
    options += ["--optimizer", "adam"]
    done = subprocess.run(
        [*command, str(ROOT / "scripts" / "train.py"), *options],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    lines = done.stderr.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("error: "))
    assert "in a memory of 64 MiB (cpu:0 to cpu:1); use more devices" in lines[first]
    heading, row = lines[first + 1].split(), lines[first + 3].removeprefix("cpu:0 to cpu:1").split()
    table = dict(zip(heading[1:], map(int, row), strict=True))
    assert table["capacity"] == 64
    assert table["taken"] == table["other"] == 0
    # AlexNet has 61 million weights; Adam keeps two numbers for each, and two devices a gradient.
    assert table["weights"] == pytest.approx(233, abs=2)
    assert table["optimizer"] == pytest.approx(2 * table["weights"], abs=2)
    assert table["gradients"] == pytest.approx(2 * table["weights"], abs=2)
    parts = sum(table[name] for name in heading[1:7])
    assert parts == pytest.approx(table["total"], abs=len(heading))

"""README's own model: every command and line of Python there, as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from launch import ROOT, legate_environment, run_checked

SECTION = re.search(
    r"^## Your own model\n(.*?)^## ", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
)
assert SECTION is not None
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", SECTION[1], re.DOTALL | re.MULTILINE)
NETWORK, MODULE, API, TRAINING, REGISTERED = (text for kind, text in BLOCKS if kind == "python")
COMMANDS = [
    line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines() if line.strip()
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a reader has saved the network."""
    (tmp_path / "my_net.py").write_text(NETWORK)
    return tmp_path


def shell(folder: Path, line: str) -> str:
    """What a line prints in a shell there; it has to succeed."""
    environment = {k: v for k, v in legate_environment().items() if k != "LEGATE_CONFIG"}
    environment["FLEXLEGION_PROFILE_DB"] = str(folder / "profile.db")
    command = ["bash", "-c", f"cd {folder} && {line}"]
    return run_checked(command, environment=environment, timeout=400).stdout


def test_the_networks_are_files() -> None:
    examples = ROOT / "scripts" / "examples"
    assert (examples / "my_net.py").read_text() == NETWORK
    assert (examples / "torch_net.py").read_text() == MODULE


def test_lines_fit_a_terminal() -> None:
    for _, text in BLOCKS:
        assert max(map(len, text.splitlines())) <= 80


@pytest.mark.legion
def test_commands(folder: Path) -> None:
    outputs = {line: shell(folder, line) for line in COMMANDS if "my_net.py" in line}
    said = {line.split()[1]: text for line, text in outputs.items() if "flexlegion" in line}
    assert list(said) == ["search", "explain", "compare", "tune", "train"]
    assert said["search"].startswith("my_net.py:model (batch 64) on p100x16: 7 operators, 16 dev")
    assert said["search"].endswith("wrote p.json\n")
    assert "hidden" in said["explain"]
    assert "found" in said["compare"]
    assert "wrote here.json: " in said["tune"]
    assert "test  loss " in said["train"]
    [script] = [text for line, text in outputs.items() if line.startswith("legate")]
    accuracy = re.findall(r"epoch 5/5 .* accuracy ([0-9.]+) %", script)
    assert float(accuracy[0]) > 90


@pytest.mark.legion
def test_pytorch_commands(folder: Path) -> None:
    pytest.importorskip("torch")
    (folder / "torch_net.py").write_text(MODULE)
    outputs = [shell(folder, line) for line in COMMANDS if "torch_net.py" in line]
    searched, explained, trained, script = outputs
    assert searched.startswith("torch_net.py:model (batch 64) on p100x8: 11 operators, 8 devic")
    assert "1.conv1" in explained
    assert "test  loss " in trained
    accuracy = re.findall(r"accuracy ([0-9.]+) ?%", script)
    assert len(accuracy) == 5
    assert float(accuracy[-1]) > 90


def test_python(folder: Path) -> None:
    (folder / "script.py").write_text(API)
    text = shell(folder, "python script.py")
    assert "my_net.py:model (batch 64) on p100x16: 7 operators, 16 devices" in text
    assert (folder / "p.json").is_file()


def test_registered_names(folder: Path) -> None:
    with (folder / "my_net.py").open("a") as file:
        file.write(REGISTERED)
    asked = "--model my_net.py --machine p100x4"
    text = shell(folder, f"flexlegion simulate {asked} --strategy halves")
    assert "gpu:3" in text
    text = shell(folder, f"flexlegion search {asked} --method best-start --out s.json")
    assert "from start best-start" in text
    assert "strategy halves" in shell(folder, f"flexlegion explain halves {asked}")


@pytest.mark.legion
def test_training(folder: Path) -> None:
    """The lines on training, with something to train on, and with a result as the strategy."""
    data = (
        "import numpy as np\n"
        "images = test_images = np.random.default_rng(0).random((128, 28, 28, 1), np.float32)\n"
        "labels = test_labels = np.arange(128) % 10\n"
    )
    more = (
        'found = fl.search(net, fl.load_machine("machine.json"), proposals=20, chains=1)\n'
        "net.compile(strategy=found)\n"
        'print("strategy in force:", dict(net.strategy) == dict(found.strategy))\n'
        'print("with its own fingerprint:", net.strategy.fingerprint is not None)\n'
    )
    machine = (
        '{"schema_version": 1, "description": "", "nodes": 1, "device_types": {"core": '
        '{"kind": "cpu", "memory_bytes": 4e9, "peak_flops": {"float32": 50e9}, '
        '"memory_bandwidth": 10e9}}, "link_types": {}, '
        '"node": {"devices": [{"type": "core", "count": 2, "memory": "ram"}]}}'
    )
    (folder / "machine.json").write_text(machine)
    (folder / "script.py").write_text(data + TRAINING + more)
    text = shell(folder, "legate --cpus 2 --gpus 0 script.py")
    assert "epoch 5/5" in text
    assert "strategy in force: True" in text
    assert "with its own fingerprint: True" in text

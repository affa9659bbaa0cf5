"""Training that was ended goes on as if nothing had happened, from whole checkpoints alone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launch import (
    BIN,
    legate_environment,
    ranks_command,
    run_checked,
    run_legate,
    run_ranks,
)

from flexlegion.training.checkpoints.files import MANIFEST, Checkpoint, folders

pytestmark = pytest.mark.legion

WORKER = Path(__file__).with_name("checkpoint_worker.py")
STOP = 45  # in the second of four epochs of 32 iterations
ABOUT = ("epochs", "validation")


def trained(folder: Path, ranks: int = 1, cpus: int = 2, **options: Any) -> dict[str, Any]:
    """What the worker came to."""
    out = folder / "trained.npz"
    text = json.dumps({"out": str(out), **options})
    if ranks > 1:
        run_ranks(WORKER, text, ranks=ranks, cpus=cpus)
    else:
        run_legate(WORKER, text, cpus=cpus)
    with np.load(out) as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of a training that nobody ended, without checkpoints."""
    return trained(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of one that was ended in its second epoch."""
    folder = tmp_path_factory.mktemp("ended")
    trained(folder, checkpoint=str(folder / "kept"), stop=STOP)
    return folder / "kept"


def copied(ended: Path, tmp_path: Path) -> Path:
    """A copy to go on from."""
    shutil.copytree(ended, tmp_path / "kept")
    return tmp_path / "kept"


def differing(one: dict[str, Any], other: dict[str, Any], but: tuple[str, ...] = ()) -> list[str]:
    """Which of the arrays differ in a bit."""
    return [n for n in one if n not in but and one[n].tobytes() != other[n].tobytes()]


def largest_error(one: dict[str, Any], other: dict[str, Any], names: list[str]) -> float:
    """Relative to the largest element of each array."""
    return max(
        float(np.abs(one[name] - other[name]).max() / np.abs(other[name]).max()) for name in names
    )


def test_some_are_kept(ended: Path) -> None:
    steps = [Checkpoint(folder).step for folder in folders(ended)]
    assert len(steps) == 3
    assert steps[:2] == [30, 40]
    assert steps[2] >= STOP
    assert {path.name for path in ended.iterdir()} == {f"step-{step:08}" for step in steps}


def test_the_same_bits_in_the_middle_of_an_epoch(
    whole: dict[str, Any], ended: Path, tmp_path: Path
) -> None:
    resumed = trained(tmp_path, checkpoint=str(copied(ended, tmp_path)), resume=True)
    assert differing(resumed, whole, ("steps", "losses")) == []
    count = len(resumed["losses"])
    assert count < 128 - STOP + 1
    assert (resumed["losses"] == whole["losses"][-count:]).all()


def test_a_damaged_one_is_passed_over(whole: dict[str, Any], ended: Path, tmp_path: Path) -> None:
    kept = copied(ended, tmp_path)
    file = folders(kept)[-1] / "optimizer-0-of-1.safetensors"
    content = bytearray(file.read_bytes())
    content[5000] ^= 1
    file.write_bytes(content)
    resumed = trained(tmp_path, checkpoint=str(kept), resume=True)
    assert differing(resumed, whole, ("steps", "losses")) == []
    assert resumed["steps"][0] == 41
    assert resumed["steps"][-1] == 128


@pytest.mark.parametrize(("ranks", "cpus", "strategy"), [(2, 1, "model"), (1, 3, "random:4")])
def test_another_strategy_goes_on(
    ranks: int, cpus: int, strategy: str, whole: dict[str, Any], ended: Path, tmp_path: Path
) -> None:
    kept = copied(ended, tmp_path)
    resumed = trained(
        tmp_path, ranks, cpus, checkpoint=str(kept), resume=True, strategy=strategy, every=20
    )
    count = len(resumed["losses"])
    assert np.abs(resumed["losses"] - whole["losses"][-count:]).max() < 1e-4
    arrays = [name for name in whole if name not in ("steps", "losses")]
    assert largest_error(resumed, whole, arrays) < 1e-4
    # The shards that ranks wrote are the tensors that they hold.
    newest = Checkpoint(folders(kept)[-1])
    newest.check_all()
    assert newest.step == 128
    for name in newest:
        assert (newest.read(name) == resumed[name]).all(), name


def test_a_loader_and_a_clock(tmp_path: Path) -> None:
    """Batches that PyTorch draws go on where they were; checkpoints are due every second."""
    whole = trained(tmp_path, loader=True, epochs=2)
    kept = tmp_path / "kept"
    trained(
        tmp_path, loader=True, epochs=2, checkpoint=str(kept), every="1s", stop=STOP, pause=0.06
    )
    written = [Checkpoint(folder) for folder in folders(kept)]
    times = [(one.folder / MANIFEST).stat().st_mtime for one in written]
    steps = [one.step for one in written]
    assert len(steps) == 3
    assert times[1] - times[0] > 0.8
    resumed = trained(tmp_path, loader=True, epochs=2, checkpoint=str(kept), resume=True)
    assert differing(resumed, whole, ("steps", "losses")) == []
    assert resumed["steps"][0] == steps[-1] + 1


def test_another_rate_is_told(ended: Path, tmp_path: Path) -> None:
    """The schedule is a function of the iteration, and the caller's to say."""
    options = {"checkpoint": str(copied(ended, tmp_path)), "resume": True, "stop": 60, "lr": 0.001}
    text = json.dumps({"out": str(tmp_path / "trained.npz"), **options})
    told = run_legate(WORKER, text, cpus=2).stderr
    assert re.search(
        r"note: .* training goes on with learning rate 0\.\d+ instead of 0\.\d+\n", told
    )


def test_each_rank_with_a_folder_of_its_own(tmp_path: Path) -> None:
    """A disk of each machine's own, say: refused before training."""
    for rank in range(2):
        (tmp_path / f"kept-{rank}").mkdir()
    options = {"out": str(tmp_path / "trained.npz"), "checkpoint": str(tmp_path / "kept-{rank}")}
    command, environment = ranks_command(WORKER, json.dumps(options), ranks=2)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    assert "this folder is not shared by all ranks" in done.stderr
    assert not (tmp_path / "trained.npz").exists()


def test_train_command_goes_on(tmp_path: Path) -> None:
    """The command's options, and weights alone."""
    command = [str(BIN / "flexlegion"), "train", "--model", "mlp", "--data", "synthetic"]
    command += ["--samples", "640", "--optimizer", "adam", "--cpus", "1", "--seed", "5"]
    saves = ["--save-weights", str(tmp_path / "whole.npz")]
    environment = {k: v for k, v in legate_environment().items() if k != "LEGATE_CONFIG"}

    def train(*options: str, status: int = 0) -> str:
        done = run_checked(
            [*command, *options], environment=environment, timeout=120, status=status
        )
        return done.stdout + done.stderr

    kept = str(tmp_path / "kept")
    train("--epochs", "3", *saves)
    train("--epochs", "2", "--checkpoint", kept, "--every", "3")
    assert "--resume" in train("--checkpoint", kept, status=2)
    again = ["--save-weights", str(tmp_path / "again.safetensors")]
    text = train("--epochs", "3", "--checkpoint", kept, "--every", "3", "--resume", *again)
    assert "resuming after iteration" in text
    from safetensors.numpy import load_file

    one, other = dict(np.load(tmp_path / "whole.npz")), load_file(tmp_path / "again.safetensors")
    assert differing(one, other) == []
    text = train("--optimizer", "sgd", "--checkpoint", kept, "--resume", status=2)
    assert "it was trained by adam" in text
    other_network = ["--size", "hidden=7", "--checkpoint", kept, "--resume"]
    assert "another network" in train(*other_network, status=2)
    told = train("--epochs", "1", "--weights", kept, "--optimizer", "sgd", "--lr", "1e-9")
    assert "loss" in told

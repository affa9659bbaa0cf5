"""Checkpoints as files: parts make the whole, damage is found, weights are read from anything."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from flexlegion.base.errors import UserError
from flexlegion.base.files import json_text
from flexlegion.graph.tensor import Tensor
from flexlegion.layers.origin import Layout, Origin, Place
from flexlegion.objective.metrics import Goal, MetricSums, Term
from flexlegion.training.callbacks import Callback, EarlyStopping
from flexlegion.training.checkpoints import writer as checkpoint_writer
from flexlegion.training.checkpoints.callback import Checkpoints, interval
from flexlegion.training.checkpoints.files import (
    MANIFEST,
    STATE,
    Box,
    Checkpoint,
    DamagedError,
    Sum,
    folders,
    key_of,
    newest_whole,
    write_document,
    write_manifest,
    write_tensors,
)
from flexlegion.training.checkpoints.shards import HostCopy, Kept
from flexlegion.training.checkpoints.weights import fitted, read_weights, save_weights
from flexlegion.training.checkpoints.writer import Writer
from flexlegion.training.fit import Training
from flexlegion.training.loss_scale import LossScale
from flexlegion.training.position import Position

WHOLE = np.arange(24, dtype=np.float32).reshape(4, 6)
SUMS = asdict(MetricSums(1.0, labels=12, samples=12))
TRAINING = {
    "position": {"epoch": 1, "batch": 3, "step": 13},
    "began": 0,
    "samples": 40,
    "seconds": 0.5,
    "total": {"losses": [SUMS], "samples": 12, "batches": 3},
    "history": [{"loss": 1.0, "val_loss": None}],
    "callbacks": {"EarlyStopping 1": {"best": None, "best_epoch": 0}},
}
NUMBERS = {"seed": 0, "batch_size": 4, "learning_rate": 0.1, "ranks": 2}
OBJECTS = {
    "optimizer": {"type": "sgd", "lr": 0.1, "clip_norm": None, "nesterov": False},
    "operators": {"dense": "dense 2 0123"},
    "strategy": {"dense": {"degrees": [2, 1], "devices": ["cpu:0", "cpu:1"]}},
    "versions": {"python": "3.11"},
}
NAMES = {"model": "mlp", "fingerprint": "0123", "devices": ["cpu:0", "cpu:1"]}
GOOD = {"training": TRAINING, **NUMBERS, **OBJECTS, **NAMES}


def written(folder: Path, state: object = GOOD) -> Checkpoint:
    """A checkpoint of two ranks."""
    folder.mkdir(parents=True)
    boxes = [((0, 2), (0, 6)), ((2, 4), (0, 6))]
    sums = {STATE: write_document(folder / STATE, json.dumps(state))}
    for rank, box in enumerate(boxes):
        part = WHOLE[tuple(slice(*bounds) for bounds in box)]
        tensors = {key_of("w", box): part, f"w{rank}/m": np.float32([rank])}
        name = f"weights-{rank}-of-2.safetensors"
        sums[name] = write_tensors(folder / name, tensors)
    write_manifest(folder, sums)
    return Checkpoint(folder)


def test_parts_make_the_whole(tmp_path: Path) -> None:
    checkpoint = written(tmp_path / "step-00000003")
    checkpoint.check_all()
    assert (checkpoint.read("w") == WHOLE).all()
    assert set(checkpoint) == {"w", "w0/m", "w1/m"}
    assert checkpoint.step == 13
    # Any program that knows the format reads the files.
    part = load_file(checkpoint.folder / "weights-1-of-2.safetensors")
    assert (part["w[2:4,0:6]"] == WHOLE[2:]).all()


@pytest.mark.parametrize("name", [MANIFEST, STATE, "weights-1-of-2.safetensors"])
@pytest.mark.parametrize("how", ["changed", "cut", "missing"])
def test_the_one_before_a_damaged_one_is_taken(
    name: str, how: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "step-00000003")
    file = written(tmp_path / "step-00000010").folder / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 8
    file.write_bytes(content if how == "changed" else content[:-9])
    if how == "missing":
        file.unlink()
    newest = newest_whole(tmp_path)
    assert newest is not None
    assert newest.folder.name == "step-00000003"
    assert "step-00000010" in capfd.readouterr().err
    with pytest.raises(DamagedError, match="step-00000010"):
        Checkpoint(tmp_path / "step-00000010").check_all()


def test_they_are_in_order(tmp_path: Path) -> None:
    for name in ("step-100000000", "step-00000009", "step-00000010", ".writing-a", "other"):
        (tmp_path / name).mkdir()
    assert [f.name[5:] for f in folders(tmp_path)] == ["00000009", "00000010", "100000000"]
    assert newest_whole(tmp_path / "nothing") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [("500", (500, None)), (7, (7, None)), ("90s", (None, 90)), ("2h", (None, 7200))],
)
def test_intervals(text: int | str, expected: tuple[int | None, float | None]) -> None:
    assert interval(text) == expected


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "10 m", "10d", "", "m", 0])
def test_no_intervals(text: int | str) -> None:
    with pytest.raises(UserError, match="interval between checkpoints"):
        interval(text)


def test_wrong_numbers(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least 1"):
        Checkpoints(tmp_path, keep=0)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written there"):
        Checkpoints(tmp_path / "file" / "folder").check_directory()


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_weights_come_back(ending: str, tmp_path: Path) -> None:
    weights = {"dense.kernel": WHOLE, "ids": np.arange(3, dtype=np.int32)}
    save_weights(tmp_path / f"w.{ending}", weights)
    again = read_weights(tmp_path / f"w.{ending}")
    assert {name: its.tobytes() for name, its in again.items()} == {
        name: its.tobytes() for name, its in weights.items()
    }


def test_a_modules_names_in_half_precision(tmp_path: Path) -> None:
    """A file of the network with a head: its names have a prefix."""
    save_file({"bert.dense.weight": WHOLE.astype(np.float16)}, tmp_path / "w.safetensors")
    layout = Layout((4, 6), (1, 0), (6, 4))
    origin = Origin({"dense.weight": (Place("dense.kernel", layout),)}, {"dense.weight": (4, 6)})
    arrays = read_weights(tmp_path / "w.safetensors")
    weights = fitted(arrays, {"dense.kernel": (6, 4)}, {"dense.kernel"}, origin, "w")
    assert (weights["dense.kernel"] == WHOLE.T).all()


def test_weights_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "w.npz").write_bytes(b"no zip")
    (tmp_path / "w.pt").write_bytes(b"pickle")
    for name, message in (
        ("w.npz", "neither"),
        ("w.pt", "pickle"),
        ("none", "cannot be read"),
        ("a" * 5000, "too long"),
    ):
        with pytest.raises(UserError, match=message):
            read_weights(tmp_path / name)
    with pytest.raises(UserError, match="it has no 'a'; the model has no 'b'"):
        fitted({"b": WHOLE}, {"a": (4, 6)}, {"a"}, None, "w")
    with pytest.raises(UserError, match=r"shape \[4, 6\]"):
        fitted({"a": WHOLE}, {"a": (6, 4)}, {"a"}, None, "w")


@pytest.mark.parametrize(
    ("state", "what"),
    [
        ([], "state.json: has to be an object with the keys 'training'"),
        (GOOD | {"seed": "0"}, "'seed' has to be a whole number"),
        (GOOD | {"learning_rate": 10**400}, "'learning_rate' has to be a number"),
        (GOOD | {"devices": "cpu:0"}, "'devices' has to be a list of names"),
        (GOOD | {"strategy": {"dense": {}}}, "'strategy' has to be degrees"),
        (GOOD | {"optimizer": {"type": "sgd", "lr": "high"}}, "'optimizer' has to be"),
        (GOOD | {"optimizer": {"type": "sgd", "groups": [3]}}, "'optimizer' has to be"),
        (GOOD | {"operators": {"dense": None}}, "'operators' has to be"),
        (
            GOOD | {"training": TRAINING | {"position": {}}},
            "the key 'epoch' is missing",
        ),
        (GOOD | {"training": TRAINING | {"began": -1}}, "'began' has to be a whole number"),
        (GOOD | {"training": TRAINING | {"history": [{"loss": "low"}]}}, "'history' has to be"),
        (GOOD | {"training": TRAINING | {"callbacks": {"a": 1}}}, "'callbacks' has to be"),
        (
            GOOD | {"training": TRAINING | {"total": {"losses": [{}], "samples": 1, "batches": 1}}},
            "'losses': the key 'loss' is missing",
        ),
    ],
)
def test_states_that_nobody_wrote(state: object, what: str, tmp_path: Path) -> None:
    with pytest.raises(DamagedError, match=what):
        written(tmp_path / "step-00000003", state).check_all()


def training_of(callback: Callback, *losses: str, scale: LossScale | None = None) -> Training:
    """A call of `fit` that is not run."""
    goal = Goal(tuple(Term(name, 1.0, ()) for name in losses))
    compiled: Any = SimpleNamespace(
        position=Position(), goal=goal, program=SimpleNamespace(loss_scale=scale)
    )
    model: Any = None
    return Training(model, compiled, 1, [callback])


def test_the_scale_of_losses_is_taken_up(tmp_path: Path) -> None:
    """If there is one; older checkpoints have none."""
    state = json.loads(json.dumps(TRAINING))
    for given, expected in (
        ({"value": 512.0, "good": 7}, LossScale(512.0, 7)),
        (None, LossScale()),
    ):
        its = training_of(EarlyStopping(), "", scale=LossScale())
        its.resume(state | ({} if given is None else {"loss_scale": given}))
        assert its._compiled.program.loss_scale == expected
        assert its.state()["loss_scale"] == asdict(expected)
    for k, wrong in enumerate(
        ({"value": 0, "good": 1}, {"value": 2.0}, {"value": 2.0, "good": -1})
    ):
        wrong_state = GOOD | {"training": TRAINING | {"loss_scale": wrong}}
        with pytest.raises(DamagedError, match="loss_scale"):
            written(tmp_path / f"step-0000000{k}", wrong_state).check_all()


def test_what_training_and_callbacks_take_up() -> None:
    state = json.loads(json.dumps(TRAINING))
    training = training_of(EarlyStopping(), "")
    training.resume(state)
    assert math.isnan(training.history.epochs[0]["val_loss"])
    assert json.loads(json_text(training.state())) == TRAINING
    with pytest.raises(UserError, match="interrupted with 1 losses, but the model has 2"):
        training_of(EarlyStopping(), "a", "b").resume(state)
    for best in ({}, {"best": "low", "best_epoch": 0}, {"best": 10**400, "best_epoch": 0}):
        state["callbacks"] = {"EarlyStopping 1": best}
        with pytest.raises(UserError, match="EarlyStopping 1 cannot go on from what was kept"):
            training_of(EarlyStopping(), "").resume(state)


@pytest.mark.parametrize(
    ("homes", "keys"),
    [
        ([((0, 0), (0, 6)), ((0, 4), (0, 6))], [[], ["w"]]),
        ([((0, 2), (0, 6)), ((2, 4), (0, 6))], [["w[0:2,0:6]"], ["w[2:4,0:6]"]]),
    ],
)
def test_ranks_write_what_they_have(homes: list[Box], keys: list[list[str]]) -> None:
    """Of a part without elements nothing is written, or the whole would have two kinds of keys."""
    tensor = Tensor("w", WHOLE.shape, kind="weight", requires_gradient=True)
    program: Any = SimpleNamespace(home=lambda _: list(enumerate(homes)), save=lambda _: None)
    for rank, its in enumerate(keys):
        assert list(HostCopy(program, rank, [Kept("w", tensor)]).arrays) == its


def full_disk(name: str) -> Callable[[Path, Mapping[str, Any]], Sum]:
    """A `write_tensors` that has no room for this file."""

    def write(path: Path, arrays: Mapping[str, Any]) -> Sum:
        if path.name == name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_tensors(path, arrays)

    return write


@pytest.mark.parametrize(
    ("full", "reason"),
    [
        ("weights-0-of-2.safetensors", "No space left"),
        ("weights-1-of-2.safetensors", "rank 1: No space left"),
        ("note", "rank 1: its files cannot be written"),
    ],
)
def test_a_full_disk(
    full: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any rank: nothing waits, the checkpoint before stays, and later there is room again."""
    writers = [Writer(tmp_path, rank, 2, 2, "token") for rank in range(2)]

    def write(step: int) -> None:
        writers[0].make_folder(step)
        for writer in writers:
            writer.write(step, {"weights": {f"w{writer._rank}": WHOLE}}, json.dumps(GOOD))

    write(10)
    for writer in writers:
        writer.finish()
    with monkeypatch.context() as patched:
        if full == "note":
            patched.setattr(Path, "write_text", lambda *_: full_disk("x")(tmp_path / "x", {}))
            failing = writers
        else:
            patched.setattr(checkpoint_writer, "write_tensors", full_disk(full))
            failing = writers if "-1-" in full else writers[:1]
        write(20)
        for writer in failing:
            with pytest.raises(OSError, match=reason if writer is writers[0] else "No space"):
                writer.finish()
        for writer in set(writers) - set(failing):
            writer.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]
    write(20)
    for writer in writers:
        writer.finish()
    assert [Checkpoint(folder).folder.name for folder in folders(tmp_path)][-1] == "step-00000020"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("tensors", "what"),
    [
        ({"w[0:2,0:6]": WHOLE[:2], "w[2:4]": WHOLE[2:]}, "'w' cannot be read"),
        ({"w[0:9999999999,0:9999999999]": WHOLE}, "not as large as it says"),
        ({"w[0:4,0:6]": WHOLE[:1]}, "not as large as it says"),
        ({"w[0:2,0:6]": WHOLE[:2], "w[3:4,0:6]": WHOLE[3:]}, "parts of it are missing"),
    ],
)
def test_parts_that_make_no_whole(tensors: dict[str, Any], what: str, tmp_path: Path) -> None:
    folder = tmp_path / "step-00000003"
    folder.mkdir()
    name = "weights-0-of-1.safetensors"
    write_manifest(folder, {name: write_tensors(folder / name, tensors)})
    with pytest.raises(DamagedError, match=what):
        Checkpoint(folder).read("w")


def test_what_is_no_file(tmp_path: Path) -> None:
    """Nothing waits for a pipe, and nothing is read without end."""
    checkpoint = written(tmp_path / "step-00000003")
    path = checkpoint.folder / "weights-0-of-2.safetensors"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DamagedError, match="it is a pipe, not a file"):
        checkpoint.check_all()
    with pytest.raises(DamagedError, match="it is a pipe, not a file"):
        checkpoint.read("w")
    os.mkfifo(tmp_path / "w.safetensors")
    with pytest.raises(UserError, match="it is a pipe, not a file"):
        read_weights(tmp_path / "w.safetensors")
    manifest = checkpoint.folder / MANIFEST
    os.truncate(manifest, 1 << 30)
    with pytest.raises(DamagedError, match="too large"):
        Checkpoint(checkpoint.folder)
    np.savez_compressed(tmp_path / "w.npz", x=np.zeros(1 << 28, np.uint8))
    with pytest.raises(UserError, match="do not grow more than"):
        read_weights(tmp_path / "w.npz")

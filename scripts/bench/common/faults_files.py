"""Good files of every kind that is read, what reads them, and mutations: see faults.py."""

from __future__ import annotations

import gzip
import io
import json
import random
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import xxhash
from PIL import Image

from common.faults_arguments import NETWORK, QUICK
from flexlegion import UserError
from flexlegion.base.documents import MAX_BYTES
from flexlegion.cli.main import main as flexlegion
from flexlegion.cli.ranks import chosen_ranks
from flexlegion.cost.profile_db import ProfileDB
from flexlegion.cost.records import Sample, TaskKey
from flexlegion.data.classification import load_classification
from flexlegion.data.idx import read_idx
from flexlegion.data.images import read_image
from flexlegion.data.loaders import load
from flexlegion.data.text import read_lines
from flexlegion.machine.files import PLATFORMS
from flexlegion.objective.metrics import Goal, Term
from flexlegion.training.callbacks import EarlyStopping
from flexlegion.training.checkpoints.files import (
    MANIFEST,
    STATE,
    Checkpoint,
    Sum,
    write_document,
    write_manifest,
    write_tensors,
)
from flexlegion.training.checkpoints.weights import read_weights
from flexlegion.training.fit import Training
from flexlegion.training.position import Position

PIECES = (b"\0", b"\x1b[2J", b"\xff\xff\xff\xff", b"[" * 99, b"1e999", b"-1", b'"a":', b"NaN", b"")
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 0.5, 2**31, 2**63, 10**400, 1e308, -1e-308, "", "nan", "x" * 5000),
    *("\x1b[2J", "\u202e", "../..", [], {}, [[]], {"a": {}}, [0] * 1000),
)
READABLE = 1 << 20  # bytes of a file that is mutated by its JSON values

MODEL = """import flexlegion as fl


def model():
    net = fl.Model(8)
    net.loss = "mean_squared_error"
    net.dense(net.input((4,)), 2)
    return net
"""
EXPORT = """import sys
import torch
module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
batch = ({0: torch.export.Dim("batch")},)
program = torch.export.export(module, (torch.zeros(8, 4),), dynamic_shapes=batch)
torch.export.save(program, sys.argv[1])
"""
SUMS = {
    **dict.fromkeys(("loss", "correct", "correct_top5", "squared_error", "absolute_error"), 1.0),
    **dict.fromkeys(("labels", "samples"), 12),
}
TRAINING_STATE: dict[str, Any] = {
    "training": {
        "position": {"epoch": 1, "batch": 3, "step": 13},
        "began": 0,
        "samples": 40,
        "seconds": 0.5,
        "total": {"losses": [SUMS], "samples": 12, "batches": 3},
        "history": [{"loss": 1.0, "val_loss": None}],
        "callbacks": {"EarlyStopping 1": {"best": 1.0, "best_epoch": 1}},
    },
    "seed": 0,
    "batch_size": 4,
    "model": "mlp",
    "optimizer": {"type": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": False, "clip_norm": None},
    "learning_rate": 0.1,
    "fingerprint": "0123456789abcdef",
    "operators": {"dense": "dense 2 01234567"},
    "strategy": {"dense": {"degrees": [2, 1], "devices": ["cpu:0", "cpu:1"]}},
    "devices": ["cpu:0", "cpu:1"],
    "ranks": 1,
    "versions": {"python": "3.11"},
}


def reads(read: Callable[[Path], object], path: Path) -> Callable[[], int]:
    """A loader that is to take a file, or to say in a `UserError` why not."""

    def run() -> int:
        try:
            read(path)
        except UserError:
            return 2
        return 0

    return run


def command(*args: object) -> Callable[[], int]:
    """A command."""
    return lambda: flexlegion([str(arg) for arg in args])


def readers(folder: Path) -> dict[str, tuple[Path, Callable[[Path], Callable[[], int]]]]:
    """For each kind of file: a good one, and what reads it."""
    strategy, machine, timeline = folder / "s.json", folder / "m.json", folder / "t.json"
    network = NETWORK
    flexlegion(["search", *network, *QUICK, "--out", str(strategy)])
    flexlegion(["simulate", *network, "--strategy", "data", "--trace", str(timeline)])
    machine.write_bytes((PLATFORMS / "p100.json").read_bytes())
    x, y = np.zeros((8, 4, 4), np.uint8), np.zeros(8, np.int64)
    np.savez(folder / "d.npz", x=x, y=y)
    np.save(folder / "d.npy", x)
    header = bytes([0, 0, 8, 3, 0, 0, 0, 8, 0, 0, 0, 4, 0, 0, 0, 4])
    (folder / "d-idx3-ubyte").write_bytes(header + x.tobytes())
    (folder / "d-idx3-ubyte.gz").write_bytes(gzip.compress(header + x.tobytes()))
    (folder / "t.txt").write_text("one\ntwo\n")
    (folder / "t.tsv").write_text("good\ta fine day\nbad\ta wet one\n")
    (folder / "t.csv").write_text('label,text\ngood,"a fine day"\nbad,a wet one\n')
    (folder / "hosts").write_text("node1 slots=2\nnode2 slots=2\n")
    weights = {"w[0:4,0:4]": np.ones((4, 4), np.float32), "b": np.ones(4, np.float32)}
    sums = {"w.safetensors": write_tensors(folder / "w.safetensors", weights)}
    sums[STATE] = write_document(folder / STATE, json.dumps(TRAINING_STATE))
    write_manifest(folder, sums)
    Image.fromarray(x[0]).save(folder / "i.png")
    Image.fromarray(x[0]).save(folder / "i.jpg")
    import h5py

    with h5py.File(folder / "d.h5", "w") as file:
        file["x"], file["y"] = x, y
    with ProfileDB(folder / "p.sqlite") as db:
        db.add_task("gpu", "lib", TaskKey("dense", "", "1x1", "forward", "1", "f"), Sample(1, 1, 1))
    (folder / "n.py").write_text(MODEL)
    # In another process: this one's memory is measured, and its copies' are small without torch.
    subprocess.run([sys.executable, "-c", EXPORT, str(folder / "e.pt2")], check=True)

    def image(path: Path) -> object:
        return read_image(path, (8, 8, 3))

    def texts(path: Path) -> object:
        return load_classification(path, 8, 100)

    def hosts(path: Path) -> object:
        return chosen_ranks(None, str(path))

    def checkpoint(path: Path) -> None:
        read_checkpoint(path, folder)

    def samples(path: Path) -> object:
        return load(str(path), str(folder / "d.npy") if path.suffix == ".npy" else None)

    return {
        "strategy": (strategy, lambda p: command("simulate", *network, "--strategy", p)),
        "machine": (
            machine,
            lambda p: command("simulate", "--model", "mlp", "--strategy", "data", "--machine", p),
        ),
        "machine, searched": (
            machine,
            lambda p: command("compare", "--model", "mlp", *QUICK, "--machine", p),
        ),
        "machine, shown": (machine, lambda p: command("machine", "show", p)),
        "profile data base": (
            folder / "p.sqlite",
            lambda p: command("simulate", *network, "--strategy", "data", "--profile-db", p),
        ),
        "model .py": (folder / "n.py", lambda p: command("plan", "--model", p)),
        "model .pt2": (folder / "e.pt2", lambda p: command("plan", "--model", p)),
        ".npz": (folder / "d.npz", lambda p: reads(samples, p)),
        ".npy": (folder / "d.npy", lambda p: reads(samples, p)),
        ".h5": (folder / "d.h5", lambda p: reads(samples, p)),
        "IDX": (folder / "d-idx3-ubyte", lambda p: reads(read_idx, p)),
        "IDX .gz": (folder / "d-idx3-ubyte.gz", lambda p: reads(read_idx, p)),
        "text": (folder / "t.txt", lambda p: reads(read_lines, p)),
        ".tsv": (folder / "t.tsv", lambda p: reads(texts, p)),
        ".csv": (folder / "t.csv", lambda p: reads(texts, p)),
        "hosts": (folder / "hosts", lambda p: reads(hosts, p)),
        "timeline": (
            timeline,
            lambda p: command("report", "data", *network, "--out", "/dev/null", "--measured", p),
        ),
        "weights": (folder / "w.safetensors", lambda p: reads(read_weights, p)),
        "checkpoint's weights": (folder / "w.safetensors", lambda p: reads(checkpoint, p)),
        "checkpoint's state": (folder / STATE, lambda p: reads(checkpoint, p)),
        "checkpoint's manifest": (folder / MANIFEST, lambda p: reads(checkpoint, p)),
        ".png": (folder / "i.png", lambda p: reads(image, p)),
        ".jpg": (folder / "i.jpg", lambda p: reads(image, p)),
    }


def read_checkpoint(path: Path, good: Path) -> None:
    """All of a checkpoint that has this file, with the right checksum; other files are good."""
    names = ("w.safetensors", STATE, MANIFEST)
    own = next(name for name in names if path.name.endswith(name))
    with tempfile.TemporaryDirectory(dir=good) as name:
        folder = Path(name)
        for other in names:
            (folder / other).symlink_to(path if other == own else good / other)
        if own != MANIFEST:
            (folder / MANIFEST).unlink()
            content = b""
            if path.is_file() and path.stat().st_size < MAX_BYTES:
                content = path.read_bytes()
            sums = dict(Checkpoint(good).files)
            sums[own] = Sum(len(content), xxhash.xxh3_128(content).hexdigest())
            write_manifest(folder, sums)
        checkpoint = Checkpoint(folder)
        checkpoint.check_all()
        for tensor in checkpoint:
            checkpoint.read(tensor)
        status = flexlegion(["checkpoint", "show", str(folder)])
        take_up(checkpoint)
        if status != 0:
            raise (UserError if status == UserError.status else AssertionError)("not shown")


def take_up(checkpoint: Checkpoint) -> None:
    """Go on from a checkpoint's state, as `Model.fit` does after it has set the weights."""
    compiled: Any = SimpleNamespace(
        position=Position(),
        goal=Goal((Term("", 1.0, ()),)),
        program=SimpleNamespace(loss_scale=None),
    )
    model: Any = None
    training = Training(model, compiled, 2, [EarlyStopping()])
    training.resume(checkpoint.state["training"])
    training.state()


def mutations(path: Path, rng: random.Random) -> bytes:
    """A good file of which some bytes are changed, a value, or a part of its archive."""
    content = path.read_bytes()
    if zipfile.is_zipfile(path) and rng.random() < 0.5:
        return _with_part_mutated(content, rng)
    return _mutated_somehow(content, rng)


def _mutated_somehow(content: bytes, rng: random.Random) -> bytes:
    if content[:1] == b"{" and len(content) < READABLE and rng.random() < 0.5:
        with suppress(ValueError):
            return with_value_mutated(json.loads(content), rng)
    return mutated(content, rng)


def _with_part_mutated(archive: bytes, rng: random.Random) -> bytes:
    """With right checksums, so that what reads the part has to find out."""
    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(result, "w") as new:
        names = old.namelist()
        chosen = rng.choice(names)
        for name in names:
            content = old.read(name)
            new.writestr(name, _mutated_somehow(content, rng) if name == chosen else content)
    return result.getvalue()


def with_value_mutated(document: Any, rng: random.Random) -> bytes:
    """A JSON document with a value replaced, removed, or put in where there was none."""
    place, key = rng.choice(list(_places(document)))
    choice = rng.randrange(4)
    if choice == 0:
        del place[key]
    elif choice == 1 and isinstance(place, dict):
        place[rng.choice(("\x07", "", "x" * 3000, "training", "nodes"))] = place[key]
    else:
        place[key] = rng.choice(VALUES)
    return json.dumps(document).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with every key in it."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, cut, doubled or put in."""
    result = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        place = rng.randrange(len(result) + 1)
        end = min(len(result), place + rng.choice((1, 4, 64)))
        choice = rng.randrange(4)
        if choice == 0 and place < len(result):
            result[place] ^= 1 << rng.randrange(8)
        elif choice == 1:
            result[place:end] = rng.choice(PIECES)
        elif choice == 2:
            result[place:place] = result[place:end] * rng.choice((1, 50))
        elif rng.random() < 0.2:
            del result[place:]
    return bytes(result)

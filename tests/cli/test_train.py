"""scripts/train.py as a user runs it."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from common.processes import descendants
from launch import ROOT, is_quiet, legate_environment, run_checked, run_legate

import flexlegion as fl
from flexlegion.data import load_digits, write_digits

TRAIN = ROOT / "scripts" / "train.py"

pytestmark = pytest.mark.legion


def test_main_job(tmp_path: Path) -> None:
    """LeNet learns the digits: at least 97 % on a held-out fifth."""
    out = tmp_path / "metrics.json"
    arguments = [
        "--model",
        "lenet",
        "--data",
        "digits",
        "--strategy",
        "data",
        "--epochs",
        "15",
        "--optimizer",
        "adam",
        "--json",
    ]
    done = run_legate(TRAIN, *arguments, out, cpus=2, timeout=300)
    metrics = json.loads(out.read_text())
    assert metrics["accuracy"] >= 0.97
    assert 0 < metrics["loss"] < 0.2
    assert metrics["processors"] == 2
    assert metrics["ranks"] == 1
    assert metrics["seconds"] > 0
    assert metrics["samples_per_second"] > 0
    assert len(metrics["epochs"]) == 15
    assert is_quiet(done.stderr), done.stderr
    # Plain lines, as standard output is not a terminal.
    assert "epoch 15/15  loss " in done.stdout
    assert "\x1b" not in done.stdout


def test_strategy_file_and_every_optimizer(tmp_path: Path) -> None:
    """A file made by ``flexlegion strategy`` trains to the same weights, with each optimizer."""
    strategy = tmp_path / "s.json"
    command = [sys.executable, "-m", "flexlegion", "strategy", "--model", "mlp"]
    command += ["--strategy", "random:11", "--batch-size", "32", "--cpus", "3", "--out", strategy]
    subprocess.run(command, check=True, cwd=ROOT)
    for options in ("sgd --lr 0.05 --momentum 0.9", "adam", "adamw --lr 0.002", "lazy-adam"):
        weights = []
        for chosen, cpus in ((strategy, 3), ("single", 1)):
            file = tmp_path / "weights.npz"
            arguments = ["--model", "mlp", "--epochs", 1, "--strategy", chosen]
            arguments += ["--save-weights", file, "--optimizer", *options.split()]
            run_legate(TRAIN, *arguments, cpus=cpus, timeout=120)
            weights.append(dict(np.load(file)))
        for name, expected in weights[1].items():
            error = np.linalg.norm(weights[0][name] - expected) / np.linalg.norm(expected)
            assert error < 1e-3, f"{options}: {name} {error}"


def idx(array: np.ndarray) -> bytes:
    """The IDX format, of unsigned bytes."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def test_mnist_files(tmp_path: Path) -> None:
    """A folder of MNIST's files, compressed, its own test set included."""
    digits = load_digits((28, 28))
    images = digits.x[..., 0]
    images = ((images - images.min()) / np.ptp(images) * 255).astype(np.uint8)
    labels = digits.y.astype(np.uint8)
    for name, part in (("train", slice(0, 1400)), ("t10k", slice(1400, None))):
        (tmp_path / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images[part])))
        (tmp_path / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels[part])))
    out = tmp_path / "metrics.json"
    arguments = ["--data", tmp_path, "--strategy", "model", "--epochs", 5]
    arguments += ["--optimizer", "adam", "--json", out]
    done = run_legate(TRAIN, *arguments, cpus=2, timeout=120)
    assert "1400 samples to train, 397 to test" in done.stdout
    stored = re.search(r"^memory  \S+ has \S+ MiB of .* GiB: (.*)$", done.stdout, re.MULTILINE)
    assert stored is not None, done.stdout
    # Adam has two states of each weight, as many bytes as the weights themselves each.
    sizes = dict(re.findall(r"([a-z][a-z ]+) ([\d.]+ [KM]iB)", stored[1]))
    weights, states = (
        float(number) * (1024 if unit == "MiB" else 1)
        for number, unit in (sizes[kind].split() for kind in ("weights", "optimizer states"))
    )
    assert states == pytest.approx(2 * weights, rel=1e-3)
    assert json.loads(out.read_text())["accuracy"] > 0.85


def test_folders_of_images(tmp_path: Path) -> None:
    """PNG files, decoded while training runs, cropped and mirrored; the rate follows a schedule."""
    write_digits(tmp_path / "digits")
    out = tmp_path / "metrics.json"
    arguments = ["--data", tmp_path / "digits", "--size", "input_shape=24x24x1", "--augment"]
    arguments += [
        "--optimizer",
        "adam",
        "--epochs",
        4,
        "--schedule",
        "cosine",
        "--warmup",
        20,
        "--weight-decay",
        1e-4,
    ]
    done = run_legate(TRAIN, *arguments, "--json", out, cpus=2, timeout=120)
    assert "1437 samples to train, 360 to test" in done.stdout
    metrics = json.loads(out.read_text())
    assert metrics["accuracy"] > 0.8
    epoch = metrics["epochs"][-1]
    assert {"loss", "accuracy", "seconds", "samples_per_second"} <= epoch.keys()
    assert metrics["train_loss"] == epoch["loss"]

    broken = sorted((tmp_path / "digits" / "train").glob("*/*.png"))[700]
    broken.write_bytes(broken.read_bytes()[:40])
    done = run_legate(TRAIN, *arguments, cpus=2, timeout=120, status=2)
    assert f"error: {broken}: this cannot be read as an image (" in done.stderr
    assert "Traceback" not in done.stderr


def test_synthetic_data(tmp_path: Path) -> None:
    """As many random samples as asked for, of the sizes asked for."""
    out = tmp_path / "metrics.json"
    arguments = ["--model", "mlp", "--data", "synthetic", "--size", "input_shape=20"]
    arguments += ["--size", "classes=7", "--samples", 100, "--epochs", 1, "--json", out]
    done = run_legate(TRAIN, *arguments, cpus=2, timeout=120)
    assert "mlp: 100 samples to train, 64 to test" in done.stdout
    metrics = json.loads(out.read_text())
    assert metrics["samples_per_second"] > 0
    assert metrics["tokens_per_second"] is None
    assert "GFLOP/s a processor in training" in " ".join(done.stdout.split())


def test_rates_of_text(tmp_path: Path) -> None:
    """Tokens are counted where samples are rows of them; the work is what simulations say."""
    out = tmp_path / "metrics.json"
    sizes = ["steps=16", "layers=1", "hidden=32", "heads=2", "vocabulary=50"]
    network = ["--model", "transformer", *(word for size in sizes for word in ("--size", size))]
    arguments = [*network, "--data", "synthetic", "--batch-size", 8, "--samples", 32]
    arguments += ["--micro-batches", 2, "--json", out]
    done = run_legate(TRAIN, *arguments, cpus=2, timeout=120)
    metrics = json.loads(out.read_text())
    assert metrics["tokens_per_second"] == pytest.approx(16 * metrics["samples_per_second"])
    # Of each epoch, and of all.
    _, memory, *rates = done.stdout.splitlines()
    assert memory.startswith("memory ")
    assert rates
    assert all(" tokens/s" in line for line in rates)
    epoch = metrics["epochs"][0]
    assert epoch["tokens_per_second"] == pytest.approx(16 * epoch["samples_per_second"])
    given = {name: int(value) for name, value in (size.split("=") for size in sizes)}
    model = fl.load_model("transformer", 8, given)
    simulated = fl.simulate(model, "p100x2", micro_batches=2).facts()
    flops = 2 * metrics["flops_per_second_of_device"] / metrics["samples_per_second"]
    assert flops == pytest.approx(simulated["model_flops"] / 8)


@pytest.mark.parametrize(
    ("number", "ranks", "terminal"),
    [
        (signal.SIGINT, 1, True),
        (signal.SIGTERM, 1, False),
        (signal.SIGINT, 2, False),
        (signal.SIGTERM, 2, False),
    ],
)
def test_interrupted(number: int, ranks: int, terminal: bool, tmp_path: Path) -> None:
    """A signal ends training after an iteration: one sentence, the weights, nothing left behind.

    Under a terminal it is Ctrl-C typed there.
    """
    weights = tmp_path / "weights.npz"
    command = [sys.executable, "-m", "flexlegion", "train", "--epochs", "100000", "--cpus", "1"]
    command += ["--ranks", str(ranks), "--save-weights", str(weights)]
    environment = {k: v for k, v in os.environ.items() if k != "LEGATE_CONFIG"}
    own, its = os.openpty()
    with (tmp_path / "out").open("w+") as out:
        process = subprocess.Popen(
            ["setsid", "--ctty", *command] if terminal else command,
            cwd=ROOT,
            env=environment | {"TERM": "dumb"},
            stdin=its if terminal else subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )

        def text() -> str:
            return (tmp_path / "out").read_text()

        while "\nepoch 2/" not in text():
            assert process.poll() is None, text()
            time.sleep(0.05)
        children = descendants(process.pid)
        if terminal:
            os.write(own, b"\x03")
        else:
            process.send_signal(number)
        assert process.wait(30) == 128 + number
    os.close(own)
    os.close(its)
    last = text().splitlines()[-1]
    assert re.fullmatch(
        r"interrupted (in|after) epoch \d+/100000, after [\d,]+ iterations; the weights are in "
        + re.escape(str(weights)),
        last,
    ), text()
    assert [line for line in text().splitlines() if line.startswith("interrupted")] == [last]
    assert "0x0000" not in text()  # no backtrace
    assert {"c1.kernel", "c1.bias"} <= set(np.load(weights))
    deadline = time.monotonic() + 5  # for what was killed to be gone
    while any(Path(f"/proc/{pid}").exists() for pid in children):
        assert time.monotonic() < deadline, children
        time.sleep(0.05)


def test_diverged(tmp_path: Path) -> None:
    """One sentence, of two ranks as well, and the status; with --allow-nan, JSON without NaN."""
    arguments = ["--optimizer", "sgd", "--lr", 1e38, "--epochs", 1]
    command = [sys.executable, "-m", "flexlegion", "train", "--ranks", "2", *map(str, arguments)]
    environment = {k: v for k, v in legate_environment().items() if k != "LEGATE_CONFIG"}
    done = run_checked(command, environment=environment, timeout=60, status=3)
    (sentence,) = [line for line in done.stderr.splitlines() if not line.startswith("warning: ")]
    assert sentence.startswith("error: the loss is nan in iteration 3 (epoch 1); training has div")
    out = tmp_path / "metrics.json"
    run_legate(TRAIN, *arguments, "--allow-nan", "--json", out, cpus=1, timeout=60)
    assert "NaN" not in out.read_text()
    assert json.loads(out.read_text())["loss"] is None


def logged(file: Path) -> tuple[Any, list[dict[str, Any]]]:
    """The run that a file of W&B's has, and what it logged; its format is LevelDB's log."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, part, at = file.read_bytes(), b"", 7
    run, history = None, []
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack("<IHB", content[at : at + 7])
        part += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record, part = Record.FromString(part), b""
            if record.WhichOneof("record_type") == "run":
                run = record.run
            elif record.WhichOneof("record_type") == "history":
                items = record.history.item
                history.append({(*i.nested_key, i.key)[0]: json.loads(i.value_json) for i in items})
    return run, history


def test_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The options that follow training."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    best, log, board = tmp_path / "best.npz", tmp_path / "log.csv", tmp_path / "board"
    arguments = [
        "--optimizer",
        "adam",
        "--epochs",
        50,
        "--lr",
        0.02,
        "--early-stopping",
        1,
        "--best-weights",
        best,
    ]
    arguments += ["--wandb", "own", "--tensorboard", board]
    done = run_legate(TRAIN, *arguments, "--log", log, cpus=2, timeout=90)
    assert "\nstopped early: no better for 1 epoch than " in done.stdout
    assert len(log.read_text().splitlines()) < 51
    assert "val_loss" in log.read_text().splitlines()[0]
    assert set(np.load(best))
    assert len(list(board.glob("*/events*"))) == 2
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    run, history = logged(file)
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert (run.project, config["optimizer"], config["batch_size"]) == ("own", "adam", 32)
    lines = [line.split(",") for line in log.read_text().splitlines()]
    column = lines[0].index("val_loss")
    assert [its["val_loss"] for its in history] == [float(line[column]) for line in lines[1:]]
    assert [its["_step"] for its in history] == [int(line[1]) for line in lines[1:]]
    done = run_legate(TRAIN, "--log", tmp_path, cpus=1, timeout=60, status=2)
    assert f"error: {tmp_path}: the log cannot be written there" in done.stderr


def test_timeline(tmp_path: Path) -> None:
    """A trace for viewers: named tasks on both processors, one after the other on each."""
    out = tmp_path / "t.json"
    arguments = ["--data", "synthetic", "--batch-size", 16, "--epochs", 1, "--timeline", out]
    run_legate(TRAIN, *arguments, cpus=2, timeout=120)
    trace = json.loads(out.read_text())
    assert trace["otherData"]["model"] == "lenet"
    assert trace["otherData"]["strategy"] == "data"
    assert trace["otherData"]["machine"] == "2 processors on 1 rank"
    tracks: dict[int, list[tuple[float, float, str]]] = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            tracks.setdefault(event["tid"], []).append((event["ts"], event["dur"], event["name"]))
    assert len(tracks) == 2
    names = {name for slices in tracks.values() for _, _, name in slices}
    assert {"forward c1 [0]", "forward c1 [1]", "backward c3 [1]"} <= names
    for slices in tracks.values():
        slices.sort()
        for (start, length, name), (following, _, other) in pairwise(slices):
            assert start + length <= following + 1e-3, f"{name} and {other}"

    done = run_legate(TRAIN, "--timeline", tmp_path, cpus=2, timeout=120, status=2)
    assert f"error: {tmp_path}: the timeline cannot be written there" in done.stderr

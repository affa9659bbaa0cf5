"""Clear errors: every mistake gives one sentence, status 2, and nothing that looks like a crash.

The sentence names the file, where there is one, the operator, what is wrong and what would be
right. What can be seen without Legion is tested without it.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from imported import no_legate

from flexlegion import SGD, Adam, Model, UserError
from flexlegion.cli.main import main
from flexlegion.known_strategies.registry import strategy_names
from flexlegion.layers.arrays import check_rows, rows_for
from flexlegion.machine.files import PLATFORMS
from flexlegion.objective.optimizers import optimizer_of
from flexlegion.zoo import ZOO

ROOT = Path(__file__).parents[2]

Capture = pytest.CaptureFixture[str]


def sentence(stdout: str, stderr: str) -> str:
    """The one error in the output of a command."""
    output = f"{stdout}\n{stderr}"
    for sign in ("Traceback", "LEGATE ERROR", "backtrace", "Signal", "Error:"):
        assert sign not in output, output
    lines = [line for line in output.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, output
    assert lines[0] in stderr.splitlines()
    text = lines[0].removeprefix("error: ")
    assert len(text) > 20
    assert ". " not in text.replace("...", ""), f"more than one sentence: {text}"
    return text


def plan(capsys: Capture, *args: str) -> str:
    """What ``flexlegion plan`` says is wrong."""
    status = main(["plan", *args])
    out, err = capsys.readouterr()
    assert status == 2, out
    assert out == ""
    text = sentence(out, err)
    assert err == f"error: {text}\n"
    return text


@pytest.fixture
def mlp() -> dict[str, Any]:
    """The parsed file of a strategy for the mlp."""
    dims = {"flatten": 2, "hidden1": 2, "hidden2": 2, "output": 2, "softmax": 2, "loss": 1}
    return {
        "schema_version": 2,
        "operators": {n: {"degrees": [1] * d, "devices": ["cpu:0"]} for n, d in dims.items()},
    }


@pytest.fixture
def of_file(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[bytes | str], str]:
    """What ``flexlegion plan`` says is wrong with a strategy file of that content."""

    def check(content: bytes | str) -> str:
        monkeypatch.chdir(tmp_path)
        Path("my.json").write_bytes(content.encode() if isinstance(content, str) else content)
        text = plan(capsys, "--model", "mlp", "--strategy", "my.json", "--cpus", "2")
        assert text.startswith("my.json: ")
        return text.removeprefix("my.json: ")

    return check


def test_the_file_itself_is_right(capsys: Capture, tmp_path: Path, mlp: dict[str, Any]) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps(mlp))
    assert main(["plan", "--model", "mlp", "--strategy", str(path)]) == 0
    assert "forward hidden1: 1 task\n" in capsys.readouterr().out


# Configurations in a file that do not fit

ENTRIES: list[tuple[Any, Any, str]] = [
    ([1, 0], [], "operator 'output' has degree 0 in dimension 'channel'; degrees start at 1"),
    ([-1, -1], ["cpu:0"], "operator 'output' has degree -1 in dimension 'sample'; degrees start"),
    ([1], ["cpu:0"], "operator 'output' has 1 degrees, but 3 dimensions (sample, "),
    ([1, 1, 1, 1], ["cpu:0"], "operator 'output' has 4 degrees, but 3 dimensions"),
    ([], ["cpu:0"], "operator 'output' has 0 degrees, but 3 dimensions"),
    ([1, 11], ["cpu:0"] * 11, "'channel' into 11 parts, but it has an extent of 10; use at most"),
    ([65, 1], ["cpu:0"] * 65, "'sample' into 65 parts, but it has a batch of 64; use at most 64"),
    ([10**6, 1], ["cpu:0"], "into 1000000 parts, but it has a batch of 64; use at most 64"),
    ([10**30, 1], ["cpu:0"], "but it has a batch of 64; use at most 64"),
    (
        [2, 1],
        ["cpu:0"],
        "operator 'output' needs one device a task, but names 1 device for 2 tasks",
    ),
    ([1, 1], [], "operator 'output' needs one device a task, but names 0 devices for 1 task "),
    ([1, 1], ["cpu:0", "cpu:1"], "but names 2 devices for 1 task (the product of its degrees)"),
    (
        [1, 1],
        ["tpu:0"],
        "'output' names an unknown device 'tpu:0'; devices are called cpu:0, cpu:1",
    ),
    ([1, 1], ["cpu"], "operator 'output' names an unknown device 'cpu'; devices are called cpu:0"),
    ([1, 1], ["cpu:007"], "operator 'output' names an unknown device 'cpu:007'; devices are"),
    ([1, 1], ["c\npu"], "operator 'output' names an unknown device 'c\\npu'; devices are called"),
    ([1, 1], ["cpu:2"], "'output' needs device 'cpu:2', but this run has cpu:0, cpu:1; change the"),
    ([1, 1], ["gpu:0"], "'output' needs device 'gpu:0', but this run has cpu:0, cpu:1; change the"),
    ([1.0, 1], ["cpu:0"], "operator 'output': 'degrees' has to be an object of integers by"),
    (["1", 1], ["cpu:0"], "operator 'output': 'degrees' has to be an object of integers by"),
    ([True, 1], ["cpu:0"], "operator 'output': 'degrees' has to be an object of integers by"),
    (
        [float("nan"), 1],
        ["cpu:0"],
        "operator 'output': 'degrees' has to be an object of integers by",
    ),
    (1, ["cpu:0"], "operator 'output': 'degrees' has to be an object of integers by"),
    ([1, 1], "cpu:0", "operator 'output': 'devices' has to be a list of names"),
    ([1, 1], [0], "operator 'output': 'devices' has to be a list of names"),
]


@pytest.mark.parametrize(("degrees", "devices", "text"), ENTRIES)
def test_configuration(
    of_file: Callable[[str], str], mlp: dict[str, Any], degrees: Any, devices: Any, text: str
) -> None:
    mlp["operators"]["output"] = {"degrees": degrees, "devices": devices}
    assert text in of_file(json.dumps(mlp))


def test_unknown_operator(of_file: Callable[[str], str], mlp: dict[str, Any]) -> None:
    typo = copy.deepcopy(mlp)
    typo["operators"]["hiden1"] = typo["operators"].pop("hidden1")
    assert of_file(json.dumps(typo)) == (
        "the model has no operator 'hiden1'; did you mean 'hidden1'?"
    )
    mlp["operators"]["attention"] = mlp["operators"]["output"]
    assert of_file(json.dumps(mlp)) == (
        "the model has no operator 'attention'; it has flatten, hidden1, hidden2, output, softmax, "
        "loss.own_logit, loss.logit_statistics, loss"
    )


def test_missing_operator(of_file: Callable[[str], str], mlp: dict[str, Any]) -> None:
    del mlp["operators"]["hidden2"]
    assert of_file(json.dumps(mlp)).startswith("no configuration for operator hidden2; a strategy")
    mlp["operators"] = {}
    assert of_file(json.dumps(mlp)).startswith("no configuration for operators flatten, hidden1, ")


def test_keys_of_an_entry(of_file: Callable[[str], str], mlp: dict[str, Any]) -> None:
    mlp["operators"]["output"]["device"] = mlp["operators"]["output"].pop("devices")
    text = of_file(json.dumps(mlp))
    assert text == (
        "operator 'output' needs the keys 'degrees' and 'devices', and may have 'sums', "
        "'hierarchical', 'buffers', 'again' and 'sharding'"
    )


def test_duplicate_key(of_file: Callable[[str], str], mlp: dict[str, Any]) -> None:
    text = json.dumps(mlp).replace('"hidden2"', '"hidden1"')
    assert of_file(text) == "the name 'hidden1' occurs twice in one object; keep one entry"


@pytest.mark.parametrize("version", [3, 1, 0, "2", None, True])
def test_schema_version(of_file: Callable[[str], str], mlp: dict[str, Any], version: Any) -> None:
    mlp["schema_version"] = version
    assert of_file(json.dumps(mlp)) == (
        f"schema_version is {json.dumps(version)}, but this program reads 2"
    )


def test_every_truncation(of_file: Callable[[str], str], mlp: dict[str, Any]) -> None:
    text = json.dumps(mlp)
    for length in [0, 1, 2, *range(3, len(text), 7), len(text) - 1]:
        message = of_file(text[:length])
        assert message.startswith("not JSON, or cut short (line 1, column ")
        assert message.endswith(
            "; give a whole file as the command 'flexlegion strategy' writes it"
        )


@pytest.mark.parametrize("text", ["degrees: [1]\n", "<xml/>", "{'a': 1}", "\ufeff{}"])
def test_not_json(of_file: Callable[[str], str], text: str) -> None:
    assert of_file(text).startswith("not JSON, or cut short (line 1, column ")


@pytest.mark.parametrize("text", ["[]", "3", "null", "{}", '"data"', '{"operators": [1]}'])
def test_json_of_another_shape(of_file: Callable[[str], str], text: str) -> None:
    assert of_file(text) == (
        "not a strategy file; it has to be an object with 'schema_version' and 'operators'"
    )


@pytest.mark.parametrize("content", [b"\x89PNG\r\n\x1a\n\x00\xff", bytes(range(256))])
def test_binary(of_file: Callable[[bytes], str], content: bytes) -> None:
    assert of_file(content).startswith("cannot be read as a strategy file (it is not text); give a")


def test_absurd_json(of_file: Callable[[str], str]) -> None:
    for text in ("[" * 200_000, "9" * 10_000):
        assert of_file(text).startswith("not a strategy file; its numbers or its nesting")


def test_no_such_file(capsys: Capture) -> None:
    text = plan(capsys, "--model", "mlp", "--strategy", "none.json")
    assert text == (
        "none.json: no such strategy file; give a path, or one of the known strategies "
        f"{strategy_names()}"
    )


def test_unreadable_file(capsys: Capture, tmp_path: Path) -> None:
    loop = tmp_path / "loop.json"
    loop.symlink_to(loop)
    for path in (tmp_path, loop):
        text = plan(capsys, "--model", "mlp", "--strategy", str(path))
        assert text.startswith(f"{path}: cannot be read as a strategy file (")


def test_device_number_without_end(capsys: Capture, tmp_path: Path, mlp: dict[str, Any]) -> None:
    """The machine that a file names is not built if nothing has so many processors."""
    for number in ("999999999999", "9" * 5000):
        mlp["operators"]["output"]["devices"] = [f"cpu:{number}"]
        path = tmp_path / "s.json"
        path.write_text(json.dumps(mlp))
        text = plan(capsys, "--model", "mlp", "--strategy", str(path))
        assert "operator 'output' needs device 'cpu:99999999" in text
        assert "9', but this run has cpu:0" in text
        assert len(text) < 2000


# The command line

ARGUMENTS = [
    (["--model", "yolo"], f"unknown model 'yolo'; choose one of {', '.join(ZOO)}"),
    (
        ["--optimizer", "lion"],
        "unknown optimizer 'lion'; choose one of sgd, adam, adamw, lazy-adam",
    ),
    (["--loss", "hinge"], "unknown loss 'hinge'; choose one of sparse_categorical_crossentropy, "),
    (
        ["--batch-size", "0"],
        "--batch-size: has to be a whole number from 1 to 2147483647, but is 0",
    ),
    (
        ["--batch-size", "-3"],
        "--batch-size: has to be a whole number from 1 to 2147483647, but is -3",
    ),
    (
        ["--batch-size", "9" * 30],
        "--batch-size: has to be a whole number from 1 to 2147483647, but is 999",
    ),
    (["--cpus", "0"], "a machine of 0 CPU processors and 0 GPUs has no device; it needs at least"),
    (["--gpus", "-1"], "a machine of 0 CPU processors and -1 GPUs has no device"),
    (["--cpus", "1" + "0" * 15], "GPUs is too large; use at most 100000 devices"),
    (["--strategy", "random:"], "strategy 'random:': the seed has to be a number of at most 18"),
    (["--strategy", ""], "--strategy is given an empty text; give a value, or leave it out"),
    (["--strategy", "Data"], "Data: no such strategy file; give a path, or one of the known"),
]


@pytest.mark.parametrize(("args", "text"), ARGUMENTS)
def test_arguments(capsys: Capture, args: list[str], text: str) -> None:
    assert text in plan(capsys, "--model", "lenet", *args)


def test_strategy_command(capsys: Capture, tmp_path: Path) -> None:
    for out in (tmp_path / "missing" / "s.json", tmp_path):
        assert main(["strategy", "--model", "mlp", "--out", str(out)]) == 2
        text = sentence(*capsys.readouterr())
        assert text.startswith(f"{out}: the strategy cannot be written there (")
        assert text.endswith("; give the name of a file in a folder that exists")
    assert main(["strategy", "--model", "mlp", "--optimizer", "x", "--out", "s"]) == 2
    assert "unknown optimizer 'x'" in sentence(*capsys.readouterr())


def test_as_a_process(tmp_path: Path) -> None:
    (tmp_path / "cut.json").write_text('{"schema_version": 2, "opera')
    for args in (["--strategy", "cut.json"], ["--batch-size", "0"]):
        done = subprocess.run(
            [sys.executable, "-m", "flexlegion", "plan", "--model", "lenet", *args],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 2
        assert done.stderr == f"error: {sentence(done.stdout, done.stderr)}\n"


# Arrays


def test_data_that_do_not_fit() -> None:
    model = Model(4)
    x = model.input((5, 3), name="x")
    labels = model.graph.add_input("labels", (4,), "int32")
    cases: list[tuple[Any, Any, int | None, str]] = [
        (x, np.zeros((7, 5)), None, "x: got data of shape [7, 5], expected [n, 5, 3]"),
        (x, np.zeros((7, 5, 3, 1)), None, "x: got data of shape [7, 5, 3, 1], expected [n, 5, 3]"),
        (x, 1.0, None, "x: got data of shape [], expected [n, 5, 3]"),
        (x, np.zeros((0, 5, 3)), None, "x: got no samples"),
        (x, np.full((2, 5, 3), "a"), None, "x: got data of type <U1, expected numbers"),
        (x, np.full((2, 5, 3), None), None, "x: got data of type object, expected numbers"),
        (x, np.zeros((2, 5, 3), complex), None, "x: got data of type complex128, expected numbers"),
        (labels, [0, 10], 10, "labels: label 10 is out of range; the model has 10 classes, so lab"),
        (labels, [0, -2], 10, "labels: label -2 is out of range; the model has 10 classes, so "),
        (labels, [2**40], 10, "labels: label 1099511627776 is out of range"),
        (labels, [0.5], 10, "labels: got fractions, expected integers"),
        (labels, [float("nan")], 10, "labels: got fractions, expected integers"),
        (labels, [[1, 2]], 10, "labels: got data of shape [1, 2], expected [n]"),
    ]
    for tensor, value, classes, text in cases:
        with pytest.raises(UserError) as e:
            rows_for(tensor, value, classes)
        assert str(e.value).startswith(text)
    rows = {x: rows_for(x, np.zeros((7, 5, 3))), labels: rows_for(labels, [[1], [2]], 10)}
    assert rows[labels].tolist() == [1, 2]
    with pytest.raises(UserError, match="same number of samples, but x has 7, labels has 2"):
        check_rows(rows)


@pytest.mark.parametrize("value", [0, -0.1, float("nan"), float("inf")])
def test_learning_rate(value: float) -> None:
    for make in (SGD, Adam, *(partial(optimizer_of, name) for name in ("adamw", "lazy-adam"))):
        with pytest.raises(UserError, match=f"has to be positive and finite, but is {value}"):
            make(value)


def test_hyper_parameters() -> None:
    for bad in (-0.1, 1, float("nan")):
        with pytest.raises(UserError, match="momentum has to be at least 0 and below 1, but is"):
            SGD(0.1, momentum=bad)
        with pytest.raises(UserError, match="beta2 has to be at least 0 and below 1, but is"):
            Adam(beta2=bad)
    with pytest.raises(UserError, match="weight_decay has to be at least 0, but is -1"):
        SGD(0.1, weight_decay=-1)
    with pytest.raises(UserError, match="epsilon has to be positive and finite, but is 0"):
        Adam(epsilon=0)
    with pytest.raises(UserError, match="Nesterov's method needs a momentum"):
        SGD(0.1, nesterov=True)


# Training: what is found before Legion starts


def npz(path: Path, shape: tuple[int, ...], labels: Any = (0, 1, 2)) -> str:
    np.savez(path, x=np.zeros((len(labels), *shape), np.float32), y=np.asarray(labels))
    return str(path)


TRAIN_ARGUMENTS = [
    (["--epochs", "0"], "--epochs has to be at least 1, but is 0"),
    (["--epochs", "-5"], "--epochs has to be at least 1, but is -5"),
    (["--seed", "-1"], "--seed has to be at least 0, but is -1"),
    (["--seed", "9" * 30], "the seed has to be at least 0 and below 2^63, but is 999"),
    (
        ["--json", "no/such/m.json"],
        "no/such/m.json: the metrics cannot be written there",
    ),
    (["--json", "."], ".: the metrics cannot be written there (Is a directory)"),
    (["--save-weights", "no/w.npz"], "no/w.npz: the weights cannot be written there"),
    (
        ["--batch-size", "0"],
        "--batch-size: has to be a whole number from 1 to 2147483647, but is 0",
    ),
    (["--lr", "nan"], "the learning rate has to be positive and finite, but is nan"),
    (["--lr", "-0.1"], "the learning rate has to be positive and finite, but is -0.1"),
    (
        ["--optimizer", "adam", "--momentum", "0.9"],
        "--momentum goes with --optimizer sgd, not adam",
    ),
    (
        ["--optimizer", "lazy-adam", "--momentum", "0.9"],
        "--momentum goes with --optimizer sgd, not lazy-adam",
    ),
    (["--optimizer", "sgd", "--momentum", "-1"], "momentum has to be at least 0 and below 1"),
    (
        ["--optimizer", "lion"],
        "unknown optimizer 'lion'; choose one of sgd, adam, adamw, lazy-adam",
    ),
    (["--model", "yolo"], f"unknown model 'yolo'; choose one of {', '.join(ZOO)}"),
    (["--held-out", "0"], "the held-out share 0.0 is out of range, and must lie strictly between"),
    (["--held-out", "1"], "the held-out share 1.0 is out of range, and must lie strictly between"),
    (["--held-out", "1.5"], "the held-out share 1.5 is out of range, and must lie strictly"),
    (["--held-out", "nan"], "the held-out share nan is out of range, and must lie strictly"),
    (["--data", "none.npz"], "none.npz: there is no such file or directory; use the name digits, "),
    (["--labels", "y.npy"], "digits: this source brings its own labels, so leave out the separate"),
    (["--size", "depth=3"], "model 'lenet' has no size 'depth'; it has input_shape, classes"),
    (["--size", "classes"], "--size takes NAME=VALUE, as in steps=10, but is 'classes'"),
    (["--size", "classes=9"], "digits: these data need a network of classes at least 10, but it i"),
    (["--size", "input_shape=32x32x3"], "the digits are images of the shape (height, width, 1)"),
    (["--samples", "10"], "--samples goes with --data synthetic"),
    (["--data", "synthetic", "--samples", "0"], "samples has to be at least 1, but is 0"),
    (["--data", "synthetic", "--augment"], "--augment goes with folders of images"),
    (["--augment"], "--augment goes with folders of images"),
    (["--bleu"], "--bleu goes with networks that translate, and lenet does not"),
    (["--weight-decay", "-1"], "weight_decay has to be at least 0, but is -1"),
    (["--ema", "1"], "ema has to be above 0 and below 1, but is 1"),
    (["--ema", "0.9", "--optimizer", "lazy-adam"], "averages of weights (ema) change in all rows"),
    (["--group", "*.bias"], '"*.bias" is no parameter group; write patterns of names, a colon'),
    (["--group", "*.bias:lr=x"], '"*.bias:lr=x" is no parameter group; write patterns'),
    (["--group", "*.bias:lr=-1"], "the parameter group *.bias needs an lr of at least 0, not -1"),
    (["--group", "*.bias:momentum=0"], '"*.bias:momentum=0" is no parameter group'),
    (["--clip-norm", "0"], "clip_norm has to be positive and finite, but is 0"),
    (["--schedule", "linear"], "unknown schedule 'linear'; choose one of constant, step, expon"),
    (["--schedule", "step", "--decay", "2"], "the decay factor has to be above 0 and at most 1, "),
    (["--decay", "0.5"], "--decay goes with --schedule step or exponential, not constant"),
    (["--schedule", "cosine", "--decay-after", "2"], "--decay-after goes with --schedule step, no"),
    (["--schedule", "inverse-sqrt"], "--schedule inverse-sqrt needs --warmup STEPS"),
    (["--warmup", "0"], "a schedule's warm-up has to be at least 1 step, but is 0"),
    (
        ["--model", "rnntc", "--data", "no.tsv"],
        "no.tsv: there is no such file or directory; use sa",
    ),
    (["--model", "rnnlm", "--size", "steps=0"], "the size steps has to be at least 1, but is 0"),
    (["--model", "rnnlm", "--size", "vocabulary=2"], "a vocabulary of 2 has no room for words be"),
    (["--model", "nmt", "--data", "none/train"], "none/train.en: there is no such file, and the"),
    (["--model", "nmt", "--size", "steps=1"], "has between 1 and 1 tokens on both sides; take lon"),
]


@pytest.fixture(autouse=True)
def under_legate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that train stay in this process, as if legate had started it."""
    monkeypatch.setenv("LEGATE_CONFIG", "")


def early(capsys: Capture, *args: str) -> str:
    """What ``flexlegion train`` says is wrong before it starts Legion."""
    with no_legate():
        assert main(["train", *args]) == 2
    return sentence(*capsys.readouterr())


@pytest.mark.parametrize(("args", "text"), TRAIN_ARGUMENTS)
def test_training_arguments(capsys: Capture, args: list[str], text: str) -> None:
    assert text in early(capsys, *args)


def test_training_data(capsys: Capture, tmp_path: Path) -> None:
    small = npz(tmp_path / "small.npz", (5, 4))
    assert early(capsys, "--data", small) == (
        "lenet takes images (height, width, channel) of at least 16x16 pixels, but the data have "
        "shape [5, 4, 1]"
    )
    negative = npz(tmp_path / "negative.npz", (16, 16), [0, -1])
    assert early(capsys, "--data", negative) == (
        f"{negative}: the label -1 is negative, and class numbers start at 0."
    )
    deep = npz(tmp_path / "deep.npz", (2, 2, 2, 2, 2))
    assert "at most 5 dimensions" in early(capsys, "--data", deep, "--model", "mlp")
    one = npz(tmp_path / "one.npz", (16, 16), [0])
    assert "one sample cannot be split" in early(capsys, "--data", one)
    path = tmp_path / "short.npz"
    np.savez(path, x=np.zeros((3, 16, 16), np.float32), y=np.zeros(2, int))
    assert "there are 3 samples but 2 labels" in early(capsys, "--data", str(path))
    real = tmp_path / "real.npz"
    np.savez(real, x=np.zeros((3, 16, 16), np.float32), y=np.zeros(3))
    assert "only integer labels name classes" in early(capsys, "--data", str(real))


def test_sizes_without_end(capsys: Capture) -> None:
    """Operators are counted while they are made."""
    text = plan(capsys, "--model", "rnntc", "--size", "layers=1000000000")
    assert "the model has more than 50,000 operators" in text
    assert "choose smaller sizes" in text


BOUNDS = [
    (["--batch-size", "1e9"], "--batch-size: has to be a whole number from 1 to 2147483647"),
    (["--size", "hidden=3000000000"], "--size hidden has to be at most 2147483647"),
    (["--size", "hidden=2000000000"], "tensor 'hidden1.kernel' of 2000000000x1024 has more than"),
    (["--batch-size", "2000000000"], "tensor 'features' of 2000000000x32x32x1 has more than"),
]


@pytest.mark.parametrize(("args", "text"), BOUNDS)
def test_numbers_out_of_bounds(capsys: Capture, args: list[str], text: str) -> None:
    assert text in plan(capsys, "--model", "mlp", *args)


def test_tensors_that_are_too_large_together() -> None:
    """Each is small enough, and so is no sum of 256 of them."""
    model = Model(2**31 - 1)
    x = model.input((512,))
    for _ in range(255):
        x = model.relu(x)
    with pytest.raises(UserError, match="more than 281,474,976,710,656 elements, the most"):
        model.relu(x)


def test_times_out_of_bounds(capsys: Capture, tmp_path: Path) -> None:
    """An honest machine's are within them, however large the model is."""
    machine = json.loads((PLATFORMS / "p100.json").read_text())
    machine["device_types"]["P100"]["peak_flops"]["float32"] = 1
    path = tmp_path / "slow.json"
    path.write_text(json.dumps(machine | {"nodes": 1}))
    network = ["simulate", "--model", "lenet", "--machine"]
    assert main([*network, str(path)]) == 2
    text = sentence(*capsys.readouterr())
    assert "at least 10,000 s, the longest time that is simulated" in text
    assert "'peak_flops' and 'memory_bandwidth' in the file of machine slow" in text
    assert main([*network, "p100x4", "--batch-size", "4000000"]) == 0

"""``flexlegion models``, ``flexlegion simulate``, and the options that such commands have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import SMALL, Capture, error_of, json_of, text_of

from flexlegion.cost.model import Linear
from flexlegion.cost.profile_db import ProfileDB
from flexlegion.known_strategies.registry import STRATEGIES
from flexlegion.networks.references import HELP
from flexlegion.profiling.machines import load_machine
from flexlegion.zoo import ZOO

LENET = ["--model", "lenet", "--machine", "p100x4"]
TINY_RNN = ["--size", "steps=3", "--size", "hidden=64", "--size", "vocabulary=500"]


# models


def test_models(capsys: Capture) -> None:
    facts = json_of(capsys, "models")
    assert list(facts) == ["models"]
    models = {one["name"]: one for one in facts["models"]}
    assert list(models) == list(ZOO)
    lenet = models["lenet"]
    assert lenet["weights"] == 61_706  # LeNet-5's, as it is known
    assert lenet["batch_size"] == 64
    assert lenet["sizes"] == {"input_shape": [32, 32, 1], "classes": 10}
    # conv 28*28*6*25, 10*10*16*150, dense 400*120, 120*84, 84*10; a multiply-add counts twice.
    products = 28 * 28 * 6 * 25 + 10 * 10 * 16 * 150 + 400 * 120 + 120 * 84 + 84 * 10
    assert 2 * products <= lenet["flops_per_sample"] <= 1.1 * 2 * products
    assert models["alexnet"]["batch_size"] == 256


def test_models_as_text(capsys: Capture) -> None:
    out, err = text_of(capsys, "models")
    assert err == ""
    for name in ZOO:
        assert sum(line.startswith(f"{name} ") for line in out.splitlines()) == 2
    assert "hidden=512x256" in out
    assert all(len(line) <= 160 for line in out.splitlines())


# simulate


def test_simulate(capsys: Capture) -> None:
    facts = json_of(capsys, "simulate", *LENET, "--strategy", "data")
    assert facts["model"] == "lenet"
    assert facts["batch_size"] == 64
    assert facts["machine"] == "p100x4"
    assert facts["strategy"] == "data"
    assert facts["iteration_time_ns"] > 0
    assert facts["bytes_moved"] > 0
    busiest = facts["busiest_device"]["busy_ns"]
    assert facts["computation_time_ns"] <= 4 * busiest <= 4 * facts["iteration_time_ns"]
    assert facts["load_balance"] == pytest.approx(facts["computation_time_ns"] / 4 / busiest)
    assert facts["tasks_priced"] == {"analytic": 48}
    assert [memory["name"] for memory in facts["memories"]] == [f"gpu:{i}" for i in range(4)]
    assert facts["peak_memory_bytes"] == max(m["peak_bytes"] for m in facts["memories"])
    assert facts["peak_memory_bytes"] <= facts["allocated_bytes"]
    assert facts["fits"] is True
    assert "->" in facts["busiest_link"]["name"]


def test_simulate_as_text(capsys: Capture) -> None:
    out, err = text_of(capsys, "simulate", *LENET)
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == (
        "lenet (batch 64) on p100x4: 12 operators, 4 devices; sgd, "
        "sparse_categorical_crossentropy; strategy data"
    )
    names = [line.split("  ")[0] for line in lines]
    for name in ("iteration time", "bytes moved", "computation time", "load balance"):
        assert names.count(name) == 1
    assert "tasks priced      48 analytic" in lines
    assert lines[-2].startswith("gpu:")
    assert lines[-1].startswith("of gpu:3: activations 1.038 MiB, weight gradients 626.0 KiB, weig")


def test_one_device_moves_nothing(capsys: Capture) -> None:
    facts = json_of(capsys, "simulate", *LENET, "--strategy", "single")
    assert facts["bytes_moved"] == 0
    assert facts["busiest_link"] is None
    assert facts["load_balance"] == 0.25
    assert "busiest link      none" in text_of(capsys, "simulate", *LENET, "--strategy=single")[0]


@pytest.mark.parametrize("model", ZOO)
def test_every_network_has_its_loss(capsys: Capture, model: str) -> None:
    facts = json_of(capsys, "simulate", "--model", model, "--machine", "p100x2")
    assert facts["loss"] == ZOO[model].loss
    assert facts["batch_size"] == ZOO[model].batch_size


@pytest.mark.parametrize(
    "strategy", [*(name for name in STRATEGIES if name not in ("random", "sbp")), "random:5"]
)
def test_delta_agrees_with_full(capsys: Capture, strategy: str) -> None:
    machine = "k80x16" if strategy == "optcnn-coarse" else "k80x8"
    args = ["simulate", "--model", "rnnlm", *TINY_RNN, "--machine", machine]
    args += ["--batch-size", "16", "--optimizer", "adam", "--strategy", strategy]
    args += ["--micro-batches", "4"] if strategy in ("pipeline", "interleaved", "3d") else []
    full = json_of(capsys, *args)
    delta = json_of(capsys, *args, "--algorithm", "delta")
    assert delta.pop("algorithm") == "delta"
    assert full.pop("algorithm") == "full"
    assert delta.pop("simulations") > 10
    assert delta == full
    assert full["sizes"] == {"steps": 3, "hidden": 64, "vocabulary": 500}


def test_delta_as_text(capsys: Capture) -> None:
    out, _ = text_of(capsys, "simulate", *LENET, "--strategy", "expert", "--algorithm", "delta")
    line = "12 delta simulations from data parallelism; all figures as in a full simulation"
    assert out.splitlines()[1] == line


@pytest.mark.parametrize("algorithm", ["full", "delta"])
def test_what_does_not_fit_is_simulated(capsys: Capture, algorithm: str) -> None:
    args = ["simulate", "--model", "resnet101", "--machine", "k80x1", "--batch-size", "512"]
    args += ["--algorithm", algorithm]
    facts = json_of(capsys, *args)
    assert facts["fits"] is False
    assert facts["allocated_bytes"] > facts["memories"][0]["capacity_bytes"]
    _, err = text_of(capsys, *args)
    assert err.startswith("warning: strategy 'data' does not fit: training allocates ")


def test_batch_smaller_than_the_machine(capsys: Capture) -> None:
    """Data parallelism leaves the last devices out; delta simulation starts from it."""
    args = ["simulate", *LENET, "--batch-size", "2"]
    facts = json_of(capsys, *args, "--strategy", "data")
    assert [memory["peak_bytes"] > 0 for memory in facts["memories"]] == [True, True, False, False]
    facts = json_of(capsys, *args, "--strategy", "model", "--algorithm", "delta")
    assert facts["algorithm"] == "delta"


def test_trace(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    facts = json_of(capsys, "simulate", *LENET, "--trace", str(path))
    trace = json.loads(path.read_text())
    ends = [e["ts"] + e["dur"] for e in trace["traceEvents"] if e["ph"] == "X"]
    assert round(max(ends) * 1000) == facts["iteration_time_ns"]
    assert trace["otherData"]["model"] == "lenet"
    assert facts["trace"] == str(path)


# Costs


def test_measured_costs(capsys: Capture, tmp_path: Path) -> None:
    """Nothing but updates was measured: auto falls back, measured says what is missing."""
    db = tmp_path / "p.sqlite"
    model = load_machine("p100x4").devices[0].model
    with ProfileDB(db) as profile:
        profile.add_linear(model, "cudnn", "update", Linear(10**9, 10**9), "sgd")
    args = ["simulate", *LENET, "--profile-db", str(db)]
    plain = json_of(capsys, "simulate", *LENET, "--costs", "analytic")
    assert plain["costs"] == "analytic"
    slow = json_of(capsys, *args)
    assert slow["costs"] == "auto"
    assert slow["tasks_priced"] == {"analytic": 48}
    assert slow["iteration_time_ns"] > 10**9 > plain["iteration_time_ns"]
    assert "was not measured on P100; measure it, or take --costs auto" in error_of(
        capsys, *args, "--costs", "measured"
    )
    assert error_of(capsys, *args, "--costs", "analytic").startswith("--profile-db goes with")


def test_precision(capsys: Capture, tmp_path: Path) -> None:
    """Products at the rate of the precision, which a strategy file keeps; CPUs have but one."""
    alexnet = ["--model", "alexnet", "--machine", "a100x4"]
    times = {
        precision: json_of(capsys, "simulate", *alexnet, "--precision", precision)
        for precision in ("fp32", "tf32", "bf16")
    }
    assert json_of(capsys, "simulate", *alexnet) == times["fp32"]
    assert times["fp32"]["precision"] == "fp32"
    computed = [times[p]["computation_time_ns"] for p in ("fp32", "tf32", "bf16")]
    assert computed[0] > 1.5 * computed[1] > 1.5 * computed[2]
    assert len({facts["bytes_moved"] for facts in times.values()}) == 1
    path = str(tmp_path / "s.json")
    search = ["search", *alexnet, "--precision", "tf32", "--start", "data", "--proposals", "20"]
    found = json_of(capsys, *search, "--out", path)
    again = json_of(capsys, "simulate", "--strategy", path)
    assert (again["precision"], again["iteration_time_ns"]) == ("tf32", found["iteration_time_ns"])
    assert found["data_parallel_time_ns"] == times["tf32"]["iteration_time_ns"]
    slow = json_of(capsys, "simulate", "--strategy", path, "--precision", "fp32")
    assert slow["iteration_time_ns"] > again["iteration_time_ns"]
    machine = {
        "schema_version": 1,
        "description": "two processors",
        "nodes": 1,
        "link_types": {},
        "device_types": {
            "core": {
                "kind": "cpu",
                "memory_bytes": 8e9,
                "peak_flops": {"float32": 50e9},
                "memory_bandwidth": 10e9,
            }
        },
        "node": {"devices": [{"type": "core", "count": 2, "memory": "ram"}], "links": []},
    }
    (tmp_path / "m.json").write_text(json.dumps(machine))
    args = ["simulate", "--model", "lenet", "--machine", str(tmp_path / "m.json")]
    assert "m.json' uses none; CPU processors" in error_of(capsys, *args, "--precision", "tf32")
    assert json_of(capsys, *args)["bytes_moved"] == 0


def test_data_base_that_is_none(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "none.sqlite"
    args = ["simulate", *LENET]
    text = error_of(capsys, *args, "--profile-db", str(missing))
    assert text.startswith(f"{missing}: no such profile data base; ")
    monkeypatch.setenv("FLEXLEGION_PROFILE_DB", str(missing))
    assert json_of(capsys, *args)["tasks_priced"] == {"analytic": 48}
    assert "no such profile data base" in error_of(capsys, *args, "--costs", "measured")
    assert not missing.exists()
    missing.write_text("not a data base, and long enough to be taken for one")
    assert str(missing) in error_of(capsys, *args)


# Mistakes

WRONG: list[tuple[list[str], str]] = [
    (["--model", "yolo"], f"unknown model 'yolo'; choose one of {', '.join(ZOO)}"),
    (["--machine", "p100x5"], "p100x5: cannot use 5 GPUs of this machine; use 1 to 4, or a"),
    (["--machine", "none.json"], "none.json: no such machine file; "),
    (["--machine", "p100"], "p100: the number of GPUs is missing; "),
    (["--size", "depth=3"], "model 'lenet' has no size 'depth'; it has input_shape, classes"),
    (["--size", "classes"], "--size takes NAME=VALUE, as in steps=10, but is 'classes'"),
    (["--size", "classes="], "--size classes has to be a whole number, but is ''"),
    (["--size", "classes=1e3"], "--size classes has to be a whole number, but is '1e3'"),
    (["--size", "classes=" + "9" * 5000], "--size classes has to be a whole number, but is '999"),
    (["--size", "classes=5", "--size", "classes=6"], "--size classes is given twice; give it"),
    (["--size", "input_shape=32xa"], "has to be whole numbers with x between them, as in 32x32x1"),
    (["--size", "input_shape=5x5x1"], "lenet takes images (height, width, channel) of at least"),
    (["--precision", "fp16"], "choose one of fp32, tf32, bf16"),
    (["--batch-size", "0"], "--batch-size: has to be a whole number from 1 to 2147483647"),
    (["--loss", "hinge"], "unknown loss 'hinge'; choose one of sparse_categorical_crossentropy, "),
    (
        ["--optimizer", "lion"],
        "unknown optimizer 'lion'; choose one of sgd, adam, adamw, lazy-adam",
    ),
    (["--strategy", "none.json"], "none.json: no such strategy file; give a path, or one of the"),
    (["--strategy", "random:x"], "strategy 'random:x': the seed has to be a number of at most"),
    (["--trace", "no/such/t.json"], "no/such/t.json: the trace cannot be written there (No such "),
]


@pytest.mark.parametrize(("args", "text"), WRONG)
def test_mistakes(capsys: Capture, args: list[str], text: str) -> None:
    options = dict(zip(LENET[::2], LENET[1::2], strict=True))
    if args[0] in options:
        del options[args[0]]
    rest = [word for pair in options.items() for word in pair]
    assert text in error_of(capsys, "simulate", *rest, *args)


def test_sizes_of_each_kind(capsys: Capture) -> None:
    facts = json_of(capsys, "simulate", *SMALL)
    assert facts["sizes"] == {"hidden": [64, 32]}
    args = ["simulate", "--model", "inception_v3", "--machine", "p100x1", "--strategy", "single"]
    sizes = ["--size", "depth_multiplier=0.25", "--size", "input_shape=75,75,3"]
    assert json_of(capsys, *args, *sizes)["sizes"] == {
        "depth_multiplier": 0.25,
        "input_shape": [75, 75, 3],
    }
    text = error_of(capsys, *args, "--size", "depth_multiplier=big")
    assert text == "--size depth_multiplier has to be a number, but is 'big'"
    rnn = ["simulate", "--model", "rnnlm", *TINY_RNN, "--machine", "p100x1"]
    assert json_of(capsys, *rnn, "--size", "embedding=48")["sizes"]["embedding"] == 48


def test_nothing_named(capsys: Capture) -> None:
    text = error_of(capsys, "simulate", "--machine", "p100x1")
    assert text == f"no model named; name it by --model: {HELP}"
    text = error_of(capsys, "simulate", "--model", "mlp")
    assert text == "no machine named; choose one by --machine, as in --machine p100x8"


# Strategies from files: what they were found for need not be said again


def test_file_says_for_what_it_is(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    args = [*SMALL, "--batch-size", "16", "--optimizer", "adam"]
    text_of(capsys, "strategy", *args, "--strategy", "random:2", "--out", str(path))
    expected = json_of(capsys, "simulate", *args, "--strategy", "random:2")
    document = json.loads(path.read_text())
    about = ("model", "sizes", "batch_size", "optimizer", "loss", "machine")
    document["found"] = {key: expected[key] for key in about}
    path.write_text(json.dumps(document))
    found = json_of(capsys, "simulate", "--strategy", str(path))
    assert found | {"strategy": "random:2"} == expected
    larger = json_of(capsys, "simulate", "--strategy", str(path), "--machine", "p100x4")
    assert len(larger["memories"]) == 4
    other = ["simulate", "--strategy", str(path), "--model", "lenet"]
    assert error_of(capsys, *other).startswith(f"{path}: the model has no operator ")


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({}, "the file does not name its model; name it by --model: one of "),
        ({"model": 3}, "the file does not name its model; name it by --model: one of "),
        ({"model": "mlp"}, "the file does not name its machine; choose one by --machine"),
        ({"model": "mlp", "sizes": [3]}, "'found' has the sizes [3], which is no object"),
        ({"model": "mlp", "sizes": {"hidden": "x"}}, "'found' size 'hidden' has to be whole num"),
        ({"model": "mlp", "batch_size": "8"}, "'found' has the batch_size \"8\", which is none"),
        ({"model": "mlp", "optimizer": 1}, "'found' has the optimizer 1, which is none"),
    ],
)
def test_file_that_says_it_wrongly(
    capsys: Capture, tmp_path: Path, found: dict[str, Any], text: str
) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"schema_version": 2, "found": found, "operators": {}}))
    assert error_of(capsys, "simulate", "--strategy", str(path)).startswith(f"{path}: {text}")


def test_messages_stay_short(capsys: Capture, tmp_path: Path) -> None:
    """Of a network with hundreds of operators, some are named."""
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"schema_version": 2, "operators": {}}))
    args = ["simulate", "--model", "nmt", "--machine", "p100x1", "--strategy", str(path)]
    text = error_of(capsys, *args)
    assert "and 314 more; a strategy has one entry for each operator" in text


# plan, strategy


def test_plan_on_a_machine(capsys: Capture, tmp_path: Path) -> None:
    out, _ = text_of(capsys, "plan", "--model", "lenet", "--machine", "p100x8")
    assert "forward c1: 8 tasks" in out
    assert "task 7 on gpu:7" in out
    path = tmp_path / "s.json"
    args = ["--model", "nmt", "--size", "steps=2", "--machine", "p100x8", "--strategy", "gnmt"]
    out, _ = text_of(capsys, "strategy", *args, "--out", str(path))
    assert out == f"wrote {path}: 22 operators on gpu:0 to gpu:7\n"
    # Two nodes of four GPUs: samples are split in two.
    assert '"encoder.lstm1.0": {"degrees": {"sample": 2}, "devices": ["gpu:1", "gpu:5"]}' in (
        path.read_text()
    )


def test_plan_with_two_machines(capsys: Capture) -> None:
    text = error_of(capsys, "plan", *LENET, "--cpus", "2")
    assert text == "--machine brings its devices along; leave out --cpus and --gpus"
    text = error_of(capsys, "plan", "--model", "lenet", "--strategy", "optcnn")
    assert text.startswith(
        "strategy 'optcnn' depends on costs, so on a machine: name one by --machine, or to train "
    )
    assert "forward c1: " in text_of(capsys, "plan", *LENET, "--strategy", "optcnn")[0]


def test_what_saves_memory_is_told(capsys: Capture) -> None:
    """Recomputed time, gathered bytes, idle devices; and nothing of them where there are none."""
    args = ["simulate", "--model", "gpt", "--size", "steps=8", "--size", "layers=2"]
    args += ["--batch-size", "8", "--machine", "p100x2"]
    facts = json_of(capsys, *args, "--strategy", "fsdp+again", "--micro-batches", "2")
    assert 0 < facts["recomputed_ns"] < facts["computation_time_ns"]
    assert 0 < facts["gathered_bytes"] < facts["bytes_moved"]
    assert 0 < facts["idle_share"] < 1
    plain = json_of(capsys, *args)
    assert plain["recomputed_ns"] == plain["gathered_bytes"] == 0
    out, _ = text_of(capsys, *args, "--strategy", "fsdp+again", "--micro-batches", "2")
    assert "of the computation time" in out
    assert "of sharded weights" in out
    assert "of the devices' time, with all bubbles" in out
    out, _ = text_of(capsys, *args)
    assert "of sharded weights" not in out

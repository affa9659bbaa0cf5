"""``flexlegion search``, ``compare`` and ``explain``."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from commands import FEW, SMALL, Capture, error_of, json_of, text_of
from launch import ROOT, run_legate

from flexlegion import Strategy
from flexlegion.objective.losses import parts_of_loss
from flexlegion.searches.budget import seconds_of

RNN = ["--model", "rnnlm", "--size", "steps=3", "--size", "hidden=256", "--machine", "p100x4"]
# Two processors with one memory, as Legion has them on a small machine.
PROCESSORS = {
    "schema_version": 1,
    "description": "two processors",
    "nodes": 1,
    "device_types": {
        "core": {
            "kind": "cpu",
            "memory_bytes": 4e9,
            "peak_flops": {"float32": 50e9},
            "memory_bandwidth": 10e9,
        }
    },
    "link_types": {},
    "node": {"devices": [{"type": "core", "count": 2, "memory": "ram"}]},
}


@pytest.fixture
def out(tmp_path: Path) -> str:
    """Where a strategy is written."""
    return str(tmp_path / "s.json")


# search


def test_search(capsys: Capture, out: str) -> None:
    facts = json_of(capsys, "search", *RNN, *FEW, "--seed", "3", "--out", out)
    time_ns = facts["iteration_time_ns"]
    known = {"data", "expert", "optcnn", "megatron", "vocabulary", "random:3"}
    assert set(facts["start_times_ns"]) == known
    assert time_ns <= min(facts["start_times_ns"].values())
    assert facts["start"] in facts["start_times_ns"]
    assert facts["data_parallel_time_ns"] == facts["start_times_ns"]["data"]
    assert facts["speedup"] == facts["data_parallel_time_ns"] / time_ns
    assert facts["speedup_over_expert"] == facts["expert_time_ns"] / time_ns
    assert facts["proposals"] >= 4 * 2 * 200
    assert facts["proposals"] == facts["counts"]["proposals"]
    assert facts["local_optimum"] is True
    assert facts["interrupted"] is False
    assert facts["seconds"] > 0
    assert facts["fits"] is True
    assert (facts["out"], facts["seed"], facts["chains"]) == (out, 3, 2)
    # The file says how it was found, and is simulated to the same time.
    found = Strategy.load(out).found
    assert set(found.pop("graph")) == set(Strategy.load(out)) - {
        "loss",
        *parts_of_loss("loss"),
    }
    assert found.items() <= facts.items()
    for key in ("model", "sizes", "batch_size", "machine", "seed", "iteration_time_ns"):
        assert key in found
    for algorithm in ("full", "delta"):
        again = json_of(capsys, "simulate", "--strategy", out, "--algorithm", algorithm)
        for key in ("iteration_time_ns", "bytes_moved", "computation_time_ns", "memories"):
            assert again[key] == facts[key]


def test_search_as_text(capsys: Capture, out: str) -> None:
    text, err = text_of(capsys, "search", *SMALL, *FEW, "--out", out)
    assert err == ""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == (
        "mlp (batch 64, hidden 64x32) on p100x2: 8 operators, 2 devices; sgd, "
        "sparse_categorical_crossentropy"
    )
    assert lines[2].startswith("start data ")
    assert any(line.startswith("found ") and ", from start " in line for line in lines)
    assert any(line.startswith("speed-up ") and "over data parallelism" in line for line in lines)
    assert any(line.startswith("ended at a local optimum: no change of") for line in lines)
    assert lines[-1] == f"wrote {out}"


def test_same_seed_same_file(capsys: Capture, tmp_path: Path) -> None:
    args = ["search", *RNN, *FEW]
    texts = []
    for name, seed in (("a", "5"), ("b", "5"), ("c", "6")):
        path = tmp_path / name
        text_of(capsys, *args, "--seed", seed, "--out", str(path))
        texts.append(path.read_text())
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


def test_budget_in_seconds(capsys: Capture, out: str) -> None:
    begin = time.monotonic()
    facts = json_of(capsys, "search", *RNN, "--budget", "400ms", "--out", out)
    assert time.monotonic() - begin < 30
    assert facts["budget"] == {"seconds": 0.4, "proposals": None}
    assert facts["chains"] == os.cpu_count()


def test_starts(capsys: Capture, out: str, tmp_path: Path) -> None:
    mine = str(tmp_path / "mine.json")
    text_of(capsys, "strategy", *SMALL, "--strategy", "model", "--out", mine)
    args = ["search", *SMALL, *FEW, "--out", out]
    facts = json_of(capsys, *args, "--start", f"random, random:7,{mine}")
    assert list(facts["start_times_ns"]) == ["random:0", "random:7", mine]
    _, err = text_of(capsys, *args, "--start", "data,data")
    assert err == "note: start 'data' is the same strategy as 'data'\n"
    assert error_of(capsys, *args, "--start", "data,none.json").startswith("none.json: no such ")


def test_switches(capsys: Capture, out: str) -> None:
    """Early rejection changes nothing but the time; without the descent no optimum is claimed."""
    args = ["search", *RNN, *FEW, "--start", "data", "--out", out, "--no-descent"]
    plain = json_of(capsys, *args)
    assert plain["local_optimum"] is False
    slow = json_of(capsys, *args, "--no-early-rejection")
    assert slow["iteration_time_ns"] == plain["iteration_time_ns"]
    assert slow["counts"]["overloaded"] + slow["counts"]["stopped"] == 0
    all_off = [f"--no-{name}" for name in ("tied", "cooling", "critical", "neighbours")]
    other = json_of(capsys, *args, *all_off)
    assert other["counts"] != plain["counts"]


def test_batch_smaller_than_the_machine(capsys: Capture, out: str) -> None:
    """Data parallelism leaves the last devices out."""
    args = ["search", *SMALL[:-1], "p100x4", "--batch-size", "2", *FEW, "--out", out]
    facts = json_of(capsys, *args)
    assert facts["start_times_ns"]["data"] == facts["data_parallel_time_ns"] > 0
    assert facts["speedup"] >= 1


def test_nothing_fits(capsys: Capture, out: str) -> None:
    args = ["search", "--model", "rnnlm", "--size", "steps=2", "--size", "hidden=20000"]
    args += ["--machine", "k80x1", "--budget", "500ms", "--start", "single", "--out", out]
    text = error_of(capsys, *args)
    assert text.startswith(
        "no strategy fits: the weights, their gradients and the optimizer's states "
    )
    assert not Path(out).exists()


def test_trace_of_what_was_found(capsys: Capture, out: str, tmp_path: Path) -> None:
    trace = tmp_path / "t.json"
    facts = json_of(capsys, "search", *SMALL, *FEW, "--out", out, "--trace", str(trace))
    document = json.loads(trace.read_text())
    ends = [e["ts"] + e["dur"] for e in document["traceEvents"] if e["ph"] == "X"]
    assert round(max(ends) * 1000) == facts["iteration_time_ns"]


WRONG = [
    (["--budget", "5y"], "the budget has to be a time such as 30s, 2m or 1h, but is '5y'"),
    (["--budget", "fast"], "the budget has to be a time such as 30s, 2m or 1h, but is 'fast'"),
    (["--budget", ""], "--budget is given an empty text; give a value, or leave it out"),
    (["--budget", "0s"], "the budget has to be more than nothing and at most 10,000,000 seconds"),
    (["--budget", "9999999h"], "the budget has to be more than nothing and at most 10,000,000 sec"),
    (["--proposals", "0"], "the number of proposals has to be 1 to 10^15, but is 0"),
    (["--chains", "0"], "the number of chains has to be 1 to 256, but is 0"),
    (["--chains", "1000"], "the number of chains has to be 1 to 256, but is 1000"),
    (["--seed", "-1"], "the seed has to be at least 0 and below 2^62, but is -1"),
    (["--start", "data,,expert"], ": no such strategy file"),
    (["--machine", "z80x4"], "z80x4: no such machine file; "),
    (["--model", "yolo"], "unknown model 'yolo'; choose one of "),
]


@pytest.mark.parametrize("command", ["search", "compare"])
@pytest.mark.parametrize(("args", "text"), WRONG)
def test_mistakes(capsys: Capture, out: str, command: str, args: list[str], text: str) -> None:
    if command == "compare" and "--start" in args:
        pytest.skip("compare has no starts to choose")
    assert text in error_of(capsys, command, *SMALL, "--out", out, *args)
    assert not Path(out).exists()


def test_budgets() -> None:
    for text, seconds in (
        ("30s", 30),
        ("2m", 120),
        ("2min", 120),
        ("1h", 3600),
        ("1.5h", 5400),
        ("250ms", 0.25),
        ("45", 45),
    ):
        assert seconds_of(text) == pytest.approx(seconds)


@pytest.mark.parametrize("option", ["--out", "--trace"])
def test_files_are_tried_before_the_search(capsys: Capture, tmp_path: Path, option: str) -> None:
    args = ["search", *SMALL, "--budget", "1h", "--out", str(tmp_path / "s.json")]
    for path, reason in ((tmp_path / "no" / "x", "No such file"), (tmp_path, "Is a directory")):
        text = error_of(capsys, *args, option, str(path))
        assert text.startswith(f"{path}: the ")
        assert f" cannot be written there ({reason}" in text
    assert list(tmp_path.iterdir()) == []


def test_earlier_file_stays_when_the_search_fails(capsys: Capture, out: str) -> None:
    Path(out).write_text("precious")
    error_of(capsys, "search", *SMALL, "--start", "none.json", "--out", out)
    assert Path(out).read_text() == "precious"
    assert os.listdir(Path(out).parent) == ["s.json"]


# Interrupts, progress


def command_line(*args: str) -> list[str]:
    return [sys.executable, "-m", "flexlegion", *args]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)}


def interruptible() -> None:
    """As in a terminal; what a shell starts in the background ignores interrupts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_interrupt_writes_the_best_so_far(tmp_path: Path) -> None:
    out = tmp_path / "s.json"
    args = ["search", *RNN, "--no-descent", "--budget", "300s", "--out", str(out), "--json"]
    leader, follower = pty.openpty()  # the progress bar says when the search is under way
    with subprocess.Popen(
        command_line(*args),
        cwd=ROOT,
        env=environment() | {"TERM": "xterm", "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=follower,
        preexec_fn=interruptible,
    ) as process:
        os.close(follower)
        shown = ""
        while "best " not in shown:
            shown += os.read(leader, 1000).decode(errors="replace")
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        facts = json.loads(process.stdout.read())
        while "interrupted" not in shown:
            shown += os.read(leader, 1000).decode(errors="replace")
        assert process.wait(60) == 130
    os.close(leader)
    assert f"interrupted; {out} has the best strategy so far" in shown
    assert "search" in shown
    assert "Traceback" not in shown
    assert facts["interrupted"] is True
    assert facts["seconds"] < 100
    assert Strategy.load(out).found["interrupted"] is True
    assert facts["iteration_time_ns"] <= min(facts["start_times_ns"].values())


def test_no_bar_where_there_is_no_terminal(tmp_path: Path) -> None:
    args = ["search", *SMALL, "--budget", "300ms", "--out", str(tmp_path / "s.json")]
    done = subprocess.run(
        command_line(*args), cwd=ROOT, env=environment(), capture_output=True, check=True
    )
    assert done.stderr == b""
    assert b"\x1b" not in done.stdout


# compare


def test_compare_says_what_is_impossible(capsys: Capture, tmp_path: Path) -> None:
    """A layer larger than a device's memory can be split, and cannot be placed as a whole."""
    core = PROCESSORS["device_types"]["core"] | {"memory_bytes": 24e6}
    apart = PROCESSORS | {
        "device_types": {"core": core},
        "link_types": {"bus": {"bandwidth": 10e9, "latency_ns": 1000}},
        "node": {
            "devices": [{"type": "core", "count": 2}],
            "links": [["cpu:0", "cpu:1", "bus"]],
        },
    }
    machine = tmp_path / "small.json"
    machine.write_text(json.dumps(apart))
    args = ["compare", "--model", "mlp", "--size", "hidden=4096", "--batch-size", "8"]
    args += ["--machine", str(machine), *FEW]
    rows = {row["strategy"]: row for row in json_of(capsys, *args)["strategies"]}
    placement = rows["placement"]
    assert (placement["exists"], placement["fits"], placement["speedup"]) == (False, False, None)
    assert "no strategy was found that fits into the machine's memories" in placement["reason"]
    assert rows["found"]["exists"]
    assert rows["found"]["fits"]
    assert rows["single"]["exists"]
    assert not rows["single"]["fits"]
    text, _ = text_of(capsys, *args)
    (line,) = [line for line in text.splitlines() if line.startswith("placement ")]
    assert line.split() == ["placement", "impossible"]
    assert f"placement: {placement['reason']}" in " ".join(text.split())


def test_compare(capsys: Capture, out: str) -> None:
    facts = json_of(capsys, "compare", *RNN, *FEW, "--out", out)
    rows = {row["strategy"]: row for row in facts["strategies"]}
    always = ["single", "model", "data", "expert", "optcnn"]
    applying = ["megatron", "vocabulary", "wide-deep"]
    assert list(rows) == [*always, *applying, "placement", "found"]
    assert all(row["exists"] and row["fits"] and row["reason"] is None for row in rows.values())
    assert rows["expert"]["same_as"] == "gnmt"
    assert rows["single"]["bytes_moved"] == 0
    assert rows["single"]["load_balance"] == 0.25
    times = {name: row["iteration_time_ns"] for name, row in rows.items()}
    assert times["found"] <= min(times["data"], times["expert"], times["optcnn"])
    assert times["placement"] <= min(times["single"], times["model"])
    for name, row in rows.items():
        assert row["speedup"] == times["data"] / times[name]
    for name in ("data", "expert", "optcnn", "model"):
        alone = json_of(capsys, "simulate", *RNN, "--strategy", name)
        for key in (
            *("iteration_time_ns", "bytes_moved", "computation_time_ns", "load_balance"),
            *("samples_per_s", "tokens_per_s", "model_flops_utilisation"),
        ):
            assert alone[key] == rows[name][key]
    again = json_of(capsys, "simulate", "--strategy", out)
    assert again["iteration_time_ns"] == times["found"] == facts["iteration_time_ns"]


def test_compare_as_text(capsys: Capture) -> None:
    text, err = text_of(capsys, "compare", "--model", "lenet", "--machine", "p100x2", *FEW)
    assert err == ""
    lines = text.splitlines()
    assert lines[2].split()[:2] == ["strategy", "iteration"]
    assert [line.split()[0] for line in lines[4:12]] == [
        "single",
        "model",
        "data",
        "expert",
        "optcnn",
        "megatron",
        "placement",
        "found",
    ]
    assert "expert (one-weird-trick)" in text
    assert " 1.00x " in lines[6]


def test_compare_what_does_not_fit(capsys: Capture) -> None:
    """Each GPU would need a copy of 8 GB of weights and gradients; split, they fit."""
    args = ["compare", "--model", "mlp", "--size", "hidden=36000x36000", "--machine", "k80x4"]
    args += ["--proposals", "2", "--chains", "1", "--batch-size", "8"]
    facts = json_of(capsys, *args)
    rows = {row["strategy"]: row for row in facts["strategies"]}
    assert rows["data"]["fits"] is False
    assert rows["data"]["reason"].startswith("strategy 'data' does not fit: training allocates ")
    assert rows["found"]["fits"] is True
    assert rows["found"]["speedup"] is None
    assert "(does not fit)" in text_of(capsys, *args)[0]


# explain


def test_explain(capsys: Capture, out: str) -> None:
    json_of(capsys, "search", *RNN, *FEW, "--out", out)
    facts = json_of(capsys, "explain", out)
    strategy = Strategy.load(out)
    data = json_of(capsys, "simulate", *RNN)
    assert facts["data_parallel_time_ns"] == data["iteration_time_ns"]
    assert facts["speedup"] == data["iteration_time_ns"] / facts["iteration_time_ns"]
    savings = [group["saved_ns"] for group in facts["deviations"]]
    assert savings == sorted(savings, reverse=True)
    assert savings[0] > 0
    for group in facts["deviations"]:
        for name in group["operators"]:
            # Files leave out the dimensions that are whole.
            split = [degree for degree in group["degrees"] if degree > 1]
            assert [degree for degree in strategy[name].degrees if degree > 1] == split
            assert list(strategy[name].devices) == group["devices"]
    assert_counterfactual(capsys, Path(out), facts)


def assert_counterfactual(capsys: Capture, path: Path, facts: dict[str, Any]) -> None:
    """What each group saves is what a strategy file without it takes longer."""
    document = json.loads(path.read_text())
    usual = path.with_name("data.json")
    text_of(capsys, "strategy", *RNN, "--out", str(usual))
    data = json.loads(usual.read_text())["operators"]
    for group in facts["deviations"]:
        changed = {name: data[name] for name in group["operators"]}
        other = document | {"operators": document["operators"] | changed}
        usual.write_text(json.dumps(other))
        after = json_of(capsys, "simulate", "--strategy", str(usual))
        assert after["iteration_time_ns"] - facts["iteration_time_ns"] == group["saved_ns"]
        assert after["bytes_moved"] - facts["bytes_moved"] == group["saved_bytes"]


def test_explain_groups_steps(capsys: Capture) -> None:
    facts = json_of(capsys, "explain", "model", "--model", "lenet", "--machine", "p100x1")
    assert facts["deviations"] == []
    args = ["explain", "single", "--model", "rnnlm", "--size", "steps=4", "--machine", "p100x2"]
    facts = json_of(capsys, *args)
    groups = [group["operators"] for group in facts["deviations"]]
    assert ["embed.0", "embed.1", "embed.2", "embed.3"] in groups
    configurations = {group["configuration"] for group in facts["deviations"]}
    assert configurations == {"whole on gpu:0"}
    # The softmax of predictions takes no part in training.
    assert not any("softmax" in group for group in groups)
    text, err = text_of(capsys, *args)
    assert err == ""
    assert "embed.*" in text
    text, _ = text_of(capsys, *args, "--top", "1")
    assert f"and {len(groups) - 1} more groups; --top {len(groups)} shows all" in text


def test_explain_mistakes(capsys: Capture, tmp_path: Path) -> None:
    assert error_of(capsys, "explain", "data").startswith("no model named; ")
    assert "no machine named" in error_of(capsys, "explain", "data", "--model", "lenet")
    text = error_of(capsys, "explain", "data", *SMALL, "--top", "0")
    assert text == "the number of groups to show has to be at least 1, but is 0"
    path = tmp_path / "s.json"
    path.write_text('{"schema_version": 2, "opera')
    assert error_of(capsys, "explain", str(path), *SMALL).startswith(f"{path}: not JSON, or cut")
    args = ["--model", "resnet101", "--batch-size", "512", "--machine", "k80x1"]
    assert "does not fit: training allocates" in error_of(capsys, "explain", "single", *args)


# Help


@pytest.mark.parametrize("command", ["models", "simulate", "compare", "explain"])
def test_examples_work(capsys: Capture, command: str) -> None:
    help_text, _ = text_of(capsys, command, "--help")
    example = " ".join(help_text.split()).split("example: flexlegion ")[1]
    if "--budget" in example:
        example = example.replace("3s", "300ms")
    assert text_of(capsys, *example.split())[0]


# What is found can be trained


def search_processors(capsys: Capture, tmp_path: Path, out: str) -> None:
    machine = tmp_path / "processors.json"
    machine.write_text(json.dumps(PROCESSORS))
    args = ["--model", "lenet", "--batch-size", "32", "--machine", str(machine)]
    facts = json_of(capsys, "search", *args, *FEW, "--start", "random:4", "--out", out)
    assert facts["bytes_moved"] == 0  # the two share their memory


def test_strategy_found_is_planned(capsys: Capture, tmp_path: Path, out: str) -> None:
    search_processors(capsys, tmp_path, out)
    assert Strategy.load(out).devices() <= {"cpu:0", "cpu:1"}
    args = ["--model", "lenet", "--batch-size", "32", "--cpus", "2", "--strategy", out]
    assert "forward c1: " in text_of(capsys, "plan", *args)[0]


@pytest.mark.legion
def test_strategy_found_is_trained(capsys: Capture, tmp_path: Path, out: str) -> None:
    search_processors(capsys, tmp_path, out)
    metrics = tmp_path / "metrics.json"
    train = ROOT / "scripts" / "train.py"
    run_legate(train, "--strategy", out, "--epochs", 3, "--json", metrics, cpus=2, timeout=120)
    assert json.loads(metrics.read_text())["accuracy"] > 0.5

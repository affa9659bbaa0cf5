"""Programs of collectives, asked from Python and at the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest

import flexlegion as fl
from flexlegion.analysis.compare_programs import KINDS
from flexlegion.cli.main import main
from flexlegion.zoo import build

GPT = {"layers": 4, "hidden": 256, "heads": 8, "steps": 64, "vocabulary": 500}


def test_a_division_and_what_it_means() -> None:
    model = build("gpt", 32, **GPT)
    its = fl.simulate_program(model, "a100x8", "tp=2 zero=1", optimizer="adam", storage="bf16")
    assert its.ways is not None
    assert str(its.ways) == "DP 4 x TP 2, ZeRO-1"
    rate, seconds = its.throughput, its.iteration_time_ns / 1e9
    assert rate.samples_per_s == pytest.approx(32 / seconds)
    assert rate.tokens_per_s == pytest.approx(32 * 64 / seconds)
    # Six operations a weight and token, and attention; tables are looked up.
    dense = 6 * 32 * 64 * (12 * 4 * 256**2 + 256 * 500)
    assert rate.flops == pytest.approx(dense, rel=0.1)
    assert rate.utilisation == pytest.approx(rate.flops / seconds / (8 * 312e12))
    parts = its.timeline.parts_ns
    assert sum(parts.values()) == its.iteration_time_ns
    facts = its.facts()
    assert facts["runtime"] == "nccl"
    assert facts["model_flops_utilisation"] == rate.utilisation
    assert json.loads(its.to_json())["memory"][0]["states"] > 0


def test_systems_differ() -> None:
    model = build("gpt", 32, **GPT)
    times = {
        system: fl.simulate_program(model, "a100x4", system=system).iteration_time_ns
        for system in ("compiled", "pytorch", "megatron")
    }
    assert times["compiled"] < times["megatron"] < times["pytorch"]
    with pytest.raises(fl.UserError, match="unknown system 'torch'"):
        fl.simulate_program(model, "a100x4", system="torch")


def test_the_best_division_fits_and_is_the_fastest() -> None:
    model = build("gpt", 32, **GPT)
    found = fl.search_programs(model, "a100x8", most_micro_batches=8, optimizer="adam")
    fitting = [its for its in found.found if its.fits]
    assert found.best is min(fitting, key=lambda its: its.iteration_time_ns)
    tried = {its.name for its in found.found}
    assert {"dp=8 zero=1", "dp=8 zero=3 again=full", "tp=8 sp=1", "dp=2 pp=4 zero=1"} <= tried
    rounds = {its.micro_batches for its in found.found}
    assert rounds == {1, 2, 4, 8}
    again = fl.simulate_program(
        model,
        "a100x8",
        found.best.name,
        optimizer="adam",
        micro_batches=found.best.micro_batches,
    )
    assert again.iteration_time_ns == found.best.iteration_time_ns


def test_ways_beside_each_other() -> None:
    """Each in its fastest division; what they say is what the search of all divisions found."""
    model = build("gpt", 32, **GPT)
    asked = {"most_micro_batches": 4, "optimizer": "adam"}
    compared = fl.compare_programs(model, "a100x8", **asked)
    searched = fl.search_programs(model, "a100x8", **asked)
    assert compared.simulated == len(searched.found)
    assert compared.best.name == searched.best.name
    assert list(compared.ways) == [
        *("data", "zero-1", "zero-2", "fsdp", "tensor", "pipeline", "3d", "found")
    ]
    kinds = {name: its.name for name, its in compared.ways.items()}
    assert kinds["data"] == "dp=8"
    assert kinds["fsdp"].startswith("dp=8 zero=3")
    assert "pp=" not in kinds["tensor"]
    assert "tp=" not in kinds["pipeline"]
    assert {"tp=", "pp="} <= {word[:3] for word in kinds["3d"].split()}
    times = [its.iteration_time_ns for its in compared.ways.values()]
    assert min(times) == compared.best.iteration_time_ns
    for its in searched.found:
        assert any(belongs(its.ways) for belongs in KINDS.values())
    rows = compared.facts()["ways"]
    assert rows[0]["speedup"] == 1
    assert rows[-1]["speedup"] == times[0] / min(times)


def test_no_speedup_over_what_does_not_fit() -> None:
    model = build("gpt", 8, layers=24, hidden=8192, heads=64, steps=256)
    compared = fl.compare_programs(model, "p100x4", most_micro_batches=1, optimizer="adam")
    assert {row["speedup"] for row in compared.facts()["ways"]} == {None}
    assert "(does not fit)" in str(compared)


def test_what_fits() -> None:
    """Half of the devices do not suffice, the next larger batch does not fit, by simulations."""
    sizes = {"layers": 28, "hidden": 2048, "heads": 16, "steps": 256}
    model = build("gpt", 16, **sizes)
    asked: dict[str, Any] = {"optimizer": "adam", "most_micro_batches": 4}
    found = fl.what_fits(model, "p100x8", **asked)
    assert found.fewest is not None
    assert found.fewest.fits
    devices = found.fewest_devices
    assert devices in (2, 4, 8)
    best = fl.search_programs(model, f"p100x{devices}", **asked).best
    assert best.name == found.fewest.name
    assert best.iteration_time_ns == found.fewest.iteration_time_ns
    assert not fl.search_programs(model, f"p100x{devices // 2}", **asked).best.fits
    everywhere = fl.search_programs(model, "p100x8", **asked).found
    assert found.least.needed_bytes == min(its.needed_bytes for its in everywhere)


def test_a_model_that_is_built_here_has_one_batch() -> None:
    model = fl.Model(batch_size=8)
    model.dense(model.input((16,)), 4)
    found = fl.what_fits(model, "p100x2", most_micro_batches=1)
    assert (found.fewest_devices, found.largest) == (1, None)
    assert "the batch varies where a model can be built anew" in " ".join(str(found).split())


def test_the_largest_batch_that_fits() -> None:
    asked: dict[str, Any] = {"optimizer": "adam", "most_micro_batches": 1}
    found = fl.what_fits("alexnet", "p100x2", **asked)
    assert found.largest is not None
    batch = found.largest.setting.network.batch_size
    assert found.facts()["largest_batch"] == batch > 256
    for samples, fits in ((batch, True), (2 * batch, False)):
        its = fl.search_programs(build("alexnet", samples), "p100x2", **asked)
        assert its.best.fits == fits
    assert f"{batch:,} samples at once" in str(found)


def test_where_nothing_fits_it_is_said() -> None:
    sizes = {"layers": 24, "hidden": 8192, "heads": 64, "steps": 256}
    model = build("gpt", 8, **sizes)
    found = fl.what_fits(model, "p100x2", optimizer="adam", most_micro_batches=1)
    assert (found.fewest, found.fewest_devices) == (None, None)
    assert "more than the 2 that there are" in str(found)
    with pytest.raises(fl.UserError, match="a machine that a file describes"):
        fl.what_fits("lenet", fl.load_machine("p100x2"))


def test_where_nothing_fits_the_least_memory_comes_first() -> None:
    model = build("gpt", 8, layers=24, hidden=8192, heads=64, steps=256)
    found = fl.search_programs(model, "p100x4", most_micro_batches=2, optimizer="adam")
    assert not found.best.fits
    needed = [its.needed_bytes for its in found.found]
    assert needed == sorted(needed)


def test_a_model_that_needs_its_whole_batch_is_divided_without_micro_batches() -> None:
    model = fl.Model(batch_size=32)
    its = model.input((3, 16, 16))
    its = model.conv2d(its, 8, 3, 1, 1, activation=None, name="conv")
    its = model.batch_norm(its, name="norm")
    model.dense(model.flatten(its), 10, activation=None)
    found = fl.search_programs(model, "p100x4")
    assert {p.micro_batches for p in found.found} == {1}
    assert "more micro-batches were not tried" in str(found)
    assert "norm.moments" in found.facts()["undivided"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--strategy", "tp=2"], "add --runtime nccl"),
        (["--system", "pytorch"], "add --runtime nccl"),
        (["--runtime", "nccl", "--algorithm", "delta"], "--algorithm delta is about"),
        (["--runtime", "nccl", "--costs", "measured"], "--costs measured is about"),
        (["--runtime", "nccl", "--trace", "t.json"], "--trace is about"),
        (["--runtime", "nccl", "--strategy", "tp=3"], "multiple of 3 devices"),
        (["--runtime", "nccl", "--strategy", "random:3"], "tasks at no grid"),
    ],
)
def test_refused(
    words: list[str], message: str, capsys: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", "--model", "mlp", "--machine", "p100x4", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--system", "pytorch"], "--system is about programs of collectives"),
        (["--most-micro-batches", "2"], "add --runtime nccl"),
        (["--runtime", "nccl", "--budget", "1s"], "--budget is about flexlegion's own runtime"),
        (["--runtime", "nccl", "--out", "found.json"], "--out is about"),
        (["--runtime", "nccl", "--report", "r.html"], "--report is about"),
        (["--runtime", "nccl", "--seed", "3"], "--seed is about"),
    ],
)
def test_comparisons_refused(
    words: list[str], message: str, capsys: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    """What the other runtime's comparison would leave aside."""
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "--model", "mlp", "--machine", "p100x4", *words]) == 2
    assert message in capsys.readouterr().err

"""Programs of collectives, asked from Python and at the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest

import flexlegion as fl
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
    rounds = {its.setting.problem.graph.micro_batches for its in found.found}
    assert rounds == {1, 2, 4, 8}
    again = fl.simulate_program(
        model,
        "a100x8",
        found.best.name,
        optimizer="adam",
        micro_batches=found.best.setting.problem.graph.micro_batches,
    )
    assert again.iteration_time_ns == found.best.iteration_time_ns


def test_where_nothing_fits_the_least_memory_comes_first() -> None:
    model = build("gpt", 8, layers=24, hidden=8192, heads=64, steps=256)
    found = fl.search_programs(model, "p100x4", most_micro_batches=2, optimizer="adam")
    assert not found.best.fits
    needed = [max(m.needed for m in its.timeline.memory) for its in found.found]
    assert needed == sorted(needed)


def test_a_model_that_needs_its_whole_batch_is_divided_without_micro_batches() -> None:
    model = fl.Model(batch_size=32)
    its = model.input((3, 16, 16))
    its = model.conv2d(its, 8, 3, 1, 1, activation=None, name="conv")
    its = model.batch_norm(its, name="norm")
    model.dense(model.flatten(its), 10, activation=None)
    found = fl.search_programs(model, "p100x4")
    assert {p.setting.problem.graph.micro_batches for p in found.found} == {1}
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

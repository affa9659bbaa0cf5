"""Strategies in the words of those who train large models."""

from __future__ import annotations

from typing import Any

import pytest

import flexlegion as fl
from flexlegion.strategy.words import in_words
from flexlegion.zoo import build

GPT = {"layers": 4, "hidden": 64, "heads": 4, "steps": 16, "vocabulary": 200}


def words(model: Any, machine: str, strategy: Any, **training: Any) -> str:
    its = fl.simulate(model, machine, strategy, **training)
    said = in_words(its.setting.problem.graph, its.strategy)
    assert said == its.facts()["in_words"]
    assert said in " ".join(str(its).split())
    return said


@pytest.mark.parametrize(
    ("strategy", "rounds", "said"),
    [
        ("single", 1, "one device"),
        ("data", 1, "DP 4; ZeRO-1"),
        ("megatron", 1, "TP 4; sequence-parallel; ZeRO-1"),
        ("fsdp", 1, "DP 4; ZeRO-3"),
        ("data+zero2", 2, "DP 4; ZeRO-2; 2 micro-batches"),
        ("pipeline", 4, "PP 4, stages of one device; 4 micro-batches"),
        (
            "interleaved",
            4,
            "PP 4 with 2 runs of layers each, stages of one device; 4 micro-batches",
        ),
    ],
)
def test_transformers(strategy: str, rounds: int, said: str) -> None:
    model = build("gpt", 16, **GPT)
    found = words(model, "a100x4", strategy, micro_batches=rounds)
    assert found == said


def test_recomputation_is_counted() -> None:
    found = words(build("gpt", 16, **GPT), "a100x4", "data+again")
    assert found.startswith("DP 4; ZeRO-1; recomputes ")


def test_groups_have_their_shares() -> None:
    """Krizhevsky's strategy: samples where the work is, units where the weights are."""
    assert words("alexnet", "p100x4", "one-weird-trick") == (
        "DP 4 (92% of the work), TP 4 (8%); ZeRO-1"
    )


def test_mixed_splits_of_one_operator() -> None:
    model = fl.Model(8)
    x = model.input((16,))
    model.dense(model.dense(x, 16, name="columns"), 16, name="rows")
    model.loss = "mean_squared_error"
    four = tuple(f"gpu:{i}" for i in range(4))
    strategy = fl.Strategy(
        {
            "columns": fl.ParallelConfig((2, 2), four),
            "rows": fl.ParallelConfig((2, 1, 2), four),
            "loss": fl.ParallelConfig((4,), four),
        }
    )
    assert words(model, "p100x4", strategy).startswith("TP 2 x DP 2")


def test_more_parts_than_devices() -> None:
    model = fl.Model(8)
    model.dense(model.input((16,)), 16, name="first")
    model.loss = "mean_squared_error"
    one = fl.ParallelConfig((4, 1), ("gpu:0", "gpu:1", "gpu:0", "gpu:1"))
    found = words(
        model, "p100x2", fl.Strategy({"first": one, "loss": fl.ParallelConfig((4,), one.devices)})
    )
    assert found == "DP 4 on 2 devices; ZeRO-1"


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("network", ["lenet", "rnnlm", "moe", "bert", "dlrm"])
def test_any_strategy(network: str, seed: int) -> None:
    """Nothing has no words, and a line stays one."""
    said = words(network, "p100x4", f"random:{seed}")
    assert said
    assert "\n" not in said
    assert len(said) < 250

"""The zoo's decoders with rotary positions: how they are built, and how strategies split them."""

from __future__ import annotations

import time

import pytest

from flexlegion import load_machine
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.known_strategies import named, resolve
from flexlegion.networks.network import Network
from flexlegion.objective.training import TrainingSpec
from flexlegion.zoo import ZOO, build


def test_building_llama_is_fast() -> None:
    """126 blocks of 405 billion weights, of which none is made; it takes some tenths."""
    started = time.process_time()
    assert len(build("llama", preset="3.1-405b").graph.operators) == 4 + 126 * 19
    assert time.process_time() - started < 2


def test_sizes_that_are_left_to_a_preset() -> None:
    """Data are cut to them."""
    sizes = ZOO["llama"].sizes_with({"preset": "3-8b", "ffn": 7})
    assert (sizes["steps"], sizes["vocabulary"], sizes["ffn"]) == (8192, 128_256, 7)
    sizes = ZOO["moe"].sizes_with({"ffn": 7})
    assert (sizes["steps"], sizes["ffn"], sizes["experts_per_op"]) == (1024, 7, None)


def test_megatron_splits_llama_by_heads_and_its_networks_by_units() -> None:
    """Columns and rows in each block, between which nothing moves."""
    graph = Network.of(build("llama", 8, preset="3-8b", layers=2)).graph
    machine = load_machine("a100x8")
    strategy = resolve("megatron", graph, machine.names, machine)
    operators = {op.name: op for op in graph.operators}
    columns = {"query": "channel", "key": "channel", "value": "channel"}
    heads = {"query.turned": "head", "key.turned": "head", "attention": "head", "joined": "channel"}
    network = {"gate": "channel", "up": "channel", "gated": "channel"}
    rows = {"output": "in", "down": "in"}
    for part, dim in (columns | heads | network | rows).items():
        op = operators[f"block2.{part}"]
        degrees = strategy[op.name].degrees
        split = {its.name: n for its, n in zip(op.dims, degrees, strict=False) if n > 1}
        assert split == {dim: 8}, part


@pytest.mark.parametrize("strategy", ["pipeline", "3d", "fsdp"])
def test_known_strategies_apply_to_llama(strategy: str) -> None:
    model = build("llama", 8, preset="tinyllama", layers=8, steps=64)
    network = Network.of(model, TrainingSpec(micro_batches=4))
    problem = network.problem(load_machine("a100x8"), AnalyticCosts())
    assert named(strategy, problem).devices() == set(problem.devices.names)


def test_mixtures_in_every_other_block() -> None:
    """As GShard's: of the networks without a gate, one is for all tokens."""
    graph = build("moe", 2, every=2, gated=False, layers=4).graph
    names = [op.name for op in graph.operators if op.kind.type == "experts"]
    assert names == ["block2.experts", "block4.experts"]
    assert {op.name for op in graph.operators if op.name.startswith("block3.")} > {
        "block3.up",
        "block3.down",
    }
    shapes = {weight.name: weight.shape for weight in graph.trained_weights}
    assert shapes["block1.up.kernel"] == (2048, 768)
    assert shapes["block2.experts.up"] == (8, 2048, 768)
    assert "block2.experts.gate" not in shapes

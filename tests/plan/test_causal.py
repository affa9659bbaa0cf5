"""Causal attention that is split by its length: parts read, and move, what stands before them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated import ArbitraryCosts, finely_cut
from touched import boxes, last

from flexlegion import Model, ParallelConfig, Strategy
from flexlegion.cost.analytic import AnalyticCosts, mean_prefix
from flexlegion.graph.graph import Operator
from flexlegion.plan.coherence import moved_bytes
from flexlegion.plan.plan import Plan
from flexlegion.profiling.machines import load_machine
from flexlegion.sim.simulator import full
from flexlegion.strategy.sbp.operands import signature_of

GPUS = load_machine("p100x4")


def attention(causal: bool) -> Model:
    """Queries, keys and values by dense layers: 2 samples, 8 steps, 2 heads of 3 channels."""
    model = Model(2)
    x = model.input((8, 5), name="x")
    q, k, v = (model.reshape(model.dense(x, 6, name=name), (8, 2, 3)) for name in "qkv")
    model.reshape(model.attention(q, k, v, causal=causal, name="a"), (8, 6))
    return model


def by_length(op: Operator) -> ParallelConfig:
    """On four GPUs, a quarter of the length each; the loss over samples is on the first."""
    if len(op.output.shape) < 2 or op.output.shape[1] != 8:
        return ParallelConfig((1,) * len(op.dims), ("gpu:0",))
    degrees = (1, 4, *(1 for _ in op.dims[2:]))
    return ParallelConfig(degrees, tuple(f"gpu:{i}" for i in range(4)))


def bytes_moved(causal: bool) -> int:
    """In an iteration; as by simulator so by plan."""
    problem = finely_cut(attention(causal), GPUS, ArbitraryCosts(0))
    configs = {op.name: by_length(op) for op in problem.graph.operators}
    strategy = problem.checked(Strategy(configs))
    plan = Plan(strategy, problem.outputs, granularity=problem.granularity)
    moved = full(problem, strategy).bytes_moved
    assert moved == moved_bytes(plan, {device.name: device.memory for device in GPUS.devices})
    return moved


def test_half_of_keys_and_values_moves() -> None:
    """Of each, a GPU gets the quarters before its own, 6 in all, not 12; and sends gradients back.

    A quarter has 2 samples, 2 steps and 6 channels.
    """
    assert bytes_moved(causal=False) - bytes_moved(causal=True) == 2 * 2 * 6 * (2 * 2 * 6 * 4)


@given(queries=st.integers(1, 9), keys=st.integers(1, 9), parts=st.integers(1, 4))
def test_each_part_reads_what_stands_before_its_end(queries: int, keys: int, parts: int) -> None:
    """Also where there are more keys than queries, or fewer."""
    model = Model(1)
    q, k = model.input((queries, 1, 2), name="q"), model.input((keys, 1, 2), name="k")
    v = model.input((keys, 1, 3), name="v")
    model.attention(q, k, v, causal=True, name="a")
    found = boxes(last(model), model, 1, min(parts, queries), 1, 1)
    for (_, (_, end), *_), *read in zip(found["q"], found["k"], found["v"], strict=True):
        assert [box[1] for box in read] == [(0, min(end, keys))] * 2


@given(first=st.integers(0, 20), queries=st.integers(1, 20))
def test_work_of_a_part(first: int, queries: int) -> None:
    """So many queries from one on, and at least as many keys as stand before their end."""
    pairs = sum(i + 1 for i in range(first, first + queries))
    assert mean_prefix(queries, first + queries) * queries == pytest.approx(pairs)


@given(queries=st.integers(1, 20), keys=st.integers(1, 20))
def test_work_of_the_whole(queries: int, keys: int) -> None:
    pairs = sum(min(i + 1, keys) for i in range(queries))
    assert mean_prefix(queries, min(queries, keys)) * queries == pytest.approx(pairs)


def test_later_parts_take_longer() -> None:
    """Of two halves, the first has a quarter of the pairs: 36 of 136; the whole, what it had."""
    model = Model(1)
    x = model.input((16, 4, 256), name="x")
    model.attention(x, x, x, causal=True, name="a")
    op = last(model)
    costs, device = AnalyticCosts(), GPUS.devices[0]

    def time(queries: int, keys: int) -> int:
        parts = ((1, queries, 4, 256), *[(1, keys, 4, 256)] * 2, (1, queries, 4, 256))
        return costs.exe_time(op, "forward", parts, device).time_ns

    assert time(8, 8) < time(8, 16) < time(16, 16)


def test_a_prefix_is_no_split() -> None:
    """In SBP's words, keys are broadcast to the parts of the length, and queries split."""
    op = next(op for op in attention(causal=True).graph.operators if op.name == "a")
    queries, keys, *_ = op.operands
    assert str(signature_of(queries[2], "input", 1)) == "S(1)"
    assert str(signature_of(keys[2], "input", 1)) == "B"

"""What an update of a table takes that changes the looked-up rows alone: lazy Adam's, and SGD's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import pytest

import flexlegion as fl
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.known_strategies import resolve
from flexlegion.networks.network import Network
from flexlegion.objective.optimizers import OPTIMIZERS, Optimizer
from flexlegion.objective.training import TrainingSpec
from flexlegion.plan.passes import PASSES
from flexlegion.profiling.machines import load_machine
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import Timeline, full

BATCH, STEPS, COLUMNS = 64, 5, 8
TOKENS = BATCH * STEPS
MANY = 400_000_000
UPDATE = PASSES.index("update")


def model(rows: int) -> fl.Model:
    net = fl.Model(BATCH)
    x = net.embedding(net.input((STEPS,), "int32"), rows, COLUMNS, name="words")
    net.dense(net.flatten(x), 4, name="out")
    net.loss = "mean_squared_error"
    return net


def problem(rows: int, optimizer: Optimizer, micro_batches: int = 1) -> Problem:
    training = TrainingSpec(optimizer=optimizer, micro_batches=micro_batches)
    return Network.of(model(rows), training).problem(load_machine("p100x4"), AnalyticCosts())


def simulated(its: Problem, words: Sequence[int] = ()) -> Timeline:
    """Data parallel, but for the degrees of the embedding."""
    strategy = resolve("data", its.graph, its.devices)
    if words:
        devices = its.devices.names[: prod(words)]
        config = fl.ParallelConfig(tuple(words), tuple(devices))
        strategy = strategy.changed({"words": config})
    return full(its, strategy)


def updates(rows: int, optimizer: Optimizer, words: Sequence[int] = (), **options: Any) -> set[int]:
    """The times of the tasks that update the table."""
    its = problem(rows, optimizer, **options)
    tasks = simulated(its, words).tasks
    of_table = tasks["index"] == its.operator_numbers["words"]
    return set(tasks["exe_time"][(tasks["pass"] == UPDATE) & of_table].tolist())


def expected(its: Problem, changed_rows: int, columns: int, states: int) -> int:
    """By hand: gradients of what was looked up are read, values and states read and written."""
    line, _ = its.costs.linear("update", its.topology.devices[0])
    numbers = TOKENS * columns + 2 * (1 + states) * changed_rows * columns
    return line.overhead_ns + round(4 * numbers * 1e9 / line.bytes_per_second)


@pytest.mark.parametrize(("optimizer", "states"), [(fl.LazyAdam(), 2), (fl.SGD(), 0)])
def test_a_large_table_takes_as_long_as_a_small_one(optimizer: Optimizer, states: int) -> None:
    few, many = (updates(rows, optimizer) for rows in (1_000, MANY))
    assert few == many
    (time,) = many
    columns = COLUMNS // 4  # data parallelism splits tables by columns
    assert time == pytest.approx(expected(problem(MANY, optimizer), TOKENS, columns, states), abs=1)


@pytest.mark.parametrize(
    "optimizer", [fl.Adam(), fl.AdamW(), fl.SGD(0.1, 0.9), fl.SGD(weight_decay=0.1)]
)
def test_others_take_as_long_as_the_table_is_large(optimizer: Optimizer) -> None:
    (few,), (many,) = (updates(rows, optimizer) for rows in (100_000, MANY))
    its = problem(MANY, optimizer)
    assert many > 1000 * few
    whole = expected(its, MANY, COLUMNS // 4, optimizer.states)
    assert many == pytest.approx(whole, rel=1e-6)


def test_a_table_is_changed_once_at_most() -> None:
    (time,) = updates(100, fl.LazyAdam())
    assert time == pytest.approx(expected(problem(100, fl.Adam()), 100, COLUMNS // 4, 2), abs=1)
    assert {time} == updates(100, fl.Adam())


def test_a_part_of_the_rows_has_its_share_of_the_tokens() -> None:
    """It reads the gradients of all of them, as they may name any row."""
    (time,) = updates(MANY, fl.LazyAdam(), (1, 1, 1, 4))
    its = problem(MANY, fl.LazyAdam())
    assert time == pytest.approx(expected(its, TOKENS // 4, COLUMNS, 2), abs=1)


@pytest.mark.parametrize("optimizer", [fl.LazyAdam(), fl.SGD()])
@pytest.mark.parametrize("words", [(), (1, 1, 1, 4)])
def test_micro_batches_look_up_as_much_together(words: Sequence[int], optimizer: Optimizer) -> None:
    whole = updates(MANY, optimizer, words)
    assert updates(MANY, optimizer, words, micro_batches=8) == whole


def test_memory_is_adams() -> None:
    found: list[Mapping[str, Any]] = []
    for optimizer in (fl.Adam(), fl.LazyAdam()):
        timeline = simulated(problem(100_000, optimizer))
        found.append({"all": timeline.allocated_bytes, "of": timeline.contents_bytes})
    assert found[0] == found[1]


def test_other_weights_take_as_long_as_with_adam() -> None:
    """A table that a product reads, too, is one of them."""
    times = []
    for optimizer in (fl.Adam(), fl.LazyAdam()):
        net = fl.Model(BATCH)
        x = net.embedding(net.input((STEPS,), "int32"), 10_000, COLUMNS, name="words")
        net.dense(x, 10_000, use_bias=False, share=x)
        done = fl.simulate(net, "p100x4", "data", optimizer=optimizer, costs="analytic")
        times.append(done.iteration_time_ns)
    assert times[0] == times[1]


def test_which_optimizers_are_lazy() -> None:
    assert [name for name, kind in OPTIMIZERS.items() if kind().lazy] == ["sgd", "lazy-adam"]
    assert not fl.SGD(momentum=0.9).lazy


def test_iterations_of_a_large_table() -> None:
    """With Adam, they are the table's update; with lazy Adam, they do not depend on the table."""
    adam, lazy, few = (
        fl.simulate(model(rows), "p100x4", "data", optimizer=name, costs="analytic")
        for rows, name in ((100_000_000, "adam"), (100_000_000, "lazy-adam"), (1_000, "lazy-adam"))
    )
    assert lazy.iteration_time_ns == few.iteration_time_ns
    assert lazy.iteration_time_ns < adam.iteration_time_ns / 100

"""Pipelines of equal stages: what theory says of them, to the nanosecond.

A stage takes F = 1000 ns forward and B = 2000 ns backward. With p stages, the last micro-batch of m
leaves the pipeline after (m + p - 1)(F + B), of which a device computes for m (F + B). What else
takes time on the longest path takes 1 ns each, and is counted here:

- 1, as the first micro-batch is loaded, at the first stage;
- 2 m, as the last stage computes the loss, forward and backward, between those of a micro-batch;
- m - 1, as the last stage loads the labels of the next micro-batch where it has one register of
  them: it is busy from the first micro-batch on, and only then is that register free. With m
  registers, the labels of all are there before the first micro-batch is;
- 1, as the first stage updates its weight when its last backward task is over.

With one register at each stage, a micro-batch waits until the one before has left: m p (F + B). Its
labels are loaded while the stages before compute; each micro-batch is loaded, at the first stage.

Of several layers a stage, one is updated after the other. In the last micro-batch, the weight of a
layer can be updated when its backward task ends, as can the layer before go on; the two of them
are ready at one time, and what was issued first runs first: the backward task. The next one was
ready later than that update. So of l layers, l - 2 updates are between the backward tasks of each
stage, and two follow the last one of the first stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines import BACKWARD, FORWARD, StageCosts, devices_of_one_memory, pipeline

from flexlegion import Model, Strategy
from flexlegion.known_strategies.pipeline import registers as registers_of
from flexlegion.plan.passes import PASSES
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import Timeline, full
from flexlegion.strategy.configuration import ParallelConfig
from flexlegion.transforms.losses import add_losses
from flexlegion.transforms.micro_batches import micro_batched

Buffers = Callable[[int, int], list[int]]  # of so many stages and micro-batches

ROUND = FORWARD + BACKWARD
STAGES, ROUNDS = (2, 4, 8), (1, 2, 3, 4, 8, 16)


def one(stages: int, rounds: int) -> list[int]:
    """Nothing is under way but one micro-batch."""
    del rounds
    return [1] * stages


def as_deep(stages: int, rounds: int) -> list[int]:
    """What is needed to keep all stages busy: at stage s of p, p - s."""
    del rounds
    return [stages - stage for stage in range(stages)]


def all_of_them(stages: int, rounds: int) -> list[int]:
    """Nobody ever waits for a register."""
    return [rounds] * stages


def updates(stages: int, layers: int) -> int:
    """The ns that updates are on the longest path."""
    return 1 if layers == 1 else stages * (layers - 2) + 2


@pytest.mark.parametrize("layers", [1, 4])
@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("stages", STAGES)
def test_iteration_time(stages: int, rounds: int, layers: int) -> None:
    """As theory has it, with the nanoseconds told above."""

    def time(buffers: Buffers) -> int:
        line = pipeline(stages, rounds, buffers(stages, rounds), layers=layers)
        return line.iteration_time_ns

    ideal = (rounds + stages - 1) * ROUND
    losses, last = 2 * rounds, updates(stages, layers)
    assert time(as_deep) == ideal + 1 + losses + (rounds - 1) + last
    assert time(all_of_them) == ideal + 1 + losses + last
    assert time(one) == rounds * stages * ROUND + rounds + losses + last


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("stages", STAGES)
def test_bubble(stages: int, rounds: int) -> None:
    """Of the whole time, devices are idle for (p - 1) / (m + p - 1)."""
    line = pipeline(stages, rounds, as_deep(stages, rounds))
    idle = 1 - line.computation_time_ns / (stages * line.iteration_time_ns)
    assert idle == pytest.approx((stages - 1) / (rounds + stages - 1), abs=2e-3)


def stage_tasks(line: Timeline, stage: int) -> list[tuple[int, int, str, int]]:
    """(start, end, pass, micro-batch) of a stage's layers, in the order of time."""
    rows = [row for row in line.tasks if row["hop"] < 0 and row["device"] == stage]
    names = [op.name for op in line.problem.graph.operators]
    of_layers = [
        row
        for row in rows
        if PASSES[row["pass"]] in ("forward", "backward") and "stage" in names[row["index"]]
    ]
    return sorted(
        (int(row["start_time"]), int(row["end_time"]), PASSES[row["pass"]], int(row["round"]))
        for row in of_layers
    )


@pytest.mark.parametrize("buffers", [one, as_deep, all_of_them])
@pytest.mark.parametrize("layers", [1, 4])
@pytest.mark.parametrize("stages", STAGES)
def test_never_more_than_registers(stages: int, layers: int, buffers: Buffers) -> None:
    """As many micro-batches are under way at a stage as its tensors have registers, at most."""
    rounds = 12
    its = buffers(stages, rounds)
    line = pipeline(stages, rounds, its, layers=layers)
    for stage in range(stages):
        tasks = stage_tasks(line, stage)
        spans = []
        for number in range(rounds):
            of_round = [task for task in tasks if task[3] == number]
            assert len(of_round) == 2 * layers
            spans.append((of_round[0][0], of_round[-1][1]))
        at_once = max(sum(begin <= moment < end for begin, end in spans) for moment, _ in spans)
        assert at_once <= its[stage]
        if buffers is not all_of_them:
            assert at_once == its[stage]  # and they are of use


@pytest.mark.parametrize("layers", [1, 4])
def test_what_another_register_holds(layers: int) -> None:
    """Values that the backward pass reads, and gradients that go from stage to stage.

    A gradient inside a stage is used up before the next one is computed, so that it has two at
    most, however many the values have.
    """
    stages, value = 4, 32  # bytes
    four, eight = (
        sum_contents(pipeline(stages, 8, [buffers] * stages, layers=layers)) for buffers in (4, 8)
    )
    each = {"activations": stages * layers * value, "gradients": (stages - 1) * value}
    assert {what: (eight[what] - four[what]) / 4 for what in each} == each


def sum_contents(line: Timeline) -> Counter[str]:
    """Bytes by what they are for, of all memories."""
    return sum(map(Counter, line.contents_bytes.values()), Counter())


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("stages", STAGES)
def test_one_forward_one_backward(stages: int, rounds: int) -> None:
    """The order of the schedule 1F1B follows from the registers, on each device.

    At stage s of p, the first p - s micro-batches go forward; then one goes backward whenever
    another one has gone forward, and in the end those that are left.
    """
    line = pipeline(stages, rounds, as_deep(stages, rounds))
    for stage in range(stages):
        first = min(stages - stage, rounds)
        expected = [("forward", number) for number in range(first)]
        for number in range(rounds):
            expected.append(("backward", number))
            if number + first < rounds:
                expected.append(("forward", number + first))
        assert [(pass_, number) for *_, pass_, number in stage_tasks(line, stage)] == expected


@pytest.mark.parametrize("layers", [1, 4])
def test_a_device_takes_one_task_at_a_time(layers: int) -> None:
    """Whatever the rounds."""
    line = pipeline(4, 8, as_deep(4, 8), layers=layers)
    for stage in range(4):
        tasks = stage_tasks(line, stage)
        assert all(end <= begin for (_, end, *_), (begin, *_) in pairwise(tasks))


@pytest.mark.parametrize("times", [1, 2, 4])
@pytest.mark.parametrize("runs", [2, 4])
@pytest.mark.parametrize("stages", STAGES)
def test_interleaved(stages: int, runs: int, times: int) -> None:
    """Of v runs of layers a device, in turn, the bubble is a v-th: (p - 1) / (v m + p - 1).

    Besides losses, what takes 1 ns are the first load and updates, at most one a stage and run.
    With no more registers than `known_strategies.pipeline.registers` says, as loads wait for them,
    too, it takes little more.
    """
    rounds = times * stages
    ideal = (runs * rounds + stages - 1) * ROUND // runs
    line = pipeline(stages, rounds, all_of_them(stages, rounds), chunks=runs)
    assert line.iteration_time_ns - ideal - 2 * rounds in range(stages + runs + 1)
    needed = [registers_of(stages, runs, number, rounds) for number in range(stages * runs)]
    line = pipeline(stages, rounds, needed, chunks=runs)
    assert ideal + 2 * rounds <= line.iteration_time_ns <= 1.006 * ideal + 2 * rounds


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_number_of_micro_batches_and_registers(data: st.DataObject) -> None:
    """Nothing waits for ever: at the worst, one micro-batch goes after the other.

    Each has four tasks of 1 ns: the samples' and the labels' load, and the loss in both passes.
    Two runs on each of two stages with a register each, and six micro-batches, have all of them one
    after another at least once.
    """
    stages, runs = data.draw(st.integers(2, 4)), data.draw(st.sampled_from([1, 2, 4]))
    rounds = data.draw(st.integers(1, 9))
    buffers = data.draw(st.lists(st.integers(1, 9), min_size=stages, max_size=stages))
    line = pipeline(stages, rounds, buffers, chunks=runs)
    ideal = (runs * rounds + stages - 1) * ROUND // runs
    one_by_one = rounds * stages * ROUND + 4 * rounds + stages * runs
    assert ideal <= line.iteration_time_ns <= one_by_one


def actors(times: list[int], registers: list[int], rounds: int) -> dict[str, list[tuple[int, int]]]:
    """(start, end) of each actor in each micro-batch, and of `last`, who is done with the last one.

    Actors are frozen layers, each on a device of its own, so that nothing goes backward through
    them. Behind them is a layer that is trained, whose tasks take 1 ns.
    """
    model = Model(rounds)
    x = model.input((4,))
    names = [f"actor{number}" for number in range(len(times))]
    for name in names:
        x = model.dense(x, 4, use_bias=False, trainable=False, name=name)
    model.dense(x, 4, use_bias=False, name="last")
    whole = add_losses(model.graph, model.outputs, "mean_squared_error")
    graph, outputs = micro_batched(whole, model.outputs, rounds)
    topology = devices_of_one_memory(len(names) + 1)
    where = {name: topology.names.names[number] for number, name in enumerate(names)}
    buffers = dict(zip(names, registers, strict=True))
    configs = {
        op.name: ParallelConfig(
            (1,) * len(op.dims),
            (where.get(op.name, topology.names.names[-1]),),
            buffers=min(rounds, buffers.get(op.name, rounds)),
        )
        for op in graph.operators
    }
    problem = Problem(graph, topology, StageCosts(dict(zip(names, times, strict=True))), outputs, 0)
    line = full(problem, Strategy(configs).checked(graph, topology.names))
    found: dict[str, list[tuple[int, int]]] = {name: [] for name in (*names, "last")}
    for row in line.tasks:
        pass_ = PASSES[row["pass"]]
        if row["hop"] >= 0 or pass_ not in ("forward", "backward"):
            continue
        name = graph.operators[row["index"]].name
        if name in found and pass_ == ("backward" if name == "last" else "forward"):
            found[name].append((int(row["start_time"]), int(row["end_time"])))
    return found


def test_actors_of_oneflow() -> None:
    """Figure 6 of OneFlow's paper: three actors, of which the first has three registers.

    At time 0, the first one acts; at time 1, it acts on the next micro-batch, and the second one
    acts; from time 2 on all of them do. (To load a micro-batch takes the first actor 1 ns.)
    """
    found = actors([FORWARD] * 3, [3, 2, 2], 8)
    for number in range(3):
        for micro_batch, (start, _) in enumerate(found[f"actor{number}"]):
            loads = start - (number + micro_batch) * FORWARD
            assert 1 <= loads <= micro_batch + 1


@given(
    st.lists(st.integers(1, 5), min_size=2, max_size=4),
    st.lists(st.integers(1, 4), min_size=4, max_size=4),
    st.integers(2, 8),
)
@settings(max_examples=40, deadline=None)
def test_credits(times: list[int], registers: list[int], rounds: int) -> None:
    """An actor acts as soon as its input is there, it is free, and it has a register to write.

    A register is given back when who reads it has acted: OneFlow's sections 4.2 and 4.3.
    """
    registers = registers[: len(times)]
    found = actors([100 * time for time in times], registers, rounds)
    line = [*(found[f"actor{number}"] for number in range(len(times))), found["last"]]
    for number, buffers in enumerate(registers):
        for micro_batch in range(rounds):
            waits = [line[number - 1][micro_batch][1] if number else 1]
            if micro_batch:
                waits.append(line[number][micro_batch - 1][1])
            if micro_batch >= buffers:
                waits.append(line[number + 1][micro_batch - buffers][1])
            # Each micro-batch is loaded where the first actor has room for it.
            assert 0 <= line[number][micro_batch][0] - max(waits) <= (number == 0)

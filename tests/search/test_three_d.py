"""Data, tensor and pipeline parallelism together: which division is chosen, and what it is."""

from __future__ import annotations

import time
from collections import defaultdict
from itertools import groupby
from math import prod

import pytest

from flexlegion.analysis import starts
from flexlegion.base.errors import UserError
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.graph.graph import Operator
from flexlegion.known_strategies import hybrid, named
from flexlegion.known_strategies.hybrid import stages
from flexlegion.networks.network import Network
from flexlegion.objective.training import TrainingSpec
from flexlegion.plan.plan import Plan
from flexlegion.profiling.machines import load_machine
from flexlegion.sim import simulator
from flexlegion.sim.fitting import Fitting
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import full, judge
from flexlegion.strategy.additions import with_additions
from flexlegion.strategy.recomputation import selective
from flexlegion.strategy.strategy import Strategy
from flexlegion.zoo import build

SIZES = {"steps": 64, "layers": 8, "hidden": 128, "heads": 8, "vocabulary": 512}


def problem_of(machine: str, micro_batches: int, memory: int | None = None) -> Problem:
    """A small transformer's training on a machine, whose devices may have other memories."""
    network = Network.of(build("gpt", 32, **SIZES), TrainingSpec.of(micro_batches=micro_batches))
    topology = load_machine(machine)
    for device in topology.devices if memory else ():
        object.__setattr__(device, "memory_bytes", memory)
    return network.problem(topology, AnalyticCosts())


@pytest.mark.parametrize("machine", ["p100x8", "v100x16"])
def test_it_is_the_best_of_its_kind(machine: str) -> None:
    """As fast as data parallelism, tensor parallelism in nodes and pipelines are, at least."""
    problem = problem_of(machine, 4)
    found = full(problem, named("3d", problem))
    assert found.fits
    for name in ("data", "megatron"):
        assert found.iteration_time_ns <= full(problem, named(name, problem)).iteration_time_ns


def test_stages() -> None:
    """Four stages of two devices that share layers, each with the registers that 1F1B needs."""
    problem = problem_of("p100x8", 4)
    configs = stages(problem.graph, problem.devices, tensor=2, pipeline=4)
    strategy = problem.checked(Strategy(configs))
    Plan(strategy, problem.outputs).verify()
    names = problem.devices.names
    groups = [tuple(names[i : i + 2]) for i in range(0, 8, 2)]
    seen = []
    for op in problem.graph.operators:
        config = strategy[op.name]
        stage = groups.index(tuple(sorted(set(config.devices)))) if config.tasks > 1 else None
        if stage is not None:
            assert config.buffers == 4 - stage
            seen.append(stage)
    assert seen == sorted(seen)
    assert set(seen) == {0, 1, 2, 3}
    inner = next(op for op in problem.graph.operators if op.name == "block1.expand")
    assert prod(strategy[inner.name].degrees) == strategy[inner.name].degrees[-2] == 2


def test_stages_take_equal_times() -> None:
    """Not as many operations: where the last layer is slow, its stage has few others."""
    problem = problem_of("p100x8", 4)
    slow = next(op for op in problem.graph.operators if op.name == "logits")

    def time(op: Operator, degrees: tuple[int, ...]) -> int:
        return 10**9 if op is slow else problem.task_time(op, degrees)

    last = {}
    for name, its in {"as priced": problem.task_time, "slow": time}.items():
        configs = stages(problem.graph, problem.devices, tensor=2, pipeline=4, time=its)
        devices = set(configs[slow.name].devices)
        last[name] = sum(set(config.devices) <= devices for config in configs.values())
    assert last["slow"] < 0.5 * last["as priced"]


def test_spare_registers() -> None:
    """Twice as many but at the last stage, and none that no micro-batch would have."""
    problem = problem_of("p100x8", 4)
    few, more = (
        stages(problem.graph, problem.devices, tensor=2, pipeline=4, spare=spare)
        for spare in (1, 2)
    )
    assert {config.buffers for config in few.values()} == {1, 2, 3, 4}
    for name, config in few.items():
        last = config.buffers == 1
        assert more[name].buffers == (1 if last else min(2 * config.buffers, 4))
        assert more[name].devices == config.devices


def test_selective_recomputation() -> None:
    """Between the products of a stage, what is cheap is run again, from what is at hand."""
    problem = problem_of("p100x8", 16)
    configs = stages(problem.graph, problem.devices, tensor=2, pipeline=4, spare=2)
    kept = problem.checked(Strategy(configs))
    strategy = kept.changed(selective(kept, problem.graph))
    kinds: dict[str, set[bool]] = defaultdict(set)
    for op in problem.graph.operators:
        kinds[type(op.kind).__name__].add(strategy[op.name].again)
    assert strategy["block2.norm2"].again
    # Sums of partial values; products; what has no backward pass, or ends it.
    for kind in ("Add", "Dense", "MultiHeadAttention", "CrossEntropy"):
        assert kinds[kind] == {False}, kind
    for op in problem.graph.operators:
        for tensor in op.inputs:
            if tensor.producer is not None and strategy[tensor.producer.name].again:
                assert strategy[tensor.producer.name].devices == strategy[op.name].devices
    all_kept, after = full(problem, kept), full(problem, strategy)
    assert max(after.allocated_bytes.values()) < 0.9 * max(all_kept.allocated_bytes.values())
    everything = full(problem, kept.changed(with_additions(kept, ["again"], problem.graph)))
    assert after.recomputed_ns < 0.6 * everything.recomputed_ns


def test_two_runs_of_layers() -> None:
    """Devices of a stage have two, which are not neighbours."""
    problem = problem_of("p100x8", 4)
    configs = stages(problem.graph, problem.devices, tensor=2, pipeline=2, runs=2)
    strategy = problem.checked(Strategy(configs))
    Plan(strategy, problem.outputs).verify()
    sides = [
        {problem.devices.names.index(name) // 4 for name in strategy[op.name].devices}
        for op in problem.graph.operators
    ]
    assert all(len(side) == 1 for side in sides)
    order = [min(side) for side in sides]
    assert [side for side, _ in groupby(order)] == [0, 1, 0, 1]
    assert strategy[problem.graph.operators[0].name].buffers == 4
    assert strategy[problem.graph.operators[-1].name].buffers == 1
    with pytest.raises(UserError, match="999 runs of operators on each of 2 stages are 1998, but"):
        stages(problem.graph, problem.devices, tensor=2, pipeline=2, runs=999)


@pytest.mark.parametrize("addition", ["again", "selective"])
def test_recomputation_keeps_runs_apart(addition: str) -> None:
    """What is run again of two runs of layers takes no turns in one memory: nobody waits for it."""
    problem = problem_of("p100x8", 16)
    configs = stages(problem.graph, problem.devices, tensor=2, pipeline=4, runs=2)
    kept = problem.checked(Strategy(configs))
    again = kept.changed(with_additions(kept, [addition], problem.graph))
    before, after = full(problem, kept), full(problem, again)
    assert after.recomputed_ns > 0
    assert after.iteration_time_ns < 1.4 * before.iteration_time_ns


def test_memory_decides() -> None:
    """Where nothing else fits, what takes the least of it is chosen, with recomputation."""
    plenty = problem_of("p100x8", 4)
    fastest = full(plenty, named("3d", plenty))
    needed = max(fastest.allocated_bytes.values())
    small = problem_of("p100x8", 4, needed - 1)
    found = full(small, named("3d", small))
    assert found.fits
    assert found.iteration_time_ns >= fastest.iteration_time_ns
    tiny = problem_of("p100x8", 4, 1000)
    assert not full(tiny, named("3d", tiny)).fits  # and whoever asks for it is told


def test_one_piece() -> None:
    with pytest.raises(UserError, match="'3d' has micro-batches go from stage to stage"):
        named("3d", problem_of("p100x8", 1))


def test_tables_by_columns_over_several_nodes() -> None:
    """By rows, each device has a value of all samples; so that is for one node alone."""
    sizes = {"steps": 64, "layers": 4, "hidden": 128, "heads": 8, "kv_heads": 8}
    model = build("llama", 32, **sizes, ffn=256, vocabulary=512)
    network = Network.of(model, TrainingSpec.of(micro_batches=4, optimizer="lazy-adam"))
    problem = network.problem(load_machine("p100x8"), AnalyticCosts())
    table = next(op for op in problem.graph.operators if op.looks_up)
    columns, rows = len(table.output.shape) - 1, len(table.output.shape)
    configs = {
        (tensor, pipeline): stages(problem.graph, problem.devices, tensor, pipeline)
        for tensor, pipeline in ((8, 1), (2, 1), (2, 4))
    }
    assert configs[8, 1][table.name].degrees[rows] == 8
    assert configs[2, 1][table.name].degrees[columns] == 8
    assert configs[2, 4][table.name].degrees[rows] == 2


def test_starts_that_cannot_be_simulated_are_left_out_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An iteration of too many tasks is not simulated, and never said not to fit into memory."""
    monkeypatch.setattr(starts, "SMALL", 0)
    problem = problem_of("p100x4", 2)
    tasks = {
        name: judge(problem, named(name, problem), 0, "bundles").all_tasks
        for name in ("data", "single")
    }
    assert tasks["single"] < tasks["data"]
    for module in (starts, simulator):
        monkeypatch.setattr(module, "most_judged", lambda: tasks["data"] - 1)
    left, notes = starts.starts_of(["data", "single"], problem, 0, ())
    assert list(left) == ["single"]
    assert f"no start from 'data': an iteration has {tasks['data']:,} tasks" in notes[0]
    with pytest.raises(UserError, match="no strategy to start from can be simulated"):
        starts.starts_of(["data"], problem, 0, ())


def test_slow_starts_that_take_seconds_are_left_out_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unless they were asked for."""
    monkeypatch.setattr(starts, "SMALL", 0)
    monkeypatch.setattr(starts, "LARGE", 1)
    monkeypatch.setattr(starts, "TOO_SLOW", 1.0)
    problem = problem_of("p100x4", 2)
    names = ["data", "single"]
    left, notes = starts.starts_of(None, problem, 0, names)
    assert len(left) == 1
    (slow,) = set(names) - set(left)
    assert f"no start from '{slow}': an iteration takes some" in notes[0]
    assert f"times as long as from '{next(iter(left))}'" in notes[0]
    assert list(starts.starts_of(names, problem, 0, ())[0]) == names


def test_an_interrupt_does_not_wait_for_all_divisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that have not begun are not tried any more."""
    tried = []

    def interrupted(*_: object, **__: object) -> Fitting:
        tried.append(1)
        time.sleep(0.05)
        raise KeyboardInterrupt

    monkeypatch.setattr(hybrid, "fitting", interrupted)
    monkeypatch.setattr(hybrid.os, "cpu_count", lambda: 1)
    with pytest.raises(KeyboardInterrupt):
        named("3d", problem_of("k80x64", 8))
    assert len(tried) <= 2

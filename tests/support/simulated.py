"""What the simulator's tests share: small networks, arbitrary costs, random proposals."""

from __future__ import annotations

import zlib
from collections.abc import Collection
from functools import partial
from itertools import combinations
from math import prod

import numpy as np

from flexlegion import Model
from flexlegion.cost.model import NO_RUNTIME, Cost, CostModel, Linear, RuntimeCosts, Shapes
from flexlegion.graph.graph import Operator
from flexlegion.graph.operator_type import DimKind
from flexlegion.known_strategies import resolve
from flexlegion.machine.parts import Device
from flexlegion.machine.topology import Topology
from flexlegion.objective.losses import Losses
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import full
from flexlegion.strategy.configuration import SPLIT, ParallelConfig, Sums, splits
from flexlegion.strategy.granularity import DEFAULT_GRANULARITY, Granularity
from flexlegion.strategy.strategy import ResolvedStrategy
from flexlegion.transforms.losses import add_losses
from flexlegion.transforms.micro_batches import micro_batched


class ArbitraryCosts(CostModel):
    """Times without any pattern: a hash of the question. With an odd seed, the runtime takes time.

    It then shares up to three cores with the devices of a memory. With every third seed, tasks take
    longer beside busy neighbours.
    """

    name = "arbitrary"

    def __init__(self, seed: int, largest: int = 20_000) -> None:
        self.seed = seed
        self.largest = largest

    def exe_time(self, operator: Operator, pass_: str, shapes: Shapes, device: Device) -> Cost:
        text = f"{self.seed} {operator.kind} {pass_} {shapes} {device.model}"
        contention = self.contention(f"{operator.kind} {pass_}")
        return Cost(zlib.crc32(text.encode()) % self.largest, "arbitrary", contention)

    def linear(self, pass_: str, device: Device) -> tuple[Linear, str]:
        del device
        return Linear(len(pass_) * 100, 10**9, self.contention(pass_)), "arbitrary"

    def contention(self, what: str) -> float:
        """Of a linear pass, or of tasks by operator kind and pass."""
        return zlib.crc32(what.encode()) % 2000 / 1000 if self.seed % 3 == 1 else 0.0

    def runtime(self, device: Device) -> RuntimeCosts:
        del device
        if self.seed % 2 == 0:
            return NO_RUNTIME
        some = self.largest // 8
        return RuntimeCosts(
            3 * some, some // 2, some // 5, some // 7, some, some // 3, self.seed // 2 % 4
        )


def images(model: Model) -> None:
    """Halos, partial gradients, several readers of a tensor, the same one twice."""
    x = model.input((6, 5, 2))
    a = model.conv2d(x, 3, 3, padding=1, activation="relu")
    b = model.conv2d(x, 3, 1)
    c = model.add([a, b, a])
    d = model.concat([model.pool2d(c, 2), model.pool2d(a, 2, kind="average")])
    model.dense(model.flatten(d), 4)


def sequences(model: Model) -> None:
    """Three dimensions, and a softmax that reads whole rows."""
    x = model.softmax(model.dense(model.input((3, 4)), 5))
    model.dense(model.flatten(x), 3)


def tables(model: Model) -> None:
    """Look-ups in a table by operators of two classes, of constant tokens, and of a tied table."""
    tokens, one = model.input((3,), "int32"), model.input((), "int32")
    steps = model.embedding(tokens, 9, 5, name="steps")
    single = model.embedding(one, 9, 5, name="single", share=steps)
    places = model.constant(np.arange(3, dtype=np.int32), name="places")
    positions = model.embedding(places, 3, 5, name="positions")
    tied = model.embedding(tokens, 4, 5, name="tied")
    logits = model.dense(tied, 4, use_bias=False, name="logits", share=tied)
    x = model.concat([model.flatten(model.add([steps, positions])), single, model.flatten(logits)])
    model.dense(x, 4)


def problem_of(
    model: Model,
    topology: Topology,
    costs: CostModel,
    loss: Losses | None = None,
    states: int = 1,
    clips: bool = False,
    granularity: Granularity = DEFAULT_GRANULARITY,
    dimensions: Collection[DimKind] = SPLIT,
    micro_batches: int = 1,
) -> Problem:
    """A model's training on a machine."""
    whole = add_losses(model.graph, model.outputs, loss or "sparse_categorical_crossentropy")
    graph, outputs = micro_batched(whole, model.outputs, micro_batches)
    return Problem(graph, topology, costs, outputs, states, clips, granularity, dimensions)


# Otherwise, small networks' weights are not cut into shards.
SMALL_SHARDS = Granularity(shard_bytes=1)
finely_cut = partial(problem_of, granularity=SMALL_SHARDS)


def strategy_of(problem: Problem, name: str) -> ResolvedStrategy:
    """A built-in strategy for a problem."""
    return resolve(name, problem.graph, problem.devices)


def check_local_optimum(problem: Problem, strategy: ResolvedStrategy) -> None:
    """No configuration of one operator, on any set of devices, makes the strategy faster."""
    best = full(problem, strategy).iteration_time_ns
    for op in problem.graph.operators:
        for degrees in splits(op, len(problem.devices)):
            for devices in combinations(problem.devices.names, prod(degrees)):
                for sums in ways_to_sum(op, degrees):
                    config = ParallelConfig(degrees, devices, sums)
                    neighbour = strategy.changed({op.name: config})
                    assert full(problem, neighbour).iteration_time_ns >= best, (op.name, config)


def ways_to_sum(operator: Operator, degrees: tuple[int, ...]) -> tuple[Sums, ...]:
    """Who may combine the partial values of an operator that is split like that."""
    return (
        ("readers", "shards") if prod(degrees[len(operator.output.shape) :]) > 1 else ("readers",)
    )


def random_change(
    problem: Problem, rng: np.random.Generator, operators: int = 1
) -> dict[str, ParallelConfig]:
    """Random configurations for some operators: any degrees, any devices, any way to sum."""
    changes = {}
    names = problem.devices.names
    for index in rng.choice(len(problem.graph.operators), operators, replace=False):
        operator = problem.graph.operators[index]
        choices = splits(operator, len(names), DimKind)
        degrees = choices[rng.integers(len(choices))]
        devices = rng.choice(np.array(names), int(np.prod(degrees)))
        changes[operator.name] = ParallelConfig(
            degrees,
            tuple(str(d) for d in devices),
            random_sums(rng),
            hierarchical=len(set(problem.devices.nodes)) > 1 and bool(rng.random() < 0.5),
        )
    return changes


def random_sums(rng: np.random.Generator) -> Sums:
    """Who combines partial values, if there are any."""
    return "shards" if rng.random() < 0.5 else "readers"

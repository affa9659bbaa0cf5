"""Strategies of equal groups of devices, which train the same layers with other samples."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
from deltas import LOSSES, OWN, SMALL, topology_of
from simulated import ArbitraryCosts, problem_of, random_sums, strategy_of

from flexlegion import Model
from flexlegion.graph.graph import Operator
from flexlegion.graph.operator_type import DimKind
from flexlegion.sim.problem import Problem
from flexlegion.strategy.configuration import (
    SHARDING,
    ParallelConfig,
    cannot_run_again,
    splits,
)
from flexlegion.strategy.granularity import Granularity
from flexlegion.strategy.strategy import ResolvedStrategy
from flexlegion.zoo import build

# Where neither the runtime nor busy neighbours take time.
SEEDS = (0, 2, 6, 8)


def replicated_problem(
    network: str, machine: str, groups: int, micro_batches: int, rng: np.random.Generator
) -> Problem:
    """A small network, whose micro-batches have some samples for each group."""
    batch = micro_batches * groups * int(rng.integers(1, 3))
    if network in OWN:
        model = Model(batch)
        OWN[network](model)
    else:
        model = build(network, batch, **SMALL[network])
    costs = ArbitraryCosts(int(rng.choice(SEEDS)), int(rng.choice([3, 50, 20_000])))
    return problem_of(
        model,
        topology_of(machine),
        costs,
        LOSSES.get(network),
        clips=bool(rng.integers(2)),
        granularity=Granularity(int(rng.choice([1, 256]))),
        micro_batches=micro_batches,
    )


def replicated_strategy(
    problem: Problem, groups: int, rng: np.random.Generator
) -> ResolvedStrategy:
    """Each group has as many devices, in a row. What has samples is split in one way in all groups.

    Of a fifth of the strategies, one operator is somewhere else: no group is like another then, or
    fewer are.
    """
    size = len(problem.devices.names) // groups
    held = strategy_of(problem, "data")
    drawn = {op.name: _config(op, problem, groups, size, rng) for op in problem.graph.operators}
    configs = {name: its for name, its in drawn.items() if its is not None}
    rounds = problem.graph.micro_batches
    if rng.random() < 0.2:
        again = [op.name for op in problem.graph.operators if cannot_run_again(op) is None]
        configs |= {name: replace(configs.get(name, held[name]), again=True) for name in again[::2]}
    if rng.random() < 0.2:
        configs |= {
            op.name: replace(configs.get(op.name, held[op.name]), sharding=SHARDING[2])
            for op in problem.graph.operators[::3]
        }
    if rng.random() < 0.2 and configs:
        name = str(rng.choice(sorted(configs)))
        order = rng.permutation(len(configs[name].devices))
        devices = tuple(configs[name].devices[i] for i in order)
        configs[name] = replace(configs[name], devices=devices)
    return held.changed(
        {
            name: replace(its, buffers=int(rng.integers(1, rounds + 1)))
            for name, its in configs.items()
        }
    )


def _config(
    operator: Operator, problem: Problem, groups: int, size: int, rng: np.random.Generator
) -> ParallelConfig | None:
    """None: it has no samples to share out."""
    if operator.dims[0].kind is not DimKind.SAMPLE or operator.space[0] < groups:
        return None
    most = operator.space[0] // groups
    choices = [its for its in splits(operator, size, DimKind) if its[0] <= most]
    degrees = choices[rng.integers(len(choices))]
    first = rng.choice(size, prod(degrees), replace=bool(rng.integers(2)))
    names = problem.devices.names
    # The first dimension varies slowest, so each group has the tasks of a run of samples.
    devices = tuple(names[group * size + d] for group in range(groups) for d in first)
    return ParallelConfig((groups * degrees[0], *degrees[1:]), devices, random_sums(rng))

"""Strategies by name or file: a module for each that comes along, which registers it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

from flexlegion.base.arguments import said_as
from flexlegion.base.errors import UserError
from flexlegion.base.suggestions import did_you_mean
from flexlegion.graph.graph import Graph
from flexlegion.known_strategies.registry import (
    STRATEGIES,
    is_named,
    make_strategy,
    strategy_names,
)
from flexlegion.machine.devices import Devices
from flexlegion.machine.topology import Topology
from flexlegion.sim.problem import Problem
from flexlegion.strategy.granularity import DEFAULT_GRANULARITY, Granularity
from flexlegion.strategy.strategy import ResolvedStrategy, Strategy, read_file

# Each registers itself, in the order in which messages name them.
# isort: off
from flexlegion.known_strategies import basic  # noqa: F401
from flexlegion.known_strategies import one_weird_trick, gnmt, megatron, vocabulary  # noqa: F401
from flexlegion.known_strategies import wide_deep, expert, optcnn, pipeline, hybrid  # noqa: F401
from flexlegion.known_strategies import random, sbp  # noqa: F401

# isort: on


@said_as("a result that has a strategy")
@runtime_checkable
class HasStrategy(Protocol):
    """A result that has a strategy, as that of a search."""

    @property
    def strategy(self) -> Strategy:
        """What it has."""


AnyStrategy = str | Path | Strategy | HasStrategy


def resolve(
    spec: AnyStrategy, graph: Graph, devices: Devices, topology: Topology | None = None
) -> ResolvedStrategy:
    """The strategy that `spec` stands for, checked against graph and machine.

    Parameters
    ----------
    spec
        A `Strategy`, a result that has one, a known strategy's name (see `registry`), or the path
        of a strategy file.
    graph
        What it is for.
    devices
        The devices that it may name.
    topology
        The machine that they belong to, for strategies that treat nodes alike, unless `devices`
        knows their nodes, as a topology's and a running machine's do.

    Raises
    ------
    UserError
        If it cannot be read or does not fit.
    """
    if topology is not None:
        nodes = [topology.device(name).node for name in devices.names]
        devices = Devices(devices.names, nodes)
    read = read_strategy(spec)
    strategy = read if isinstance(read, Strategy) else make_strategy(read, graph, devices)
    return strategy.checked(graph, devices)


def read_strategy(spec: AnyStrategy) -> str | Strategy:
    """A known strategy's name as it is, a file read: once, for it may be a pipe.

    Raises
    ------
    UserError
        If it is neither a name nor a file.
    """
    if isinstance(spec, Strategy):
        return spec
    if isinstance(spec, str | Path):
        if is_named(str(spec)):
            return str(spec)
        known = f"one of the known strategies {strategy_names()}"
        return read_file(spec, f"give a path, or {known}{did_you_mean(str(spec), STRATEGIES)}")
    return spec.strategy


def granularity_of(*read: str | Strategy) -> Granularity:
    """How finely plans are cut under strategies that were read: the default, unless one says.

    Raises
    ------
    UserError
        If two differ: then they have no simulation in common.
    """
    given = [strategy for strategy in read if isinstance(strategy, Strategy)]
    cut = [strategy.granularity or DEFAULT_GRANULARITY for strategy in given]
    for strategy, its in zip(given, cut, strict=True):
        if its != cut[0]:
            raise UserError(
                f"{strategy.source} has another granularity than {given[0].source}: {its} and "
                f"{cut[0]}"
            )
    return cut[0] if cut else DEFAULT_GRANULARITY


def named(spec: AnyStrategy, problem: Problem) -> ResolvedStrategy:
    """The strategy that `spec` stands for, those that need costs included.

    Raises
    ------
    UserError
        If it cannot be read or does not fit the problem.
    """
    resolved = unpriced(spec, problem)
    problem.price(resolved)
    return resolved


def unpriced(spec: AnyStrategy, problem: Problem) -> ResolvedStrategy:
    """`named`, but the problem's cost table stays as it is."""
    read = read_strategy(spec)
    if isinstance(read, str):
        read = make_strategy(read, problem.graph, problem.devices, problem)
    return read.checked(problem.graph, problem.devices)


def samples_only(problem: Problem) -> ResolvedStrategy:
    """Data parallelism; a batch smaller than the number of devices is on the first of them."""
    return problem.checked(make_strategy("data", problem.graph, problem.devices))

"""Strategies by name or file for commands, those that need costs included."""

from __future__ import annotations

from flexlegion.problem import Problem
from flexlegion.searches.optcnn import optcnn
from flexlegion.strategies import BUILT_IN, resolve
from flexlegion.strategies.placement import all_by_samples
from flexlegion.strategy import Strategy

OPTCNN = "optcnn"  # chosen by costs, so that it needs a machine
STRATEGIES = (*BUILT_IN, OPTCNN)


def read(spec: str) -> str | Strategy:
    """A known strategy's name as it is, a file read: once, for it may be a pipe."""
    if spec in STRATEGIES or spec.startswith("random:"):
        return spec
    return Strategy.load(spec)


def named(spec: str | Strategy, problem: Problem) -> Strategy:
    """The strategy that `spec` stands for, checked against the problem.

    Parameters
    ----------
    spec
        A strategy, its file, or a known one's name: one of `STRATEGIES`, ``random:SEED``.
    problem
        Graph, machine and costs.

    Raises
    ------
    UserError
        If it cannot be read or does not fit.
    """
    if spec == OPTCNN:
        strategy = optcnn(problem)
    else:
        strategy = resolve(spec, problem.graph, problem.devices, problem.topology)
    problem.check(strategy)
    return strategy


def samples_only(problem: Problem) -> Strategy:
    """Data parallelism; a batch smaller than the number of devices is on the first of them."""
    devices = problem.devices.preferred
    return Strategy(all_by_samples(problem.graph, devices), "strategy 'data'")

"""Strategies within what a target can express: replaced where they are not, or searched for."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from flexlegion.base.errors import UserError
from flexlegion.base.suggestions import unknown
from flexlegion.exporters.pipelines import Pipeline
from flexlegion.exporters.targets import TARGETS, Target, TargetName
from flexlegion.graph.graph import Operator
from flexlegion.objective.optimizers import Adam, LazyAdam
from flexlegion.objective.precision import DEFAULT_STORAGE
from flexlegion.objective.training import TrainingSpec
from flexlegion.sim.problem import Problem
from flexlegion.spmd.axes import Axes, Division
from flexlegion.strategy.configuration import ParallelConfig
from flexlegion.strategy.strategy import ResolvedStrategy


def target_of(name: str, devices: int) -> Target:
    """A target for a number of devices.

    Raises
    ------
    UserError
        If there is no such target, or its package is not installed.
    """
    if name not in TARGETS:
        raise unknown("target", name, TARGETS)
    which: TargetName = "jax" if name == "jax" else "dtensor"
    package = "jax" if which == "jax" else "torch"
    # The functions that programs consist of are written in it, and are imported for their texts.
    if importlib.util.find_spec(package) is None:
        raise UserError(
            f"programs for {name} are written with the package {package}, which is not installed: "
            f"pip install {package}"
        )
    return Target(which, Axes.prime(devices))


def check_training(training: TrainingSpec, to: str) -> None:
    """Raise `UserError` if programs for a target cannot train in that way."""
    storage = training.storage
    if storage != DEFAULT_STORAGE:
        raise UserError(
            f"a program for {to} stores activations in single precision, not in {storage}; "
            f"give storage {DEFAULT_STORAGE}, with which its devices need more memory"
        )
    if isinstance(training.optimizer, LazyAdam):
        raise UserError(
            f"a program for {to} has gradients of whole tables, which do not tell the rows that "
            f"were looked up, as {training.optimizer.type} has to know; give optimizer {Adam.type}"
        )
    if training.optimizer.ema is not None:
        raise UserError(
            f"a program for {to} has no optimizer, and so no averages of weights; leave ema out, "
            "and average in the program that trains by it"
        )
    if to == "jax" and training.precision == "bf16":
        raise UserError(
            "a program for jax cannot have products of single precision computed in bf16; give "
            "precision tf32 or fp32"
        )


def within(
    problem: Problem,
    strategy: ResolvedStrategy,
    target: Target,
    in_order: bool = False,
    pipeline: Pipeline | None = None,
    not_piped: str | None = None,
) -> tuple[ResolvedStrategy, dict[str, str]]:
    """A strategy with another configuration for what the target cannot divide as it says.

    That is the first of these that the target can: the same degrees on the first devices in order,
    the samples alone on all devices, another dimension, and the whole operator on each device.

    Parameters
    ----------
    problem
        Graph and machine.
    strategy
        With a configuration for each operator.
    target
        Where it is to run; of a pipeline, with the axes of a stage.
    in_order
        Whether what is not on the first devices, in order, is replaced, too: searches within a
        target's space have no other.
    pipeline
        Its stages, if it has several.
    not_piped
        Why operators on disjoint sets of devices make no pipeline, if there are any.

    Returns
    -------
    strategy
        The same but for these.
    reasons
        Why each of them is replaced, by operator.
    """
    instead: dict[str, ParallelConfig] = {}
    reasons: dict[str, str] = {}
    for operator, names in _places(problem, pipeline):
        config = strategy[operator.name]
        reason = _reason(operator, config, target, names)
        if in_order and config.devices != tuple(names[: config.tasks]):
            reason = "its devices are not the first ones, in order"
        if not_piped is not None and set(config.devices) != set(names):
            reasons[operator.name] = not_piped
            config = replace(config, degrees=(1,) * len(operator.dims))
            instead[operator.name] = _instead(problem, operator, config, target, names, (0,))
        elif reason is not None:
            reasons[operator.name] = reason
            instead[operator.name] = _instead(problem, operator, config, target, names)
    return strategy.changed(instead), reasons


def divisions_of(
    problem: Problem,
    strategy: ResolvedStrategy,
    target: Target,
    pipeline: Pipeline | None = None,
) -> Mapping[str, Division]:
    """What each axis of the mesh divides of each operator, of a strategy `within` it.

    Of a pipeline, those of the operators that are in it.
    """
    divisions = {}
    for operator, names in _places(problem, pipeline):
        division = _division(strategy[operator.name], target, names)
        assert division is not None, operator.name
        divisions[operator.name] = division
    return divisions


def _places(
    problem: Problem, pipeline: Pipeline | None
) -> Iterator[tuple[Operator, Sequence[str]]]:
    """Operators, with the devices of the mesh that each of them is on."""
    names = problem.devices.names
    if pipeline is None:
        yield from ((operator, names) for operator in problem.graph.operators)
        return
    for number, run in enumerate(pipeline.runs):
        stage = pipeline.stages[number % len(pipeline.stages)]
        yield from ((operator, [names[d] for d in stage]) for operator in run)


def _division(config: ParallelConfig, target: Target, names: Sequence[str]) -> Division | None:
    numbers = [names.index(device) for device in config.devices]
    return target.axes.divided(config.degrees, numbers)


def _reason(
    operator: Operator, config: ParallelConfig, target: Target, names: Sequence[str]
) -> str | None:
    division = _division(config, target, names)
    if division is None:
        return "its devices make no grid"
    return target.refusal(operator, division)


def _instead(
    problem: Problem,
    operator: Operator,
    config: ParallelConfig,
    target: Target,
    names: Sequence[str],
    first: Sequence[int] = (),
) -> ParallelConfig:
    """What an operator is divided in; `first` along one of these dimensions, if it can be."""
    rank = len(operator.dims)
    tried = [tuple(len(names) if i == d else 1 for i in range(rank)) for d in first]
    tried.append(config.degrees)
    for d in range(len(operator.output.shape)):
        tried.append(tuple(len(names) if i == d else 1 for i in range(rank)))
    tried.append((1,) * rank)
    degrees = next(
        its
        for its in tried
        if all(
            n == 1 or (n <= extent and dim.kind in problem.dimensions)
            for n, extent, dim in zip(its, operator.space, operator.dims, strict=True)
        )
        and target.allows(operator, its)
    )
    return replace(config, degrees=degrees, devices=tuple(names[: prod(degrees)]))

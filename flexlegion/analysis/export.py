"""Strategies out: as programs for PyTorch's DTensor and for JAX, or as configurations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Unpack, overload

from flexlegion.analysis.configuration import configuration_of, divided_as
from flexlegion.analysis.exported import MAX_WIDTH, SHOWN, Exported
from flexlegion.analysis.program import is_ways, time_as_program
from flexlegion.analysis.setting import AnyMachine, AnyModel, Given, Setting, network_of
from flexlegion.base.arguments import typed
from flexlegion.base.errors import UserError
from flexlegion.base.phase import phase
from flexlegion.base.suggestions import unknown
from flexlegion.console.text import count, duration, names, table, wrapped
from flexlegion.exporters.nearest import as_said
from flexlegion.exporters.pipelines import Pipeline, pipeline_of
from flexlegion.exporters.placed import ProgramMemory, program_memory
from flexlegion.exporters.program import missing, program
from flexlegion.exporters.shards import weight_places
from flexlegion.exporters.space import (
    check_training,
    divisions_of,
    target_of,
    within,
)
from flexlegion.exporters.spelling import comment
from flexlegion.exporters.systems import SYSTEMS
from flexlegion.exporters.targets import TARGETS, Target, TargetName, padding_of
from flexlegion.graph.tensor import Tensor
from flexlegion.known_strategies import AnyStrategy
from flexlegion.objective.precision import DEFAULT
from flexlegion.objective.training import TrainingOptions
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import full
from flexlegion.spmd.axes import joined
from flexlegion.spmd.ways import Ways
from flexlegion.strategy.strategy import ResolvedStrategy
from flexlegion.strategy.words import by_dimension


@dataclass(frozen=True)
class Replaced:
    """Operators that the target cannot divide as the strategy says, and what it does instead.

    Parameters
    ----------
    operators
        Their names.
    reason
        Why not.
    instead
        How they are divided.
    cost_ns
        By how much an iteration is simulated to take longer for these alone; below 0: less.
    """

    operators: tuple[str, ...]
    reason: str
    instead: str
    cost_ns: int


@dataclass(frozen=True)
class ExportedProgram(Exported):
    """What `export` returns for PyTorch's DTensor and for JAX.

    Attributes
    ----------
    text : str
        The program.
    replaced : tuple of Replaced
        Where the given strategy differs from what the program does.
    program_time_ns : int
        Simulated as the program itself, with its collectives by NCCL: run by PyTorch, or compiled
        by JAX (see `simulate_program`).
    memory : ProgramMemory
        What the program keeps on each device, and whether that fits.
    pipeline : Pipeline or None
        Its stages, if it has several.
    padding : str or None
        What to do where a vocabulary is not cut evenly, and so not as the strategy says.
    """

    kind = "program"

    replaced: tuple[Replaced, ...]
    program_time_ns: int
    memory: ProgramMemory
    pipeline: Pipeline | None = None
    padding: str | None = None

    @property
    def fits(self) -> bool:
        return self.memory.fits

    def memory_said(self) -> str:
        return str(self.memory)

    @property
    def others(self) -> list[Tensor]:
        """The weights that no module holds: all of a model in layers; constants of an import."""
        model, graph = self.setting.network.model, self.setting.network.graph
        origin = getattr(model, "origin", None)
        held = set()
        if origin is not None:
            held = {place.weight for places in origin.places.values() for place in places}
        return [weight for weight in graph.weights if weight.name not in held]

    def facts(self) -> dict[str, object]:
        """For JSON."""
        return super().facts() | {
            "program_time_ns": self.program_time_ns,
            "memory_of_each_device": self.memory.facts(),
            "pipeline": None if self.pipeline is None else self.pipeline.facts(),
            "replaced": [vars(each) for each in self.replaced],
            "padding": self.padding,
            "others": [weight.name for weight in self.others],
        }

    def __str__(self) -> str:
        total = len(self.strategy)
        others = sum(len(each.operators) for each in self.replaced)
        lines = [f"{total - others} of {count(total, 'operator')} are divided as the strategy says"]
        if self.replaced:
            columns = ("operators", "why not", "instead", "costs")
            lines += ["", table(columns, self._rows(), (0, 1, 2), MAX_WIDTH), ""]
        if self.padding is not None:
            lines.append(wrapped(self.padding, MAX_WIDTH))
        ratio = self.iteration_time_ns / max(self.given_time_ns, 1)
        lines.append(
            f"an iteration is simulated at {duration(self.iteration_time_ns)}, {ratio:.2f}x the "
            f"strategy's {duration(self.given_time_ns)} in flexlegion's runtime; as this program "
            f"with NCCL at {duration(self.program_time_ns)}"
        )
        lines[-1] = wrapped(lines[-1], MAX_WIDTH)
        needs = f"trained with {self.setting.network.training.optimizer.type}, {self.memory}"
        lines.append(wrapped(needs, MAX_WIDTH))
        lines += _reminders(self.setting, self.target, self.pipeline)
        return "\n".join(lines)

    def _rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        for each in self.replaced[:SHOWN]:
            cost = duration(abs(each.cost_ns))
            shown = cost if each.cost_ns >= 0 else f"-{cost}"
            rows.append((names(each.operators), each.reason, each.instead, shown))
        if len(self.replaced) > SHOWN:
            rows.append((f"and {len(self.replaced) - SHOWN} more kinds", "", "", ""))
        return rows


@overload
def export(
    model: AnyModel,
    machine: AnyMachine,
    strategy: AnyStrategy,
    to: TargetName = ...,
    *,
    costs: str = ...,
    profile_db: str | None = ...,
    **training: Unpack[TrainingOptions],
) -> ExportedProgram: ...


@overload
def export(
    model: AnyModel,
    machine: AnyMachine,
    strategy: AnyStrategy,
    to: str,
    *,
    costs: str = ...,
    profile_db: str | None = ...,
    **training: Unpack[TrainingOptions],
) -> Exported: ...


@typed
def export(
    model: AnyModel,
    machine: AnyMachine,
    strategy: AnyStrategy,
    to: str = "dtensor",
    *,
    costs: str = "auto",
    profile_db: str | None = None,
    **training: Unpack[TrainingOptions],
) -> Exported:
    """A strategy as a program for PyTorch's DTensor or for JAX, or for a system that has the model.

    A program computes what the model does, whatever the strategy. What the target cannot divide
    as the strategy says is divided otherwise, and named.

    Megatron-LM and torchtitan divide all layers alike. For them the file says the division that
    comes nearest to the strategy, of a model that is a decoder; what is lost is named.

    Parameters
    ----------
    model, machine, costs, profile_db
        See `flexlegion.simulate`.
    strategy
        A strategy, its file, or a known one's name; or a division in words, as
        `flexlegion.simulate_program` takes it.
    to
        "dtensor" or "jax": a Python program; "megatron": a shell script that starts Megatron-LM's
        pretrain_gpt.py; "torchtitan": a Python file of its configurations.
    **training
        How it is trained, see `flexlegion.simulate`.

    Returns
    -------
    Exported
        Its `text` is the file.

    Raises
    ------
    UserError
        If something does not exist or fit, the target has no function for an operator, or it
        cannot run the model or any division of it over the strategy's devices.
    """
    if to not in (*TARGETS, *SYSTEMS):
        raise unknown("target", to, (*TARGETS, *SYSTEMS))
    if is_ways(strategy):
        assert isinstance(strategy, str)
        setting = Setting.of(
            network_of(model, **training), machine, costs=costs, profile_db=profile_db
        )
        if to in SYSTEMS:
            return divided_as(setting, strategy, to)
        ways = Ways.parse(strategy, len(setting.problem.devices))
        divided = as_said(setting.problem, ways).strategy
        return program_of(Given(setting, divided, ways.words), to)
    given = Given.of(model, machine, strategy, costs=costs, profile_db=profile_db, **training)
    return configuration_of(given, to) if to in SYSTEMS else program_of(given, to)


def program_of(its: Given, to: str) -> ExportedProgram:
    """`export` of a strategy in its setting."""
    phase("writing the program")
    setting, given = its.setting, its.strategy
    problem = setting.problem
    network, graph = setting.network, problem.graph
    target = target_of(to, len(problem.devices))
    check_training(network.training, to)
    if unknown_types := missing(graph, target):
        raise UserError(
            f"{to} has no function here for operators {', '.join(unknown_types)}; say what those "
            "of your own compute by register_functions"
        )
    stages = pipeline_of(problem, given)
    pipeline = None if isinstance(stages, str) else stages
    if pipeline is not None:
        target = target_of(to, len(pipeline.stages[0]))
    not_piped = stages if isinstance(stages, str) else None
    done, reasons = within(problem, given, target, pipeline=pipeline, not_piped=not_piped)
    before = full(problem, given).iteration_time_ns
    replaced = _priced(problem, given, done, reasons, before)
    time = full(problem, done).iteration_time_ns if replaced else before
    axes, divisions = joined(divisions_of(problem, done, target, pipeline), target.axes)
    target = replace(target, axes=axes)
    title = _title(setting, its.name, target, replaced, pipeline)
    origin = getattr(network.model, "origin", None)
    sharding = {op.name: done[op.name].sharding for op in graph.operators}
    shard_bytes = problem.granularity.shard_bytes
    places = weight_places(graph, divisions, sharding, problem.optimizer_states, shard_bytes)
    text = program(
        graph,
        network.outputs,
        divisions,
        done,
        places,
        target,
        title,
        origin,
        network.training.precision,
        network.training.optimizer.clip_norm,
        pipeline,
    )
    memory = program_memory(problem, divisions, done, axes, pipeline)
    as_program = time_as_program(setting, done, to)
    return ExportedProgram(
        text,
        done,
        time,
        before,
        setting,
        its.name,
        target.name,
        replaced,
        as_program,
        memory,
        pipeline,
        padding_of(graph, given),
    )


def _priced(
    problem: Problem,
    given: ResolvedStrategy,
    done: ResolvedStrategy,
    reasons: Mapping[str, str],
    before: int,
) -> tuple[Replaced, ...]:
    """What is replaced, by reason, with what that costs beside the given strategy's time."""
    problem.price(done)
    kinds: dict[tuple[str, str], list[str]] = {}
    for name, reason in reasons.items():
        operator = problem.graph.operators[problem.operator_numbers[name]]
        kinds.setdefault((reason, by_dimension(operator, done[name])), []).append(name)
    replaced = []
    for (reason, instead), its in kinds.items():
        alone = given.changed({name: done[name] for name in its})
        cost = full(problem, alone).iteration_time_ns - before
        replaced.append(Replaced(tuple(its), reason, instead, cost))
    return tuple(replaced)


def _reminders(setting: Setting, target: str, pipeline: Pipeline | None) -> list[str]:
    """What users of a program have to know of how it trains."""
    network, lines = setting.network, []
    call = "forward_backward" if target == "dtensor" else "value_and_grad"
    if (number := network.training.micro_batches) > 1:
        lines.append(f"{call} takes a whole batch, and brings it through in {number} micro-batches")
    if pipeline is not None:
        schedule = pipeline.schedule.removeprefix("Schedule")
        order = f"PyTorch's order {schedule}" if target == "dtensor" else f"the order {schedule}"
        lines.append(
            f"micro-batches pass {len(pipeline.stages)} stages in {order}; there is no forward "
            f"pass but that of {call}"
        )
    if network.training.precision != DEFAULT:
        lines.append(f"products are computed in {network.training.precision}")
    if (norm := network.training.optimizer.clip_norm) is not None:
        call = "clip(weights)" if target == "dtensor" else "clipped(gradients)"
        lines.append(f"gradients are clipped to the norm {norm:g} by {call}, before each step")
    return [wrapped(line, MAX_WIDTH) for line in lines]


def _title(
    setting: Setting,
    name: str,
    target: Target,
    replaced: tuple[Replaced, ...],
    pipeline: Pipeline | None,
) -> str:
    what = {"dtensor": "PyTorch's DTensor", "jax": "JAX"}[target.name]
    devices = count(len(setting.problem.devices), "device")
    lines = [f"Strategy {name} of {setting.network} for {what}, on {devices}."]
    if reminders := _reminders(setting, target.name, pipeline):
        lines += ["", *(f"{line[0].upper()}{line[1:]}." for line in reminders)]
    if replaced:
        lines += ["", "Otherwise than the strategy says are divided:", ""]
        lines += [f"- {', '.join(r.operators)} ({r.reason}): {r.instead}" for r in replaced]
        lines.append("")
    return "\n".join(map(comment, "\n".join(lines).split("\n")))

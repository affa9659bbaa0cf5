"""Strategies out: as configurations of Megatron-LM and torchtitan, which come nearest to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from flexlegion.analysis.exported import MAX_WIDTH, SHOWN, Exported
from flexlegion.analysis.program import SimulatedProgram, runner_of, simulated_on
from flexlegion.analysis.setting import Given, Setting
from flexlegion.base.errors import UserError
from flexlegion.base.phase import phase
from flexlegion.console.text import count, duration, memory, table, wrapped
from flexlegion.exporters.decoder import decoder_of
from flexlegion.exporters.job import Job, System
from flexlegion.exporters.nearest import Nearest, as_said, nearest
from flexlegion.exporters.systems import SYSTEMS
from flexlegion.machine.devices import Devices
from flexlegion.sim.simulator import full
from flexlegion.spmd.ways import Ways


@dataclass(frozen=True)
class ExportedConfiguration(Exported):
    """What `export` returns for Megatron-LM and torchtitan.

    Attributes
    ----------
    text : str
        The file.
    nearest : Nearest
        The division of training that it says, and what of the strategy is lost.
    program : SimulatedProgram
        It as the system runs it, with its memory.
    given_program_time_ns : int or None
        As such a program, the given strategy; None: there is none.
    lost : tuple of str
        What is otherwise than model, training and strategy say, but for the operators that
        ``nearest.otherwise`` has.
    """

    kind = "division"

    nearest: Nearest
    program: SimulatedProgram
    given_program_time_ns: int | None
    lost: tuple[str, ...]

    @property
    def fits(self) -> bool:
        return self.program.fits

    def facts(self) -> dict[str, Any]:
        return super().facts() | {
            "division": self.nearest.ways.words,
            "share_as_given": self.nearest.share,
            "otherwise": [vars(each) for each in self.nearest.otherwise],
            "lost": list(self.lost),
            "program_time_ns": self.program.iteration_time_ns,
            "given_program_time_ns": self.given_program_time_ns,
            "needed_bytes": self.program.needed_bytes,
            "capacity_bytes": self.program.timeline.capacity,
            "fits": self.fits,
        }

    def memory_said(self) -> str:
        line = self.program.timeline
        verdict = "" if self.fits else ", which does not fit"
        return f"{memory(self.program.needed_bytes)} of {memory(line.capacity)}{verdict}"

    def __str__(self) -> str:
        its = self.nearest
        lines = [
            f"{self.target} runs {its.ways}; micro-batches: {self.program.micro_batches}",
            f"{its.share:.1%} of the work is divided, and placed, as the strategy says",
        ]
        if its.otherwise:
            rows = [(each.names, each.given, each.instead) for each in its.otherwise[:SHOWN]]
            if len(its.otherwise) > SHOWN:
                rows.append((f"and {len(its.otherwise) - SHOWN} more kinds", "", ""))
            lines += [
                "",
                table(("operators", "strategy", "instead"), rows, (0, 1, 2), MAX_WIDTH),
                "",
            ]
        lines += [f"otherwise: {each}" for each in self.lost]
        ratio = self.iteration_time_ns / max(self.given_time_ns, 1)
        before = self.given_program_time_ns
        runner = "" if before is None else f" (the strategy's as such a program {duration(before)})"
        lines += [
            f"an iteration is simulated at {duration(self.iteration_time_ns)}, {ratio:.2f}x the "
            f"strategy's {duration(self.given_time_ns)} in flexlegion's runtime; as {self.target} "
            f"runs it with NCCL at {duration(self.program.iteration_time_ns)}{runner}",
            f"each device needs {self.memory_said()}",
        ]
        return "\n".join(wrapped(line, MAX_WIDTH) if "\n" not in line else line for line in lines)


def configuration_of(its: Given, to: str) -> ExportedConfiguration:
    """`export` of a strategy in its setting, for one of `SYSTEMS`."""
    system, job = _job(its.setting, to)
    found = nearest(
        its.setting.problem,
        its.strategy,
        lambda ways: system.refusal(job, ways),
        system.again,
        system.shards,
    )
    return _written(its, system, job, found)


def divided_as(setting: Setting, words: str, to: str) -> ExportedConfiguration:
    """The same of a division in words, as `Ways.parse` takes it, which has to be possible."""
    system, job = _job(setting, to)
    ways = Ways.parse(words, len(setting.problem.devices))
    reason = system.refusal(job, ways)
    stages = sorted({0, *system.shards.values()})
    if ways.again not in system.again:
        reason = f"it can compute again {', '.join(system.again)}, not {ways.again}"
    elif ways.shards not in stages:
        reason = f"it has ZeRO's stages {', '.join(map(str, stages))}, not {ways.shards}"
    if reason is not None:
        raise UserError(f"{to} cannot run '{ways.words}': {reason}")
    found = as_said(setting.problem, ways)
    return _written(Given(setting, found.strategy, ways.words), system, job, found)


def _job(setting: Setting, to: str) -> tuple[System, Job]:
    phase("writing the configuration")
    system, network = SYSTEMS[to], setting.network
    job = Job(decoder_of(setting.problem.graph, to), network.training, network.batch_size, ())
    system.check(job)
    return system, job


def _written(its: Given, system: System, job: Job, found: Nearest) -> ExportedConfiguration:
    setting, given = its.setting, its.strategy
    job = replace(job, nodes=_nodes(setting.problem.devices, found.ways.devices))
    lost = (*found.lost, *system.lost(job, found.ways))
    runner = runner_of(system.runner)
    program = simulated_on(setting, found.ways, system.runner, runner, {})
    try:
        before = simulated_on(setting, given, system.runner, runner, {}).iteration_time_ns
    except UserError:
        before = None  # its tasks are at no grid of devices
    given_time = full(setting.problem, given).iteration_time_ns
    time = full(setting.problem, found.strategy).iteration_time_ns
    title = _title(setting, its.name, system, found, lost)
    return ExportedConfiguration(
        system.text(job, found, title),
        found.strategy,
        time,
        given_time,
        setting,
        its.name,
        system.name,
        found,
        program,
        before,
        lost,
    )


def _nodes(devices: Devices, used: int) -> tuple[int, ...]:
    """How many devices each node has of the first ones."""
    found: list[int] = []
    for node in devices.preferred_by_node:
        if used > 0:
            found.append(min(len(node), used))
            used -= found[-1]
    if len(set(found)) > 1:
        numbers = ", ".join(map(str, found))
        raise UserError(
            f"as many processes are started on each node, but the strategy's nodes have {numbers} "
            "devices"
        )
    return tuple(found)


def _title(
    setting: Setting, name: str, system: System, found: Nearest, lost: Sequence[str]
) -> list[str]:
    devices = count(found.ways.devices, "device")
    lines = [
        f"Strategy {name} for {system.version}, on {devices}: {found.ways}.",
        "",
        f"It was made for {setting.network}.",
    ]
    if found.otherwise or lost:
        lines += ["", "Otherwise than the strategy and the training say:", ""]
        lines += [f"- {each.names}: {each.instead}, not {each.given}" for each in found.otherwise]
        lines += [f"- {each}" for each in lost]
    return [part for line in lines for part in wrapped(line, 96, 2).split("\n")]

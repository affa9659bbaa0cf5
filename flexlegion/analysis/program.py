"""How long a program takes that others run: PyTorch's, JAX's or Megatron-LM's, on NCCL."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from flexlegion.analysis.result import Result
from flexlegion.analysis.setting import AnyMachine, AnyModel, Setting, network_of
from flexlegion.base.arguments import typed
from flexlegion.base.suggestions import unknown
from flexlegion.console.blocks import Block, Pairs
from flexlegion.console.text import duration, memory, volume
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.known_strategies import AnyStrategy, named
from flexlegion.objective.precision import PEAKS
from flexlegion.objective.training import TrainingOptions
from flexlegion.sim.throughput import Throughput
from flexlegion.spmd.program import Program, program_of
from flexlegion.spmd.steps import Prices
from flexlegion.spmd.system import RUNNERS, Runner
from flexlegion.spmd.timeline import ProgramTimeline, Training, simulated
from flexlegion.spmd.ways import Ways, divided
from flexlegion.strategy.strategy import ResolvedStrategy

_WAYS = re.compile(r"\s*[a-z]+=[^./]*")  # words that are unknown, too, which `Ways.parse` says
_NAMES = {
    "forward": "forward",
    "backward": "backward",
    "again": "recomputed",
    "waiting": "waiting for collectives",
    "update": "update",
    "host": "the host",
    "bubble": "bubble",
}


def is_ways(strategy: object) -> bool:
    """Whether a strategy is a division of training in words: ``tp=4 zero=1``."""
    return isinstance(strategy, str) and _WAYS.fullmatch(strategy) is not None


@dataclass(frozen=True, repr=False)
class SimulatedProgram(Result):
    """What `simulate_program` returns; `facts` has more than the attributes.

    Attributes
    ----------
    setting : Setting
        Model and machine.
    name : str
        The strategy's, or the division of training in words.
    ways : Ways or None
        That division.
    runner : str
        What runs it, one of ``flexlegion.spmd.system.RUNNERS``.
    timeline : ProgramTimeline
        What the iteration consists of, and its memory.
    throughput : Throughput
        What its time means.
    """

    setting: Setting
    name: str
    ways: Ways | None
    runner: str
    timeline: ProgramTimeline
    throughput: Throughput

    @property
    def iteration_time_ns(self) -> int:
        """Of an iteration."""
        return self.timeline.iteration_time_ns

    @property
    def fits(self) -> bool:
        """Whether every device has what its stage needs."""
        return self.timeline.fits

    @property
    def micro_batches(self) -> int:
        """In how many parts the batch goes through the network."""
        return self.setting.problem.graph.micro_batches

    @property
    def needed_bytes(self) -> int:
        """What a device of the fullest stage needs."""
        return max(its.needed for its in self.timeline.memory)

    def figures(self) -> dict[str, Any]:
        """For JSON, of one program among several: its division, time, memory and rates."""
        return {
            "division": self.name,
            "micro_batches": self.micro_batches,
            "iteration_time_ns": self.iteration_time_ns,
            "needed_bytes": self.needed_bytes,
            "capacity_bytes": self.timeline.capacity,
            "fits": self.fits,
        } | self.throughput.facts()

    def facts(self) -> dict[str, Any]:
        about = self.setting.about() | {
            "runtime": "nccl",
            "system": self.runner,
            "strategy": self.name,
            "division": None if self.ways is None else str(self.ways),
        }
        return about | self.timeline.facts() | self.throughput.facts()

    def blocks(self) -> Sequence[Block]:
        line = self.timeline
        what = f"{self.name}: {self.ways}" if self.ways is not None else f"strategy {self.name}"
        heading = f"{self.setting}; {what}; a program of collectives by NCCL, run by {self.runner}"
        most = max(line.memory, key=lambda its: its.needed)
        verdict = "" if line.fits else ", does not fit"
        rows = [
            ("iteration time", duration(line.iteration_time_ns)),
            *self.throughput.rows(),
            ("of the time", _shares(line)),
            ("collectives", _collectives(line)),
            ("each device sends", volume(line.sent_bytes)),
            ("memory", f"{memory(most.needed)} of {memory(line.capacity)}{verdict}"),
            ("of it", ", ".join(_parts(most.facts()))),
        ]
        return [heading, Pairs(rows)]


def _shares(line: ProgramTimeline) -> str:
    total = max(line.iteration_time_ns, 1)
    return ", ".join(
        f"{_NAMES[name]} {its / total:.0%}" for name, its in line.parts_ns.items() if its
    )


def _collectives(line: ProgramTimeline) -> str:
    said = [f"{duration(its)} of {name}" for name, its in line.busy_ns.items() if its]
    return ", ".join(said) if said else "none"


def _parts(facts: dict[str, Any]) -> Iterator[str]:
    for name, size in facts.items():
        if size and name != "needed":
            yield f"{memory(size)} {'for what comes and goes' if name == 'transient' else name}"


@typed
def simulate_program(
    model: AnyModel,
    machine: AnyMachine,
    strategy: AnyStrategy = "zero=0",
    *,
    system: str = "compiled",
    **training: Unpack[TrainingOptions],
) -> SimulatedProgram:
    """Simulate an iteration of a program as PyTorch, JAX or Megatron-LM run it, on NCCL.

    Parameters
    ----------
    model, machine
        As of `simulate`.
    strategy
        How training is divided, in words: ``tp=4 pp=2 zero=1 again=full``, of dp, tp, pp, cp, ep
        (data, tensor, pipeline, context, expert parallelism), vpp (runs of layers a stage), sp=1
        (sequence parallelism), zero (0 to 3), and again (full, attention, half or blocks:
        recomputation); dp is what is left. Or a strategy as `simulate` takes it, which is run as
        the program that `export` writes.
    system
        What runs it: "compiled" (torch.compile or JAX), "pytorch", or "megatron".
    loss, optimizer, precision, storage, micro_batches, loss_weights
        As of `simulate`.

    Returns
    -------
    SimulatedProgram
        Printed it is a table.

    Raises
    ------
    UserError
        If something does not exist or does not fit.

    Examples
    --------
    >>> simulate_program("gpt", "a100x8", "tp=2 zero=1").fits
    True
    """
    runner = runner_of(system)
    network = network_of(model, **training)
    setting = Setting.of(network, machine, costs="analytic")
    return simulated_on(setting, strategy, system, runner, {})


def runner_of(system: str) -> Runner:
    """What runs programs, by its name."""
    if system not in RUNNERS:
        raise unknown("system", system, RUNNERS)
    return RUNNERS[system]


def simulated_on(
    setting: Setting, strategy: AnyStrategy | Ways, name: str, runner: Runner, prices: Prices
) -> SimulatedProgram:
    """Simulate an iteration; `prices` keeps what collectives take for the next one."""
    problem = setting.problem
    topology = problem.topology
    ways: Ways | None = None
    program: Program
    if isinstance(strategy, Ways):
        ways = strategy
    elif isinstance(strategy, str) and is_ways(strategy):
        ways = Ways.parse(strategy, len(topology.devices))
    if ways is not None:
        program, said = divided(problem.graph, ways), ways.words
    else:
        assert not isinstance(strategy, Ways)
        resolved = named(strategy, problem)
        program = program_of(problem.graph, resolved, [d.name for d in topology.devices])
        said = strategy if isinstance(strategy, str) else resolved.source
    line = _timeline(setting, program, runner, prices)
    rate = setting.throughput(line.iteration_time_ns)
    return SimulatedProgram(setting, said, ways, name, line, rate)


def _timeline(
    setting: Setting, program: Program, runner: Runner, prices: Prices
) -> ProgramTimeline:
    training = setting.network.training
    return simulated(
        program,
        setting.problem.topology,
        AnalyticCosts(PEAKS[training.precision], runner.kernels),
        Training.of(training.optimizer),
        runner.system,
        prices=prices,
    )


def time_as_program(setting: Setting, strategy: ResolvedStrategy, target: str) -> int:
    """What an iteration takes in ns as a program of an export's target, which has to be there."""
    runner = RUNNERS["compiled" if target == "jax" else "pytorch"]
    devices = [device.name for device in setting.problem.topology.devices]
    program = program_of(setting.problem.graph, strategy, devices)
    return _timeline(setting, program, runner, {}).iteration_time_ns

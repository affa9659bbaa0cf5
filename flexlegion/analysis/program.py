"""How long a program takes that others run: PyTorch's, JAX's or Megatron-LM's, on NCCL."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

from flexlegion.analysis.result import Result
from flexlegion.analysis.setting import AnyMachine, AnyModel, Setting, network_of
from flexlegion.base.arguments import typed
from flexlegion.base.errors import UserError
from flexlegion.base.suggestions import unknown
from flexlegion.console.blocks import Block, Pairs, Table
from flexlegion.console.progress import ProgressBar
from flexlegion.console.text import duration, memory, volume
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.known_strategies import AnyStrategy, named
from flexlegion.networks.network import Network
from flexlegion.objective.precision import PEAKS
from flexlegion.objective.training import TrainingOptions
from flexlegion.sim.throughput import Throughput
from flexlegion.spmd.program import Program, program_of
from flexlegion.spmd.steps import Prices
from flexlegion.spmd.system import RUNNERS, Runner
from flexlegion.spmd.timeline import ProgramTimeline, Training, simulated
from flexlegion.spmd.ways import WORDS, Ways, divided
from flexlegion.strategy.strategy import ResolvedStrategy

_WAYS = re.compile(rf"\s*(?:{'|'.join([*WORDS, 'again'])})=")
SHOWN = 10  # divisions in a table
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
    return isinstance(strategy, str) and _WAYS.match(strategy) is not None


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
    runner = _runner(system)
    network = network_of(model, **training)
    setting = Setting.of(network, machine, costs="analytic")
    return _simulated(setting, strategy, system, runner, {})


def _runner(system: str) -> Runner:
    if system not in RUNNERS:
        raise unknown("system", system, RUNNERS)
    return RUNNERS[system]


def _simulated(
    setting: Setting, strategy: AnyStrategy | Ways, name: str, runner: Runner, prices: Prices
) -> SimulatedProgram:
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


@dataclass(frozen=True, repr=False)
class SearchedPrograms(Result):
    """What `search_programs` returns.

    Attributes
    ----------
    best : SimulatedProgram
        The fastest that fits; if none does, the one that needs the least memory.
    found : tuple of SimulatedProgram
        All that were simulated, the best first.
    undivided : str
        Why the model cannot be trained in more micro-batches; empty if it can.
    """

    best: SimulatedProgram
    found: tuple[SimulatedProgram, ...]
    undivided: str = ""

    def facts(self) -> dict[str, Any]:
        shown = [
            {
                "strategy": its.name,
                "micro_batches": its.setting.problem.graph.micro_batches,
                "iteration_time_ns": its.iteration_time_ns,
                "needed_bytes": max(m.needed for m in its.timeline.memory),
                "fits": its.fits,
                "model_flops_utilisation": its.throughput.utilisation,
            }
            for its in self.found
        ]
        facts = self.best.facts() | {"simulated": len(self.found), "divisions": shown}
        return facts | ({"undivided": self.undivided} if self.undivided else {})

    def blocks(self) -> Sequence[Block]:
        rows = [
            (
                its.name,
                str(its.setting.problem.graph.micro_batches),
                duration(its.iteration_time_ns),
                f"{its.throughput.utilisation:.1%}",
                memory(max(m.needed for m in its.timeline.memory)),
                "yes" if its.fits else "no",
            )
            for its in self.found[:SHOWN]
        ]
        columns = ("division", "micro-batches", "iteration", "MFU", "memory", "fits")
        count = sum(its.fits for its in self.found)
        note = f"{len(self.found):,} divisions were simulated, {count:,} of them fit"
        if self.undivided:
            note += f"; more micro-batches were not tried: {self.undivided}"
        return [*self.best.blocks(), Table(columns, rows, note=note)]


@typed
def search_programs(
    model: AnyModel,
    machine: AnyMachine,
    *,
    system: str = "compiled",
    most_micro_batches: int = 64,
    **training: Unpack[TrainingOptions],
) -> SearchedPrograms:
    """The fastest division of training by the usual ways that fits, as programs on NCCL.

    All data x tensor x pipeline parallelism whose tensor part lies in a node, each with ZeRO's
    stages, with and without recomputation, and with 1, 2, 4, ... micro-batches, is simulated.

    Parameters
    ----------
    model, machine, system
        As of `simulate_program`.
    most_micro_batches
        How many there are at most.
    loss, optimizer, precision, storage, micro_batches, loss_weights
        As of `simulate`; if micro-batches are given, there are that many.

    Returns
    -------
    SearchedPrograms
        Printed it is a table.

    Raises
    ------
    UserError
        If something does not exist or does not fit.
    """
    runner = _runner(system)
    network = network_of(model, **training)
    setting = Setting.of(network, machine, costs="analytic")
    devices = len(setting.problem.topology.devices)
    node = min(map(len, setting.problem.devices.preferred_by_node))
    given = network.training.micro_batches
    rounds = [given] if given > 1 else _powers(most_micro_batches, network.batch_size)
    prices: Prices = {}
    found: list[SimulatedProgram] = []
    undivided = ""
    with ProgressBar("simulating") as bar:
        for done, count in enumerate(rounds):
            try:
                its = setting if count == given else _in_micro_batches(setting, machine, count)
            except UserError as refusal:
                undivided = str(refusal)  # batch normalization needs the whole batch, say
                break
            for ways in _candidates(devices, node, network.batch_size // count, count):
                try:
                    found.append(_simulated(its, ways, system, runner, prices))
                except UserError:
                    continue  # it has too few layers, or nothing to split
            bar.steps(done + 1, len(rounds))
    if not found:
        raise UserError("no division of training fits this model, batch and machine")
    found.sort(key=_rank)
    return SearchedPrograms(found[0], tuple(found), undivided)


def _rank(its: SimulatedProgram) -> tuple[bool, int]:
    if its.fits:
        return False, its.iteration_time_ns
    return True, max(m.needed for m in its.timeline.memory)


def _powers(most: int, batch: int) -> list[int]:
    """1, 2, 4, ... that divide a batch."""
    found, count = [], 1
    while count <= most and batch % count == 0:
        found.append(count)
        count *= 2
    return found


def _in_micro_batches(setting: Setting, machine: AnyMachine, count: int) -> Setting:
    network = setting.network
    changed = Network.of(network.model, replace(network.training, micro_batches=count))
    return Setting.of(changed, machine, costs="analytic")


def _candidates(devices: int, node: int, micro_batch: int, rounds: int) -> Iterator[Ways]:
    for tensor in (t for t in range(1, node + 1) if node % t == 0 and devices % t == 0):
        for pipeline in (p for p in range(1, devices // tensor + 1) if devices // tensor % p == 0):
            data = devices // tensor // pipeline
            if data > micro_batch or pipeline > max(rounds, 1):
                continue
            for shards in (1, 2, 3) if data > 1 else (0,):
                if shards > 1 and pipeline > 1:
                    continue
                for again in ("none", "full"):
                    yield Ways(
                        data, tensor, pipeline, sequence=tensor > 1, shards=shards, again=again
                    )

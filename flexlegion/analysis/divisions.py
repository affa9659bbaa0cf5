"""The usual ways to divide training, all of them simulated as programs on NCCL; and the best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

from flexlegion.analysis.program import SimulatedProgram, runner_of, simulated_on
from flexlegion.analysis.result import Result
from flexlegion.analysis.setting import AnyMachine, AnyModel, Setting, network_of
from flexlegion.base.arguments import typed
from flexlegion.base.errors import UserError
from flexlegion.console.blocks import Block, Table
from flexlegion.console.progress import ProgressBar
from flexlegion.console.text import duration, memory
from flexlegion.networks.network import Network
from flexlegion.objective.training import MOST_TRIED, TrainingOptions, check_micro_batches
from flexlegion.spmd.steps import Prices
from flexlegion.spmd.ways import Ways

SHOWN = 10  # divisions in a table


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
                "micro_batches": its.micro_batches,
                "iteration_time_ns": its.iteration_time_ns,
                "needed_bytes": its.needed_bytes,
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
                str(its.micro_batches),
                duration(its.iteration_time_ns),
                f"{its.throughput.utilisation:.1%}",
                memory(its.needed_bytes),
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
    most_micro_batches: int = MOST_TRIED,
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
    network = network_of(model, **training)
    setting = Setting.of(network, machine, costs="analytic")
    found, undivided = simulated_divisions(setting, machine, system, most_micro_batches)
    if not found:
        raise UserError("no division of training fits this model, batch and machine")
    return SearchedPrograms(found[0], tuple(found), undivided)


def simulated_divisions(
    setting: Setting, machine: AnyMachine, system: str, most: int, *, thrifty: bool = False
) -> tuple[list[SimulatedProgram], str]:
    """All divisions, the best first; and why there are no more micro-batches, if there are not.

    Parameters
    ----------
    setting
        Model and machine.
    machine
        The machine, as it was given.
    system
        What runs them.
    most
        How many micro-batches are tried at most.
    thrifty
        Whether those are enough that need the least memory.
    """
    runner, network = runner_of(system), setting.network
    check_micro_batches(most)
    devices = len(setting.problem.topology.devices)
    node = min(map(len, setting.problem.devices.preferred_by_node))
    given = network.training.micro_batches
    rounds = [given] if given > 1 else _powers(most, network.batch_size)
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
                if thrifty and not _is_thrifty(ways, network.batch_size, count, rounds):
                    continue
                try:
                    found.append(simulated_on(its, ways, system, runner, prices))
                except UserError:
                    continue  # it has too few layers, or nothing to split
            bar.steps(done + 1, len(rounds))
    found.sort(key=rank)
    return found, undivided


def _is_thrifty(ways: Ways, batch: int, count: int, rounds: Sequence[int]) -> bool:
    """Whether all is sharded that can be, in as many micro-batches as there can be."""
    most = max(its for its in rounds if its == count or batch // its >= ways.data)
    shards = 0 if ways.data == 1 else 1 if ways.pipeline > 1 else 3
    return count == most and ways.shards == shards


def rank(its: SimulatedProgram) -> tuple[bool, int]:
    """The fastest that fits comes first, then what needs the least memory."""
    if its.fits:
        return False, its.iteration_time_ns
    return True, its.needed_bytes


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
            for shards in range(4) if data > 1 else (0,):
                if shards > 1 and pipeline > 1:
                    continue
                for again in ("none", "full"):
                    yield Ways(
                        data, tensor, pipeline, sequence=tensor > 1, shards=shards, again=again
                    )

"""What fits: the fewest GPUs that train a model, and the largest batch that all of them take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Unpack

from flexlegion.analysis.divisions import simulated_divisions
from flexlegion.analysis.program import SimulatedProgram
from flexlegion.analysis.result import Result
from flexlegion.analysis.setting import (
    AnyMachine,
    AnyModel,
    Setting,
    network_of,
    resized,
    with_batch,
)
from flexlegion.base.arguments import typed
from flexlegion.base.errors import UserError
from flexlegion.console.blocks import Block, Pairs
from flexlegion.console.progress import ProgressBar
from flexlegion.console.text import count, duration, memory
from flexlegion.machine.files import described
from flexlegion.machine.topology import Topology
from flexlegion.networks.kept.document import NotKeptError, graph_document
from flexlegion.networks.network import Network
from flexlegion.objective.training import MOST_TRIED, TrainingOptions
from flexlegion.profiling.machines import is_local

MOST_SAMPLES = 1 << 22  # a larger batch is of no use, and its numbers would overflow


@dataclass(frozen=True, repr=False)
class WhatFits(Result):
    """What `what_fits` returns.

    Attributes
    ----------
    setting : Setting
        Model and machine.
    devices : int
        How many the machine has.
    fewest : SimulatedProgram or None
        The fastest program on the fewest devices that take the batch; None: not even all do.
    fewest_devices : int or None
        How many these are.
    largest : SimulatedProgram or None
        The program of the largest batch on all devices that goes through the network as a whole;
        None: none fits, or the model cannot be built for another batch. (In micro-batches, any
        number of them goes through.)
    least : SimulatedProgram
        On all devices, the one that needs the least memory.
    unknown : str
        Why there is no largest batch, if there is none.
    """

    setting: Setting
    devices: int
    fewest: SimulatedProgram | None
    fewest_devices: int | None
    largest: SimulatedProgram | None
    least: SimulatedProgram
    unknown: str = ""

    def facts(self) -> dict[str, Any]:
        about = self.setting.about() | {"runtime": "nccl", "system": self.least.runner}
        return about | {
            "devices": self.devices,
            "fewest_devices": self.fewest_devices,
            "fewest": None if self.fewest is None else self.fewest.figures(),
            "largest_batch": None if self.largest is None else _batch(self.largest),
            "largest": None if self.largest is None else self.largest.figures(),
            "least_memory": self.least.figures(),
        }

    def blocks(self) -> Sequence[Block]:
        least = self.least
        capacity = memory(least.timeline.capacity)
        rows: list[tuple[str, str]] = []
        if self.fewest is None:
            rows.append(("fewest devices", f"more than the {self.devices:,} that there are"))
        else:
            what = count(self.fewest_devices or 0, "device")
            rows.append(("fewest devices", f"{what}: {_said(self.fewest)}"))
        if self.largest is None:
            rows.append(("largest batch", self.unknown))
        else:
            what = f"{_batch(self.largest):,} samples at once"
            rows.append(("largest batch", f"{what}: {_said(self.largest)}"))
        rows.append(
            ("least memory", f"{memory(least.needed_bytes)} of {capacity}, by {_division(least)}")
        )
        heading = f"{self.setting}; programs of collectives by NCCL, run by {least.runner}"
        return [heading, Pairs(rows)]


def _batch(its: SimulatedProgram) -> int:
    return its.setting.network.batch_size


def _division(its: SimulatedProgram) -> str:
    rounds = its.micro_batches
    return its.name + (f" in {rounds} micro-batches" if rounds > 1 else "")


def _said(its: SimulatedProgram) -> str:
    used = f"{memory(its.needed_bytes)} of {memory(its.timeline.capacity)}"
    rate = f"MFU {its.throughput.utilisation:.1%}"
    return f"{_division(its)}, {duration(its.iteration_time_ns)}, {rate}, {used}"


@typed
def what_fits(
    model: AnyModel,
    machine: AnyMachine,
    *,
    system: str = "compiled",
    most_micro_batches: int = MOST_TRIED,
    **training: Unpack[TrainingOptions],
) -> WhatFits:
    """On how few devices a model trains, and how large a batch all of them take.

    Devices are the first 1, 2, 4, ... of the machine. Divisions are those of `search_programs`; the
    batch doubles, or halves, until that is one that fits and twice as much does not.

    Parameters
    ----------
    model, machine, system, most_micro_batches
        As of `search_programs`; the batch is the model's for the fewest devices.
    loss, optimizer, precision, storage, micro_batches, loss_weights
        As of `simulate`.

    Returns
    -------
    WhatFits
        Printed it is a table.

    Raises
    ------
    UserError
        If something does not exist, or no division goes with model and machine.

    Examples
    --------
    >>> what_fits("gpt", "a100x4", most_micro_batches=1).fewest_devices
    1
    """
    if isinstance(machine, Topology) or is_local(machine):
        raise UserError(
            "devices are taken away from a machine that a file describes; write this one's by "
            "'flexlegion machine measure', and give that file"
        )
    network = network_of(model, **training)
    its, gpus = described(machine)
    every = len(its.topology(gpus).devices)

    def on(devices: int, of: Network) -> Setting:
        topology = its.topology(devices if its.sizes else None)
        return Setting.of(of, topology, costs="analytic")

    def least_memory(setting: Setting, most: int) -> SimulatedProgram | None:
        topology = setting.problem.topology
        found, _ = simulated_divisions(setting, topology, system, most, thrifty=True)
        fitting = [one for one in found if one.fits]
        return min(fitting or found, key=lambda one: one.needed_bytes, default=None)

    setting = on(every, network)
    whole = least_memory(setting, most_micro_batches)
    if whole is None:
        raise UserError("no division of training goes with this model, batch and machine")
    fewest = None
    fewest_devices = None
    if whole.fits:
        numbers = [n for n in its.sizes if n < every and n & (n - 1) == 0]
        with ProgressBar("fewest devices") as bar:
            for number, devices in enumerate([*numbers, every]):
                here = setting if devices == every else on(devices, network)
                one = least_memory(here, most_micro_batches)
                bar.steps(number + 1, len(numbers) + 1)
                if one is not None and one.fits:
                    topology = here.problem.topology
                    its_all, _ = simulated_divisions(here, topology, system, most_micro_batches)
                    fewest, fewest_devices = its_all[0], devices
                    break
    largest, unknown = _largest(network, lambda of: least_memory(on(every, of), 1))
    return WhatFits(setting, every, fewest, fewest_devices, largest, whole, unknown)


def _largest(
    network: Network, least: Callable[[Network], SimulatedProgram | None]
) -> tuple[SimulatedProgram | None, str]:
    """The program of the largest batch that fits, or why there is none."""
    if network.reference is None:
        try:
            with_batch(network, 2 * network.batch_size)
        except UserError as error:
            return None, str(error)
    best = None
    sure = False
    if network.model.origin is not None:  # each batch would be an import
        with suppress(UserError):
            best = _doubled(network.batch_size, lambda batch: least(resized(network, batch)))
            batch = 1 if best is None else _batch(best)
            sure = all(_is_resized(network, its) for its in (batch, 2 * batch))
    if not sure:
        best = _doubled(network.batch_size, lambda batch: least(with_batch(network, batch)))
    return best, "" if best is not None else "none: not even one sample fits"


def _doubled(
    batch: int, least: Callable[[int], SimulatedProgram | None]
) -> SimulatedProgram | None:
    """The program of the largest batch that fits; None: not even one sample does."""

    def fitting(batch: int) -> SimulatedProgram | None:
        one = least(batch)
        return one if one is not None and one.fits else None

    best = fitting(batch)
    grows = best is not None
    while best is None and batch > 1:
        batch //= 2
        best = fitting(batch)
    while grows and batch < MOST_SAMPLES:
        try:
            more = fitting(2 * batch)
        except UserError:  # its tensors have more elements than there can be
            break
        if more is None:
            break
        batch, best = 2 * batch, more
    return best


def _is_resized(network: Network, batch: int) -> bool:
    """Whether the model of a batch is what `resized` makes: a function may choose by the batch."""
    graphs = []
    for its in (with_batch, resized):
        try:
            graphs.append(graph_document(its(network, batch).model.graph))
        except UserError:
            graphs.append({})
        except NotKeptError:  # operators of one's own, which nobody can compare
            return False
    return graphs[0] == graphs[1]

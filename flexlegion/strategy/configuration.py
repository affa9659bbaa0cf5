"""Parallelization configurations: one operator's point in the SOAP space (FlexFlow, section 4)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from flexlegion.base.arguments import is_number
from flexlegion.base.errors import UserError
from flexlegion.base.quoting import described, printable, shown
from flexlegion.base.suggestions import did_you_mean
from flexlegion.graph.graph import Operator
from flexlegion.graph.operator_type import DimKind
from flexlegion.machine.devices import Devices

if TYPE_CHECKING:
    import numpy as np

Sums = Literal["readers", "shards"]
SUMS: tuple[Sums, ...] = get_args(Sums)  # the first unless said otherwise
Sharding = Literal["states", "gradients", "weights"]
SHARDING: tuple[Sharding, ...] = get_args(Sharding)  # likewise

# The kinds of dimensions that are split wherever they can be. A part is so only for what is there:
# partial values of inputs.
SPLIT = frozenset(DimKind) - {DimKind.NONE, DimKind.PART}

_DEVICE_NAME = re.compile(r"(cpu|gpu):(0|[1-9][0-9]*)")


@dataclass(frozen=True)
class ParallelConfig:
    """How one operator is split into tasks, and where each task runs.

    Parameters
    ----------
    degrees
        Degree of parallelism for each dimension of the operator's space: of its output, then of
        what it reduces, which may be left out. Where a degree does not divide its extent, tiles
        differ by at most one.
    devices
        A device for each task; tasks are numbered row-major over the degrees. Devices may repeat,
        and need not be contiguous.
    sums
        Who combines partial values, where a reduction is split: "readers", each for itself, or
        "shards", those that wrote them, shard by shard, before anybody reads.
    dims
        Names of the dimensions that the degrees are of, if these are not all, as in a file; the
        others are whole.
    hierarchical
        Whether the gradients of the operator's weights are summed inside each node first, and
        updated weights sent once to each other node: a hierarchical all-reduce. Where all who use a
        weight are in one node, or each in another, it changes nothing.
    buffers
        How many micro-batches can be under way at the operator: so many registers its outputs and
        their gradients have, which micro-batches take in turn. As many as there are micro-batches,
        at most.
    again
        Whether the backward pass runs the operator forward once more, instead of finding its
        outputs in memory: recomputation, or activation checkpointing. Training computes the same.
    sharding
        What of the operator's weights is cut into shards, of which each device that uses the
        weights keeps its own, as ZeRO does (Rajbhandari et al., 2020). "states": the optimizer's
        states, as is always done (stage 1). "gradients": these as well, which are summed shard by
        shard in each micro-batch (stage 2). "weights": their values as well, which are gathered
        when the forward pass, and again the backward pass, needs them (stage 3, or fully sharded
        data parallelism). Of weights that several operators share, the first one says it. Of
        tables, in which rows are looked up, each part is on one device anyway.
    """

    degrees: tuple[int, ...]
    devices: tuple[str, ...]
    sums: Sums = "readers"
    dims: tuple[str, ...] | None = None
    hierarchical: bool = False
    buffers: int = 1
    again: bool = False
    sharding: Sharding = SHARDING[0]

    @property
    def tasks(self) -> int:
        """Number of tasks, the paper's ``|c|``."""
        return math.prod(self.degrees)

    @property
    def order(self) -> tuple[bool, Sharding]:
        """What the order of launches depends on: which are there at all. No proposal changes it."""
        return self.again, self.sharding

    def in_order_of(self, other: ParallelConfig) -> ParallelConfig:
        """The same with another one's `order`."""
        return replace(self, again=other.again, sharding=other.sharding)

    def filled(self, operator: Operator, where: str) -> ParallelConfig:
        """The same with a degree for each dimension of the operator, in their order.

        Dimensions without a degree are whole: those that are not named, or if none is, reductions,
        or the parts of linear inputs.

        Parameters
        ----------
        operator
            What it is for.
        where
            Beginning of the message, e.g. the file's name.

        Raises
        ------
        UserError
            If it names a dimension that the operator does not have, or has values of other types.
        """
        its = self.of_its_types(f"{where}: operator '{operator.name}'")
        if its.dims is None:
            missing = operator.dims[len(its.degrees) :]
            reductions = len(its.degrees) == len(operator.output.shape)
            if not reductions and any(dim.kind is not DimKind.PART for dim in missing):
                return its
            return replace(its, degrees=(*its.degrees, *(1,) * len(missing)))
        names = [dim.name for dim in operator.dims]
        for name in its.dims:
            if name not in names:
                raise UserError(
                    f"{where}: operator '{operator.name}' has no dimension '{printable(name[:40])}'"
                    f"{did_you_mean(name, names)}; it has {', '.join(names)}"
                )
        degrees = dict(zip(its.dims, its.degrees, strict=True))
        return replace(its, degrees=tuple(degrees.get(name, 1) for name in names), dims=None)

    def named(self, operator: Operator) -> ParallelConfig:
        """The same with degrees by the dimensions' names, where they are more than 1."""
        if self.dims is not None or len(self.degrees) > len(operator.dims):
            return self
        split = [
            (dim.name, degree)
            for dim, degree in zip(operator.dims, self.degrees, strict=False)
            if degree != 1
        ]
        names, degrees = tuple(name for name, _ in split), tuple(degree for _, degree in split)
        return replace(self, degrees=degrees, dims=names)

    def of_its_types(self, where: str) -> ParallelConfig:
        """The same with its values in the types that the fields say: users' functions make some.

        Parameters
        ----------
        where
            Beginning of the message, e.g. the file's name and the operator.

        Raises
        ------
        UserError
            If a degree is no whole number, or a device or a dimension no name.
        """
        if not _are(self.degrees, lambda degree: is_number(degree, int)):
            raise UserError(f"{where} has the degrees {_few(self.degrees)}, no whole numbers")
        if not _are_names(self.devices):
            raise UserError(f"{where} has the devices {_few(self.devices)}, no names")
        if self.dims is not None and not _are_names(self.dims):
            raise UserError(f"{where} has the dimensions {_few(self.dims)}, no names")
        if type(self.buffers) is not int:
            raise UserError(f"{where} has {described(self.buffers)} as its number of buffers")
        degrees = tuple(map(int, self.degrees))
        dims = None if self.dims is None else tuple(self.dims)
        return replace(self, degrees=degrees, devices=tuple(self.devices), dims=dims)

    def check(self, operator: Operator, devices: Devices, where: str) -> None:
        """Raise `UserError` unless this configuration, `filled`, fits the operator and the machine.

        Parameters
        ----------
        operator, devices
            What it is for.
        where
            Beginning of the message, e.g. the file's name.
        """
        where = f"{where}: operator '{operator.name}'"
        dims = operator.dims
        if len(self.degrees) != len(dims):
            names = ", ".join(dim.name for dim in dims)
            raise UserError(
                f"{where} has {len(self.degrees)} degrees, but {len(dims)} dimensions ({names})"
            )
        for dim, degree, extent in zip(dims, self.degrees, operator.space, strict=True):
            if degree < 1:
                raise UserError(
                    f"{where} has degree {degree} in dimension '{dim.name}'; degrees start at 1"
                )
            if degree > 1 and dim.kind is DimKind.NONE:
                cannot = "it cannot be split"
                if operator.looks_up:
                    cannot = "what looks rows up in a table is split by its columns and rows alone"
                raise UserError(
                    f"{where} splits dimension '{dim.name}' into {degree} parts, but {cannot}; its "
                    "degree has to be 1"
                )
            if degree > extent:
                what = "a batch of" if dim.name == "sample" else "an extent of"
                raise UserError(
                    f"{where} splits dimension '{dim.name}' into {degree} parts, but it has "
                    f"{what} {extent}; use at most {extent}"
                )
        if self.again and (why := cannot_run_again(operator)):
            raise UserError(f"{where} cannot be run again for the backward pass: {why}")
        if self.sums not in SUMS:
            choices = " or ".join(f"'{name}'" for name in SUMS)
            raise UserError(f"{where} has its sums made by {shown(self.sums)}, not by {choices}")
        if self.sharding not in SHARDING:
            choices = " or ".join(f"'{name}'" for name in SHARDING)
            raise UserError(f"{where} has {shown(self.sharding)} sharded, not {choices}")
        if len(self.devices) != self.tasks:
            raise UserError(
                f"{where} needs one device a task, but names {len(self.devices)} device"
                f"{'s' * (len(self.devices) != 1)} for {self.tasks} task{'s' * (self.tasks != 1)} "
                "(the product of its degrees)"
            )
        # Thousands of devices are looked up at once.
        for device in () if devices.have(self.devices) else self.devices:
            if device in devices:
                continue
            if not _DEVICE_NAME.fullmatch(device):
                raise UserError(
                    f"{where} names an unknown device {described(device)}; devices are called "
                    "cpu:0, cpu:1, ... and gpu:0, gpu:1, ..."
                )
            raise UserError(
                f"{where} needs device '{device}', but this run has {devices}; change the "
                "strategy, or run with more processors (legate --cpus, --gpus)"
            )


def _are(values: object, wanted: Callable[[object], bool]) -> bool:
    """Whether it is a list of values as wanted."""
    return isinstance(values, list | tuple) and all(map(wanted, values))


def _are_names(values: object) -> bool:
    # By types first: of thousands of devices, nearly all are plain strings.
    if not isinstance(values, list | tuple):
        return False
    return set(map(type, values)) <= {str} or all(isinstance(value, str) for value in values)


def _few(values: object) -> str:
    """For messages."""
    if not isinstance(values, list | tuple):
        return described(values)
    return f"[{', '.join(described(value) for value in values[:4])}]"


def cannot_run_again(operator: Operator) -> str | None:
    """Why an operator's configuration cannot be `again`; None: it can."""
    if operator.kind.is_loss:
        return "it is a loss"
    states = [weight.name for weight in operator.weights if weight.state]
    return f"it changes its state '{states[0]}'" if states else None


def random_config(
    operator: Operator,
    devices: list[str],
    rng: np.random.Generator,
    max_tasks: int,
    reductions: bool = False,
    parts: bool = False,
) -> ParallelConfig:
    """A configuration drawn from all dimensions, degrees and device assignments.

    Parameters
    ----------
    operator
        What to split.
    devices
        Devices to choose from, independently for each task.
    rng
        Source of randomness.
    max_tasks
        Bound on the number of tasks.
    reductions
        Whether to split reductions, too, and to say who combines their partial values.
    parts
        Whether to share out partial values of inputs, too.
    """
    dims, space = operator.dims, operator.space
    degrees = [1] * len(dims)
    output = len(operator.output.shape)
    tasks = int(rng.integers(1, max_tasks + 1))
    shared_out = parts or dims[-1].kind is not DimKind.PART
    last = len(dims) - (not shared_out) if reductions or parts else output
    for d in rng.permutation(last):
        if dims[d].kind is DimKind.NONE:
            continue
        limit = min(space[d], tasks // math.prod(degrees))
        degrees[d] = int(rng.integers(1, limit + 1))
    chosen = rng.choice(devices, math.prod(degrees))
    partial = math.prod(degrees[output:]) > 1
    sums: Sums = "shards" if partial and rng.integers(2) else "readers"
    return ParallelConfig(tuple(degrees), tuple(str(name) for name in chosen), sums)


def reads_partial_values(operator: Operator, configs: Mapping[str, ParallelConfig]) -> bool:
    """Whether an operator is linear in an input that has partial values.

    Parameters
    ----------
    operator
        What reads them.
    configs
        By name, how the operators before it are split, with a degree for each of their dimensions.
    """
    for _, tensor, access in operator.operands:
        before = tensor.producer
        if access.part < 0 or before is None or configs[before.name].sums != "readers":
            continue
        if math.prod(configs[before.name].degrees[len(before.output.shape) :]) > 1:
            return True
    return False


def splits(
    operator: Operator, max_tasks: int, allowed: Collection[DimKind] = SPLIT
) -> list[tuple[int, ...]]:
    """All tuples of degrees that deal an operator to up to `max_tasks` devices evenly.

    A degree is a divisor of `max_tasks` or a power of two, at most its dimension's extent; their
    product is at most `max_tasks`. So the tasks come to equal shares of `max_tasks` devices, or of
    half of them, and so on; extents that a degree does not divide make tiles that differ by one.
    Other degrees fit an operator, too, but leave devices with unequal shares.

    Parameters
    ----------
    operator
        What to split.
    max_tasks
        Bound on the number of tasks, such as the number of devices; at least 1.
    allowed
        Which kinds of dimensions may be split; all by default.

    Returns
    -------
    list
        Each tuple once, in lexicographic order; ``(1, ..., 1)`` is the first.
    """
    choices = []
    for dim, extent in zip(operator.dims, operator.space, strict=True):
        whole = dim.kind is DimKind.NONE or dim.kind not in allowed
        limit = 1 if whole else min(extent, max_tasks)
        choices.append([d for d in range(1, limit + 1) if max_tasks % d == 0 or d & (d - 1) == 0])
    # Dimension by dimension, with the number of tasks so far: what exceeds the bound ends there.
    found: list[tuple[tuple[int, ...], int]] = [((), 1)]
    for degrees in choices:
        found = [
            ((*head, degree), tasks * degree)
            for head, tasks in found
            for degree in degrees
            if tasks * degree <= max_tasks
        ]
    return [degrees for degrees, _ in found]

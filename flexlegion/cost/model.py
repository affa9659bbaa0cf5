"""Cost models: what the simulator takes for the `exe_time` of a task (FlexFlow, section 5.1)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

from flexlegion.graph.graph import Operator
from flexlegion.machine.parts import Device

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Extents of the part of every operand that a task touches, in the order of `Operator.operands`.
Shapes = tuple[tuple[int, ...], ...]

ELEMENT_BYTES = 4  # of weights, their gradients and states

ANALYTIC, MEASURED = "analytic", "measured"


@dataclass(frozen=True)
class Cost:
    """What a task takes.

    Parameters
    ----------
    time_ns
        Nanoseconds, at least 1, while the devices of the same memory are idle.
    source
        ``"analytic"`` or ``"measured"``.
    contention
        How much longer, as a share of that, while all of them compute (`native/sim/contention.h`).
    """

    time_ns: int
    source: str
    contention: float = 0.0


@dataclass(frozen=True)
class Costs:
    """What many tasks take: of each, what `Cost` says of one.

    Parameters
    ----------
    times_ns
        int64.
    sources
        One for all if they have the same, else one each.
    contentions
        float64; None: none of them takes longer.
    """

    times_ns: npt.NDArray[np.int64]
    sources: tuple[str, ...]
    contentions: npt.NDArray[np.float64] | None = None

    @classmethod
    def of(cls, costs: Sequence[Cost]) -> Costs:
        """Those of single tasks."""
        import numpy as np

        sources = tuple(cost.source for cost in costs)
        contentions = None
        if any(cost.contention for cost in costs):
            contentions = np.array([cost.contention for cost in costs], np.float64)
        return cls(
            np.array([min(cost.time_ns, 1 << 62) for cost in costs], np.int64),
            sources[:1] if len(set(sources)) == 1 else sources,
            contentions,
        )


@dataclass(frozen=True)
class Linear:
    """A time that grows with the bytes: overhead + bytes / rate.

    Parameters
    ----------
    overhead_ns
        Nanoseconds.
    bytes_per_second
        The rate.
    contention
        As of `Cost`.
    """

    overhead_ns: int
    bytes_per_second: int
    contention: float = 0.0

    def time_ns(self, size: int) -> int:
        """Nanoseconds for `size` bytes, beside idle devices."""
        return max(1, self.overhead_ns + round(size * 1e9 / self.bytes_per_second))


@dataclass(frozen=True)
class RuntimeCosts:
    """What the runtime takes on devices of a kind (`native/sim/utility.h`); times in ns.

    The utility processor is what issues launches, replays dependencies, and cleans up: iterations
    ahead of the tasks, but where all cores are taken, it takes one from a task.

    Parameters
    ----------
    iteration_ns, launch_ns, task_ns
        Work of the utility processor that an iteration brings; that a launch brings, of which
        several may be fused; that each of its tasks brings.
    crossing_ns
        The same, of each dependency of a task on one of another device of its memory.
    dispatch_ns
        What passes from when a task could begin until it does; not within fused launches.
    wake_ns
        How much more, if what it waits for ends on another device.
    cores
        What the devices that share a memory, and their utility processor, share. More than there
        are such devices: no task waits for the utility processor. So it is beside devices of
        several cores, whose threads wait for each other at the end of every task.
    """

    iteration_ns: int = 0
    launch_ns: int = 0
    task_ns: int = 0
    crossing_ns: int = 0
    dispatch_ns: int = 0
    wake_ns: int = 0
    cores: int = 0

    def scaled(self, factor: float) -> RuntimeCosts:
        """The same, all times multiplied."""
        *times, cores = astuple(self)
        return RuntimeCosts(*[*(round(factor * time) for time in times), cores])


NO_RUNTIME = RuntimeCosts()


class CostModel(ABC):
    """Answers what tasks take on a device; the same question always has the same answer."""

    name: str

    @abstractmethod
    def exe_time(self, operator: Operator, pass_: str, shapes: Shapes, device: Device) -> Cost:
        """What one task of an operator takes.

        Parameters
        ----------
        operator
            The node of the graph.
        pass_
            ``"forward"`` or ``"backward"``.
        shapes
            Extents of the part of every operand that the task touches (for the backward pass, in
            the forward pass), in the order of `Operator.operands`.
        device
            Where it runs.
        """

    def exe_times(
        self, operator: Operator, pass_: str, extents: npt.NDArray[np.int64], device: Device
    ) -> Costs:
        """What many tasks of an operator take; `exe_time` of each, unless a model is faster.

        Parameters
        ----------
        operator, pass_, device
            As of `exe_time`.
        extents
            (task, operand, dimension): the shapes; what is beyond an operand's rank is 0.
        """
        ranks = [len(tensor.shape) for _, tensor, _ in operator.operands]
        return Costs.of(
            [
                self.exe_time(operator, pass_, shapes_in(row, ranks), device)
                for row in extents.tolist()
            ]
        )

    @abstractmethod
    def linear(self, pass_: str, device: Device) -> tuple[Linear, str]:
        """What work that only moves bytes takes, and the source, as in `Cost`.

        Parameters
        ----------
        pass_
            ``"update"``: an update task; its bytes are those of the slots of gradients that it
            reads, and of the weights and optimizer states, which it reads and writes, twice.
            ``"load"``: one of a batch's tiles; its bytes. ``"sum"``: partial values of a gradient
            or of an output are combined; the bytes of all of them.
        device
            Where it runs.
        """

    def runtime(self, device: Device) -> RuntimeCosts:
        """What the runtime takes there.

        Parameters
        ----------
        device
            Where tasks run.
        """
        del device
        return NO_RUNTIME


def shapes_in(row: Sequence[Sequence[int]], ranks: Sequence[int]) -> Shapes:
    """The shapes of a task's operands that have these ranks, without what is beyond these."""
    return tuple(tuple(its[:rank]) for its, rank in zip(row, ranks, strict=True))


def wanted_gradients(operator: Operator) -> tuple[bool, ...]:
    """For each input: whether the backward pass computes its gradient."""
    return tuple(tensor.requires_gradient for tensor in operator.inputs)

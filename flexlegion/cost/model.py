"""Cost models: what the simulator takes for the `exe_time` of a task (FlexFlow, section 5.1)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from flexlegion.graph import Operator
from flexlegion.machine.topology import Device

# Extents of the part of every operand that a task touches, in the order of `Operator.operands`.
Shapes = tuple[tuple[int, ...], ...]

TASK_PASSES = ("forward", "backward")
LINEAR_PASSES = ("update", "load", "sum")
ELEMENT_BYTES = 4  # float32 and int32 alike

ANALYTIC, MEASURED = "analytic", "measured"


@dataclass(frozen=True)
class Cost:
    """What a task takes.

    Parameters
    ----------
    time_ns
        Nanoseconds, at least 1.
    source
        ``"analytic"`` or ``"measured"``.
    """

    time_ns: int
    source: str


@dataclass(frozen=True)
class Linear:
    """A time that grows with the bytes: overhead + bytes / rate.

    Parameters
    ----------
    overhead_ns
        Nanoseconds.
    bytes_per_second
        The rate.
    """

    overhead_ns: int
    bytes_per_second: int

    def time_ns(self, size: int) -> int:
        """Nanoseconds for `size` bytes."""
        return max(1, self.overhead_ns + round(size * 1e9 / self.bytes_per_second))


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

    def launch_ns(self, device: Device) -> int:
        """What the runtime takes before a task of a launch, unless that is fused with another.

        Of several launches that are fused, it takes so long before the first one's tasks.

        Parameters
        ----------
        device
            Where it runs.
        """
        del device
        return 0


def wanted_gradients(operator: Operator) -> tuple[bool, ...]:
    """For each input: whether the backward pass computes its gradient."""
    return tuple(tensor.requires_gradient for tensor in operator.inputs)

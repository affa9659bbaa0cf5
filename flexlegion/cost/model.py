"""Cost models: what the simulator takes for the `exe_time` of a task (FlexFlow, section 5.1)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from flexlegion.graph import Operator
from flexlegion.machine.topology import Device
from flexlegion.tensor import Tensor

# Extents of the part of every operand that a task touches, in the order of `Operator.operands`.
Shapes = tuple[tuple[int, ...], ...]

STAGES = ("forward", "backward")
LINEAR_STAGES = ("update", "load", "sum")
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
    def exe_time(self, operator: Operator, stage: str, shapes: Shapes, device: Device) -> Cost:
        """What one task of an operator takes.

        Parameters
        ----------
        operator
            The node of the graph.
        stage
            ``"forward"`` or ``"backward"``.
        shapes
            Extents of the part of every operand that the task touches (for the backward pass, in
            the forward pass), in the order of `Operator.operands`.
        device
            Where it runs.
        """

    @abstractmethod
    def linear(self, stage: str, device: Device) -> tuple[Linear, str]:
        """What work that only moves bytes takes, and the source, as in `Cost`.

        Parameters
        ----------
        stage
            ``"update"``: an update task; its bytes are those of the slots of gradients that it
            reads, and of the weights and optimizer states, which it reads and writes, twice.
            ``"load"``: one of a batch's tiles; its bytes. ``"sum"``: the sum of partial gradients;
            the bytes of all of them.
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


_wanted: WeakKeyDictionary[Tensor, bool] = WeakKeyDictionary()


def has_gradient(tensor: Tensor) -> bool:
    """Whether training computes the tensor's gradient, as the plan decides it.

    It does for weights, for what depends on one, and for what the user asked for.
    """
    stack = [tensor]
    while stack:  # no recursion: an unrolled network is deeper than Python's stack
        top = stack[-1]
        if top in _wanted:
            stack.pop()
        elif top.requires_gradient or top.producer is None:
            _wanted[top] = top.requires_gradient
        else:
            sources = [*top.producer.weights, *top.producer.inputs]
            unknown = [source for source in sources if source not in _wanted]
            if any(_wanted.get(source, False) for source in sources) or not unknown:
                _wanted[top] = any(_wanted.get(source, False) for source in sources)
            else:
                stack += unknown
    return _wanted[tensor]


def has_backward(operator: Operator) -> bool:
    """Whether the operator has backward tasks in training, as the plan decides it."""
    return any(map(has_gradient, operator.inputs)) or any(
        has_gradient(weight) and not weight.table for weight in operator.weights
    )


def wanted_gradients(operator: Operator) -> tuple[bool, ...]:
    """For each input: whether the backward pass computes its gradient."""
    return tuple(has_gradient(tensor) for tensor in operator.inputs)

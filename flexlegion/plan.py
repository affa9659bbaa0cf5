"""The plan, a thin view of the native one (``native/plan``): what is launched, where, over what.

The native code derives it from the operators' access maps and the strategy; the runtime executes
that same object, and here it is only described for people.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flexlegion.graph import Graph, Operator
from flexlegion.machine.devices import Devices
from flexlegion.native_graph import NativeGraph
from flexlegion.strategy import Strategy
from flexlegion.tensor import Tensor

PASSES = ("load", "forward", "backward", "norm", "clip", "update")
FIELDS = ("value", "gradient", "state", "norms", "total norm")
PRIVILEGES = ("read", "write", "read-write")
ROLES = (
    "loaded",
    "input",
    "weight",
    "operator state",
    "output",
    "saved",
    "output gradient",
    "contribution",
    "weight gradient",
    "looked-up tokens",
    "looked-up gradient",
    "norm",
    "all norms",
    "total norm",
    "updated",
    "optimizer state",
    "clipped by",
)

Interval = tuple[int, int]
Box = tuple[Interval, ...]


@dataclass(frozen=True)
class Requirement:
    """What the tasks of a launch touch of one tensor field.

    Parameters
    ----------
    tensor
        The tensor. For the fields "norms" and "total norm", `Plan.norms` and `Plan.total_norm`.
    field
        One of `FIELDS`: the tensor's value, its gradient, or a state of the optimizer; or norms by
        which gradients are clipped.
    privilege
        "read", "write" or "read-write".
    role
        One of `ROLES`: why the launch touches it (``native/plan/launches.h``).
    boxes
        A half-open interval for each dimension, for each task. A gradient has its slots of partial
        values in front.
    adds
        For a written gradient, a task: whether it adds to an earlier operator's contribution.
    """

    tensor: Tensor
    field: str
    privilege: str
    role: str
    boxes: list[Box]
    adds: list[bool]


@dataclass(frozen=True)
class Launch:
    """One index launch: an operator's pass.

    Parameters
    ----------
    operator
        None for the loading of a batch, and for what clips all gradients together.
    stage
        One of `PASSES`.
    runs
        Bits: 1 if training executes it, 2 evaluation, 4 prediction.
    devices
        Names, one a task.
    requirements
        What the tasks touch.
    """

    operator: Operator | None
    stage: str
    runs: int
    devices: list[str]
    requirements: list[Requirement]


class Plan:
    """The plan of a graph under a strategy.

    Parameters
    ----------
    graph
        Operators in topological order, the loss included if there is one.
    strategy
        A configuration for every operator, already checked.
    devices
        The machine.
    outputs
        The tensor, or tensors, that prediction returns.
    optimizer_states
        Number of fields that the optimizer keeps for each weight.
    clips
        Whether the optimizer clips all gradients by their norm.

    Attributes
    ----------
    norms, total_norm
        Where gradients are clipped: an element for each task that finds the norm of some of them,
        and the norm of all.
    """

    def __init__(
        self,
        graph: Graph,
        strategy: Strategy,
        devices: Devices,
        outputs: Tensor | Sequence[Tensor],
        optimizer_states: int = 0,
        clips: bool = False,
    ) -> None:
        self.graph = graph
        self.devices = devices
        native_graph = NativeGraph(graph)
        self.core = native_graph.core
        self.tensor_numbers = native_graph.tensor_numbers
        lib, ffi = self.core.lib, self.core.ffi
        wanted = native_graph.numbers(outputs)
        configs = [strategy[operator.name] for operator in graph.operators]
        degrees = [d for config in configs for d in config.degrees]
        numbers = [devices.number(name) for config in configs for name in config.devices]
        self.handle = ffi.gc(
            self.core.check(
                lib.fl_plan_create(
                    native_graph.handle,
                    len(degrees),
                    degrees,
                    len(numbers),
                    numbers,
                    len(wanted),
                    wanted,
                    optimizer_states,
                    clips,
                )
            ),
            lib.fl_plan_destroy,
        )
        self.norms = Tensor("norms of gradients", (lib.fl_plan_norms(self.handle),))
        self.total_norm = Tensor("total norm", (1,))
        self.launches = list(self._launches())

    def _launches(self) -> Iterator[Launch]:
        lib, ffi, check = self.core.lib, self.core.ffi, self.core.check
        info = ffi.new("fl_launch *")
        for i in range(lib.fl_plan_launches(self.handle)):
            check(lib.fl_plan_launch(self.handle, i, info))
            tasks, runs, op, stage = info.tasks, info.runs, info.op, PASSES[getattr(info, "pass")]
            numbers = ffi.new("int32_t[]", tasks)
            check(lib.fl_plan_devices(self.handle, i, numbers))
            yield Launch(
                self.graph.operators[op] if op >= 0 else None,
                stage,
                runs,
                [self.devices.names[n] for n in numbers],
                [self._requirement(i, j, tasks) for j in range(info.requirements)],
            )

    def _requirement(self, launch: int, index: int, tasks: int) -> Requirement:
        lib, ffi, check = self.core.lib, self.core.ffi, self.core.check
        info = ffi.new("fl_requirement *")
        check(lib.fl_plan_requirement(self.handle, launch, index, info))
        rank = info.rank
        flat = ffi.new("int64_t[]", tasks * 2 * rank)
        adds = ffi.new("uint8_t[]", tasks)
        check(lib.fl_plan_rects(self.handle, launch, index, flat, adds))
        numbers = list(flat)
        boxes = []
        for k in range(tasks):
            bounds = numbers[k * 2 * rank : (k + 1) * 2 * rank]
            boxes.append(tuple(zip(bounds[:rank], bounds[rank:], strict=True)))
        field = FIELDS[info.field]
        if info.tensor >= 0:
            tensor = self.graph.tensors[info.tensor]
        else:
            tensor = self.norms if field == "norms" else self.total_norm
        return Requirement(
            tensor,
            field,
            PRIVILEGES[info.privilege],
            ROLES[info.role],
            boxes,
            [bool(a) for a in adds],
        )

    def lookups(self, tensor: Tensor) -> list[Operator]:
        """The operators that look rows up in a trained table; none if others use it, too."""
        trained = tensor.table and tensor.requires_gradient
        return [op for op in self.graph.operators if trained and tensor in op.weights]

    def idle(self) -> list[Operator]:
        """The operators that lead to no output and no loss: nothing executes them."""
        used = {launch.operator for launch in self.launches}
        return [op for op in self.graph.operators if op not in used]

    def gradient_slots(self, tensor: Tensor) -> int:
        """How many partial values the tensor's gradient is the sum of; 0: it is not computed."""
        number = self.tensor_numbers[tensor]
        return int(self.core.check(self.core.lib.fl_plan_gradient_slots(self.handle, number)))

    def fused(self, memories: Sequence[int], runs: int = 1) -> list[int]:
        """Which launches the runtime fuses: one Legion task a device runs task k of each of a run.

        Parameters
        ----------
        memories
            A number for each device: equal ones share a memory.
        runs
            The kind of run (see `Launch.runs`).

        Returns
        -------
        list of int
            For each launch the number of its run; -1 if that kind of run does not issue it.
        """
        numbers = self.core.ffi.new("int32_t[]", max(len(self.launches), 1))
        lib = self.core.lib
        self.core.check(lib.fl_plan_fused(self.handle, runs, len(memories), memories, numbers))
        return list(numbers)[: len(self.launches)]

    def bytes_on(self, device: str) -> int:
        """Bytes that the device needs if it has a memory of its own."""
        number = self.devices.number(device)
        return int(self.core.check(self.core.lib.fl_plan_bytes_on_device(self.handle, number)))

    def verify(self) -> None:
        """Check the invariants of every plan (``native/plan/verify.h``).

        Raises
        ------
        NativeError
            If one does not hold: a mistake of flexlegion's, which names what is wrong.
        """
        lib = self.core.lib
        self.core.check(lib.fl_plan_verify(self.handle, len(self.devices.names)))

    def describe(self) -> str:
        """The plan as text: each launch, its tasks' devices and tiles; then bytes a device."""
        lines = []
        for launch in self.launches:
            lines += self._describe_launch(launch)
        lines.append("memory")
        for name in self.devices.names:
            lines.append(f"  {name}  {self.bytes_on(name):,} bytes")
        return "\n".join(lines)

    def _describe_launch(self, launch: Launch) -> list[str]:
        written = launch.requirements[-1].tensor
        name = launch.operator.name if launch.operator else written.name
        tasks = len(launch.devices)
        only = " (prediction only)" if launch.runs == self.core.lib.FL_PREDICTS else ""
        lines = [f"{launch.stage} {name}: {tasks} task{'s' * (tasks > 1)}{only}"]
        for k, device in enumerate(launch.devices):
            lines.append(f"  task {k} on {device}")
            for requirement in launch.requirements:
                box = requirement.boxes[k]
                if all(lo < hi for lo, hi in box):
                    lines.append("    " + self._describe_requirement(requirement, k))
        return lines

    def _describe_requirement(self, requirement: Requirement, k: int) -> str:
        box = requirement.boxes[k]
        how = requirement.privilege
        if requirement.tensor.table and how == "read":
            how = "look up rows"
        if requirement.field == "gradient":
            slots, box = box[0], box[1:]
            total = self.gradient_slots(requirement.tensor)
            if requirement.privilege == "read":
                how = f"sum {slots[1] - slots[0]} partial" if slots[1] - slots[0] > 1 else "read"
            else:
                how = "add" if requirement.adds[k] else "write"
                how += f" partial {slots[0] + 1} of {total}" if total > 1 else " exclusive"
        elif how == "write":
            how = "write exclusive"
        elif how == "read-write":
            how = "update exclusive"
        tile = " x ".join(f"{lo}:{hi}" for lo, hi in box)
        size = 4
        for lo, hi in requirement.boxes[k]:
            size *= hi - lo
        field = f" {requirement.field}" if requirement.field in ("gradient", "state") else ""
        return f"{how:<20} {requirement.tensor.name}{field} [{tile}]  {size:,} bytes"

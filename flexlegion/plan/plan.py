"""The plan, a thin view of the native one (``native/plan``): what is launched, where, over what.

The native code derives it from the operators' access maps and the strategy; the runtime executes
that same object, and here it is only described for people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from flexlegion.base.quoting import printable
from flexlegion.bindings.native import Arrays, core, enumeration, names
from flexlegion.graph.graph import Operator
from flexlegion.graph.tensor import STATE_BYTES, Tensor
from flexlegion.plan import native_graph
from flexlegion.plan.native_strategy import to_native
from flexlegion.plan.passes import FIELDS, PASSES, ROLES
from flexlegion.strategy.granularity import DEFAULT_GRANULARITY, Granularity
from flexlegion.strategy.strategy import ResolvedStrategy

PRIVILEGES = names("fl_privilege", "-")
TRAINS = enumeration("fl_run")["trains"]

Interval = tuple[int, int]
Box = tuple[Interval, ...]


@dataclass(frozen=True)
class Requirement:
    """What the tasks of a launch touch of one tensor field.

    Parameters
    ----------
    tensor
        The tensor. For the iteration's fields, that of `Plan.of_iteration`.
    field
        One of `FIELDS`: the tensor's value, the partial values that it is combined of, its
        gradient, the nodes' sums of it, or a state of the optimizer; of a sharded weight, the copy
        that is gathered, or its gradient, reduced; or norms by which gradients are clipped.
    privilege
        "read", "write" or "read-write".
    role
        One of `ROLES`: why the launch touches it (``native/plan/places.h``).
    boxes
        A half-open interval for each dimension, for each task. Partial values, and gradients, have
        their slots in front.
    adds
        For a written gradient, a task: whether it adds to an earlier operator's contribution.
    index
        Which of several: of states, or of values and copies, 1 for what is there a second time for
        the backward pass.
    """

    tensor: Tensor
    field: str
    privilege: str
    role: str
    boxes: list[Box]
    adds: list[bool]
    index: int = 0

    @property
    def element_bytes(self) -> int:
        """What an element of the field takes: norms, and what optimizers keep, stay wide."""
        if self.field in ("value", "partial", "copy"):
            return self.tensor.element_bytes
        sums = self.field in ("gradient", "node sums", "reduced")
        return self.tensor.gradient_bytes if sums else STATE_BYTES


@dataclass(frozen=True)
class Launch:
    """One index launch: an operator's pass.

    Parameters
    ----------
    operator
        None if the pass is of inputs or of the iteration: "load" and "clip".
    pass_
        The name of one of the passes (`flexlegion.plan.passes`).
    runs
        Which runs execute it: bits of the header's `fl_run`.
    devices
        Names, one a task.
    requirements
        What the tasks touch.
    """

    operator: Operator | None
    pass_: str
    runs: int
    devices: list[str]
    requirements: list[Requirement]

    @property
    def name(self) -> str:
        """Of its operator; if it has none, of the tensor that it writes."""
        return self.operator.name if self.operator else self.written.tensor.name

    @property
    def written(self) -> Requirement:
        """What it writes, or the first of several."""
        return next(r for r in self.requirements if r.privilege != "read")


class Plan:
    """The plan of a graph under a strategy.

    Parameters
    ----------
    strategy
        A configuration for every operator of a graph, the loss included if there is one, on a
        machine.
    outputs
        The tensor, or tensors, that prediction returns.
    optimizer_states
        Number of fields that the optimizer keeps for each weight.
    clips
        Whether the optimizer clips all gradients by their norm.
    granularity
        How finely it is cut where the strategy leaves it open; by default as the strategy states.

    Attributes
    ----------
    graph, devices
        What the strategy is for.
    of_iteration
        By name, the fields that are no tensor's: "norms" and "total norm", where gradients are
        clipped. A field has an element for each task that writes it.
    """

    def __init__(
        self,
        strategy: ResolvedStrategy,
        outputs: Tensor | Sequence[Tensor],
        optimizer_states: int = 0,
        clips: bool = False,
        granularity: Granularity | None = None,
    ) -> None:
        self.strategy = strategy
        self.graph = graph = strategy.graph
        self.devices = devices = strategy.machine
        self.granularity = granularity or strategy.granularity or DEFAULT_GRANULARITY
        self.core = core()
        self.tensor_numbers = {tensor: i for i, tensor in enumerate(graph.tensors)}
        lib, ffi = self.core.lib, self.core.ffi
        configs = enumerate(strategy[operator.name] for operator in graph.operators)
        array = Arrays()
        arrays = ffi.new("fl_plan_arrays *")
        self.handle = ffi.gc(
            self.core.check(
                lib.fl_plan_create(
                    native_graph.to_native(array, graph, outputs, self.granularity, devices),
                    to_native(array, configs, devices),
                    optimizer_states,
                    clips,
                    arrays,
                )
            ),
            lib.fl_plan_destroy,
        )
        self.facts = native_graph.facts_of(graph, arrays.facts)
        counts = self.core.items(arrays.elements, len(FIELDS))
        self.of_iteration = {
            field: Tensor(field, (n,)) for field, n in zip(FIELDS, counts, strict=True) if n
        }
        self.launches = list(self._launches(arrays))
        self._gradient_slots: list[int] = self.core.items(arrays.gradient_slots, arrays.n_tensors)
        self._value_slots: list[int] = self.core.items(arrays.value_slots, arrays.n_tensors)
        self._node_sums: list[int] = self.core.items(arrays.node_sums, arrays.n_tensors)

    def _launches(self, arrays: Any) -> Iterator[Launch]:
        items = self.core.items
        devices = iter(items(arrays.devices, arrays.n_devices))
        requirements = iter(items(arrays.requirements, arrays.n_requirements))
        adds = iter(items(arrays.adds, arrays.n_tiles))
        bounds = iter(items(arrays.bounds, arrays.n_bounds))
        for info in items(arrays.launches, arrays.n_launches):
            tasks = info.tasks
            yield Launch(
                self.graph.operators[info.op] if info.op >= 0 else None,
                PASSES[info.pass_id],
                info.runs,
                [self.devices.names[n] for n in islice(devices, tasks)],
                [
                    Requirement(
                        self._tensor(its.tensor, FIELDS[its.field]),
                        FIELDS[its.field],
                        PRIVILEGES[its.privilege],
                        ROLES[its.role],
                        [_box(bounds, its.rank) for _ in range(tasks)],
                        [bool(a) for a in islice(adds, tasks)],
                        its.index,
                    )
                    for its in islice(requirements, info.requirements)
                ],
            )

    def _tensor(self, number: int, field: str) -> Tensor:
        return self.graph.tensors[number] if number >= 0 else self.of_iteration[field]

    def lookups(self, tensor: Tensor) -> list[Operator]:
        """The operators that look rows up in a trained table; none if others use it, too."""
        return self.facts.lookups.get(tensor, [])

    def gradient_slots(self, tensor: Tensor) -> int:
        """How many partial values the tensor's gradient is the sum of; 0: it is not computed."""
        return self._gradient_slots[self.tensor_numbers[tensor]]

    def value_slots(self, tensor: Tensor) -> int:
        """How many partial values the tensor's value is combined of; 1: it is written whole."""
        return self._value_slots[self.tensor_numbers[tensor]]

    def node_sums(self, tensor: Tensor) -> int:
        """How many nodes sum their own part of a weight's gradient first; 0: none does."""
        return self._node_sums[self.tensor_numbers[tensor]]

    def slots(self, requirement: Requirement) -> int:
        """How many slots the stack has that a requirement of one of `STACKED_FIELDS` touches."""
        return STACKED_FIELDS[requirement.field](self, requirement.tensor)

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
        if (number := self.graph.micro_batches) > 1:
            lines.append(f"the first of {number:,} micro-batches, and what follows the last")
        for launch in self.launches:
            lines += self._describe_launch(launch)
        lines.append("memory")
        for name in self.devices.names:
            lines.append(f"  {name}  {self.bytes_on(name):,} bytes")
        return "\n".join(lines)

    def _describe_launch(self, launch: Launch) -> list[str]:
        name = printable(launch.name)
        tasks = len(launch.devices)
        only = " (prediction only)" if launch.runs == self.core.lib.FL_PREDICTS else ""
        lines = [f"{launch.pass_} {name}: {tasks} task{'s' * (tasks > 1)}{only}"]
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
        if requirement.field in STACKED_FIELDS:
            slots, box = box[0], box[1:]
            total = self.slots(requirement)
            if requirement.privilege == "read":
                verb = "combine" if requirement.field == "partial" else "sum"
                how = f"{verb} {slots[1] - slots[0]} partial" if slots[1] - slots[0] > 1 else "read"
            else:
                how = "add" if requirement.adds[k] else "write"
                how += f" partial {slots[0] + 1} of {total}" if total > 1 else " exclusive"
        elif how == "write":
            how = "write exclusive"
        elif how == "read-write":
            how = "update exclusive"
        tile = " x ".join(f"{lo}:{hi}" for lo, hi in box)
        size = requirement.element_bytes
        for lo, hi in requirement.boxes[k]:
            size *= hi - lo
        named = ("gradient", "node sums", "state", "spread", "copy", "reduced")
        field = f" {requirement.field}" if requirement.field in named else ""
        name = printable(requirement.tensor.name)
        return f"{how:<20} {name}{field} [{tile}]  {size:,} bytes"


# Fields whose tiles have slots in front, and how many slots there are of a tensor.
STACKED_FIELDS: Mapping[str, Callable[[Plan, Tensor], int]] = {
    "gradient": Plan.gradient_slots,
    "partial": Plan.value_slots,
    "node sums": Plan.node_sums,
}


def _box(bounds: Iterator[int], rank: int) -> Box:
    """The next tile: all its lower bounds, then all its upper ones."""
    lower = tuple(islice(bounds, rank))
    return tuple(zip(lower, islice(bounds, rank), strict=True))

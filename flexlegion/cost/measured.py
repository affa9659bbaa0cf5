"""Costs from the profile data base, and from another model where nothing was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from flexlegion.cost.model import (
    MEASURED,
    NO_RUNTIME,
    Cost,
    CostModel,
    Costs,
    Linear,
    RuntimeCosts,
    Shapes,
    wanted_gradients,
)
from flexlegion.cost.profile_db import ProfileDB
from flexlegion.cost.records import TaskKey, Times
from flexlegion.graph.graph import Operator
from flexlegion.graph.tensor import NARROW
from flexlegion.machine.parts import Device
from flexlegion.objective.precision import DEFAULT

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Before an operand that all tasks of the operator read as a whole: neighbours read the same memory
# (native/runtime/measured_tasks.cc, read_by_all).
SAME = "="

_identities: WeakKeyDictionary[Operator, tuple[str, str, str, str]] = WeakKeyDictionary()


def task_kind(operator: Operator) -> tuple[str, str]:
    """Type and attributes: what the keys of all its tasks begin with."""
    return _identity(operator)[:2]


def task_key(operator: Operator, pass_: str, shapes: Shapes) -> TaskKey:
    """The data base's key of a task."""
    type_, text, gradients, data_type = _identity(operator)
    tensors = (*operator.inputs, *operator.weights, *operator.outputs)
    wholes = [tuple(tile) == tensor.shape for tile, tensor in zip(shapes, tensors, strict=True)]
    read = len(tensors) - len(operator.outputs)  # what is written, tasks never share
    extents = " ".join(
        (SAME if i < read and whole and not all(wholes) else "") + _placed(tile, tensor.shape)
        for i, (tile, tensor, whole) in enumerate(zip(shapes, tensors, wholes, strict=True))
    )
    return TaskKey(type_, text, extents, pass_, gradients if pass_ == "backward" else "", data_type)


def _identity(operator: Operator) -> tuple[str, str, str, str]:
    """What the keys of its tasks have in common: type, attributes, gradients, data type."""
    identity = _identities.get(operator)
    if identity is None:
        attributes = sorted(operator.kind.attributes().items())
        # Which elements are dropped does not matter.
        attributes = [(name, value) for name, value in attributes if name != "id"]
        gradients = "".join(str(int(wanted)) for wanted in wanted_gradients(operator))
        if any(weight.constant for weight in operator.weights):
            gradients += " of inputs alone"
        identity = _identities[operator] = (
            operator.kind.type,
            " ".join(f"{name}={value}" for name, value in attributes),
            gradients,
            _data_type(operator),
        )
    return identity


def _data_type(operator: Operator) -> str:
    """What its tasks compute with: an operator's activations are all stored narrower, or none."""
    tensors = (*operator.inputs, *operator.outputs)
    return next((t.dtype for t in tensors if t.dtype in NARROW), operator.output.dtype)


def _placed(tile: Sequence[int], tensor: Sequence[int]) -> str:
    """A tile's extents and, unless its elements are one run of memory, what its strides tell."""
    text = "x".join(map(str, tile))
    split = next((d for d, extent in enumerate(tile) if extent > 1), len(tile))
    if tuple(tile[split + 1 :]) == tuple(tensor[split + 1 :]):
        return text
    return f"{text}@{'x'.join(map(str, tensor[split + 1 :]))}"


@dataclass(frozen=True)
class Calibration:
    """What training adds to times that were measured task by task.

    In training, tasks share caches, memory and cores with other tasks and with the runtime, and
    from one moment to the next a machine's speed changes. One strategy's measured iteration tells
    how much, for all others.

    Parameters
    ----------
    factor
        How many times as long tasks take.
    runtime
        How many times as long the runtime takes for what it does.
    """

    factor: float = 1.0
    runtime: float = 1.0


AS_MEASURED = Calibration()


def _apart(times: Times) -> tuple[int, float]:
    """What a task takes alone (ns), and its contention; nobody is faster beside busy devices."""
    alone = max(1, min(times.time_ns, times.alone_ns or times.time_ns))
    return alone, times.time_ns / alone - 1


class MeasuredCosts(CostModel):
    """Measured times where the data base has them, else what `fallback` says.

    What the runtime takes was measured, too.

    Parameters
    ----------
    db
        Read once for each device model; later additions are not seen.
    fallback
        Answers what was not measured.
    library
        Of which kernel library measurements count; by default, on each device, the one of the
        newest.
    optimizer
        Whose updates ``linear("update")`` is about: an optimizer's type, ``sgd`` for example; any
        that was measured will do if that one was not.
    calibration
        Applies to all measured times.
    precision
        In which GPUs compute: of their measurements, those in that one count.
    software
        Of which runtime measurements count; by default, of the newest.
    """

    name = MEASURED

    def __init__(
        self,
        db: ProfileDB,
        fallback: CostModel,
        library: str | None = None,
        optimizer: str = "sgd",
        calibration: Calibration = AS_MEASURED,
        precision: str = DEFAULT,
        software: str | None = None,
    ) -> None:
        self.fallback = fallback
        self._calibration = calibration
        self._db = db
        self._library = library
        self._optimizer = optimizer
        self._precision = precision
        self._software = software
        self._libraries: dict[str, str] = {}
        self._times: dict[str, dict[TaskKey, Times]] = {}
        self._kinds: dict[str, set[tuple[str, str]]] = {}
        self._runtimes: dict[str, RuntimeCosts] = {}
        self._costs: dict[tuple[Operator, str, Shapes, Device], Cost] = {}

    def exe_time(self, operator: Operator, pass_: str, shapes: Shapes, device: Device) -> Cost:
        key = (operator, pass_, shapes, device)
        cost = self._costs.get(key)
        if cost is None:
            measured = self._of(device).get(task_key(operator, pass_, shapes))
            if measured is None:
                cost = self.fallback.exe_time(operator, pass_, shapes, device)
            else:
                alone, contention = _apart(measured)
                cost = Cost(max(1, round(self._calibration.factor * alone)), MEASURED, contention)
            self._costs[key] = cost
        return cost

    def exe_times(
        self, operator: Operator, pass_: str, extents: npt.NDArray[np.int64], device: Device
    ) -> Costs:
        # Most often, nothing was measured of such an operator.
        if task_kind(operator) not in self._kinds_of(device):
            return self.fallback.exe_times(operator, pass_, extents, device)
        return super().exe_times(operator, pass_, extents, device)

    def linear(self, pass_: str, device: Device) -> tuple[Linear, str]:
        model = device.model
        for variant in dict.fromkeys((self._optimizer, *VARIANTS)) if pass_ == "update" else ("",):
            measured = self._db.linear(model, self._library_of(device), pass_, variant)
            if measured is not None:
                factor = self._calibration.factor
                overhead = round(factor * measured.overhead_ns)
                rate = max(1, round(measured.bytes_per_second / factor))
                return Linear(overhead, rate, measured.contention), MEASURED
        return self.fallback.linear(pass_, device)

    def runtime(self, device: Device) -> RuntimeCosts:
        model = device.model
        if model not in self._runtimes:
            found = self._db.runtime(model, self._software or self._db.newest_software(model))
            found = found or NO_RUNTIME
            self._runtimes[model] = found.scaled(self._calibration.runtime)
        return self._runtimes[model]

    def _library_of(self, device: Device) -> str:
        model = device.model
        if model not in self._libraries:
            precision = self._precision if device.kind == "gpu" else DEFAULT
            newest = self._db.newest_library(model, precision)
            self._libraries[model] = self._library or newest or ""
        return self._libraries[model]

    def _kinds_of(self, device: Device) -> set[tuple[str, str]]:
        if device.model not in self._kinds:
            self._kinds[device.model] = {(key.type, key.attributes) for key in self._of(device)}
        return self._kinds[device.model]

    def _of(self, device: Device) -> dict[TaskKey, Times]:
        if device.model not in self._times:
            library = self._library_of(device)
            self._times[device.model] = self._db.tasks(device.model, library)
        return self._times[device.model]


VARIANTS = ("sgd", "adam", "adamw", "lazy-adam")

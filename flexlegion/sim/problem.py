"""What a simulation is about: an operator graph, a device topology, and what tasks cost there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import astuple
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

from flexlegion.base.errors import UserError
from flexlegion.bindings.native import Arrays, core
from flexlegion.cost.model import (
    CostModel,
    wanted_gradients,
)
from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.operator_type import DimKind
from flexlegion.graph.tensor import STATE_BYTES, Tensor
from flexlegion.machine.parts import Device
from flexlegion.machine.topology import Topology
from flexlegion.plan import native_graph
from flexlegion.plan.native_strategy import from_native, to_native
from flexlegion.plan.passes import LINEAR_PASSES, TASK_PASSES
from flexlegion.sim.native_machine import machine_of
from flexlegion.strategy.configuration import (
    SHARDING,
    SPLIT,
    ParallelConfig,
    Sharding,
    splits,
)
from flexlegion.strategy.granularity import DEFAULT_GRANULARITY, Granularity
from flexlegion.strategy.strategy import ResolvedStrategy, Strategy

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Degrees = tuple[int, ...]

# Longer times are cut to this, as native/sim/machine_model.h does with transfers.
MAX_TIME_NS = 10_000_000_000_000
# What native code takes at most.
MAX_CONTENTION = 100_000


def thousandths(contentions: npt.ArrayLike) -> npt.NDArray[np.int32]:
    """Contentions as native code takes them."""
    import numpy as np

    told: npt.NDArray[np.int32] = np.minimum(
        np.rint(1000 * np.asarray(contentions)), MAX_CONTENTION
    ).astype(np.int32)
    return told


# Of an operand that no program keeps; native code takes no more.
_MOST_KEPT = 1 << 40


class Needs(Protocol):
    """What a program needs of each device; as text, a sentence on it."""

    @property
    def fits(self) -> bool:
        """Whether it is there."""
        ...

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        ...


class Space(Protocol):
    """What a search may choose from where tasks are on the first devices, in order.

    It is what a program for one mesh of devices can do, and such a program has to fit.
    """

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    def allows(self, operator: Operator, degrees: Degrees) -> bool:
        """Whether an operator may be split so."""
        ...

    def kept(
        self, operator: Operator, degrees: Degrees, problem: Problem, sharding: Sharding
    ) -> Sequence[tuple[int, Hashable]] | None:
        """Of each operand, the bytes on each device and how they lie; None: there is no program."""
        ...

    def room(self, graph: Graph, topology: Topology) -> tuple[int, int]:
        """Bytes of each device, and what is kept there whatever the strategy."""
        ...

    def memory(self, problem: Problem, strategy: ResolvedStrategy) -> Needs | None:
        """What a strategy's program needs; None: there is none."""
        ...


class Problem:
    """A graph on a machine, with the cost table that simulations read.

    The table grows by `prepare`; simulations themselves never ask the cost model.

    Parameters
    ----------
    graph
        Operators in topological order, the loss included.
    topology
        The machine.
    costs
        What tasks take.
    outputs
        The tensor, or tensors, that prediction returns.
    optimizer_states
        Number of fields that the optimizer keeps for each weight.
    clips
        Whether the optimizer clips all gradients by their norm.
    granularity
        How finely plans are cut where strategies leave it open.
    dimensions
        The kinds of dimensions that searches split.
    space
        What they may choose from besides; None: anything.
    lazy
        Whether updates change, of a table, only the rows that were looked up. None: if the
        optimizer keeps no states.
    """

    def __init__(
        self,
        graph: Graph,
        topology: Topology,
        costs: CostModel,
        outputs: Tensor | Sequence[Tensor],
        optimizer_states: int = 0,
        clips: bool = False,
        granularity: Granularity = DEFAULT_GRANULARITY,
        dimensions: Collection[DimKind] = SPLIT,
        space: Space | None = None,
        lazy: bool | None = None,
    ) -> None:
        self.graph = graph
        self.topology = topology
        self.costs = costs
        self.outputs = outputs
        self.optimizer_states = optimizer_states
        self.clips = clips
        self.granularity = granularity
        self.dimensions = frozenset(dimensions)
        self.space = space
        self.lazy = optimizer_states == 0 if lazy is None else lazy
        self.core = core()
        self.devices = topology.names
        self.memories = topology.memories
        self.kinds = _kinds(topology.devices)
        self.operator_numbers = {op.name: i for i, op in enumerate(graph.operators)}
        lib, ffi = self.core.lib, self.core.ffi
        self._like = self._classes()
        array, facts = Arrays(), ffi.new("fl_graph_facts *")
        rates = [self._rates(kind) for kind in self.kinds]
        room = [] if space is None else [space.room(graph, topology)]
        self.handle = ffi.gc(
            self.core.check(
                lib.fl_problem_create(
                    native_graph.to_native(array, graph, outputs, granularity, topology.names),
                    array("fl_machine", [machine_of(topology, self.kind_of_device, rates, array)]),
                    self._like,
                    optimizer_states,
                    clips,
                    self.lazy,
                    array("fl_space", room) if room else ffi.NULL,
                    facts,
                )
            ),
            lib.fl_problem_destroy,
        )
        self.facts = native_graph.facts_of(graph, facts)
        self._backward = {self.class_of(operator) for operator in self.facts.backward}
        self._placements: dict[Hashable, int] = {}  # numbered as they come
        self._task_times: dict[tuple[int, Degrees], int] = {}
        # Of each entry of the cost table, for each kind of device: which models priced its tasks.
        self._sources: dict[tuple[int, Degrees], tuple[frozenset[str], ...]] = {}

    def splits(self, operator: Operator) -> list[Degrees]:
        """The degrees that searches choose from; see `flexlegion.strategy.configuration.splits`."""
        return self._allowed(operator, splits(operator, len(self.devices), self.dimensions))

    def splits_and_parts(self, operator: Operator) -> list[Degrees]:
        """The same, and those that share out partial values, unless no reduction is split."""
        parts = {DimKind.PART} if DimKind.REDUCTION in self.dimensions else set()
        every = splits(operator, len(self.devices), self.dimensions | parts)
        return self._allowed(operator, every)

    def _allowed(self, operator: Operator, every: list[Degrees]) -> list[Degrees]:
        if self.space is None:
            return every
        return [degrees for degrees in every if self.space.allows(operator, degrees)]

    def prepare(self, operator: Operator, *every: Degrees) -> None:
        """Have the cost table hold the times of an operator's tasks if it is split in these ways.

        Those that are missing are priced together: each shape once, whatever tasks have it.
        """
        import numpy as np

        number = self._like[self.operator_numbers[operator.name]]
        degrees = [its for its in dict.fromkeys(every) if (number, its) not in self._sources]
        if not degrees:
            return
        representative = self.graph.operators[number]
        lib, array = self.core.lib, Arrays()
        splits = self._splits(array, number, degrees)
        extents, shape_of = self._shapes(splits, number)
        times: list[npt.NDArray[np.int64]] = []
        contention: list[npt.NDArray[np.float64] | None] = []
        sources: list[list[tuple[str, ...]]] = [[] for _ in self.kinds]
        for pass_ in TASK_PASSES:
            runs = pass_ != "backward" or number in self._backward
            for kind, device in enumerate(self.kinds):
                if not runs:  # of tasks that there are not
                    times.append(np.ones(len(extents), np.int64))
                    contention.append(None)
                    continue
                costs = self.costs.exe_times(representative, pass_, extents, device)
                times.append(np.minimum(costs.times_ns, MAX_TIME_NS))
                contention.append(costs.contentions)
                sources[kind].append(costs.sources)
        its: dict[str, Any] = {
            "n_times": len(times) * len(extents),
            "times": array.of_numpy("int64_t", np.concatenate(times)),
        }
        if any(more is not None for more in contention):
            parts = [np.zeros(len(extents)) if more is None else more for more in contention]
            its["contention"] = array.of_numpy("int32_t", thousandths(np.concatenate(parts)))
        if self.space is not None:
            its |= self._kept(array, representative, degrees)
        self.core.check(
            lib.fl_problem_add_splits(self.handle, splits, array("fl_split_costs", [its]))
        )
        first = 0
        alike = all(len(names) == 1 for told in sources for names in told)
        same = tuple(_sources_of(told, shape_of[:1]) for told in sources) if alike else ()
        for split in degrees:
            tasks = shape_of[first : first + prod(split)]
            first += len(tasks)
            self._sources[number, split] = same or tuple(
                _sources_of(told, tasks) for told in sources
            )

    def _kept(self, array: Arrays, operator: Operator, every: Sequence[Degrees]) -> dict[str, Any]:
        """Of each way to split an operator: what a program of the space keeps of each operand."""
        assert self.space is not None
        kept: list[int] = []
        placed: list[int] = []
        nothing: Sequence[tuple[int, Hashable]] = [(_MOST_KEPT, None)] * len(operator.operands)
        for degrees in every:
            its = nothing
            for what in SHARDING:
                its = self.space.kept(operator, degrees, self, what) or nothing
                kept += [min(size, _MOST_KEPT) for size, _ in its]
            placed += [self._placements.setdefault(at, len(self._placements)) for _, at in its]
        return {
            "n_kept": len(kept),
            "kept": array("int64_t", kept),
            "placed": array("int32_t", placed),
        }

    def _splits(self, array: Arrays, operator: int, every: Sequence[Degrees]) -> Any:
        its = {
            "op": operator,
            "n_splits": len(every),
            "n_degrees": len(every[0]),
            "degrees": array("int32_t", [d for degrees in every for d in degrees]),
        }
        return array("fl_splits", [its])

    def _shapes(
        self, splits: Any, operator: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """What the header's ``fl_shapes`` tells."""
        import numpy as np

        lib, ffi = self.core.lib, self.core.ffi
        its = ffi.new("fl_shapes *")
        self.core.check(lib.fl_problem_shapes(self.handle, splits, its))
        operands, rank = len(self.graph.operators[operator].operands), int(lib.FL_MAX_RANK)
        size = its.n_shapes * operands * rank * np.dtype(np.int64).itemsize
        extents = np.frombuffer(ffi.buffer(its.extents, size), np.int64).copy()
        tasks = ffi.buffer(its.shape_of, its.n_tasks * np.dtype(np.int32).itemsize)
        shape_of = np.frombuffer(tasks, np.int32).copy()
        return extents.reshape(its.n_shapes, operands, rank), shape_of

    def parts(self, operator: int, degrees: Degrees) -> npt.NDArray[np.int64]:
        """Extents of what each task touches of each operand, if an operator is split that way.

        Parameters
        ----------
        operator
            Its number.
        degrees
            One a dimension of its space.

        Returns
        -------
        array
            (task, operand, dimension); what is beyond an operand's rank is 0.
        """
        array = Arrays()
        extents, shape_of = self._shapes(self._splits(array, operator, [degrees]), operator)
        return extents[shape_of]

    def task_time(self, operator: Operator, degrees: Degrees) -> int:
        """What the first task of an operator takes forward and backward, in ns.

        On the first device, if the operator is split in that way.
        """
        number = self._like[self.operator_numbers[operator.name]]
        degrees = (*degrees, *(1 for _ in operator.space[len(degrees) :]))
        if (number, degrees) not in self._task_times:
            representative = self.graph.operators[number]
            extents = self.parts(number, degrees)[:1]
            passes = TASK_PASSES if number in self._backward else ("forward",)
            self._task_times[number, degrees] = sum(
                int(self.costs.exe_times(representative, pass_, extents, self.kinds[0]).times_ns[0])
                for pass_ in passes
            )
        return self._task_times[number, degrees]

    def price(self, strategy: ResolvedStrategy) -> None:
        """`prepare` every operator as a strategy splits it.

        Raises
        ------
        UserError
            If plans under the strategy are cut otherwise than here.
        """
        assert strategy.graph is self.graph, "the strategy was resolved for another graph"
        assert strategy.machine.names == self.devices.names, "... for another machine"
        if strategy.granularity not in (None, self.granularity):
            raise UserError(
                f"{strategy.source}: its granularity is {strategy.granularity}, but the "
                f"simulation's is {self.granularity}"
            )
        for operator in self.graph.operators:
            self.prepare(operator, strategy[operator.name].degrees)

    def checked(self, strategy: Strategy) -> ResolvedStrategy:
        """`Strategy.checked` against graph and machine, and `price` of what that makes."""
        resolved = strategy.checked(self.graph, self.devices)
        self.price(resolved)
        return resolved

    def priced_by(self, strategy: ResolvedStrategy) -> Counter[str]:
        """How many tasks each cost model priced: ``analytic``, ``measured``."""
        counts: Counter[str] = Counter()
        for operator in self.graph.operators:
            config = strategy[operator.name]
            self.prepare(operator, config.degrees)
            if len(self.kinds) == 1:  # then all devices are alike
                counts[self.source_of(operator, config.degrees, 0)] += len(config.devices)
                continue
            for device in config.devices:
                counts[self.source_of(operator, config.degrees, self.devices.number(device))] += 1
        return counts

    def source_of(self, operator: Operator, degrees: Degrees, device: int) -> str:
        """Which cost model priced an operator's tasks on a device, split that way.

        Where some parts or passes were measured and others not, the weaker answer counts.
        """
        its = self._sources[self.class_of(operator), degrees][self.kind_of_device[device]]
        return "analytic" if "analytic" in its else min(its)

    @cached_property
    def kind_of_device(self) -> list[int]:
        """Of each device, the number of its kind: devices of one kind take equal times."""
        keys = [_kind_key(device) for device in self.kinds]
        return [keys.index(_kind_key(device)) for device in self.topology.devices]

    def to_native(self, array: Arrays, configs: Mapping[str, ParallelConfig]) -> Any:
        """A strategy, or a part of one, as native code takes it; `array` keeps it."""
        numbered = ((self.operator_numbers[name], config) for name, config in configs.items())
        return to_native(array, numbered, self.devices)

    def from_native(self, its: Any, source: str) -> ResolvedStrategy:
        """The strategy that a native one is."""
        configs = from_native(its, self.graph, self.devices)
        strategy = Strategy(configs, source, granularity=self.granularity)
        return strategy.checked(self.graph, self.devices)

    def class_of(self, operator: Operator) -> int:
        """Operators with the same number differ in name and tensors alone."""
        return self._like[self.operator_numbers[operator.name]]

    def _classes(self) -> list[int]:
        """For each operator, the first that is like it; they share the cost table's entries."""
        first: dict[object, int] = {}
        like = []
        for number, operator in enumerate(self.graph.operators):
            key = (
                operator.kind,
                tuple(operator.input_shapes),
                # They differ where what one reads, and not the other, may come in partial values.
                tuple((tensor.kind == "weight", access) for _, tensor, access in operator.operands),
                tuple((w.shape, w.requires_gradient, w.state, w.table) for w in operator.weights),
                wanted_gradients(operator),
            )
            like.append(first.setdefault(key, number))
        return like

    def _rates(self, device: Device) -> dict[str, object]:
        """The header's ``fl_rates`` of a kind of devices."""
        rates: dict[str, object] = {"runtime": astuple(self.costs.runtime(device))}
        for pass_ in LINEAR_PASSES:
            cost, _ = self.costs.linear(pass_, device)
            contention = int(thousandths(cost.contention))
            rates[pass_] = (cost.overhead_ns, cost.bytes_per_second, contention)
        return rates

    @property
    def least_bytes(self) -> int:
        """What any strategy keeps: each weight at least once, its gradient, its optimizer's states.

        The gradient of a table is that of the rows that were looked up, which may be few.
        """
        fields = {
            weight: weight.element_bytes
            + weight.requires_gradient * (not weight.table) * weight.gradient_bytes
            + weight.requires_gradient * (self.optimizer_states + weight.has_master) * STATE_BYTES
            for weight in self.graph.weights
        }
        return sum(prod(weight.shape) * size for weight, size in fields.items())

    def require_room(self) -> None:
        """Raise `UserError` if no strategy can fit: before a search spends its time on it."""
        sizes = {device.memory: device.memory_bytes for device in self.topology.devices}
        if self.least_bytes > sum(sizes.values()):
            raise UserError(
                f"no strategy fits: the weights, their gradients and the optimizer's states take "
                f"{self.least_bytes:,} bytes, but the memories of machine {self.topology.name} "
                f"have {sum(sizes.values()):,} together; take a smaller model, or a machine with "
                "more devices or larger memories"
            )

    def require_memory(self, strategy: ResolvedStrategy, allocated: dict[str, int]) -> None:
        """Raise `UserError` unless a strategy fits into the memories, or in a space its program.

        Parameters
        ----------
        strategy
            Which one.
        allocated
            Of each memory, what training here allocates there.
        """
        if self.space is not None:
            needs = self.space.memory(self, strategy)
            if needs is None:
                raise UserError(f"{strategy.source}: no program for {self.space.name} does that")
            if not needs.fits:
                raise UserError(f"{strategy.source} does not fit as a program: {needs}")
            return
        capacity = {device.memory: device.memory_bytes for device in self.topology.devices}
        for memory, size in allocated.items():
            if size > capacity[memory]:
                raise UserError(
                    f"{strategy.source} does not fit: training allocates {size:,} bytes in "
                    f"{memory}, which has {capacity[memory]:,}; split the operators over more "
                    "devices, compute activations again (see '+again' behind a strategy's name), "
                    "or take a smaller batch"
                )


def _sources_of(told: Sequence[tuple[str, ...]], shape_of: npt.NDArray[np.int32]) -> frozenset[str]:
    """Who priced tasks of these shapes, of each pass: one name for all shapes, or one each."""
    import numpy as np

    names: set[str] = set()
    for sources in told:
        names.update(
            sources if len(sources) == 1 else {sources[s] for s in np.unique(shape_of).tolist()}
        )
    return frozenset(names)


def _kind_key(device: Device) -> tuple[object, ...]:
    peaks = sorted(device.peak_flops.items())
    return (device.kind, device.model, *peaks, device.memory_bandwidth, device.efficiency)


def _kinds(devices: Sequence[Device]) -> list[Device]:
    """One device of each kind."""
    first: dict[tuple[object, ...], Device] = {}
    for device in devices:
        first.setdefault(_kind_key(device), device)
    return list(first.values())

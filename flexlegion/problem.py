"""What a simulation is about: an operator graph, a device topology, and what tasks cost there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from flexlegion.cost.model import STAGES, CostModel, Shapes, has_backward, wanted_gradients
from flexlegion.errors import UserError
from flexlegion.graph import Graph, Operator
from flexlegion.machine.topology import Device, Topology
from flexlegion.native_graph import NativeGraph
from flexlegion.soap import ParallelConfig
from flexlegion.strategy import Strategy
from flexlegion.tensor import Tensor

Degrees = tuple[int, ...]

# Longer times are cut to this, as native/sim/machine_model.h does with transfers.
MAX_TIME_NS = 10_000_000_000_000


@dataclass(frozen=True)
class _Entry:
    """An entry of the cost table: which model priced each kind of device's tasks."""

    number: int
    sources: tuple[frozenset[str], ...]


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
    """

    def __init__(
        self,
        graph: Graph,
        topology: Topology,
        costs: CostModel,
        outputs: Tensor | Sequence[Tensor],
        optimizer_states: int = 0,
        clips: bool = False,
    ) -> None:
        self.graph = graph
        self.topology = topology
        self.costs = costs
        self.outputs = outputs
        self.optimizer_states = optimizer_states
        self.clips = clips
        self.native = NativeGraph(graph)
        self.core = self.native.core
        self.devices = topology.names
        self.memories = topology.memories
        self.kinds = _kinds(topology.devices)
        self.operator_numbers = {op.name: i for i, op in enumerate(graph.operators)}
        lib, ffi = self.core.lib, self.core.ffi
        machine, keep = self._machine()
        wanted = self.native.numbers(outputs)
        self.handle = ffi.gc(
            self.core.check(
                lib.fl_problem_create(
                    self.native.handle,
                    machine,
                    len(wanted),
                    wanted,
                    optimizer_states,
                    clips,
                )
            ),
            lib.fl_problem_destroy,
        )
        del keep
        self._like = self._classes()
        self._entries: dict[tuple[int, Degrees], _Entry] = {}
        self._set_rates()

    def prepare(self, operator: Operator, degrees: Degrees) -> None:
        """Have the cost table hold the times of an operator's tasks if it is split that way."""
        number = self._like[self.operator_numbers[operator.name]]
        if (number, degrees) in self._entries:
            return
        representative = self.graph.operators[number]
        ranks = [len(tensor.shape) for _, tensor, _ in representative.operands]
        parts = self.native.parts(number, degrees)
        shapes: dict[bytes, Shapes] = {}
        for part in parts:
            shapes.setdefault(
                part.tobytes(),
                tuple(
                    tuple(int(x) for x in row[:rank]) for row, rank in zip(part, ranks, strict=True)
                ),
            )
        keys = [part.tobytes() for part in parts]
        times: list[int] = []
        sources: list[set[str]] = [set() for _ in self.kinds]
        for stage in STAGES:
            if stage == "backward" and not has_backward(representative):
                times += [1] * (len(keys) * len(self.kinds))  # of tasks that there are not
                continue
            for kind, device in enumerate(self.kinds):
                cost = {
                    key: self.costs.exe_time(representative, stage, shape, device)
                    for key, shape in shapes.items()
                }
                times += [min(cost[key].time_ns, MAX_TIME_NS) for key in keys]
                sources[kind] |= {c.source for c in cost.values()}
        entry = self.core.check(
            self.core.lib.fl_problem_add_split(
                self.handle, number, len(degrees), list(degrees), len(times), times
            )
        )
        self._entries[number, degrees] = _Entry(entry, tuple(frozenset(s) for s in sources))

    def prepare_all(self, configs: Iterable[tuple[Operator, ParallelConfig]]) -> None:
        """`prepare` for every configuration."""
        for operator, config in configs:
            self.prepare(operator, config.degrees)

    def priced_by(self, strategy: Strategy) -> Counter[str]:
        """How many tasks each cost model priced: ``analytic``, ``measured``."""
        counts: Counter[str] = Counter()
        for operator in self.graph.operators:
            config = strategy[operator.name]
            self.prepare(operator, config.degrees)
            for device in config.devices:
                counts[self.source_of(operator, config.degrees, self.devices.number(device))] += 1
        return counts

    def source_of(self, operator: Operator, degrees: Degrees, device: int) -> str:
        """Which cost model priced an operator's tasks on a device, split that way.

        Where some parts or passes were measured and others not, the weaker answer counts.
        """
        its = self._entries[self.class_of(operator), degrees].sources[self.kind_of_device[device]]
        return "analytic" if "analytic" in its else min(its)

    @cached_property
    def kind_of_device(self) -> list[int]:
        """Of each device, the number of its kind: devices of one kind take equal times."""
        keys = [_kind_key(device) for device in self.kinds]
        return [keys.index(_kind_key(device)) for device in self.topology.devices]

    def flat(self, configs: Sequence[ParallelConfig]) -> tuple[list[int], list[int]]:
        """Degrees and device numbers, one configuration after the other."""
        degrees = [d for config in configs for d in config.degrees]
        devices = [self.devices.number(name) for config in configs for name in config.devices]
        return degrees, devices

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
                tuple((w.shape, w.requires_gradient, w.state, w.table) for w in operator.weights),
                wanted_gradients(operator),
            )
            like.append(first.setdefault(key, number))
            if like[-1] != number:
                self.core.check(
                    self.core.lib.fl_problem_share_splits(self.handle, number, like[-1])
                )
        return like

    def _set_rates(self) -> None:
        lib = self.core.lib
        passes = {"load": lib.FL_LOAD, "update": lib.FL_UPDATE, "sum": lib.FL_BACKWARD}
        for kind, device in enumerate(self.kinds):
            launch_ns = self.costs.launch_ns(device)
            self.core.check(lib.fl_problem_set_launch(self.handle, kind, launch_ns))
            for stage, number in passes.items():
                cost, _ = self.costs.linear(stage, device)
                self.core.check(
                    lib.fl_problem_set_linear(
                        self.handle, kind, number, cost.overhead_ns, cost.bytes_per_second
                    )
                )

    def _machine(self) -> tuple[object, list[object]]:
        """The topology as the native library takes it, and what has to live as long."""
        topology, ffi = self.topology, self.core.ffi
        number = {memory: i for i, memory in enumerate(self.memories)}
        user_of = {device.memory: device.name for device in reversed(topology.devices)}
        capacity = {device.memory: device.memory_bytes for device in topology.devices}
        channels = {channel: i for i, channel in enumerate(topology.channels)}
        bandwidths, latencies = [1] * len(channels), [0] * len(channels)
        routes: list[int] = []
        lengths: list[int] = []
        for source in self.memories:
            for destination in self.memories:
                route = topology.route(user_of[source], user_of[destination])
                lengths.append(len(route))
                for hop in route:
                    channel = channels[hop.channel]
                    bandwidths[channel] = hop.link.bandwidth
                    latencies[channel] = hop.link.latency_ns
                    routes.append(channel)
        keep = [
            ffi.new("int32_t[]", [number[device.memory] for device in topology.devices]),
            ffi.new("int32_t[]", self.kind_of_device),
            ffi.new("int64_t[]", bandwidths),
            ffi.new("int64_t[]", latencies),
            ffi.new("int64_t[]", [capacity[memory] for memory in self.memories]),
            ffi.new("int32_t[]", lengths),
            ffi.new("int32_t[]", routes),
        ]
        machine = ffi.new(
            "fl_machine *",
            {
                "n_devices": len(topology.devices),
                "memory_of": keep[0],
                "kind_of": keep[1],
                "kinds": len(self.kinds),
                "n_links": len(channels),
                "bandwidth": keep[2],
                "latency": keep[3],
                "memories": len(self.memories),
                "capacity": keep[4],
                "route_lengths": keep[5],
                "n_routes": len(routes),
                "routes": keep[6],
            },
        )
        return machine, keep

    def check(self, strategy: Strategy) -> None:
        """Raise `UserError` unless a strategy fits graph and machine; fills the cost table."""
        strategy.check(self.graph, self.devices)
        self.prepare_all((op, strategy[op.name]) for op in self.graph.operators)

    @property
    def least_bytes(self) -> int:
        """What any strategy keeps: each weight at least once, its gradient, its optimizer's states.

        The gradient of a table is that of the rows that were looked up, which may be few.
        """
        fields = {
            weight: 1 + weight.requires_gradient * (self.optimizer_states + (not weight.table))
            for weight in self.graph.weights
        }
        return sum(4 * prod(weight.shape) * number for weight, number in fields.items())

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

    def require_memory(self, strategy: Strategy, allocated: dict[str, int]) -> None:
        """Raise `UserError`, naming the memory, unless a strategy fits into the memories."""
        capacity = {device.memory: device.memory_bytes for device in self.topology.devices}
        for memory, size in allocated.items():
            if size > capacity[memory]:
                raise UserError(
                    f"{strategy.source} does not fit: {memory} would hold {size:,} bytes, but has "
                    f"{capacity[memory]:,}; split the operators over more devices, or take a "
                    "smaller batch"
                )


def _kind_key(device: Device) -> tuple[object, ...]:
    return (device.kind, device.model, *sorted(device.peak_flops.items()), device.memory_bandwidth)


def _kinds(devices: Sequence[Device]) -> list[Device]:
    """One device of each kind."""
    first: dict[tuple[object, ...], Device] = {}
    for device in devices:
        first.setdefault(_kind_key(device), device)
    return list(first.values())

"""A machine as native code takes it: memories, links, and routes by structure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flexlegion.base.errors import UserError
from flexlegion.bindings.native import Arrays, core, enumeration
from flexlegion.machine.node_routes import NodeRoutes, Relation, Step, Torus
from flexlegion.machine.parts import Hop, Link
from flexlegion.machine.topology import Topology


def machine_of(
    topology: Topology, kind_of_device: Sequence[int], rates: Any, array: Arrays
) -> dict[str, Any]:
    """The header's ``fl_machine``.

    Parameters
    ----------
    topology
        The machine.
    kind_of_device
        A number of each device; those with equal ones take equal times.
    rates
        Of each kind, the header's ``fl_rates``.
    array
        Keeps what is made.
    """
    number = {memory: i for i, memory in enumerate(topology.memories)}
    capacity = {device.memory: device.memory_bytes for device in topology.devices}
    channels = _Channels(topology.links)
    return {
        "n_devices": len(topology.devices),
        "memory_of": array("int32_t", [number[device.memory] for device in topology.devices]),
        "kind_of": array("int32_t", kind_of_device),
        "kinds": len(rates),
        "rates": array("fl_rates", rates),
        "n_links": len(channels.bandwidth),
        "bandwidth": array("int64_t", channels.bandwidth),
        "latency": array("int64_t", channels.latency),
        "memories": len(topology.memories),
        "capacity": array("int64_t", [capacity[memory] for memory in topology.memories]),
        "routes": _routes(topology, channels, array),
    }


class _Channels:
    """The communication devices of links, numbered as `Topology.channels` has them."""

    def __init__(self, links: Sequence[Link]) -> None:
        self.first: dict[str, int] = {}
        self.bandwidth: list[int] = []
        self.latency: list[int] = []
        for link in links:
            self.first[link.name] = len(self.bandwidth)
            ways = 1 if link.shared else 2
            self.bandwidth += [link.bandwidth] * ways
            self.latency += [link.latency_ns] * ways

    def number(self, hop: Hop) -> int:
        return self.first[hop.link.name] + (hop.backward and not hop.link.shared)


def _routes(topology: Topology, channels: _Channels, array: Arrays) -> dict[str, Any]:
    """The header's ``fl_routes``."""
    routes = topology.by_nodes
    places = {node.kind: len(node.memories) for node in routes.nodes}
    tables, lengths, hops = _tables(topology, channels, places)
    torus = routes.torus
    where = [routes.place[memory] for memory in topology.memories]
    return {
        "node_of": array("int32_t", [node for node, _ in where]),
        "place_of": array("int32_t", [place for _, place in where]),
        "n_nodes": len(routes.nodes),
        "kind_of": array("int32_t", [node.kind for node in routes.nodes]),
        "kinds": len(places),
        "places": array("int32_t", [places[kind] for kind in range(len(places))]),
        "n_spans": len(routes.spans),
        "spans": array("int32_t", routes.spans),
        "tables": array("int32_t", tables),
        "n_routes": len(lengths),
        "lengths": array("int32_t", lengths),
        "n_hops": len(hops),
        "hops": array("fl_hop", hops),
        "dimensions": 0 if torus is None else len(torus.shape),
        "shape": array("int32_t", [] if torus is None else torus.shape),
        "turns": array("int32_t", [] if torus is None else _turns(torus)),
        "torus_links": array("int32_t", [] if torus is None else _links(torus, channels)),
    }


def _tables(
    topology: Topology, channels: _Channels, places: Mapping[int, int]
) -> tuple[list[int], list[int], list[tuple[int, int, int, int]]]:
    """Where each relation's routes begin; their lengths; their hops."""
    routes = topology.by_nodes
    hop_of = _Hops(routes, channels)
    found = routes.relations()
    longest = int(core().lib.FL_MAX_ROUTE)
    ways = 0 if routes.torus is None else routes.torus.longest
    tables: list[int] = []
    lengths: list[int] = []
    hops: list[tuple[int, int, int, int]] = []
    for kind in range(len(places)):
        for other in range(len(places)):
            for near in range(routes.nearnesses):
                pair = found.get(Relation(kind, other, near))
                if pair is None:
                    tables.append(-1)
                    continue
                tables.append(len(lengths))
                for place in range(places[kind]):
                    for its in range(places[other]):
                        steps = routes.steps(*pair, place, its)
                        lengths.append(len(steps))
                        hops += map(hop_of, steps)
                        length = sum(ways if step.wire is None else 1 for step in steps)
                        if length > longest:
                            raise UserError(
                                f"machine {topology.name} has a route of {length} links; at most "
                                f"{longest} can be simulated"
                            )
    return tables, lengths, hops


class _Hops:
    """Steps as the header's ``fl_hop``."""

    def __init__(self, routes: NodeRoutes, channels: _Channels) -> None:
        self._kinds = enumeration("fl_hop_of")
        self._of: dict[int, tuple[int, int, int]] = {}
        for wire in routes.wires:
            numbers = [channels.first[link.name] for link in wire.links[:2]]
            stride = numbers[-1] - numbers[0]
            # Native code counts from node 0.
            first = numbers[0] - stride * (wire.nodes.start // wire.span)
            self._of[id(wire)] = first, stride, wire.span

    def __call__(self, step: Step) -> tuple[int, int, int, int]:
        if step.wire is None:
            return self._kinds["torus"], 0, 0, 1
        first, stride, span = self._of[id(step.wire)]
        back = step.backward and not step.wire.links[0].shared
        of = self._kinds["destination" if step.there else "source"]
        return of, first + back, stride, span


def _turns(torus: Torus) -> list[int]:
    return [steps for turns in torus.turns for row in turns for steps in row]


def _links(torus: Torus, channels: _Channels) -> list[int]:
    """Of each node and dimension, the channel to the next node, and that to the one before."""
    found = []
    for node in range(len(torus.switch)):
        for d, (extent, stride) in enumerate(zip(torus.shape, torus.strides, strict=True)):
            x = node // stride % extent
            up = torus.links[d][node]
            down = torus.links[d][node + ((x - 1) % extent - x) * stride]
            found += [
                -1 if up is None else channels.number(Hop(up)),
                -1 if down is None else channels.number(Hop(down, True)),
            ]
    return found

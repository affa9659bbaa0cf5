"""Routes by structure are those of a search in the whole graph, and simulations take them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import problem_of, strategy_of

from flexlegion import Model, UserError
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.machine.files import PLATFORMS, described_machine, parse_machine
from flexlegion.machine.parts import Hop
from flexlegion.machine.routes import GraphRoutes
from flexlegion.machine.topology import Topology
from flexlegion.sim.simulator import full

GPU = {"kind": "gpu", "memory_bytes": 1e9, "peak_flops": {"float32": 1e12}, "memory_bandwidth": 1e9}
TYPES = {
    f"t{bandwidth}{'s' * shared}": {"bandwidth": bandwidth, "latency_ns": 5, "shared": shared}
    for bandwidth in (1, 2, 3)
    for shared in (False, True)
}


def document(node: Any, network: dict[str, Any], nodes: int | None = None) -> dict[str, Any]:
    top = {
        "schema_version": 1,
        "description": "",
        "device_types": {"G": GPU},
        "link_types": TYPES,
        "node": node,
        "network": network,
    }
    return top if nodes is None else top | {"nodes": nodes}


def machine(its: dict[str, Any], gpus: int | None = None) -> Topology:
    return parse_machine(json.loads(json.dumps(its)), "m", "m.json").topology(gpus)


@st.composite
def nodes(draw: st.DrawFn) -> dict[str, Any]:
    """Of one to three GPUs and switches, one of which leads to all others."""
    gpus, switches = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    names = [*(f"gpu:{i}" for i in range(gpus)), *(f"s{i}" for i in range(switches))]
    pairs = {(name, "s0") for name in names if name != "s0"}
    for a, b in draw(st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names)))):
        if a < b and (b, a) not in pairs:
            pairs.add((a, b))
    kinds = st.sampled_from(sorted(TYPES))
    return {
        "devices": [{"type": "G", "count": gpus}],
        "switches": names[gpus:],
        "links": [[a, b, draw(kinds)] for a, b in sorted(pairs)],
    }


@st.composite
def machines(draw: st.DrawFn) -> dict[str, Any]:
    """Of up to nine nodes of up to two kinds, groups of two and four of which share switches."""
    kinds = draw(st.lists(st.tuples(st.integers(1, 5), nodes()), min_size=1, max_size=2))
    groups: list[dict[str, Any]] = [{"name": "leaf", "nodes": 2}, {"name": "row", "nodes": 4}]
    switches: list[Any] = ["ib", *draw(st.lists(st.sampled_from(groups), unique_by=str))]
    names = [its if isinstance(its, str) else its["name"] for its in switches]
    types = st.sampled_from(sorted(TYPES))
    links = {("s0", "ib")}
    within = ["gpu:0", "gpu:1", "s0", "s1"]
    there = set.union(*({*its["switches"], "gpu:0"} for _, its in kinds))
    for a, b in draw(
        st.lists(st.tuples(st.sampled_from([*within, *names]), st.sampled_from(names)))
    ):
        if a != b and (b, a) not in links and (a in names or a in there):
            links.add((a, b))
    network = {"switches": switches, "links": [[a, b, draw(types)] for a, b in sorted(links)]}
    return document([{"count": count, **its} for count, its in kinds], network)


def by_search(topology: Topology) -> GraphRoutes:
    stated = [route for node in topology.by_nodes.nodes for route in node.routes]
    return GraphRoutes(topology.memories, topology.links, stated)


def channels(route: tuple[Hop, ...]) -> list[str]:
    return [hop.channel for hop in route]


@given(machines())
def test_as_in_the_whole_graph(its: dict[str, Any]) -> None:
    topology = machine(its)
    graph = by_search(topology)
    for a in topology.memories:
        for b in topology.memories:
            if a != b:
                assert channels(topology.route(a, b)) == channels(graph.route(a, b)), (a, b)


def check_simulated(topology: Topology) -> None:
    """Each transfer of a strategy that moves data between all devices takes the route."""
    model = Model(2 * len(topology.devices))
    model.set_outputs(model.dense(model.dense(model.input((8,)), 8 * len(topology.devices)), 4))
    problem = problem_of(model, topology, AnalyticCosts())
    for spec in ("model", "random:1", "random:2"):
        timeline = full(problem, strategy_of(problem, spec))
        places = timeline.places
        taken: dict[Any, dict[int, str]] = {}
        for row in timeline.tasks[timeline.tasks["hop"] >= 0]:
            which = tuple(int(row[k]) for k in ("pass", "index", "flow", "tensor", "part"))
            key = which, topology.memories[row["source"]], topology.memories[row["destination"]]
            taken.setdefault(key, {})[int(row["hop"])] = places[row["device"]]
        assert taken or len(topology.devices) == 1
        for (_, a, b), hops in taken.items():
            assert [hops[i] for i in range(len(hops))] == channels(topology.route(a, b))


@settings(max_examples=25, deadline=None)
@given(machines())
def test_simulations_take_them(its: dict[str, Any]) -> None:
    check_simulated(machine(its))


@pytest.mark.parametrize("path", sorted(PLATFORMS.glob("*.json")), ids=lambda path: path.stem)
def test_shipped(path: Path) -> None:
    """Of two or four nodes, and, of the first eight devices, in the whole machine."""
    its = parse_machine(json.loads(path.read_text()), path.stem, path.name)
    small = its.topology(next(size for size in its.sizes if size >= min(16, its.sizes[-1])))
    if its.torus is None:
        graph = by_search(small)
        for a in small.memories:
            for b in small.memories:
                if a != b:
                    assert channels(small.route(a, b)) == channels(graph.route(a, b)), (a, b)
    check_simulated(small)
    large = its.topology()
    last = large.memories[-1]
    assert large.route(large.memories[0], last)[-1].destination == last


# Tori

ROUTER = {
    "devices": [{"type": "G", "count": 1}],
    "switches": ["router"],
    "links": [["gpu:0", "router", "t3"]],
}


def torus(*shape: int) -> dict[str, Any]:
    nodes = 1
    for extent in shape:
        nodes *= extent
    grid = {"switch": "router", "shape": list(shape), "link": "t1"}
    return document(ROUTER, {"torus": grid}, nodes)


def passed(topology: Topology, a: int, b: int) -> list[int]:
    """The nodes whose routers a route passes."""
    route = topology.route(f"gpu:{a}", f"gpu:{b}")
    assert all(x.destination == y.source for x, y in pairwise(route))
    assert route[0].source == f"gpu:{a}"
    assert route[-1].destination == f"gpu:{b}"
    return [int(hop.destination[5:].split("/")[0]) for hop in route[:-1]]


def test_dimension_by_dimension_the_shorter_way_round() -> None:
    topology = machine(torus(4, 5))
    assert passed(topology, 0, 7) == [0, 5, 6, 7]
    assert passed(topology, 7, 0) == [7, 2, 1, 0]  # first along the first dimension
    assert passed(topology, 0, 19) == [0, 15, 19]  # both ways round
    assert passed(topology, 0, 10) == [0, 5, 10]  # of two that are as short, upwards
    assert passed(topology, 0, 3) == [0, 4, 3]


@pytest.mark.parametrize("shape", [(1,), (2,), (5,), (3, 2), (4, 4), (2, 3, 4), (1, 3)])
def test_tori_are_simulated(shape: tuple[int, ...]) -> None:
    topology = machine(torus(*shape))
    count = len(topology.devices)
    for a in range(count):
        for b in range(count):
            if a == b:
                continue
            steps, left = 0, (a, b)
            for extent in reversed(shape):
                x, y = left[0] % extent, left[1] % extent
                steps += min((x - y) % extent, (y - x) % extent)
                left = left[0] // extent, left[1] // extent
            assert len(passed(topology, a, b)) == 1 + steps
    check_simulated(topology)


def test_parts_of_a_torus() -> None:
    """The longest dimension is halved; what does not go all the way round has no last link."""
    its = torus(4, 8)
    assert parse_machine(its, "m", "m.json").sizes == (1, 2, 4, 8, 16, 32)
    half = machine(its, 16)  # four by four
    assert len(half.devices) == 16
    assert passed(half, 0, 3) == [0, 1, 2, 3]
    assert passed(half, 0, 12) == [0, 12]  # of the dimension that is whole
    assert passed(machine(its, 2), 1, 0) == [1, 0]
    with pytest.raises(UserError, match="cannot use 3 GPUs of this machine; use 1 or 2 or 4 or 8"):
        machine(its, 3)


# Groups of nodes, and nodes of several kinds


def test_leaf_switches() -> None:
    network = {
        "switches": ["spine", {"name": "leaf", "nodes": 2}],
        "links": [["router", "leaf", "t2"], ["leaf", "spine", "t1"]],
    }
    topology = machine(document(ROUTER, network, 5))
    assert [s.name for s in topology.switches if s.node is None] == [
        "spine",
        "leaf:0",
        "leaf:1",
        "leaf:2",
    ]
    near, far = topology.route("gpu:2", "gpu:3"), topology.route("gpu:3", "gpu:4")
    assert [hop.destination for hop in near] == [
        "node:2/router",
        "leaf:1",
        "node:3/router",
        "gpu:3",
    ]
    assert [hop.destination for hop in far[1:4]] == ["leaf:1", "spine", "leaf:2"]
    assert (topology.bandwidth("gpu:2", "gpu:3"), topology.bandwidth("gpu:3", "gpu:4")) == (2, 1)


def test_rails() -> None:
    """Each GPU of a node has a switch of its own; others are reached by way of a neighbour."""
    node = {
        "devices": [{"type": "G", "count": 2}],
        "switches": ["nvswitch"],
        "links": [["gpu:*", "nvswitch", "t3"]],
    }
    network = {
        "switches": ["rail:0", "rail:1", "spine"],
        "links": [["gpu:*", "rail:*", "t2"], ["rail:*", "spine", "t1"]],
    }
    topology = machine(document(node, network, 3))
    assert [hop.destination for hop in topology.route("gpu:0", "gpu:4")] == ["rail:0", "gpu:4"]
    across = [hop.destination for hop in topology.route("gpu:0", "gpu:5")]
    assert across == ["rail:0", "spine", "rail:1", "gpu:5"]


def test_nodes_of_several_kinds() -> None:
    small, large = dict(ROUTER, count=2), dict(ROUTER, count=1)
    large |= {"devices": [{"type": "G", "count": 3}], "links": [["gpu:*", "router", "t2"]]}
    network = {"switches": ["ib"], "links": [["router", "ib", "t1"]]}
    topology = machine(document([small, large], network))
    assert [(d.name, d.node) for d in topology.devices] == [
        ("gpu:0", 0),
        ("gpu:1", 1),
        ("gpu:2", 2),
        ("gpu:3", 2),
        ("gpu:4", 2),
    ]
    assert topology.bandwidth("gpu:2", "gpu:4") == 2
    assert topology.bandwidth("gpu:0", "gpu:4") == 1
    check_simulated(topology)
    with pytest.raises(UserError, match="cannot use 2 GPUs of this machine; use 5"):
        machine(document([small, large], network), 2)


def test_thousands_of_nodes() -> None:
    """Nothing of the size of devices squared."""
    topology = described_machine("h100x16384")
    assert len(topology.devices) == 16384
    assert channels(topology.route("gpu:0", "gpu:16383")) == ["gpu:0 -> ib", "ib -> gpu:16383"]
    assert len(topology.by_nodes.relations()) == 3

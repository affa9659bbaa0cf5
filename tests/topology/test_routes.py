"""Routes: they connect, are the shortest, and the way back is the way there."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexlegion import UserError
from flexlegion.machine.parts import Device, Hop, Link, Switch
from flexlegion.machine.topology import Topology


def gpu(number: int, memory: str | None = None) -> Device:
    name = f"gpu:{number}"
    return Device(name, "gpu", "T", 0, memory or name, 1000, {"float32": 10}, 10)


def link(a: str, b: str, bandwidth: int = 10, shared: bool = False) -> Link:
    return Link(f"{a} - {b}", "wire", a, b, bandwidth, 5, shared)


def machine(
    devices: int,
    links: list[Link],
    switches: str = "",
    routes: list[list[str]] | None = None,
) -> Topology:
    return Topology(
        "t", [gpu(i) for i in range(devices)], links, [Switch(s) for s in switches], routes or []
    )


def vertices(route: tuple[Hop, ...]) -> list[str]:
    return [route[0].source, *(hop.destination for hop in route)]


@st.composite
def machines(draw: st.DrawFn) -> tuple[int, str, list[Link]]:
    """Devices and switches; a random tree of switches, so that all devices reach each other."""
    devices = draw(st.integers(1, 5))
    switches = "stuvwxyz"[: draw(st.integers(1, 6))]
    pairs = {(switches[draw(st.integers(0, i - 1))], s) for i, s in enumerate(switches) if i}
    pairs |= {(f"gpu:{i}", draw(st.sampled_from(switches))) for i in range(devices)}
    names = [*switches, *(f"gpu:{i}" for i in range(devices))]
    for a, b in draw(st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names)))):
        if a != b and (b, a) not in pairs:
            pairs.add((a, b))
    ordered = draw(st.permutations(sorted(pairs)))
    bandwidths = st.integers(1, 4)
    return devices, switches, [link(a, b, draw(bandwidths)) for a, b in ordered]


def all_paths(links: list[Link], a: str, b: str) -> list[tuple[int, int, list[str]]]:
    """(hops, -bottleneck, vertices) of every path that no device forwards: the oracle."""
    ends: dict[tuple[str, str], int] = {}
    for each in links:
        ends[each.source, each.destination] = each.bandwidth
        ends[each.destination, each.source] = each.bandwidth
    found = []

    def extend(path: list[str], width: int) -> None:
        if path[-1] == b:
            found.append((len(path) - 1, -width, path))
        elif len(path) == 1 or not path[-1].startswith("gpu"):
            for (x, y), bandwidth in ends.items():
                if x == path[-1] and y not in path:
                    extend([*path, y], min(width, bandwidth))

    extend([a], 10**9)
    return found


@given(machines())
def test_routes_are_the_best_paths(case: tuple[int, str, list[Link]]) -> None:
    devices, switches, links = case
    topology = machine(devices, links, switches)
    for i in range(devices):
        for j in range(devices):
            route = topology.route(f"gpu:{i}", f"gpu:{j}")
            if i == j:
                assert route == ()
                continue
            assert all(x.destination == y.source for x, y in pairwise(route))
            assert route == tuple(~hop for hop in reversed(topology.route(f"gpu:{j}", f"gpu:{i}")))
            best = min(all_paths(links, f"gpu:{min(i, j)}", f"gpu:{max(i, j)}"))
            assert vertices(route) == (best[2] if i < j else best[2][::-1])
            assert topology.bandwidth(f"gpu:{i}", f"gpu:{j}") == -best[1]
            assert topology.latency_ns(f"gpu:{i}", f"gpu:{j}") == 5 * best[0]


@given(machines())
def test_order_of_links_does_not_matter(case: tuple[int, str, list[Link]]) -> None:
    devices, switches, links = case
    turned = links[::-1]
    one, two = machine(devices, links, switches), machine(devices, turned, switches)
    for i in range(devices):
        assert one.route("gpu:0", f"gpu:{i}") == two.route("gpu:0", f"gpu:{i}")


def test_fewest_hops_before_bandwidth() -> None:
    wide = [link("gpu:0", "s", 100), link("s", "gpu:1", 100)]
    topology = machine(2, [link("gpu:0", "gpu:1", 1), *wide], "s")
    assert vertices(topology.route("gpu:0", "gpu:1")) == ["gpu:0", "gpu:1"]


def test_bandwidth_before_names() -> None:
    links = [link("gpu:0", "a"), link("a", "gpu:1", 3), link("gpu:0", "b", 4), link("b", "gpu:1")]
    assert vertices(machine(2, links, "ab").route("gpu:1", "gpu:0")) == ["gpu:1", "b", "gpu:0"]


def test_numbers_in_names_are_numbers() -> None:
    links = [link(gpu, f"s{i}") for i in (10, 9) for gpu in ("gpu:0", "gpu:1")]
    topology = Topology("t", [gpu(0), gpu(1)], links, [Switch("s10"), Switch("s9")])
    assert vertices(topology.route("gpu:0", "gpu:1")) == ["gpu:0", "s9", "gpu:1"]


def test_devices_do_not_forward() -> None:
    ring = [link("gpu:0", "gpu:1"), link("gpu:1", "gpu:2")]
    around = [link("gpu:0", "s"), link("s", "t"), link("t", "gpu:2")]
    topology = machine(3, [*ring, *around], "st")
    assert vertices(topology.route("gpu:0", "gpu:2")) == ["gpu:0", "s", "t", "gpu:2"]


def test_stated_route() -> None:
    links = [link("gpu:0", "gpu:1", 7), link("gpu:1", "gpu:2", 9)]
    topology = machine(3, links, routes=[["gpu:0", "gpu:1", "gpu:2"]])
    assert vertices(topology.route("gpu:0", "gpu:2")) == ["gpu:0", "gpu:1", "gpu:2"]
    assert vertices(topology.route("gpu:2", "gpu:0")) == ["gpu:2", "gpu:1", "gpu:0"]
    assert topology.bandwidth("gpu:2", "gpu:0") == 7


def test_a_switch_that_leads_nowhere_near() -> None:
    """Beside the source, but behind devices that do not forward: not on any way."""
    links = [link("gpu:0", "gpu:1"), link("gpu:1", "gpu:2"), link("gpu:0", "s"), link("gpu:2", "s")]
    topology = machine(3, links, "s")
    assert vertices(topology.route("gpu:0", "gpu:1")) == ["gpu:0", "gpu:1"]
    assert vertices(topology.route("gpu:0", "gpu:2")) == ["gpu:0", "s", "gpu:2"]


def test_stated_route_each_way() -> None:
    links = [link("gpu:0", "gpu:1"), link("gpu:0", "s"), link("s", "gpu:1")]
    topology = machine(2, links, "s", [["gpu:1", "s", "gpu:0"], ["gpu:0", "gpu:1"]])
    assert len(topology.route("gpu:1", "gpu:0")) == 2
    assert len(topology.route("gpu:0", "gpu:1")) == 1


def test_shared_memory_needs_no_route() -> None:
    devices = [gpu(0, "ram"), gpu(1, "ram"), gpu(2)]
    topology = Topology("t", devices, [link("ram", "gpu:2")])
    assert topology.route("gpu:0", "gpu:1") == ()
    assert topology.bandwidth("gpu:0", "gpu:1") is None
    assert topology.latency_ns("gpu:0", "gpu:1") == 0
    assert topology.memories == ("ram", "gpu:2")
    assert topology.route("gpu:0", "gpu:2") == topology.route("gpu:1", "gpu:2")


def test_channels() -> None:
    """A shared link is one communication device, any other one for each direction."""
    links = [link("gpu:0", "gpu:1"), link("gpu:1", "gpu:2", shared=True), link("gpu:0", "gpu:2")]
    topology = machine(3, links)
    assert topology.channels == (
        "gpu:0 -> gpu:1",
        "gpu:1 -> gpu:0",
        "gpu:1 - gpu:2",
        "gpu:0 -> gpu:2",
        "gpu:2 -> gpu:0",
    )
    there, back = topology.route("gpu:1", "gpu:2"), topology.route("gpu:2", "gpu:1")
    assert there[0].channel == back[0].channel == "gpu:1 - gpu:2"
    assert topology.route("gpu:1", "gpu:0")[0].channel == "gpu:1 -> gpu:0"


def test_one_device() -> None:
    topology = machine(1, [])
    assert topology.route("gpu:0", "gpu:0") == ()
    assert topology.names.names == ["gpu:0"]
    assert topology.nodes == 1


TWO = [link("gpu:0", "gpu:1")]
WRONG: list[tuple[int, list[Link], str, list[list[str]], str]] = [
    (0, [], "", [], "t: the machine has no device; it needs at least one"),
    (2, [], "", [], "t: no route from gpu:0 to gpu:1; connect them by a link, by switches that"),
    (3, TWO, "", [], "t: no route from gpu:0 to gpu:2; connect them"),
    (3, [*TWO, link("gpu:1", "gpu:2")], "", [], "no route from gpu:0 to gpu:2; .* do not forward"),
    (2, [link("gpu:0", "s"), link("t", "gpu:1")], "st", [], "t: no route from gpu:0 to gpu:1;"),
    (2, [*TWO, *TWO], "", [], "t: the name gpu:0 - gpu:1 stands for more than one link; rename"),
    (2, [*TWO, link("gpu:1", "gpu:0")], "", [], "t: link gpu:1 - gpu:0: occurs twice; give one"),
    (2, [link("gpu:0", "gpu:0")], "", [], "t: link gpu:0 - gpu:0: leads back to where it starts"),
    (2, [link("gpu:0", "x")], "s", [], "unknown endpoint 'x'; the choices are gpu:0, gpu:1, s"),
    (2, TWO, "ss", [], "t: the name s stands for more than one memory or switch; rename one"),
    (2, TWO, "", [[]], "has to name at least the two devices that it connects"),
    (2, TWO, "", [["gpu:0"]], "t: route gpu:0: has to name at least the two devices"),
    (2, TWO, "", [["gpu:0", "gpu:7"]], "t: route gpu:0 - gpu:7: unknown endpoint 'gpu:7'; the"),
    (2, TWO, "", [["gpu:0", "gpu:1", "gpu:0"]], "is cyclic, for it passes gpu:0 twice; name each"),
    (3, TWO, "", [["gpu:0", "gpu:2"]], "is broken, for no link connects gpu:0 and gpu:2; add the"),
    (2, [*TWO, link("gpu:0", "s")], "s", [["gpu:0", "s"]], "ends at the switch s; a route leads"),
    (2, TWO, "", [["gpu:0", "gpu:1"]] * 2, "is the second route from gpu:0 to gpu:1; keep one"),
]


@pytest.mark.parametrize(("devices", "links", "switches", "routes", "text"), WRONG)
def test_wrong(
    devices: int, links: list[Link], switches: str, routes: list[list[str]], text: str
) -> None:
    with pytest.raises(UserError, match=text):
        machine(devices, links, switches, routes)


def test_two_devices_of_one_name() -> None:
    with pytest.raises(UserError, match="t: the name gpu:0 stands for more than one device"):
        Topology("t", [gpu(0), gpu(0)], [])


def test_unknown_device() -> None:
    with pytest.raises(UserError, match="t: no device 'gpu:2'; the machine has gpu:0, gpu:1"):
        machine(2, TWO).route("gpu:0", "gpu:2")


def test_thousands_of_devices_take_no_time() -> None:
    count = 4000
    topology = machine(count, [link(f"gpu:{i}", "s") for i in range(count)], "s")
    assert len(topology.route("gpu:0", f"gpu:{count - 1}")) == 2

"""Routes in a graph whose vertices and links are all at hand: searched for, one by one.

Machines of many nodes ask for few of them, see `flexlegion.machine.node_routes`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise

from flexlegion.base.errors import UserError
from flexlegion.machine.parts import Hop, Link


class GraphRoutes:
    """The routes between memories that links and switches join.

    A route is the one that is stated, or else the one with the fewest hops; among these the highest
    bottleneck bandwidth; among these the vertices that come first by name (numbers in names
    counting as numbers). Such a route passes through switches only: devices forward data where a
    stated route says so. The way back is the way there.

    Parameters
    ----------
    memories
        Where routes begin and end. All other ends of links are switches.
    links
        Between these.
    routes
        Stated routes: the vertices that each one passes. The way back is stated with it, unless it
        is stated itself.
    """

    def __init__(
        self,
        memories: Sequence[str],
        links: Iterable[Link],
        routes: Iterable[Sequence[str]] = (),
    ) -> None:
        self._memories = {name: i for i, name in enumerate(sorted(memories, key=natural))}
        self._neighbours: dict[str, dict[str, Hop]] = {name: {} for name in memories}
        for link in links:
            self._neighbours.setdefault(link.source, {})[link.destination] = Hop(link)
            self._neighbours.setdefault(link.destination, {})[link.source] = Hop(link, True)
        self._last_hops: tuple[str, dict[str, list[Hop]]] = ("", {})
        self._routes: dict[tuple[str, str], tuple[Hop, ...]] = {}
        stated = list(routes)
        for route in stated:
            self._routes[route[0], route[-1]] = self._hops(route)
        for route in stated:
            self._routes.setdefault((route[-1], route[0]), self._hops(route[::-1]))
        self._stated = list(self._routes)

    def route(self, a: str, b: str) -> tuple[Hop, ...]:
        """The hops from one memory to another one, or to a switch."""
        if (a, b) in self._routes:
            return self._routes[a, b]
        if b not in self._memories or self._memories[a] < self._memories[b]:
            route = self._routes[a, b] = self._shortest(a, b)
            return route
        if (b, a) not in self._routes:
            self._routes[b, a] = self._shortest(b, a)
        return tuple(
            self._neighbours[hop.destination][hop.source] for hop in reversed(self._routes[b, a])
        )

    def check_reachable(self, where: str) -> None:
        """Raise `UserError` unless there is a route between all memories.

        Sets of memories are bits of integers, so that hundreds of them take no time.
        """
        bit = {memory: 1 << i for i, memory in enumerate(self._memories)}
        reach = dict(bit)
        seen: set[str] = set()
        for start in self._neighbours:
            if start in bit or start in seen:
                continue
            seen.add(start)
            queue, members = deque([start]), set()
            while queue:
                for neighbour in self._neighbours[queue.popleft()]:
                    if neighbour in bit:
                        members.add(neighbour)
                    elif neighbour not in seen:
                        seen.add(neighbour)
                        queue.append(neighbour)
            together = sum(bit[memory] for memory in members)
            for memory in members:
                reach[memory] |= together
        for memory in bit:
            for neighbour in self._neighbours[memory]:
                reach[memory] |= bit.get(neighbour, 0)
        for a, b in self._stated:
            reach[a] |= bit[b]
        everything = (1 << len(bit)) - 1
        for memory in bit:
            if reach[memory] != everything:
                other = next(its for its in bit if not reach[memory] & bit[its])
                raise unreachable(where, memory, other)

    def reaches(self, memory: str, switch: str) -> bool:
        """Whether there is a route from a memory to a switch."""
        return switch in self._last_hops_from(memory)

    def _hops(self, vertices: Sequence[str]) -> tuple[Hop, ...]:
        return tuple(self._neighbours[a][b] for a, b in pairwise(vertices))

    def _last_hops_from(self, source: str) -> dict[str, list[Hop]]:
        """For each vertex, the last hops of all ways with the fewest hops from `source`.

        A breadth-first search. That of the last source is kept: the routes from one memory to all
        others take one search.
        """
        if self._last_hops[0] == source:
            return self._last_hops[1]
        distance = {source: 0}
        last: dict[str, list[Hop]] = {source: []}
        queue = deque([source])
        while queue:
            vertex = queue.popleft()
            if vertex != source and vertex in self._memories:
                continue
            beyond = distance[vertex] + 1
            for neighbour, hop in self._neighbours[vertex].items():
                if neighbour not in distance:
                    distance[neighbour] = beyond
                    last[neighbour] = [hop]
                    queue.append(neighbour)
                elif distance[neighbour] == beyond:
                    last[neighbour].append(hop)
        self._last_hops = source, last
        return last

    def _shortest(self, source: str, destination: str) -> tuple[Hop, ...]:
        """Fewest hops, then highest bottleneck bandwidth, then first by name.

        All ways with the fewest hops are followed backwards, level by level, which tells how wide
        the rest of the way can be from each vertex; then the best one forwards.
        """
        last = self._last_hops_from(source)
        path: list[Hop] = []
        vertex = destination
        while vertex != source and len(last[vertex]) == 1:
            path.append(last[vertex][0])
            vertex = path[-1].source
        if vertex == source:
            return tuple(path[::-1])  # there is but one
        width: dict[str, float] = {destination: float("inf")}
        onward: dict[str, list[Hop]] = {}
        level = [destination]
        while level != [source]:
            nearer: dict[str, float] = {}
            for vertex in level:
                for hop in last[vertex]:
                    onward.setdefault(hop.source, []).append(hop)
                    wide = min(width[vertex], hop.link.bandwidth)
                    nearer[hop.source] = max(wide, nearer.get(hop.source, 0.0))
            width |= nearer
            level = list(nearer)
        path, vertex = [], source
        while vertex != destination:
            wide_enough = [
                hop
                for hop in onward[vertex]
                if min(hop.link.bandwidth, width[hop.destination]) >= width[source]
            ]
            if len(wide_enough) > 1:
                wide_enough.sort(key=lambda hop: natural(hop.destination))
            path.append(wide_enough[0])
            vertex = path[-1].destination
        return tuple(path)


def unreachable(where: str, a: str, b: str) -> UserError:
    """Says that there is no route from one vertex to another."""
    return UserError(
        f"{where}: no route from {a} to {b}; connect them by a link, by switches that are linked, "
        "or by a stated route, for devices do not forward the data of others by themselves"
    )


def natural(name: str) -> tuple[tuple[str, int], ...]:
    """A sorting key by which ``gpu:2`` comes before ``gpu:10``."""
    parts = re.findall(r"(\D*)(\d*)", name)
    return tuple((text, int(number or -1)) for text, number in parts)


def check_graph(
    memories: Iterable[str],
    switches: Iterable[str],
    links: Sequence[tuple[str, str]],
    routes: Sequence[Sequence[str]],
    where: str,
) -> None:
    """Raise `UserError` unless links and stated routes fit their vertices.

    Used for a whole machine, and for the node that a machine file describes.
    """
    memories = list(memories)
    vertices = [*memories, *switches]
    check_unique(vertices, "memory or switch", where)
    known = set(vertices)
    own = set(memories)
    linked: set[tuple[str, str]] = set()
    for a, b in links:
        place = f"{where}: link {a} - {b}"
        _known([a, b], known, vertices, place)
        if a == b:
            raise UserError(f"{place}: leads back to where it starts; name two different ends")
        if (a, b) in linked:
            raise UserError(f"{place}: occurs twice; give one link, with the sum of the bandwidths")
        linked |= {(a, b), (b, a)}
    ends = set()
    for route in routes:
        place = f"{where}: route {' - '.join(route[:8])}{' ...' * (len(route) > 8)}"
        if len(route) < 2:
            raise UserError(f"{place}: has to name at least the two devices that it connects")
        _known(route, known, vertices, place)
        if len(set(route)) < len(route):
            again = next(v for i, v in enumerate(route) if v in route[:i])
            raise UserError(
                f"{place}: is cyclic, for it passes {again} twice; name each vertex once"
            )
        for end in (route[0], route[-1]):
            if end not in own:
                raise UserError(
                    f"{place}: ends at the switch {end}; a route leads from a device to a device"
                )
        for a, b in pairwise(route):
            if (a, b) not in linked:
                raise UserError(
                    f"{place}: is broken, for no link connects {a} and {b}; add the link, or "
                    "name the vertices between them"
                )
        if (route[0], route[-1]) in ends:
            raise UserError(
                f"{place}: is the second route from {route[0]} to {route[-1]}; keep one"
            )
        ends.add((route[0], route[-1]))


def _known(names: Iterable[str], known: set[str], vertices: Sequence[str], place: str) -> None:
    for name in names:
        if name not in known:
            more = f" and {len(vertices) - 12} more" if len(vertices) > 12 else ""
            raise UserError(
                f"{place}: unknown endpoint '{name}'; the choices are "
                f"{', '.join(vertices[:12])}{more}"
            )


def check_unique(names: Sequence[str], what: str, where: str) -> None:
    """Raise `UserError` if a name occurs twice."""
    seen = set()
    for name in names:
        if name in seen:
            raise UserError(f"{where}: the name {name} stands for more than one {what}; rename one")
        seen.add(name)

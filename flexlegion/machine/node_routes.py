"""Routes by structure: nodes are alike, so the routes between two of them are those of any two.

What is alike is told by `Relation`: two nodes' kinds, the smallest group (such as those that share
a leaf switch) that both belong to, and which comes first. Of each relation that is asked for, the
routes are searched for once, in the graph of two such nodes and what joins them
(`flexlegion.machine.routes`). A route is kept as steps: a link of a machine file stands for one
link in each node or group, and a step says whether that of the node where the route begins is meant
or that of the node where it ends. So nothing of the size of devices squared is computed or kept.

No third node need be passed. Whoever comes into one from a switch leaves it to another switch; as
nodes of a group are linked to the same switches, the node where the route ends could be entered
there as well, which is shorter.

In a torus (`Torus`), nodes forward data, and the way between two of them is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from flexlegion.machine.parts import Hop, Link
from flexlegion.machine.routes import GraphRoutes, unreachable


@dataclass(frozen=True)
class Node:
    """What routes need to know of a node.

    Parameters
    ----------
    kind
        A number; nodes of a kind have the same memories and links, in the same order, and stand
        side by side.
    memories
        Their names on the whole machine.
    routes
        Stated ones.
    """

    kind: int
    memories: Sequence[str]
    routes: Sequence[Sequence[str]] = ()


@dataclass(frozen=True, eq=False)
class Wire:
    """A link of a machine file.

    Parameters
    ----------
    links
        Those that it stands for, in the order of nodes.
    nodes
        The nodes that have it.
    span
        How many of them, one after the other, share one.
    """

    links: Sequence[Link]
    nodes: range
    span: int

    def number(self, node: int) -> int | None:
        """Which of the links is that of a node; None: it has none."""
        if node not in self.nodes:
            return None
        return (node - self.nodes.start) // self.span


class Torus:
    """Nodes at the points of a grid, each linked to the next in every dimension.

    A way goes along the first dimension, then along the second one, and so on (dimension order), in
    each dimension the shorter way round; of two, that which counts upwards. So the way back may be
    another one.

    Parameters
    ----------
    switch
        The vertex of every node that it joins, by node.
    shape
        Extents.
    links
        By dimension, for each node the link to the next one; None: there is none.
    """

    def __init__(
        self,
        switch: Sequence[str],
        shape: Sequence[int],
        links: Sequence[Sequence[Link | None]],
    ) -> None:
        self.switch = switch
        self.shape = tuple(shape)
        self.links = links
        self.strides = tuple(prod(shape[d + 1 :]) for d in range(len(shape)))
        # For each dimension, from and to each coordinate: how many steps upwards, or downwards.
        self.turns = [self._turns(d) for d in range(len(shape))]

    def _turns(self, dimension: int) -> list[list[int]]:
        extent = self.shape[dimension]
        last = (extent - 1) * self.strides[dimension]
        wraps = self.links[dimension][last] is not None

        def steps(a: int, b: int) -> int:
            up = (b - a) % extent
            if not wraps:
                return b - a
            return up if up <= extent - up else up - extent

        return [[steps(a, b) for b in range(extent)] for a in range(extent)]

    @property
    def longest(self) -> int:
        """How many links a way has at most."""
        return sum(max(abs(steps) for row in turns for steps in row) for turns in self.turns)

    def way(self, source: int, destination: int) -> Iterator[Hop]:
        """The hops from one node's switch to another's."""
        at = source
        for extent, stride, turns, links in zip(
            self.shape, self.strides, self.turns, self.links, strict=True
        ):
            x, end = at // stride % extent, destination // stride % extent
            steps = turns[x][end]
            for _ in range(abs(steps)):
                beyond = (x + (1 if steps > 0 else -1)) % extent
                lower = x if steps > 0 else beyond
                link = links[at + (lower - x) * stride]
                assert link is not None
                yield Hop(link, steps < 0)
                at += (beyond - x) * stride
                x = beyond


class Relation(NamedTuple):
    """What tells the routes between two nodes from those between two others.

    `near` is 0 for a node and itself, else 1 and more for the size of the smallest group that both
    belong to, and that many more where the second node comes first.
    """

    kind: int
    other: int
    near: int


class Step(NamedTuple):
    """A hop of all routes of a relation.

    `there`: over the link of the node that the route leads to, not of the one where it begins. No
    wire: the torus's way.
    """

    wire: Wire | None
    there: bool = False
    backward: bool = False


@dataclass(frozen=True)
class _Pair:
    """Two nodes of a relation, the graph of these and what joins them, and whose its links are."""

    source: int
    destination: int
    graph: GraphRoutes
    owners: Mapping[str, tuple[Wire, bool]]

    def told(self, hops: Sequence[Hop]) -> tuple[Step, ...]:
        """A route as steps."""
        return tuple(Step(*self.owners[hop.link.name], hop.backward) for hop in hops)


class NodeRoutes:
    """The routes of a machine.

    Parameters
    ----------
    nodes
        In the order of their numbers.
    wires
        All links.
    spans
        Sizes of groups, ascending; each divides the next. All nodes are a group, too.
    torus
        What joins them, if there is one.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        wires: Sequence[Wire],
        spans: Sequence[int] = (),
        torus: Torus | None = None,
    ) -> None:
        self.nodes = nodes
        self.wires = wires
        self.spans = tuple(spans)
        self.torus = torus
        self.place = {
            memory: (number, place)
            for number, node in enumerate(nodes)
            for place, memory in enumerate(node.memories)
        }
        self._steps: dict[Relation, dict[tuple[int, int], tuple[Step, ...]]] = {}
        self._pairs: dict[Relation, _Pair] = {}

    @classmethod
    def of_graph(
        cls, memories: Sequence[str], links: Sequence[Link], routes: Sequence[Sequence[str]]
    ) -> NodeRoutes:
        """Of a machine without a structure that is known: as if it were one node."""
        return cls([Node(0, memories, routes)], [Wire([link], range(1), 1) for link in links])

    def route(self, a: str, b: str) -> tuple[Hop, ...]:
        """The hops from one memory to another one."""
        (source, place), (destination, its) = self.place[a], self.place[b]
        hops: list[Hop] = []
        for step in self.steps(source, destination, place, its):
            if step.wire is None:
                assert self.torus is not None
                hops += self.torus.way(source, destination)
            else:
                number = step.wire.number(destination if step.there else source)
                assert number is not None
                hops.append(Hop(step.wire.links[number], step.backward))
        return tuple(hops)

    @property
    def nearnesses(self) -> int:
        """How many values of `Relation.near` there are."""
        return 3 + 2 * len(self.spans)

    def relation(self, source: int, destination: int) -> Relation:
        """Of two nodes."""
        near = 0
        if source != destination:
            groups = (i for i, s in enumerate(self.spans) if source // s == destination // s)
            near = 1 + next(groups, len(self.spans))
            if source > destination:
                near += 1 + len(self.spans)
        return Relation(self.nodes[source].kind, self.nodes[destination].kind, near)

    def relations(self) -> Mapping[Relation, tuple[int, int]]:
        """All that there are, and two nodes of each."""
        count = len(self.nodes)
        kinds: dict[int, tuple[int, int]] = {}  # the first and the last node of each
        for number, node in enumerate(self.nodes):
            kinds[node.kind] = kinds.get(node.kind, (number, number))[0], number
        found: dict[Relation, tuple[int, int]] = {}
        for a in range(count):
            found.setdefault(self.relation(a, a), (a, a))
            inside = range(a, a + 1)
            for span in (*self.spans, count):
                group = range(a // span * span, min(count, (a // span + 1) * span))
                # Of those in this group and in no smaller one, the first of each kind.
                for part in (range(group.start, inside.start), range(inside.stop, group.stop)):
                    for first, last in kinds.values():
                        others = range(max(part.start, first), min(part.stop, last + 1))
                        if others:
                            found.setdefault(self.relation(a, others[0]), (a, others[0]))
                inside = group
        return found

    def steps(self, source: int, destination: int, place: int, its: int) -> tuple[Step, ...]:
        """Of the route from a node's memory of that place to another's; none within a memory."""
        if source == destination and place == its:
            return ()
        relation = self.relation(source, destination)
        known = self._steps.setdefault(relation, {})
        if (place, its) not in known:
            pair = self._pair(relation, source, destination)
            start = self.nodes[pair.source].memories[place]
            end = self.nodes[pair.destination].memories[its]
            if self.torus is None or source == destination:
                known[place, its] = pair.told(pair.graph.route(start, end))
            else:
                out = pair.graph.route(start, self.torus.switch[pair.source])
                back = pair.graph.route(end, self.torus.switch[pair.destination])
                into = tuple(~hop for hop in reversed(back))
                known[place, its] = *pair.told(out), Step(None), *pair.told(into)
        return known[place, its]

    def check_reachable(self, where: str) -> None:
        """Raise `UserError` unless there is a route between all memories."""
        for relation, (a, b) in self.relations().items():
            graph = self._pair(relation, a, b).graph
            if self.torus is None or a == b:
                graph.check_reachable(where)
            if self.torus is not None:
                for memory in self.nodes[a].memories:
                    if not graph.reaches(memory, self.torus.switch[a]):
                        raise unreachable(where, memory, self.torus.switch[a])

    def _pair(self, relation: Relation, a: int, b: int) -> _Pair:
        """Of that relation: these, unless two nodes are known already."""
        if relation not in self._pairs:
            owners: dict[str, tuple[Wire, bool]] = {}
            links: dict[str, Link] = {}
            for wire in self.wires:
                for node, there in ((b, True), (a, False)):  # that of `a`, if both share it
                    if (number := wire.number(node)) is not None:
                        link = wire.links[number]
                        links[link.name] = link
                        owners[link.name] = wire, there
            both = dict.fromkeys((a, b))
            graph = GraphRoutes(
                [memory for node in both for memory in self.nodes[node].memories],
                links.values(),
                [route for node in both for route in self.nodes[node].routes],
            )
            self._pairs[relation] = _Pair(a, b, graph, owners)
        return self._pairs[relation]

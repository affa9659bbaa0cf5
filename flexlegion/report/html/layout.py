"""Places for the nodes of a layered graph (Sugiyama's method, in its simplest form).

A node's layer is the longest path that leads to it. An edge over several layers gets a point in
each of those between, so that it bends around nodes. Within layers, nodes move to the mean of their
neighbours' places, down and up a few times, which leaves few crossings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

SWEEPS = 6

Point = tuple[float, float]


@dataclass(frozen=True)
class Layout:
    """Where things are, in units of the caller's: x of centres, y of layers' tops.

    Parameters
    ----------
    nodes
        A place for each node.
    edges
        For each edge, the points that it passes: its ends are nodes' centres.
    width, layers
        Of all, and how many layers there are.
    """

    nodes: list[tuple[float, int]]
    edges: list[list[tuple[float, int]]]
    width: float
    layers: int


def layered(
    nodes: int,
    edges: Sequence[tuple[int, int]],
    *,
    node_width: float,
    gap: float,
    bend_width: float,
) -> Layout:
    """Place nodes in layers.

    Parameters
    ----------
    nodes
        How many there are.
    edges
        From a node of a lower number to one of a higher.
    node_width, gap, bend_width
        Of a node; between things of a layer; of an edge that passes a layer.
    """
    rank = _ranks(nodes, edges)
    chains: list[list[int]] = []  # of each edge: its nodes and bends
    layer_of = list(rank)
    below: list[list[int]] = [[] for _ in range(nodes)]
    above: list[list[int]] = [[] for _ in range(nodes)]
    for a, b in edges:
        chain = [a]
        for passed in range(rank[a] + 1, rank[b]):
            layer_of.append(passed)
            below.append([])
            above.append([])
            chain.append(len(layer_of) - 1)
        chain.append(b)
        for one, other in pairwise(chain):
            below[one].append(other)
            above[other].append(one)
        chains.append(chain)
    layers: list[list[int]] = [[] for _ in range(max(rank, default=-1) + 1)]
    for thing, its in enumerate(layer_of):
        layers[its].append(thing)
    width = [node_width if thing < nodes else bend_width for thing in range(len(layer_of))]
    x = [0.0] * len(layer_of)
    for layer in layers:
        _pack(layer, x, width, gap)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else layers[::-1]:
            near = above if down else below
            wanted = {t: fmean(x[n] for n in near[t]) if near[t] else x[t] for t in layer}
            layer.sort(key=lambda thing: wanted[thing])
            for thing in layer:
                x[thing] = wanted[thing]
            _pack(layer, x, width, gap)
    left = min((x[t] - width[t] / 2 for t in range(len(x))), default=0.0)
    right = max((x[t] + width[t] / 2 for t in range(len(x))), default=0.0)
    places = [(x[t] - left, layer_of[t]) for t in range(len(x))]
    return Layout(
        places[:nodes],
        [[places[thing] for thing in chain] for chain in chains],
        right - left,
        len(layers),
    )


def _ranks(nodes: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The longest path to each node; what nothing leads to is just above what it leads to."""
    rank = [0] * nodes
    for a, b in sorted(edges, key=lambda edge: edge[1]):  # all that lead to a node come before it
        rank[b] = max(rank[b], rank[a] + 1)
    first = [False] * nodes
    nearest: dict[int, int] = {}
    for a, b in edges:
        first[b] = True
        nearest[a] = min(nearest.get(a, rank[b]), rank[b])
    for node in range(nodes):
        if not first[node] and node in nearest:
            rank[node] = nearest[node] - 1
    return rank


def _pack(layer: Sequence[int], x: list[float], width: Sequence[float], gap: float) -> None:
    """Move the things of a layer apart, in their order, and in the mean nowhere."""
    wanted = [x[thing] for thing in layer]
    end = float("-inf")
    for thing in layer:
        x[thing] = max(x[thing], end + gap + width[thing] / 2)
        end = x[thing] + width[thing] / 2
    shift = fmean(wanted) - fmean(x[thing] for thing in layer) if layer else 0.0
    for thing in layer:
        x[thing] += shift

"""Folding a graph for a picture: what repeats becomes one node.

Three steps: what a layer brings along (``conv1.bn`` of ``conv1``) belongs to it; layers that differ
in a number of their names alone (unrolled steps, repeated blocks) and compute the same are one
node; if that still leaves many, those with a common beginning of their names are one, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from flexlegion.console.text import common_name
from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.operator_type import DimKind
from flexlegion.graph.tensor import Tensor
from flexlegion.strategy.configuration import ParallelConfig

Configs = Mapping[str, ParallelConfig]  # by operator, with a degree for each dimension

MANY = 40  # nodes, more than which are not seen at a glance

# What a configuration splits, and the letters by which SOAP calls the kinds of dimensions.
LETTERS = {
    DimKind.SAMPLE: "S",
    DimKind.ATTRIBUTE: "A",
    DimKind.PARAMETER: "P",
    DimKind.REDUCTION: "R",
}
WHOLE = "whole"

DEEPEST = 20  # parts of a name, beyond which it is not looked at

Node = dict[str, list[Operator]]  # what is one node: by name, each part's operators


@dataclass(frozen=True)
class Group:
    """A node of the picture.

    Parameters
    ----------
    name
        For people; ``*`` stands for what differs.
    repeats
        How many layers it stands for.
    operators
        All of theirs, in topological order; none for the inputs of the network.
    inputs
        Tensors that the user's data fill, where it stands for these.
    """

    name: str
    repeats: int
    operators: tuple[Operator, ...] = ()
    inputs: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Folded:
    """Groups in the order of their first operators, and the edges between them (by number)."""

    groups: tuple[Group, ...]
    edges: tuple[tuple[int, int], ...]


def levels(graph: Graph) -> list[Folded]:
    """The graph by layers, and before that, if these are many, by blocks."""
    layers = _layers(graph)
    by_layer = _folded(graph, _alike(layers))
    if len(by_layer.groups) <= MANY:
        return [by_layer]
    blocks = _blocks(layers)
    if len(blocks) >= len(by_layer.groups):
        return [by_layer]
    # Layers of blocks that differ are not one node, however alike they are themselves.
    block_of = {op: i for i, block in enumerate(blocks) for its in block.values() for op in its}
    within: list[dict[str, list[Operator]]] = [{} for _ in blocks]
    for name, its in layers.items():
        within[block_of[its[0]]][name] = its
    return [_folded(graph, blocks), _folded(graph, [n for part in within for n in _alike(part)])]


def split_kind(operator: Operator, degrees: Sequence[int]) -> str:
    """Which kinds of dimensions are split: ``S``, ``A``, ``P``, several as ``SP``, or `WHOLE`.

    ``R`` is a reduction, as of rows of a weight in tensor parallelism, and ``XR`` one with others.
    """
    kinds = {
        LETTERS[dim.kind]
        for dim, degree in zip(operator.dims, degrees, strict=True)
        if degree > 1 and dim.kind in LETTERS
    }
    if "R" in kinds:
        return "R" if len(kinds) == 1 else "XR"
    return "".join(letter for letter in "SAP" if letter in kinds) or WHOLE


def kinds_of(group: Group, strategy: Configs) -> dict[str, int]:
    """How many operators of a group are split in each way, the most frequent first."""
    counts: dict[str, int] = {}
    for op in group.operators:
        kind = split_kind(op, strategy[op.name].degrees)
        counts[kind] = counts.get(kind, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def _layers(graph: Graph) -> dict[str, list[Operator]]:
    """The operators of each layer, by its name."""
    names = {op.name for op in graph.operators}
    layers: dict[str, list[Operator]] = {}
    for op in graph.operators:
        layers.setdefault(_owner(op.name, names), []).append(op)
    return layers


def _owner(name: str, names: set[str]) -> str:
    """The layer that an operator belongs to: the shortest beginning of its name that is one."""
    parts = name.split(".")
    for end in range(1, min(len(parts), DEEPEST)):
        owner = ".".join(parts[:end])
        if owner in names:
            return owner
    return name


def _alike(parts: dict[str, list[Operator]]) -> list[Node]:
    """Parts of the network, those that repeat in one node."""
    nodes: dict[object, Node] = {}
    for name, its in parts.items():
        computes = tuple(
            (op.kind.type, tuple(weight.shape for weight in op.weights), op.output.shape)
            for op in its
        )
        nodes.setdefault((_without_numbers(name), computes), {})[name] = its
    return list(nodes.values())


def _without_numbers(name: str) -> str:
    """A name without what numbers steps (``lstm1.7``) or else blocks (``block7.norm1``)."""
    parts = name.split(".")
    if any(part.isdecimal() for part in parts):
        return ".".join("*" if part.isdecimal() else part for part in parts)
    *blocks, last = parts
    return ".".join([*(re.sub(r"[0-9]+$", "*", block) for block in blocks), last])


def _blocks(layers: dict[str, list[Operator]]) -> list[Node]:
    """Layers joined by the longest beginnings of their names that leave few nodes."""
    paths = {name: name.split(".") for name in layers}
    nodes: list[Node] = []
    for depth in range(min(max(map(len, paths.values())), DEEPEST) - 1, 0, -1):
        blocks: dict[str, list[Operator]] = {}
        for name, its in layers.items():
            blocks.setdefault(".".join(paths[name][:depth]), []).extend(its)
        nodes = _alike(blocks)
        if len(nodes) <= MANY:
            break
    return nodes or _alike(layers)


def _folded(graph: Graph, nodes: list[Node]) -> Folded:
    number = {op: i for i, op in enumerate(graph.operators)}
    groups = [_inputs(list(its)) for _, its in groupby(graph.inputs, _kind_of_input)]
    for parts in nodes:
        operators = sorted((op for its in parts.values() for op in its), key=lambda op: number[op])
        groups.append(Group(common_name(list(parts)), len(parts), tuple(operators)))
    groups.sort(key=lambda group: number[group.operators[0]] if group.operators else -1)
    node_of: dict[Operator | Tensor, int] = {}
    for i, group in enumerate(groups):
        node_of |= dict.fromkeys(group.operators, i) | dict.fromkeys(group.inputs, i)
    edges: dict[tuple[int, int], None] = {}
    for op in graph.operators:
        for tensor in op.inputs:
            source = node_of.get(tensor.producer or tensor)
            # What leads back, as from a step to the next one, is within what repeats.
            if source is not None and source < node_of[op]:
                edges[source, node_of[op]] = None
    return Folded(tuple(groups), tuple(edges))


def _kind_of_input(tensor: Tensor) -> object:
    return (_without_numbers(tensor.name), tensor.shape)


def _inputs(tensors: list[Tensor]) -> Group:
    return Group(common_name([t.name for t in tensors]), len(tensors), (), tuple(tensors))

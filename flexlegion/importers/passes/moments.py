"""Variances and standard deviations, as means of squares."""

from __future__ import annotations

from math import prod
from typing import Any

from flexlegion.importers.program import SAMPLES, Node, Program, Type


def decompose_variances(program: Program) -> None:
    """The mean of the squared distances from the mean, corrected, and its root."""
    nodes: list[Node] = []
    for node in program.nodes:
        if node.op in ("var", "std") and node.type is not None:
            _decompose(node, nodes)
        nodes.append(node)
    program.nodes = nodes


def _decompose(node: Node, nodes: list[Node]) -> None:
    """Add the nodes that a variance is computed by, and make it the last step of them."""
    x: Node = node["self"]
    rank, dims = len(x.shape), node.get("dim")
    whole = dims is None or dims == []
    given = range(rank) if whole else dims if isinstance(dims, list | tuple) else [dims]
    reduced = sorted(d % rank for d in given)
    count = prod(x.shape[d] for d in reduced)
    correction = node.get("correction", node.get("unbiased", 1))
    left = count - float(1 if correction is None else correction)
    if count % SAMPLES == 0 or left <= 0:
        return  # it joins samples, or divides by nothing: it is refused by its name
    kept = tuple(1 if d in reduced else e for d, e in enumerate(x.shape))
    dtype = x.type.dtype

    def add(op: str, args: dict[str, Any], shape: tuple[int, ...]) -> Node:
        nodes.append(Node(op, args, Type(shape, dtype), node.path, node.layer))
        return nodes[-1]

    mean = add("mean", {"self": x, "dim": reduced, "keepdim": True}, kept)
    distance = add("sub", {"self": x, "other": mean}, x.shape)
    squares = add("square", {"self": distance}, x.shape)
    keeps = bool(node.get("keepdim", False))
    total = add("mean", {"self": squares, "dim": reduced, "keepdim": keeps}, node.shape)
    factor = {"self": total, "other": count / left}
    if node.op == "var":
        node.op, node.args = "mul", factor
    else:
        variance = add("mul", factor, node.shape)
        node.op, node.args = "sqrt", {"self": variance}

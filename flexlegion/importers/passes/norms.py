"""Normalisation as models write it, and the lengths of vectors."""

from __future__ import annotations

import math

from flexlegion.importers.passes.matching import only, operands, scalar
from flexlegion.importers.program import Node, Program


def recognise_rms_norm(program: Program) -> None:
    """One node for x * rsqrt(mean(x^2) + epsilon), times a weight if that is a parameter."""
    users = program.users()
    mapping: dict[Node, Node] = {}
    for node in program.nodes:
        found = _normalised(node)
        if found is None:
            continue
        x, epsilon = found
        normalised = node
        weight = None
        reader = only(users[node])
        if reader is not None and reader.op == "mul":
            other = next((o for o in operands(reader) if o is not node), None)
            if other is not None and other.op == "parameter" and other.shape == x.shape[-1:]:
                weight, normalised = other, reader
        args = {"input": x, "normalized_shape": [x.shape[-1]], "weight": weight, "eps": epsilon}
        normalised.op, normalised.args = "rms_norm", args
    program.replace(mapping)


def _normalised(node: Node) -> tuple[Node, float] | None:
    """x and epsilon, if a node is x * rsqrt(mean(x * x) + epsilon)."""
    if node.op != "mul" or len(operands(node)) != 2:
        return None
    for x, root in (operands(node), operands(node)[::-1]):
        if root.op == "rsqrt":
            inner = root["self"]
        elif root.op == "reciprocal" and root["self"].op == "sqrt":
            inner = root["self"]["self"]
        else:
            continue
        if inner.op != "add" or (epsilon := scalar(inner["other"])) is None:
            continue
        mean = inner["self"]
        last = [len(x.shape) - 1]
        if mean.op != "mean" or not mean.get("keepdim") or mean["dim"] not in ([-1], last):
            continue
        if _is_square(mean["self"], x):
            return x, epsilon
    return None


def _is_square(node: Node, x: Node) -> bool:
    if node.op == "pow":
        return node["self"] is x and scalar(node["exponent"]) == 2
    if node.op == "mul":
        return node["self"] is x and node["other"] is x
    return node.op == "square" and node["self"] is x


def decompose_lengths(program: Program) -> None:
    """The root of the sum of squares, in three nodes.

    Where something is divided by it, but by no less than epsilon, as by PyTorch's `normalize`, it
    is multiplied by ``rsqrt(maximum(sum, epsilon^2))``, whose slope is finite at zero, too.
    """
    nodes: list[Node] = []
    for node in program.nodes:
        if node.op in _LENGTHS and scalar(node.get("ord", node.get("p"))) in (None, 2.0):
            squares = Node("square", {"self": node["self"]}, node["self"].type, node.path)
            args = {"self": squares, "dim": node["dim"], "keepdim": node.get("keepdim", False)}
            total = Node("sum", args, node.type, node.path)
            nodes += [squares, total]
            node.op, node.args = "length", {"self": total}
        elif node.op in _LENGTHS:
            nodes += _other_norm(node)
        nodes.append(node)
    program.nodes = nodes
    for node in program.nodes:
        found = _divided(node)
        if found is not None:
            x, total, epsilon = found
            node.op = "l2_normalize"
            node.args = {"self": x, "sum": total, "epsilon": epsilon}


def _other_norm(node: Node) -> list[Node]:
    """The nodes before a norm of another order, which becomes the last step of them."""
    power = scalar(node.get("ord", node.get("p")))
    if power is None or not (power >= 1 or power == -math.inf):
        return []
    x, kept = node["self"], {"dim": node["dim"], "keepdim": node.get("keepdim", False)}
    size = Node("abs", {"self": x}, x.type, node.path)
    if math.isinf(power):
        node.op, node.args = "amax" if power > 0 else "amin", {"self": size} | kept
        return [size]
    if power == 1:
        node.op, node.args = "sum", {"self": size} | kept
        return [size]
    powers = Node("pow", {"self": size, "exponent": power}, x.type, node.path)
    total = Node("sum", {"self": powers} | kept, node.type, node.path)
    node.op, node.args = "root", {"self": total, "power": power}
    return [size, powers, total]


def apply_computed_vectors(program: Program) -> None:
    """A normalisation's scale and shift that are computed: operations behind it."""
    nodes: list[Node] = []
    for node in program.nodes:
        nodes.append(node)
        names = [name for name in ("weight", "bias") if isinstance(node.get(name), Node)]
        if node.op not in _NORMS or all(node[name].op in _HELD for name in names):
            continue
        alone = Node(node.op, dict(node.args), node.type, node.path, node.layer)
        alone.args |= dict.fromkeys(names)
        nodes.insert(-1, alone)
        last = alone
        for name in names:
            vector = node[name]
            op = "mul" if name == "weight" else "add"
            step = {"self": last, "other": vector}
            if name == names[-1]:
                node.op, node.args = op, step
            else:
                last = Node(op, step, node.type, node.path, node.layer)
                nodes.insert(-1, last)
    program.nodes = nodes


_NORMS = ("layer_norm", "rms_norm")
_HELD = ("parameter", "buffer", "constant")
_LENGTHS = ("linalg_vector_norm", "norm", "frobenius_norm")


def _divided(node: Node) -> tuple[Node, Node, float] | None:
    """x, the sum of its squares, and epsilon, if a node is x / max(root of the sum, epsilon)."""
    if node.op != "div" or not isinstance(node["other"], Node):
        return None
    bound = node["other"]
    while bound.op in ("expand", "expand_as"):
        bound = bound["self"]
    if bound.op not in ("clamp_min", "clamp") or bound.get("max") is not None:
        return None
    root, epsilon = bound["self"], scalar(bound["min"])
    if epsilon is None or root.op not in ("sqrt", "length") or root["self"].op != "sum":
        return None
    total = root["self"]
    return (node["self"], total, epsilon) if total.get("keepdim") else None

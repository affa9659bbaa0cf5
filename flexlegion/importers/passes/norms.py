"""RMS normalisation as models write it: x * rsqrt(mean(x^2) + epsilon), times a weight."""

from __future__ import annotations

from flexlegion.importers.passes.matching import only, operands, scalar
from flexlegion.importers.program import Node, Program


def recognise_rms_norm(program: Program) -> None:
    """One node for the pattern, with the weight if it is a parameter."""
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

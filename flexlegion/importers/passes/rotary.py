"""Rotary position embeddings: x * cos + rotated(x) * sin, rotated(x) = [-x2, x1] of x's halves."""

from __future__ import annotations

from flexlegion.importers.passes.matching import operands
from flexlegion.importers.program import Node, Program


def recognise_rotary(program: Program) -> None:
    """One node for the pattern."""
    for node in program.nodes:
        if node.op != "add" or len(operands(node)) != 2 or len(node.shape) != 4:
            continue
        for plain, turned in (operands(node), operands(node)[::-1]):
            found = _rotated(plain, turned)
            if found is not None:
                x, cos, sin = found
                node.op, node.args = "rotary", {"x": x, "cos": cos, "sin": sin}
                break


def _rotated(plain: Node, turned: Node) -> tuple[Node, Node, Node] | None:
    if plain.op != "mul" or turned.op != "mul":
        return None
    if len(operands(plain)) != 2 or len(operands(turned)) != 2:
        return None
    for half, sin in (operands(turned), operands(turned)[::-1]):
        x = _turned(half)
        if x is not None and x in operands(plain):
            cos = next(o for o in operands(plain) if o is not x)
            return x, cos, sin
    return None


def _turned(node: Node) -> Node | None:
    """x, if a node is [-x2, x1]."""
    if node.op != "cat" or node["dim"] not in (-1, len(node.shape) - 1):
        return None
    if len(node["tensors"]) != 2 or node["tensors"][0].op != "neg":
        return None
    second, first = node["tensors"][0]["self"], node["tensors"][1]
    if (first.op, second.op) == ("getitem", "getitem"):
        halves = first["self"]
        both = halves.op in ("chunk", "split") and halves is second["self"]
        if both and (first["index"], second["index"]) == (0, 1) and len(halves.type) == 2:
            source: Node = halves["self"]
            return source
        return None
    if (first.op, second.op) != ("slice", "slice") or first["self"] is not second["self"]:
        return None
    x: Node = first["self"]
    width = x.shape[-1]
    last = (-1, len(x.shape) - 1)
    if first["dim"] not in last or second["dim"] not in last:
        return None
    starts = first["start"] or 0, second["start"]
    return x if starts == (0, width // 2) and first.shape == second.shape else None

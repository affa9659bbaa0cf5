"""Tables that look up a part of an input's tokens: whole numbers are not cut by operators here."""

from __future__ import annotations

from flexlegion.importers.program import Node, Program

_VIEWS = ("view", "reshape", "flatten", "squeeze", "unsqueeze", "_unsafe_view", "contiguous")


def mark_counts(program: Program) -> None:
    """Note which sums are of truth values: single precision holds these whole numbers exactly."""
    for node in program.nodes:
        if node.op == "cumsum" and not node.type.is_float:
            source = node["self"]
            while source.op in _CONVERSIONS and source.type.dtype != "bool":
                source = source["self"]
            node.args["counts"] = source.type.dtype == "bool"


_CONVERSIONS = ("to", "_to_copy", "type_as", "int", "long")


def look_up_parts(program: Program) -> None:
    """Let embeddings read the input (n, steps) itself, and say which of its steps they want."""
    for node in program.nodes:
        if node.op not in ("embedding", "embedding_bag"):
            continue
        tokens = node["indices"]
        while node.op == "embedding_bag" and tokens.op in _VIEWS:
            tokens = tokens["self"]
        part = _part(tokens)
        if part is not None:
            source, start, steps = part
            picked = tokens.op == "select" and node.op == "embedding"
            node.args |= {"indices": source, "start": start, "steps": steps, "picked": picked}


def _part(node: Node) -> tuple[Node, int, int] | None:
    """An input of tokens, and which of its steps a node is; None if it is anything else."""
    if node.op not in ("slice", "select", "narrow") or node["dim"] % len(node["self"].shape) != 1:
        return None
    source = node["self"]
    while source.op == "slice" and source.shape == source["self"].shape:
        source = source["self"]
    if source.op != "input" or len(source.shape) != 2 or source.type.is_float:
        return None
    extent = source.shape[1]
    if node.op == "select":
        return source, node["index"] % extent, 1
    if node.get("step", 1) != 1:
        return None
    start = node["start"] or 0
    start = max(start + extent, 0) if start < 0 else min(start, extent)
    return source, start, node.shape[1]

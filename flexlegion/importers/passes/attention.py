"""Attention as products: softmax(q k^T * scale + mask) v becomes one node."""

from __future__ import annotations

from typing import Any

from flexlegion.importers.passes.matching import only, operands, scalar
from flexlegion.importers.program import Node, Program


def recognise_attention(program: Program) -> None:
    """One node for the pattern, with what is dropped out and added to the scores."""
    users = program.users()
    for node in program.nodes:
        if node.op not in ("matmul", "bmm") or len(node.shape) != 4:
            continue
        found = _attention(node, users)
        if found is not None:
            node.op, node.args = "scaled_dot_product_attention", found


def _attention(node: Node, users: dict[Node, list[Node]]) -> dict[str, Any] | None:
    weights, value = _factors(node)
    dropped = 0.0
    if weights.op == "dropout":
        dropped, weights = weights["p"], weights["input"]
    if only(users[weights]) is None:
        return None
    if weights.op == "where":
        weights = _with_zeros(weights, users)
    if weights.op not in ("softmax", "_softmax"):
        return None
    if weights["dim"] not in (-1, 3):
        return None
    scores, mask, scale = weights["self"], None, 1.0
    if scores.op == "add" and len(operands(scores)) == 2 and scores.get("alpha", 1) == 1:
        scores, mask = operands(scores)
    if scores.op in ("mul", "div") and (factor := scalar(scores["other"])) is not None:
        scale, scores = factor if scores.op == "mul" else 1 / factor, scores["self"]
    if scores.op not in ("matmul", "bmm") or only(users[scores]) is None:
        return None
    query, keys = _factors(scores)
    if (keys.op == "transpose" and {keys["dim0"] % 4, keys["dim1"] % 4} == {2, 3}) or (
        keys.op == "permute" and [d % 4 for d in keys["dims"]] == [0, 1, 3, 2]
    ):
        key = keys["self"]
    else:
        return None
    if query.op == "mul" and (factor := scalar(query["other"])) is not None:
        scale, query = scale * factor, query["self"]
    return {
        "query": query,
        "key": key,
        "value": value,
        "attn_mask": mask,
        "dropout_p": dropped,
        "is_causal": False,
        "scale": scale,
    }


def _with_zeros(node: Node, users: dict[Node, list[Node]]) -> Node:
    """What `where` gives, with zeros for what is no number: of queries that attend to nothing.

    Attention gives them zeros as well. The node itself if it is another choice.
    """
    condition, made = node["condition"], node["other"]
    if not isinstance(made, Node) or not isinstance(condition, Node) or scalar(node["self"]) != 0:
        return node
    is_nan = condition.op == "ne" and condition["self"] is condition.get("other") is made
    alone = set(users[made]) == {condition, node} and only(users[condition]) is node
    return made if is_nan and alone else node


def _factors(node: Node) -> tuple[Node, Node]:
    return node["self"], node.get("other", node.get("mat2"))

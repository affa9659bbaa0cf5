"""Gates of mixtures of experts: the largest scores of a row, scattered among zeros."""

from __future__ import annotations

from flexlegion.importers.passes.matching import scalar
from flexlegion.importers.program import Node, Program, constant_of


def recognise_top_k(program: Program) -> None:
    """`top_k` for scatter(0, indices, values), where topk made both.

    The values may be divided by their sum, or their softmax be taken: that is the same as of the
    whole row's softmax.
    """
    nodes: list[Node] = []
    for node in program.nodes:
        nodes += _gates(node)
    program.nodes = nodes


def _gates(node: Node) -> list[Node]:
    """The node and what it needs in front, rewritten if it is the pattern."""
    if node.op != "scatter" or not _is_zero(node["self"]) or not _is_last(node, node["dim"]):
        return [node]
    source, index = node["src"], node["index"]
    if not isinstance(source, Node) or not isinstance(index, Node) or index.op != "getitem":
        return [node]
    topk = index["self"]
    if topk.op != "topk" or index["index"] != 1 or not topk["largest"]:
        return [node]
    x: Node = topk["self"]
    if not _is_last(x, topk["dim"]):
        return [node]
    before: list[Node] = []
    if _are_values(source, topk):
        node.op, node.args = "top_k", {"self": x, "k": topk["k"]}
        return [node]
    if source.op == "softmax" and _is_last(x, source["dim"]) and _are_values(source["self"], topk):
        x = Node("softmax", dict(source.args) | {"self": x}, node.type, node.path, node.layer)
        before.append(x)
    elif not _is_share(source, topk):
        return [node]
    kept = Node("top_k", {"self": x, "k": topk["k"]}, node.type, node.path, node.layer)
    type_ = type(node.type)((*node.shape[:-1], 1), node.type.dtype)
    total = Node("sum", {"self": kept, "dim": [-1], "keepdim": True}, type_, node.path, node.layer)
    node.op, node.args = "div", {"self": kept, "other": total}
    return [*before, kept, total, node]


def _is_zero(value: object) -> bool:
    array = constant_of(value)
    return array is not None and not array.any()


def _is_last(node: Node, dim: object) -> bool:
    return dim in (-1, len(node.shape) - 1)


def _are_values(node: object, topk: Node) -> bool:
    """Whether these are the values that topk found."""
    return (
        isinstance(node, Node)
        and node.op == "getitem"
        and node["self"] is topk
        and scalar(node["index"]) == 0
    )


def _is_share(node: Node, topk: Node) -> bool:
    """Whether these are topk's values over their sum."""
    if node.op != "div" or not _are_values(node["self"], topk):
        return False
    total = node["other"]
    if not isinstance(total, Node) or total.op != "sum" or not _are_values(total["self"], topk):
        return False
    return bool(total.get("keepdim")) and total["dim"] in ([-1], [len(node.shape) - 1])

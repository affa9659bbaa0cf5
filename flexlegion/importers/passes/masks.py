"""Masks: conditions that are constant, causal masks, and masks from inputs as what is added."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flexlegion.importers.program import Array, Node, Program, Type, constant_of

LOWEST = float(np.finfo(np.float32).min)


def simplify_masks(program: Program) -> None:
    """Drop conditions that always hold, and what adds nothing."""
    mapping: dict[Node, Node] = {}
    for node in program.nodes:
        node.replace_inputs(mapping)
        result = _simplified(node)
        if isinstance(result, Node) and result.shape == node.shape:
            mapping[node] = result
        elif isinstance(result, Node):
            node.op, node.args = "expand", {"self": result}
    program.replace(mapping)


def _simplified(node: Node) -> Any:
    """What a node comes to, where its mask is constant."""
    if node.op == "gather":  # whatever the places are, where all elements are the same
        array = constant_of(node["self"])
        if array is not None and array.size and (array == array.reshape(-1)[0]).all():
            node.op, node.args = "constant", {}
            node.value = np.full((1,) * len(node.shape), array.reshape(-1)[0], array.dtype)
        return None
    if node.op in ("__and__", "logical_and", "bitwise_and") and node.type.dtype == "bool":
        a, b = node["self"], node["other"]
        return b if _all(a, True) else a if _all(b, True) else None
    if node.op in ("__or__", "logical_or", "bitwise_or") and node.type.dtype == "bool":
        a, b = node["self"], node["other"]
        return b if _all(a, False) else a if _all(b, False) else None
    if node.op == "where":
        condition, yes, no = node["condition"], node["self"], node["other"]
        return yes if _all(condition, True) else no if _all(condition, False) else None
    if node.op == "masked_fill" and _all(node["mask"], False):
        return node["self"]
    if node.op == "add" and _all(node["other"], 0):
        return node["self"]
    rounds = node.get("rounding_mode") is not None
    if node.op in ("mul", "div") and not rounds and _all(node["other"], 1):
        return node["self"]
    return None


def _all(node: Any, number: Any) -> bool:
    array = constant_of(node)
    return array is not None and bool((array == number).all())


def additive_masks(program: Program) -> None:
    """Masks of attention become what is added to scores; causal and trivial ones an attribute.

    Minus infinity forbids a key: a query without any other attends to nothing, as in PyTorch.
    """
    nodes: list[Node] = []
    made: dict[Any, Node | str] = {}  # once for all layers that share a mask
    for node in program.nodes:
        if node.op == "scaled_dot_product_attention" and isinstance(node["attn_mask"], Node):
            mask = _unexpanded(node["attn_mask"])
            key = (mask, node["query"].shape[2], node["key"].shape[2])
            if key not in made:
                bias = made[key] = _bias_of(mask, node)
                if isinstance(bias, Node) and bias is not mask:
                    nodes.append(bias)
            found = made[key]
            causal = {"attn_mask": None, "is_causal": found == "causal"}
            node.args |= {"attn_mask": found} if isinstance(found, Node) else causal
        nodes.append(node)
    program.nodes = nodes


def _bias_of(mask: Node, node: Node) -> Node | str:
    """What is added to the scores of a node for a mask; or "none" or "causal"."""
    array = constant_of(mask)
    if array is not None:
        kind = _kind_of(array, node)
        if kind is not None:
            return kind
        array = np.where(array, 0.0, -math.inf) if array.dtype == bool else array
        type_ = Type(mask.shape, "float32")
        return Node("constant", {}, type_, node.path, value=array.astype(np.float32))
    if mask.type.dtype == "bool":
        args = {"condition": mask, "self": 0.0, "other": -math.inf}
        return Node("where", args, Type(mask.shape, "float32"), mask.path or node.path)
    return mask


def _unexpanded(mask: Node) -> Node:
    """A mask as it was before an expansion, which attention does by itself."""
    while mask.op == "expand" and len(mask["self"].shape) == len(mask.shape):
        mask = mask["self"]
    return mask


def _kind_of(mask: Array, node: Node) -> str | None:
    """ "none" or "causal", where a constant mask is one of these."""
    allowed = mask if mask.dtype == bool else np.where(mask <= LOWEST / 2, False, True)
    if mask.dtype != bool and not np.isin(mask[allowed], 0).all():
        return None
    if allowed.all():
        return "none"
    queries, keys = node["query"].shape[2], node["key"].shape[2]
    if queries != keys or allowed.shape[-2:] != (queries, keys):
        return None
    causal = np.tril(np.ones((queries, keys), bool))
    return "causal" if (allowed == causal).all() else None

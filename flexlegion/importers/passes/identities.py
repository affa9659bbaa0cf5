"""Drops what computes nothing: copies, conversions, dropout at rate 0."""

from __future__ import annotations

from flexlegion.importers.program import Node, Program

_ALWAYS = ("contiguous", "clone", "alias", "lift_fresh_copy")
_CONVERSIONS = ("to", "float", "type_as", "_to_copy")


def drop_identities(program: Program) -> None:
    """Let their readers read what they read."""
    mapping: dict[Node, Node] = {}
    for node in program.nodes:
        source = node.get("self", node.get("input"))
        if isinstance(source, Node) and _is_identity(node, source):
            mapping[node] = source
    program.replace(mapping)


def _is_identity(node: Node, source: Node) -> bool:
    if node.op in _ALWAYS:
        return True
    if node.op in _CONVERSIONS:
        # Whatever is real is single precision here, and numbers that count are exact in it.
        return node.type.dtype == source.type.dtype or (
            node.type.is_float or (_counts(node) and _counts(source))
        )
    if node.op in ("dropout", "feature_dropout", "alpha_dropout", "native_dropout"):
        return not (node["p"] and node["train"])
    if node.op in ("pad", "constant_pad_nd"):
        return bool(not any(node["pad"]))
    if node.op in ("expand", "expand_as", "view", "reshape", "flatten", "squeeze"):
        return bool(node.shape == source.shape)
    if node.op == "roll":
        return bool(not any(node["shifts"]))
    return False


def _counts(node: Node) -> bool:
    return bool(node.type.dtype.startswith(("int", "uint")))

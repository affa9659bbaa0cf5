"""Activations and residuals that convolutions, dense layers and normalisations compute, too."""

from __future__ import annotations

from flexlegion.importers.passes.matching import only, operands
from flexlegion.importers.program import Node, Program
from flexlegion.ops.normalization import AFTER_RESIDUAL, BATCH_NORM_ACTIVATIONS

_FUSING = ("conv2d", "conv1d", "linear", "addmm")
_ACTIVATIONS = ("relu", "sigmoid", "tanh")


def fuse_epilogues(program: Program) -> None:
    """Take a single reader's activation, or a normalisation's sum, into the layer before it."""
    users = program.users()
    place = {node: i for i, node in enumerate(program.nodes)}
    mapping: dict[Node, Node] = {}
    for node in program.nodes:
        if node.op == "batch_norm" and len(node.shape) > 2:
            _fuse_normalisation(node, users, place, mapping)
        elif node.op in _FUSING:
            reader = only(users[node])
            vector = node.get("bias", node.get("self"))
            simple = vector is None or (vector.op == "parameter" and len(vector.shape) == 1)
            if reader is not None and reader.op in _ACTIVATIONS and simple:
                node.args["activation"] = reader.op
                mapping[reader] = node
    program.replace(mapping)
    program.nodes = _in_order(program)


def _fuse_normalisation(
    node: Node, users: dict[Node, list[Node]], place: dict[Node, int], mapping: dict[Node, Node]
) -> None:
    reader, last = only(users[node]), node
    residual = None
    if reader is not None and reader.op == "add" and reader.get("alpha", 1) == 1:
        others = [o for o in operands(reader) if o is not node]
        if len(others) == 1 and others[0].shape == node.shape and others[0] not in mapping.values():
            residual, last = others[0], reader
            reader = only(users[reader])
    ends = BATCH_NORM_ACTIVATIONS if residual is None else AFTER_RESIDUAL
    if reader is not None and _activation(reader) in ends:
        node.args["activation"] = _activation(reader)
        mapping[reader] = node
    if residual is not None:
        # Of two normalisations that are added, the later one takes the earlier one's result.
        if residual.op == "batch_norm" and place[residual] > place[node]:
            node.args.pop("activation", None)
            mapping.pop(reader, None)  # type: ignore[arg-type]
            return
        node.args["residual"] = residual
        mapping[last] = node


def _activation(node: Node) -> str:
    """The node's operation, or the activation that it is an instance of.

    A `clamp` is no relu6: their slopes at the bounds differ.
    """
    if node.op == "hardtanh" and (node["min_val"], node["max_val"]) == (0, 6):
        return "relu6"
    return node.op


def _in_order(program: Program) -> list[Node]:
    """Nodes behind what they read."""
    done: set[Node] = set()
    order: list[Node] = []
    stack = list(reversed(program.nodes))
    while stack:
        node = stack.pop()
        if node in done:
            continue
        missing = [source for source in node.inputs if source not in done]
        if missing:
            stack += [node, *missing]
        else:
            done.add(node)
            order.append(node)
    return order

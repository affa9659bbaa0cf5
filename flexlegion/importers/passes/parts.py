"""Parameters that are cut into rows, as attention's packed ones: each part is trained alone."""

from __future__ import annotations

from flexlegion.graph.initializers import Later
from flexlegion.importers.program import Node, Program, Type

_CUTS = ("split", "split_with_sizes", "chunk", "tensor_split")
Rows = tuple[int, int]  # from, to


def part_parameters(program: Program) -> None:
    """Let readers of a parameter's parts read parameters of these rows, if all its rows are read.

    A weight can hold a part of a parameter, so layers whose kernels are parts need no copy.
    """
    users = program.users()
    mapping: dict[Node, Node] = {}
    nodes: list[Node] = []
    for node in program.nodes:
        nodes.append(node)
        if node.op != "parameter" or not node.shape:
            continue
        found: dict[Node, Rows] = {}
        for user in dict.fromkeys(users[node]):
            found |= _rows(user, node, users)
        cut = sorted(set(found.values()))
        ends = [0, *(stop for _, stop in cut)]
        read_so = all(u in found or all(v in found for v in users.get(u, ())) for u in users[node])
        if not read_so or len(cut) < 2 or [start for start, _ in cut] != ends[:-1]:
            continue
        if ends[-1] != node.shape[0]:
            continue
        parts = {rows: _part(node, rows) for rows in cut}
        nodes += parts.values()
        mapping |= {reader: parts[rows] for reader, rows in found.items()}
    program.nodes = nodes
    program.replace(mapping)


def _rows(user: Node, parameter: Node, users: dict[Node, list[Node]]) -> dict[Node, Rows]:
    """The nodes that are rows of a parameter by what one of its readers does, and which rows."""
    if user.op not in (*_CUTS, "slice", "narrow") or user["dim"] % len(parameter.shape):
        return {}
    count = parameter.shape[0]
    if user.op == "slice":
        start = user["start"] or 0
        start = min(start + count if start < 0 else start, count)
        return {user: (start, start + user.shape[0])} if user["step"] == 1 else {}
    if user.op == "narrow":
        start = user["start"] % count
        return {user: (start, start + user["length"])}
    starts = [0]
    for type_ in user.type:
        starts.append(starts[-1] + type_.shape[0])
    items = [item for item in users[user] if item.op == "getitem"]
    return {item: (starts[item["index"]], starts[item["index"] + 1]) for item in items}


def _part(node: Node, rows: Rows) -> Node:
    start, stop = rows
    shape = (stop - start, *node.shape[1:])
    value = node.value
    if isinstance(value, Later):
        value = value.then(shape, lambda array: array[start:stop])
    else:
        assert value is not None
        value = value[start:stop]
    return Node(
        "parameter",
        {},
        Type(shape, node.type.dtype),
        node.path,
        name=node.name,
        value=value,
        trainable=node.trainable,
        rows=(node.shape[0], start, stop),
    )

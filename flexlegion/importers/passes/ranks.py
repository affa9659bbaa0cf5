"""Elements by their order, and by numbers that are computed: compared with all, and picked.

An element's rank is how many elements of its row come before it. Of a row of n elements, ranks take
n x n comparisons, and picking m elements takes m x n. So the rows may not be long.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flexlegion.base.errors import UserError
from flexlegion.importers.program import SAMPLES, Node, Program, Shape, Type, at

MOST_COMPARED = 2**22  # comparisons of one row's elements

_SORTS = ("sort", "argsort", "msort", "topk")


def pick_elements(program: Program) -> None:
    """Write what sorts, and what tells or takes places, as comparisons with all elements.

    Gradients go to the elements that are picked. Of equal elements, the first one comes first.
    """
    users = program.users()
    nodes: list[Node] = []
    mapping: dict[Node, Node] = {}
    for node in program.nodes:
        results: list[Node] | None = None
        work = _Work(node)
        if node.op in _SORTS:
            results = work.in_order()
        elif node.op in ("max", "min") and _tells_places(node, users):
            results = work.extreme()
        elif node.op == "gather" and node["index"].op != "constant":
            results = [work.gathered()]
        if results is None:
            nodes.append(node)
            continue
        nodes += work.nodes
        if not isinstance(node.type, tuple):
            mapping[node] = results[-1]
            nodes.append(node)
            continue
        for reader in users[node]:
            if reader.op == "getitem":
                mapping[reader] = results[reader["index"]]
    program.nodes = nodes
    program.replace(mapping)


def _tells_places(node: Node, users: dict[Node, list[Node]]) -> bool:
    return isinstance(node.type, tuple) and any(user["index"] == 1 for user in users[node])


class _Work:
    """The nodes that stand for an operation's."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.nodes: list[Node] = []

    def in_order(self) -> list[Node]:
        """Values, then places, of the elements in their order, or of the first k."""
        node, x = self.node, self.node["self"]
        d = node.get("dim", 0 if node.op == "msort" else -1) % len(x.shape)
        count = self._count(x, d)
        falling = bool(node.get("largest", node.get("descending", False)))
        picked = node.get("k", count)
        row = self._turned(x, d)
        outer = row.shape[:-1]
        own = self._add("unsqueeze", {"self": row, "dim": -1}, (*outer, count, 1), x.type.dtype)
        all_ = self._add("unsqueeze", {"self": row, "dim": -2}, (*outer, 1, count), x.type.dtype)
        self._check(count, count)
        earlier = self._constant(np.tri(count, k=-1))  # of row i, columns before i
        before = ">" if falling else "<"
        comes_before = self._formula(
            f"maximum((x0 {before} x1), ((x0 == x1) * x2))",
            [all_, own, earlier],
            (*outer, count, count),
        )
        rank = self._sum(comes_before)
        ranks = self._add("unsqueeze", {"self": rank, "dim": -2}, (*outer, 1, count), "float32")
        wanted = self._constant(np.arange(picked)[:, None])
        there = (*outer, picked, count)
        values = self._formula("where((x0 == x1), x2, 0.0)", [ranks, wanted, all_], there)
        numbers = self._constant(np.arange(count))
        places = self._formula("((x0 == x1) * x2)", [ranks, wanted, numbers], there, "int64")
        return [self._turned(self._sum(each), d, back=True) for each in (values, places)]

    def extreme(self) -> list[Node]:
        """The largest or smallest values along a dimension, and the places of the first of them."""
        node, x = self.node, self.node["self"]
        d, kept = node["dim"] % len(x.shape), node["keepdim"]
        count = self._count(x, d)
        type_ = node.type[0]
        wide = tuple(1 if i == d else extent for i, extent in enumerate(x.shape))
        found = self._add(node.op, node.args | {"keepdim": True}, wide, type_.dtype, several=True)
        value = self._add("getitem", {"self": found, "index": 0}, wide, type_.dtype)
        left = np.arange(count, 0, -1).reshape([-1 if i == d else 1 for i in range(len(x.shape))])
        is_found = self._formula("((x0 == x1) * x2)", [x, value, self._constant(left)], x.shape)
        behind = self._add("amax", {"self": is_found, "dim": [d], "keepdim": True}, wide, "float32")
        place = self._formula(f"({count}.0 - x0)", [behind], wide, "int64")
        if kept:
            return [value, place]
        narrow = (*x.shape[:d], *x.shape[d + 1 :])
        return [
            self._add("squeeze", {"self": each, "dim": d}, narrow, each.type.dtype)
            for each in (value, place)
        ]

    def gathered(self) -> Node:
        """The elements along a dimension with the numbers in `index`, which are computed."""
        node, x, index = self.node, self.node["self"], self.node["index"]
        d = node["dim"] % len(x.shape)
        count = self._count(x, d)
        others = [
            (a, b) for i, (a, b) in enumerate(zip(x.shape, index.shape, strict=True)) if i != d
        ]
        if any(a != b for a, b in others):
            raise UserError(
                f"'gather'{at(node.path)} takes elements by numbers that are computed, of a part "
                "of its rows, which is not known"
            )
        picked = index.shape[d]
        self._check(count, picked)
        row, numbers = self._turned(x, d), self._turned(index, d)
        outer = row.shape[:-1]
        all_ = self._add("unsqueeze", {"self": row, "dim": -2}, (*outer, 1, count), x.type.dtype)
        own = self._add(
            "unsqueeze", {"self": numbers, "dim": -1}, (*outer, picked, 1), index.type.dtype
        )
        values = self._formula(
            "where((x0 == x1), x2, 0.0)",
            [own, self._constant(np.arange(count)), all_],
            (*outer, picked, count),
        )
        return self._turned(self._sum(values), d, back=True)

    def _count(self, x: Node, d: int) -> int:
        count = x.shape[d]
        if count % SAMPLES == 0:
            raise UserError(f"'{self.node.op}'{at(self.node.path)} joins samples")
        return count

    def _check(self, count: int, picked: int) -> None:
        if count * picked > MOST_COMPARED:
            raise UserError(
                f"'{self.node.op}'{at(self.node.path)} compares {count:,} elements with "
                f"{picked:,}; {MOST_COMPARED:,} comparisons of one row are the most that can be"
            )

    def _turned(self, x: Node, d: int, back: bool = False) -> Node:
        """With dimension `d` behind all others; or the other way round."""
        rank = len(x.shape)
        if d == rank - 1:
            return x
        order = [*range(d), *range(d + 1, rank), d]
        if back:
            order = [*range(d), rank - 1, *range(d, rank - 1)]
        shape = tuple(x.shape[i] for i in order)
        return self._add("permute", {"self": x, "dims": order}, shape, x.type.dtype)

    def _sum(self, x: Node) -> Node:
        """Over the last dimension."""
        args = {"self": x, "dim": [-1], "keepdim": False}
        return self._add("sum", args, x.shape[:-1], x.type.dtype)

    def _constant(self, array: Any) -> Node:
        array = np.asarray(array, np.float32)
        node = Node("constant", {}, Type(array.shape, "float32"), self.node.path, value=array)
        self.nodes.append(node)
        return node

    def _formula(
        self, text: str, operands: list[Node], shape: Shape, dtype: str = "float32"
    ) -> Node:
        args = {"formula": text, "operands": operands, "kind": self.node.op}
        return self._add("expression", args, shape, dtype)

    def _add(
        self, op: str, args: dict[str, Any], shape: Shape, dtype: str, several: bool = False
    ) -> Node:
        one = Type(shape, dtype)
        type_ = (one, Type(shape, "int64")) if several else one
        node = Node(op, args, type_, self.node.path, self.node.layer)
        self.nodes.append(node)
        return node

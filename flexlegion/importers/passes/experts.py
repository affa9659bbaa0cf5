"""Mixtures of experts, as transformers computes them: pairs of a row and an expert.

Each row of x (n, d) goes to k experts, whose numbers and shares topk finds, (n, k). Either the n k
pairs are sorted by expert, multiplied in groups and brought back into their order, or each pair
gathers its expert's matrices. Both end with a sum over k.
"""

from __future__ import annotations

from typing import Any

from flexlegion.importers.passes.matching import operands, scalar
from flexlegion.importers.program import Node, Program, Type

ACTIVATIONS = ("relu", "gelu", "silu")


def recognise_experts(program: Program) -> None:
    """`experts` of x and gates (n, experts) for the pattern; gates are shares among zeros."""
    nodes: list[Node] = []
    for node in program.nodes:
        found = _mixture(node)
        if found is not None:
            gates, node.args = found
            node.op = "experts"
            nodes.append(gates)
        nodes.append(node)
    program.nodes = nodes


def _mixture(node: Node) -> tuple[Node, dict[str, Any]] | None:
    """Gates and arguments of `experts`, if a node is the sum over what a row's experts computed."""
    pairs = node["self"] if node.op == "sum" else None
    if pairs is None or pairs.op not in ("view", "reshape") or len(pairs.shape) != 3:
        return None
    if node["dim"] != [1] or node["keepdim"]:
        return None
    chosen, pairs = pairs.shape[1], pairs["self"]
    form: _Sorted | _Gathered = _Sorted.of(pairs) or _Gathered(pairs)
    weighted = form.weighted
    if weighted.op != "mul" or len(operands(weighted)) != 2:
        return None
    result, column = operands(weighted)
    if column.op != "unsqueeze" or column["dim"] not in (-1, 1):
        return None
    shares, down = form.shares(column["self"]), form.product(result)
    hidden = down and _activated(down[0])
    if shares is None or down is None or hidden is None:
        return None
    activation, between, gated = hidden
    up = form.product(between)
    x = up and form.rows(up[0], chosen)
    if up is None or x is None:
        return None
    experts = up[1].shape[0]
    scattered = {"self": 0.0, "dim": 1, "index": form.numbers, "src": shares}
    type_ = Type((shares.shape[0], experts), shares.type.dtype)
    gates = Node("scatter", scattered, type_, node.path, node.layer)
    return gates, {
        "input": x,
        "gates": gates,
        "up": up[1],
        "down": down[1],
        "activation": activation,
        "gated": gated,
        "load": chosen,
    }


class _Sorted:
    """Pairs sorted by expert: grouped products of them, and then back into their order."""

    def __init__(self, weighted: Node, permutation: Node, sort: Node, numbers: Node) -> None:
        self.weighted, self.numbers = weighted, numbers
        self.permutation, self.sort = permutation, sort

    @classmethod
    def of(cls, pairs: Node) -> _Sorted | None:
        """`pairs` is indexed with the inverse of the permutation that sorts experts' numbers."""
        inverse = _index(pairs)
        if inverse is None or inverse.op != "index_put" or inverse["accumulate"]:
            return None
        permutation = inverse["indices"][0]
        sort = permutation["self"] if _is_item(permutation, 1) else None
        numbers = _flattened(sort["self"]) if sort is not None and sort.op == "sort" else None
        if sort is None or numbers is None or sort["descending"]:
            return None
        return cls(pairs["self"], permutation, sort, numbers)

    def shares(self, node: Node) -> Node | None:
        """(n, k), of what is indexed with the permutation."""
        return _flattened(node["self"]) if _index(node) is self.permutation else None

    def rows(self, node: Node, chosen: int) -> Node | None:
        """x, of which pair p reads row p // k."""
        place = _index(node)
        if place is None or place.op != "floor_divide" or place["self"] is not self.permutation:
            return None
        x: Node = node["self"]
        return x if scalar(place["other"]) == chosen else None

    def product(self, node: Node) -> tuple[Node, Node] | None:
        """What a grouped product reads, and the weights (experts, out, in)."""
        if "grouped_mm" not in node.op:
            return None
        values, weight, ends = (node.inputs[i] for i in range(3))
        counts = ends["self"] if ends.op == "cumsum" else ends
        counted = counts["self"] if counts.op == "histc" else counts
        if not _is_item(counted, 0) or counted["self"] is not self.sort:
            return None
        if weight.op != "transpose" or {weight["dim0"] % 3, weight["dim1"] % 3} != {1, 2}:
            return None
        return values, weight["self"]


class _Gathered:
    """Pairs in order, each of which reads the matrices of its expert."""

    def __init__(self, weighted: Node) -> None:
        self.weighted = weighted
        self.numbers: Node | None = None  # as the products tell

    def shares(self, node: Node) -> Node | None:
        """(n, k)."""
        return _flattened(node)

    def rows(self, node: Node, chosen: int) -> Node | None:
        """x, whose rows are repeated k times."""
        repeated = node.op == "repeat_interleave" and node["dim"] == 0
        return node["self"] if repeated and node["repeats"] == chosen else None

    def product(self, node: Node) -> tuple[Node, Node] | None:
        """The vectors that gathered matrices are multiplied with, and all matrices."""
        product = node["self"] if node.op == "squeeze" else node
        if product.op != "bmm" or product["mat2"].op != "unsqueeze":
            return None
        chosen = _index(product["self"])
        numbers = _flattened(chosen) if chosen is not None else None
        if numbers is None or self.numbers not in (None, numbers):
            return None
        self.numbers = numbers
        return product["mat2"]["self"], product["self"]["self"]


def _activated(node: Node) -> tuple[str, Node, bool] | None:
    """Name, what it is applied to, and whether a second half multiplies the first one's."""
    if node.op in ACTIVATIONS and node.get("approximate", "none") == "none":
        return node.op, node["self"], False
    if node.op != "mul" or len(operands(node)) != 2:
        return None
    first, second = operands(node)
    of_first = _activated(first)
    if of_first is None or of_first[2] or not _is_item(of_first[1], 0) or not _is_item(second, 1):
        return None
    halves = second["self"]
    whole = halves.op == "chunk" and halves["chunks"] == 2 and halves["dim"] in (-1, 1)
    if not whole or of_first[1]["self"] is not halves:
        return None
    return of_first[0], halves["self"], True


def _index(node: Node) -> Node | None:
    """The one index of the first dimension, if a node reads elements by such."""
    single = node.op == "index" and len(node["indices"]) == 1
    return node["indices"][0] if single else None


def _is_item(node: Any, index: int) -> bool:
    return isinstance(node, Node) and node.op == "getitem" and node["index"] == index


def _flattened(node: Node) -> Node | None:
    """What (n, k) is seen as (n k)."""
    flat = node.op in ("reshape", "view", "flatten") and len(node.shape) == 1
    source: Node = node["self"] if flat else node
    return source if flat and len(source.shape) == 2 else None

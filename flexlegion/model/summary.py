"""A model as a table."""

from __future__ import annotations

import math

from flexlegion.console.text import table as text_table
from flexlegion.graph.graph import Graph
from flexlegion.graph.operator_type import DimKind
from flexlegion.graph.tensor import Tensor

_LETTERS = {
    DimKind.SAMPLE: "S",
    DimKind.ATTRIBUTE: "A",
    DimKind.PARAMETER: "P",
    DimKind.REDUCTION: "R",
    DimKind.NONE: "-",
}


def table(graph: Graph) -> str:
    """One line an operator: name, type, output shape, dimensions with their kinds, weights.

    Weights that operators share are counted at the first of them.
    """
    rows = []
    total = operations = 0
    counted: set[Tensor] = set()
    for operator in graph.operators:
        count = sum(
            math.prod(weight.shape)
            for weight in dict.fromkeys((*operator.weights, *operator.inputs))
            if weight.kind == "weight" and weight.requires_gradient and weight not in counted
        )
        counted.update((*operator.weights, *operator.inputs))
        total += count
        flops = operator.kind.flops(operator.input_shapes)
        operations += flops
        dims = ", ".join(
            f"{dim.name} ({_LETTERS[dim.kind]})"
            for dim in operator.dims
            if dim.kind is not DimKind.PART  # it is one of what is there, not of the model
        )
        shape = " x ".join(map(str, operator.output.shape))
        rows.append((operator.name, operator.kind.type, shape, dims, f"{count:,}", f"{flops:,}"))
    columns = ("operator", "type", "output", "splits", "weights", "FLOPs forward")
    return (
        f"{text_table(columns, rows, texts=(0, 1, 2, 3))}\n"
        f"{total:,} weights, {operations:,} FLOPs in a forward pass\n"
        "splits: dimensions along which it can be split; S sample, A attribute, P parameter, "
        "- cannot be split\n"
    )

"""A model as a table."""

from __future__ import annotations

import io
import math

from rich.console import Console
from rich.table import Table

from flexlegion.graph import Graph
from flexlegion.ops.base import DimKind
from flexlegion.tensor import Tensor

_LETTERS = {
    DimKind.SAMPLE: "S",
    DimKind.ATTRIBUTE: "A",
    DimKind.PARAMETER: "P",
    DimKind.NONE: "-",
}


def table(graph: Graph) -> str:
    """One line an operator: name, type, output shape, dimensions with their kinds, weights.

    Weights that operators share are counted at the first of them.
    """
    rows = Table(title=None)
    for column in ("operator", "type", "output", "parallelizable dimensions"):
        rows.add_column(column)
    rows.add_column("weights", justify="right")
    rows.add_column("FLOPs forward", justify="right")
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
        dims = ", ".join(f"{dim.name} ({_LETTERS[dim.kind]})" for dim in operator.dims)
        shape = " x ".join(map(str, operator.output.shape))
        rows.add_row(operator.name, operator.kind.type, shape, dims, f"{count:,}", f"{flops:,}")
    out = io.StringIO()
    console = Console(file=out, width=120)
    console.print(rows)
    console.print(f"{total:,} weights, {operations:,} FLOPs in a forward pass")
    console.print("S sample, A attribute, P parameter dimension, - cannot be split")
    return out.getvalue()

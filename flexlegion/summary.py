"""A model as a table."""

from __future__ import annotations

import io
import math

from rich.console import Console
from rich.table import Table

from flexlegion.graph import Graph


def table(graph: Graph) -> str:
    """One line an operator: name, type, output shape, parallelizable dimensions, weights."""
    rows = Table(title=None)
    for column in ("operator", "type", "output", "parallelizable dimensions"):
        rows.add_column(column)
    rows.add_column("weights", justify="right")
    rows.add_column("FLOPs forward", justify="right")
    total = operations = 0
    for operator in graph.operators:
        count = sum(math.prod(weight.shape) for weight in operator.weights)
        total += count
        flops = operator.kind.flops(operator.input_shapes)
        operations += flops
        dims = ", ".join(f"{dim.name} ({dim.kind.value[0].upper()})" for dim in operator.dims)
        shape = " x ".join(map(str, operator.output.shape))
        rows.add_row(operator.name, operator.kind.type, shape, dims, f"{count:,}", f"{flops:,}")
    out = io.StringIO()
    console = Console(file=out, width=120)
    console.print(rows)
    console.print(f"{total:,} weights, {operations:,} FLOPs in a forward pass")
    console.print("S sample, A attribute, P parameter dimension")
    return out.getvalue()

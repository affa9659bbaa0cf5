"""Which embeddings' tables have gradients like any weight.

The update of a table reads which rows were looked up, and the gradients of what was
(`Tensor.table`). Of several micro-batches, it reads those of all of them, so both are kept until
the last one is through. A recommender looks up a few rows of many. A language model looks up more
rows than the table has: then a gradient of the whole table, summed up over the micro-batches, takes
less memory, and the operator can be split by samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from math import prod

from flexlegion.graph.graph import Graph
from flexlegion.graph.tensor import Tensor
from flexlegion.objective.optimizers import Optimizer


def tables_to_sum(graph: Graph, optimizer: Optimizer) -> Set[Tensor]:
    """The tables of which a batch looks up more rows than they have.

    Parameters
    ----------
    graph
        Of a whole batch.
    optimizer
        If it treats rows that were not looked up in another way (lazy-adam), there are none.
    """
    if optimizer.lazy and optimizer.states:
        return frozenset()
    looked_up: Counter[Tensor] = Counter()
    for op in graph.operators:
        for weight in op.trained_weights:
            looked_up[weight] += prod(op.output.shape[:-1]) if weight.table else 0
    return {table for table, rows in looked_up.items() if rows > table.shape[0]}

"""Tables on all devices, the rest by samples: networks that are mostly tables (Wide & Deep).

A table of a recommender may be too large for a device's memory, and its dense layers are small
(Cheng et al. 2016; OneFlow, section 6.3.2).
"""

from __future__ import annotations

from flexlegion.base.errors import DoesNotApply
from flexlegion.graph.graph import Graph, Operator
from flexlegion.known_strategies.registry import own_strategy
from flexlegion.machine.devices import Devices
from flexlegion.strategy.pairs import with_sums
from flexlegion.strategy.splitting import all_by_samples, data_dim, split, table_rows
from flexlegion.strategy.strategy import Strategy


@own_strategy("wide-deep")
def wide_deep(graph: Graph, devices: Devices) -> Strategy:
    """Tables split by columns, or by rows where they have fewer columns than there are devices.

    What looks rows up runs where they are; every other operator is split by samples.

    Raises
    ------
    UserError
        If there is no table.
    """
    names = devices.preferred
    tables = [op for op in graph.operators if op.looks_up]
    if not tables:
        raise DoesNotApply(
            "strategy 'wide-deep' splits the tables of embeddings, but this model has none that is "
            "used as a table alone"
        )
    configs = all_by_samples(graph, names)
    configs |= {op.name: split(op, _cut(op, len(names)), names) for op in tables}
    return Strategy(with_sums(configs, graph), "strategy 'wide-deep'")


def _cut(op: Operator, parts: int) -> int | None:
    """A table's columns if there are enough, else what it has more of: rows, as a rule."""
    columns, rows = data_dim(op), table_rows(op)
    if columns is None or rows is None or op.space[columns] >= parts:
        return columns if columns is not None else rows
    return rows if op.space[rows] > op.space[columns] else columns

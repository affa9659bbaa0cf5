"""What known strategies have in common: one dimension of an operator, split over devices."""

from __future__ import annotations

from collections.abc import Sequence

from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.operator_type import DimKind, DimMap
from flexlegion.strategy.configuration import ParallelConfig


def split(operator: Operator, dim: int | None, devices: Sequence[str]) -> ParallelConfig:
    """One dimension split over devices, the others whole.

    Parameters
    ----------
    operator
        What to split.
    dim
        Which dimension of its space; None, or one that cannot be split, for one task.
    devices
        One for each task. Where the extent is smaller, the first ones get a task.
    """
    degrees = [1] * len(operator.dims)
    if dim is not None and operator.dims[dim].kind is not DimKind.NONE:
        degrees[dim] = min(operator.space[dim], len(devices))
        return ParallelConfig(tuple(degrees), tuple(devices[: degrees[dim]]))
    return ParallelConfig(tuple(degrees), (devices[0],))


def data_dim(operator: Operator) -> int | None:
    """The dimension that data parallelism splits, if it has one: its samples.

    Of an operator that looks rows up, the table's columns: each device has its share of the table.
    """
    if operator.looks_up:
        return len(operator.output.shape) - 1
    kinds = [dim.kind for dim in operator.dims]
    return kinds.index(DimKind.SAMPLE) if DimKind.SAMPLE in kinds else None


def table_rows(operator: Operator) -> int | None:
    """The dimension of an embedding's space that are its table's rows, if it can be split."""
    for access in operator.kind.weight_access(operator.input_shapes):
        for axis in access.map:
            dim = axis.out_dim
            if axis.named_by >= 0 <= dim and operator.dims[dim].kind is DimKind.REDUCTION:
                return dim
    return None


def followed(operator: Operator, axis: DimMap, extent: int) -> int | None:
    """The dimension of an operator's space whose splits cut an input as they cut its tiles.

    Parameters
    ----------
    operator
        What reads the input.
    axis
        Its map of a dimension of the input.
    extent
        Of that dimension.

    Returns
    -------
    int or None
        The dimension that goes over all of the extent; None if there is none that can be split.
    """
    dim = axis.out_dim
    if dim < 0 or operator.dims[dim].kind is DimKind.NONE:
        return None
    whole = operator.space[dim] * axis.num == extent * axis.den
    cut = not (axis.lo_offset or axis.hi_offset or axis.prefix)
    return dim if whole and cut else None


def in_one_piece(graph: Graph) -> list[Operator]:
    """The operators without a `data_dim`, and those of which all samples are one.

    The latter compute from weights alone (positions' biases, say) what is the same for a batch.
    """
    batch = max((tensor.shape[0] for tensor in graph.inputs), default=1)
    dims = {op: data_dim(op) for op in graph.operators}
    return [op for op, d in dims.items() if d is None or op.output.shape[d] == 1 < batch]


def turns(graph: Graph) -> dict[Operator, int]:
    """Numbers from 0 for operators `in_one_piece`, to deal them to devices by.

    Such an operator, as a batch's moments, exchanges messages with all parts of the batch; dealt
    out, they share the devices' links. All other operators have number 0.
    """
    whole = in_one_piece(graph)
    return dict.fromkeys(graph.operators, 0) | {op: i for i, op in enumerate(whole)}


def by_samples(operator: Operator, devices: Sequence[str], turn: int = 0) -> ParallelConfig:
    """Data parallelism; a batch smaller than the number of devices leaves the last ones out.

    An operator in one piece is one task, on device `turn` modulo their number.
    """
    dim = data_dim(operator)
    if dim is None or operator.output.shape[dim] == 1:
        devices = [devices[turn % len(devices)]]
    return split(operator, dim, devices)


def all_by_samples(graph: Graph, devices: Sequence[str]) -> dict[str, ParallelConfig]:
    """`by_samples` of each operator, those without samples in turn on the devices."""
    return {op.name: by_samples(op, devices, turn) for op, turn in turns(graph).items()}

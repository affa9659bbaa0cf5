"""What known strategies have in common: one dimension of an operator, split over devices."""

from __future__ import annotations

from collections.abc import Sequence

from flexlegion.graph import Operator
from flexlegion.ops.base import DimKind
from flexlegion.soap import ParallelConfig


def split(operator: Operator, dim: int | None, devices: Sequence[str]) -> ParallelConfig:
    """One dimension split over devices, the others whole.

    Parameters
    ----------
    operator
        What to split.
    dim
        Which dimension of its primary output; None, or one that cannot be split, for one task.
    devices
        One for each task. Where the extent is smaller, the first ones get a task.
    """
    degrees = [1] * len(operator.dims)
    if dim is not None and operator.dims[dim].kind is not DimKind.NONE:
        degrees[dim] = min(operator.output.shape[dim], len(devices))
        return ParallelConfig(tuple(degrees), tuple(devices[: degrees[dim]]))
    return ParallelConfig(tuple(degrees), (devices[0],))


def sample_dim(operator: Operator) -> int | None:
    """Its sample dimension, if it has one."""
    kinds = [dim.kind for dim in operator.dims]
    return kinds.index(DimKind.SAMPLE) if DimKind.SAMPLE in kinds else None


def by_samples(operator: Operator, devices: Sequence[str]) -> ParallelConfig:
    """Data parallelism; a batch smaller than the number of devices leaves the last ones out."""
    return split(operator, sample_dim(operator), devices)

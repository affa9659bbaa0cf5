"""Made-up data for any graph, to see how fast it trains, and that it does.

What values an input may have follows from the operators that read it (`OperatorType.input_values`):
an embedding takes rows of its table, a loss takes classes or probabilities.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion.base.errors import UserError
from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.operator_type import DimMap, Values
from flexlegion.graph.tensor import Shape, Tensor
from flexlegion.objective.losses import labels_of

Array = npt.NDArray[Any]

NAME = "synthetic"

# Whole numbers are below this where no operator says more: the zeros and ones of a mask, say.
ANY_BELOW = 2


def made_up(
    graph: Graph, samples: int, seed: int = 0
) -> tuple[dict[str, Array], dict[str, Array] | None]:
    """Random samples and labels for a graph.

    Parameters
    ----------
    graph
        With its losses, if it is to be trained.
    samples
        How many.
    seed
        Decides all values.

    Returns
    -------
    tuple
        x and y as `Model.fit` takes them: arrays (samples, ...) by the names of inputs, and of
        outputs that have labels; None, if none has. They are normally distributed, but uniform over
        classes, rows of tables, or zeros and ones where operators take these.

    Raises
    ------
    UserError
        If there are to be no samples.
    """
    if samples < 1:
        raise UserError(f"the number of samples has to be at least 1, but is {samples}")
    labels = labels_of(graph)

    def arrays(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
        return {name: _array(graph, tensor, samples, seed) for name, tensor in tensors.items()}

    inputs = {t.name: t for t in graph.inputs if t not in labels.values()}
    return arrays(inputs), arrays(labels) or None


def _array(graph: Graph, tensor: Tensor, samples: int, seed: int) -> Array:
    rng = np.random.default_rng([seed, zlib.crc32(tensor.name.encode())])
    shape = (samples, *tensor.shape[1:])
    if "one-hot" in (values for _, _, values in _readers(graph, tensor)):
        classes = rng.integers(shape[-1], size=shape[:-1])
        return np.eye(shape[-1], dtype=np.float32)[classes]
    below = _bounds(graph, tensor)
    if tensor.host_dtype == "float32" and not below.any():
        return rng.standard_normal(shape, np.float32)
    return rng.integers(np.where(below > 0, below, ANY_BELOW), size=shape).astype(tensor.host_dtype)


def _bounds(graph: Graph, tensor: Tensor) -> npt.NDArray[np.int64]:
    """For each element of a sample, what its values stay below; 0 where no operator says."""
    bounds = np.zeros(tensor.shape[1:], np.int64)
    for operator, index, values in _readers(graph, tensor):
        if not isinstance(values, int):
            continue
        access = operator.kind.input_access(operator.input_shapes)[index].map
        read = tuple(
            _range(each, operator.output.shape, extent)
            for each, extent in zip(access, tensor.shape, strict=True)
        )[1:]
        part = bounds[read]
        bounds[read] = np.where(part > 0, np.minimum(part, values), values)
    return bounds


def _readers(graph: Graph, tensor: Tensor) -> Iterator[tuple[Operator, int, Values]]:
    """Operators that read a tensor, as which of their inputs, and which values they take there."""
    for operator in graph.operators:
        if tensor not in operator.inputs:
            continue
        values = operator.kind.input_values(operator.input_shapes)
        for index, each in enumerate(operator.inputs):
            if each is tensor:
                yield operator, index, values[index]


def _range(access: DimMap, output: Shape, extent: int) -> slice:
    """Of a dimension of an operand, what the operator's whole output needs."""
    if access.out_dim < 0:
        return slice(0, extent)
    end = -(-output[access.out_dim] * access.num // access.den) + access.hi_offset
    return slice(max(0, access.lo_offset), min(extent, end))

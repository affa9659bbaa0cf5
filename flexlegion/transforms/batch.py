"""The same graph for another number of samples."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from flexlegion.base.errors import UserError
from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.tensor import Tensor


def of_batch(
    graph: Graph,
    outputs: Sequence[Tensor],
    batch: int,
    samples: int,
    summed: Set[Tensor] = frozenset(),
) -> tuple[Graph, tuple[Tensor, ...]]:
    """The graph with so many samples an iteration, and its outputs.

    Parameters
    ----------
    graph
        Of a batch; it stays as it is. Weights are shared, but `summed`.
    outputs
        Of its tensors, those that prediction returns.
    batch
        Samples in the graph.
    samples
        Samples in the new one.
    summed
        Tables whose gradients are summed up there (`flexlegion.transforms.tables`).

    Raises
    ------
    UserError
        If an operator depends on how many samples there are.
    """
    copies: dict[Tensor, Tensor] = {
        tensor: replace(tensor, table=False, summed=True) if tensor in summed else tensor
        for tensor in graph.weights
    }
    for tensor in graph.inputs:
        copies[tensor] = _of_samples(tensor, samples)
    operators = [_copied(op, batch, samples, copies) for op in graph.operators]
    tensors = [copies[tensor] for tensor in graph.tensors]
    its_outputs = tuple(copies[tensor] for tensor in outputs)
    return Graph(tensors, operators, graph.micro_batches), its_outputs


def _of_samples(tensor: Tensor, samples: int) -> Tensor:
    return replace(tensor, shape=(samples, *tensor.shape[1:]), producer=None)


def _copied(op: Operator, batch: int, samples: int, copies: dict[Tensor, Tensor]) -> Operator:
    """An operator over other samples; its outputs join `copies`."""
    kind = op.kind.of_samples(samples)
    outputs = [_of_samples(t, samples if t.shape[0] == batch else t.shape[0]) for t in op.outputs]
    shapes = [copies[tensor].shape for tensor in op.inputs]
    if [tuple(shape) for shape in kind.output_shapes(shapes)] != [t.shape for t in outputs]:
        raise UserError(f"operator '{op.name}' ({op.kind.type}) cannot work on a part of the batch")
    copies.update(zip(op.outputs, outputs, strict=True))
    inputs, weights = ([copies[tensor] for tensor in its] for its in (op.inputs, op.weights))
    copy = Operator(op.name, kind, inputs, weights, outputs, dict(op.signatures))
    for tensor in outputs:
        tensor.producer = copy
    return copy

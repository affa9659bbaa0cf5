"""The graph of one micro-batch, of which an iteration plays several, one after the other.

Gradients add up over the micro-batches, and the weights change once, after the last. So training
computes what it computes with the whole batch at once, in as many times less memory for
activations; and stages on different devices can work on different micro-batches, as a pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from flexlegion.base.errors import UserError
from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.operator_type import DimKind, along
from flexlegion.graph.tensor import Tensor
from flexlegion.transforms.batch import of_batch


def micro_batched(
    graph: Graph, outputs: Sequence[Tensor], number: int, summed: Set[Tensor] = frozenset()
) -> tuple[Graph, tuple[Tensor, ...]]:
    """The graph of one of so many micro-batches, and its outputs.

    Parameters
    ----------
    graph
        Of a whole batch, with its losses; it stays as it is. Weights are shared, but `summed`.
    outputs
        Of its tensors, those that prediction returns.
    number
        Of micro-batches.
    summed
        Tables whose gradients are summed up over them (`flexlegion.transforms.tables`).

    Raises
    ------
    UserError
        If the batch cannot be divided, or an operator needs all of its samples together.
    """
    if number == 1:
        return graph, tuple(outputs)
    samples = {tensor.shape[0] for tensor in graph.inputs}
    if len(samples) > 1:
        raise UserError(
            f"the inputs have {' and '.join(map(str, sorted(samples)))} samples, so there are no "
            "micro-batches"
        )
    batch = samples.pop()
    if batch % number != 0:
        raise UserError(
            f"a batch of {batch:,} samples cannot be divided into {number:,} micro-batches"
        )
    same = set(graph.weights)  # what is the same for all samples
    for op in graph.operators:
        if set(op.inputs) <= same and not op.kind.is_loss:
            _check_repeatable(op)
            same.update(op.outputs)
        else:
            _check_apart(op, batch, same)
    micro, its_outputs = of_batch(graph, outputs, batch, batch // number, summed)
    return replace(micro, micro_batches=number), its_outputs


def _check_repeatable(op: Operator) -> None:
    """What is the same for all samples is computed in each micro-batch, and has to be the same."""
    if op.kind.draws():
        raise UserError(
            f"operator '{op.name}' ({op.kind.type}) draws the same for all samples of a batch, so "
            "it cannot be trained in micro-batches"
        )


def _check_apart(op: Operator, batch: int, same: Set[Tensor]) -> None:
    """Whatever an operator computes of a sample, it must compute of that sample alone.

    It does if a task that has some of the samples needs nothing of others. That can be told where
    its tasks may have some: an operator whose samples cannot be split may look at all of them.
    """
    name = f"operator '{op.name}' ({op.kind.type})"
    if op.kind.is_loss and set(op.inputs) <= same:
        raise UserError(
            f"{name} adds to the loss once a batch, so it cannot be trained in micro-batches"
        )
    # Not `op.dims`: look-ups run where the table is, and their samples are apart all the same.
    whole = op.kind.dims(op.input_shapes)[0].kind is DimKind.NONE
    for _, tensor, access in op.operands:
        apart = tensor.shape[0] == batch and access.map[0] == along(0) and not whole
        if not (apart or tensor in same):
            raise UserError(
                f"{name} needs all samples of a batch together, so it cannot be trained in "
                "micro-batches"
            )
    if states := [weight.name for weight in op.weights if weight.state]:
        raise UserError(
            f"{name} changes '{states[0]}' once a batch, so it cannot be trained in micro-batches"
        )

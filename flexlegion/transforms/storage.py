"""A graph whose activations are stored in fewer bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.tensor import DataType, Tensor
from flexlegion.objective.precision import DEFAULT_STORAGE

_NARROW: dict[str, DataType] = {"bf16": "bfloat16", "fp16": "float16"}


def stored(
    graph: Graph, outputs: Sequence[Tensor], storage: str
) -> tuple[Graph, tuple[Tensor, ...]]:
    """The graph as that storage has it, and its outputs.

    Parameters
    ----------
    graph
        With its losses; it stays as it is. Weights and inputs that keep their type are shared.
    outputs
        Of its tensors, those that prediction returns.
    storage
        One of `STORAGES`.

    Returns
    -------
    Graph
        The same operators, over tensors of which those are narrower that may be.
    tuple of Tensor
        The outputs, of that graph.
    """
    if storage == DEFAULT_STORAGE:
        return graph, tuple(outputs)
    narrow = _narrow(graph)
    copies: dict[Tensor, Tensor] = {}
    for tensor in graph.tensors:
        dtype = _NARROW[storage] if tensor in narrow else tensor.dtype
        # What an operator computes names it, which is another one there.
        changes = tensor in narrow or tensor.producer is not None
        copies[tensor] = replace(tensor, dtype=dtype, producer=None) if changes else tensor
    operators = []
    for op in graph.operators:
        inputs, weights, outputs_of = (
            [copies[tensor] for tensor in tensors]
            for tensors in (op.inputs, op.weights, op.outputs)
        )
        copy = Operator(op.name, op.kind, inputs, weights, outputs_of, dict(op.signatures))
        for tensor in outputs_of:
            tensor.producer = copy
        operators.append(copy)
    return (
        replace(graph, tensors=[copies[t] for t in graph.tensors], operators=operators),
        tuple(copies[tensor] for tensor in outputs),
    )


def _narrow(graph: Graph) -> set[Tensor]:
    """The tensors of real numbers that may be narrower.

    Inputs that losses alone read stay as they are: what is predicted is compared with them. Of
    weights, those are narrower that nothing but products of matrices reads.
    """
    narrow = {t for t in graph.tensors if t.dtype == "float32" and t.kind == "activation"}
    for op in graph.operators:
        for name, tensor in zip(op.kind.output_names, op.outputs, strict=True):
            if op.kind.is_loss or name in op.kind.float32_outputs:
                narrow.discard(tensor)
    read = {tensor for op in graph.operators if not op.kind.is_loss for tensor in op.inputs}
    narrow |= {t for t in graph.inputs if t.dtype == "float32" and t in read}
    wide = {
        tensor
        for op in graph.operators
        for tensor in (*op.inputs, *(() if op.kind.rounds_weights else op.weights))
    }
    weights = (t for t in graph.weights if t.requires_gradient and len(t.shape) > 1)
    return narrow | {tensor for tensor in weights if tensor not in wide}

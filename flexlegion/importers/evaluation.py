"""A graph of operators computed by PyTorch on this process's CPU, without Legion.

Every operator is computed by the function that exported programs for DTensor compute it by
(`exporters.torch_functions`, `exporters.torch_layers`).
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from flexlegion.exporters import torch_functions, torch_layers
from flexlegion.exporters.arguments import attributes, function_of, with_weights
from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.initializers import Given
from flexlegion.graph.tensor import Tensor
from flexlegion.ops.given_weights import GivenWeights

_MODULES = (torch_functions, torch_layers)
# What changes values at random while training, and passes them on otherwise.
_RANDOM = ("dropout", "drop_path")


def is_random(graph: Graph) -> bool:
    """Whether training draws numbers."""
    return any(
        op.kind.type in _RANDOM or getattr(op.kind, "dropout", 0) > 0 for op in graph.operators
    )


def without_function(graph: Graph) -> list[str]:
    """The types of operators that PyTorch has no function for here, each once."""
    missing = (op for op in graph.operators if function_of(op, _MODULES) is None)
    types = (with_weights(op).kind.type for op in missing)
    return list(dict.fromkeys(types))


def initial_values(graph: Graph, seed: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The first values of every weight, by name.

    Values of `dtype` float32 that an array holds share their memory with it: do not write to them.
    """
    values = {}
    for weight in graph.weights:
        assert weight.initializer is not None
        if isinstance(weight.initializer, Given):
            array = np.asarray(weight.initializer.array)
        else:
            array = weight.initializer(weight.shape, weight.name, seed, weight.host_dtype)
        tensor = torch.as_tensor(array)
        values[weight.name] = tensor.to(dtype) if weight.dtype != "int32" else tensor
    return values


def evaluate(
    graph: Graph,
    outputs: Sequence[Tensor],
    inputs: Mapping[str, torch.Tensor],
    weights: Mapping[str, torch.Tensor],
    *,
    training: bool = False,
    dtype: torch.dtype = torch.float64,
    watch: Callable[[Tensor, torch.Tensor], None] | None = None,
) -> list[torch.Tensor]:
    """The values of some of a graph's tensors.

    Parameters
    ----------
    graph
        All of whose operators have a function.
    outputs
        The tensors that are wanted.
    inputs
        By name, (n, ...): for any number of samples n, not the graph's alone; but for the graph's
        where that is 1, as shapes do not tell then what is the same for all samples.
    weights
        By name. Training moves running averages in place.
    training
        Whether batch normalisation uses the batch's statistics. Nothing is drawn at random: a
        graph that `is_random` is evaluated only.
    dtype
        Of real numbers, those of `inputs` and `weights` too.
    watch
        Gets each tensor and its value once it has been computed.

    Returns
    -------
    list[torch.Tensor]
        One for each of `outputs`.
    """
    values: dict[Tensor, torch.Tensor] = {t: inputs[t.name] for t in graph.inputs}
    values |= {t: weights[t.name] for t in graph.weights}
    given = next(iter(inputs.values()))
    samples = (graph.inputs[0].shape[0], len(given))
    left = Counter(t for op in graph.operators for t in op.inputs)
    left.update(outputs)
    for op in graph.operators:
        operands = [values[t] for t in (*op.inputs, *op.weights)]
        results = _run(op, operands, samples, training, dtype)
        for tensor, result in zip(op.outputs, results, strict=False):
            values[tensor] = result
            if watch is not None:
                watch(tensor, result)
        for tensor in op.inputs:
            left[tensor] -= 1
            if not left[tensor]:  # nothing reads it any more
                values.pop(tensor, None)
    return [values[tensor] for tensor in outputs]


def _run(
    op: Operator,
    operands: list[torch.Tensor],
    samples: tuple[int, int],
    training: bool,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, ...]:
    """An operator's outputs; `samples`: how many its shapes have, and how many there are."""
    if isinstance(op.kind, GivenWeights):  # without the first dimension, where others have samples
        own = op.kind.own_inputs
        operands = [*operands[:own], *(weight[0] for weight in operands[own:])]
        op = with_weights(op)
    kind: Any = op.kind
    if not training:
        if kind.type in _RANDOM:
            return (operands[0],)
        if kind.type == "batch_norm_moments" and kind.running:
            return (torch.stack(operands[1:3]).unsqueeze(0),)
    if kind.type == "expression":  # its kernel computes with real numbers
        operands = [x if x.is_floating_point() else x.float().to(dtype) for x in operands]
    function = function_of(op, _MODULES)
    assert function is not None
    arguments = attributes(op, function)
    arguments.pop("dropout", None)
    wanted = inspect.signature(function).parameters
    if "shape" in wanted:
        first, *rest = op.output.shape
        arguments["shape"] = (samples[1] if first == samples[0] else first, *rest)
    if "low" in wanted:
        arguments["low"] = 0
    result = function(*operands, **arguments)
    return result if isinstance(result, tuple) else (result,)

"""Normalisation without a centre or by groups, reductions, stochastic depth."""

from __future__ import annotations

from typing import Literal

import numpy as np

from flexlegion.graph.initializers import Constant
from flexlegion.graph.tensor import MAX_RANK
from flexlegion.importers.lower.base import Lowerer, Unsupported, lowers
from flexlegion.importers.lower.elementwise import apply
from flexlegion.importers.lower.normalization import (
    channels_last,
    fixed_batch_norm,
    initial,
    layouts,
    over_last,
    vector,
)
from flexlegion.importers.program import SAMPLES, Node
from flexlegion.importers.views import Run, Value
from flexlegion.ops.normalization import GroupNorm, LayerNorm

_Kind = Literal["mean", "sum", "max", "amax"]
_KINDS: dict[str, _Kind] = {"mean": "mean", "sum": "sum", "amax": "amax"}


@lowers("rms_norm")
def rms_norm(lowerer: Lowerer, node: Node) -> Value:
    tensor, as_seen, (gamma,) = over_last(lowerer, node, "weight")
    epsilon = node["eps"] if node["eps"] is not None else float(np.finfo(np.float32).eps)
    scaled = gamma is not None
    first = Constant() if gamma is None else gamma.values
    kind = LayerNorm(epsilon, False, scaled, False, gamma_initializer=first)
    weights = [] if gamma is None else [gamma.place]
    return as_seen(lowerer.apply(kind, [tensor], lowerer.name(node), weights).output)


@lowers("group_norm")
def group_norm(lowerer: Lowerer, node: Node) -> Value:
    return _by_groups(lowerer, node, node["num_groups"])


@lowers("instance_norm")
def instance_norm(lowerer: Lowerer, node: Node) -> Value:
    """Every channel is a group; by fixed statistics, it is batch normalisation by these."""
    if node["running_mean"] is None:
        return _by_groups(lowerer, node, node.shape[1])
    if node["use_input_stats"]:
        raise Unsupported(
            "it normalises by each sample in training, but by running statistics in evaluation "
            "(track_running_stats)"
        )
    return fixed_batch_norm(lowerer, node)


def _by_groups(lowerer: Lowerer, node: Node, groups: int) -> Value:
    x = lowerer.value(node["input"])
    # The operator normalises all positions of a sample together.
    inside = (axis for axis in x.seen[0] if axis.extent != SAMPLES)
    behind = (axis for run in x.seen[1:] for axis in run if axis.extent % SAMPLES == 0)
    if not all(axis.repeated for axis in (*inside, *behind)):
        raise Unsupported("its first dimension is not the samples alone")
    tensor, outer, channels = channels_last(lowerer, x, 1)
    gamma, beta = (vector(node, n) for n in ("weight", "bias"))
    first = initial(gamma, beta)
    kind = GroupNorm(groups, node["eps"], gamma is not None, beta is not None, first[0], first[1])
    held = layouts(*(v for v in (gamma, beta) if v is not None))
    output = lowerer.apply(kind, [tensor], lowerer.name(node), held).output
    return Value(output, (*outer, channels), x.seen)


@lowers("drop_path")
def drop_path(lowerer: Lowerer, node: Node) -> Value:
    x = lowerer.in_graph(lowerer.value(node["input"]))
    output = lowerer.model.drop_path(x.source, float(node["rate"]), name=lowerer.name(node))
    return Value(output, x.stored, x.seen)


@lowers("amin")
def amin(lowerer: Lowerer, node: Node) -> Value:
    """The largest of the negative elements, negated."""
    x = apply(lowerer, "(-x0)", [lowerer.value(node["self"])], lowerer.name(node, suffix="neg"))
    return apply(lowerer, "(-x0)", [_reduced(lowerer, node, x, "amax")], lowerer.name(node))


@lowers("max", "min")
def extreme(lowerer: Lowerer, node: Node) -> tuple[Value, ...]:
    """The largest or smallest elements along a dimension; its gradient goes to the first."""
    if node.get("dim") is None:
        raise Unsupported("it joins samples")
    x = lowerer.value(node["self"])
    if node.op == "max":
        return (_reduced(lowerer, node, x, "max"),)
    x = apply(lowerer, "(-x0)", [x], lowerer.name(node, suffix="neg"))
    result = _reduced(lowerer, node, x, "max")
    return (apply(lowerer, "(-x0)", [result], lowerer.name(node)),)


@lowers("mean", "sum", "amax")
def reduce(lowerer: Lowerer, node: Node) -> Value:
    return _reduced(lowerer, node, lowerer.value(node["self"]), _KINDS[node.op])


def _reduced(lowerer: Lowerer, node: Node, value: Value, kind: _Kind) -> Value:
    """A value that is seen as the node's input, reduced by the node's dimensions."""
    source = node["self"]
    rank = len(source.shape)
    dims = node.get("dim")
    dims = list(range(rank)) if not dims and dims != 0 else dims
    dims = sorted(d % rank for d in (dims if isinstance(dims, list | tuple) else [dims]))
    x = lowerer.in_graph(value)
    reduced = {axis for d in dims for axis in x.seen[d]}
    if any(source.shape[d] % SAMPLES == 0 for d in dims):
        raise Unsupported("it joins samples")
    if any(a.repeated for a in reduced):
        raise Unsupported("it reduces elements that are expanded")
    kept = node.get("keepdim", False)
    seen = [() if d in dims else run for d, run in enumerate(x.seen) if kept or d not in dims]
    if not reduced:
        return x.with_seen(seen)
    runs: list[Run] = [x.stored[0]]
    for run in x.stored[1:]:
        for axis in run:
            if len(runs) > 1 and (runs[-1][-1] in reduced) == (axis in reduced):
                runs[-1] = (*runs[-1], axis)
            else:
                runs.append((axis,))
    if len(runs) > MAX_RANK:
        left = tuple(a for a in x.axes if a not in reduced and a.extent != SAMPLES)
        runs = [x.stored[0], tuple(a for a in x.axes if a in reduced), left]
    axes = [i for i, run in enumerate(runs) if i and run[0] in reduced]
    tensor = lowerer.arranged(x, runs)
    output = lowerer.model.reduce(tensor, kind, axes, name=lowerer.name(node))
    stored = tuple(run for i, run in enumerate(runs) if i not in axes)
    return Value(output, stored, tuple(seen))

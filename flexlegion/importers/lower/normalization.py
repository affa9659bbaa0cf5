"""Normalisation, softmax, reductions, dropout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flexlegion.graph.initializers import Constant, Initializer, Zeros
from flexlegion.graph.tensor import MAX_RANK, Tensor
from flexlegion.importers.lower.base import Lowerer, Unsupported, first_values, lowers
from flexlegion.importers.lower.elementwise import apply
from flexlegion.importers.lower.products import WEIGHTS
from flexlegion.importers.program import SAMPLES, Node
from flexlegion.importers.views import Run, Value, explicit, plain, refined
from flexlegion.layers.batch_norm import add_moments
from flexlegion.layers.origin import Layout
from flexlegion.ops.normalization import BatchNorm, LayerNorm
from flexlegion.ops.softmax import Softmax


@lowers("batch_norm")
def batch_norm(lowerer: Lowerer, node: Node) -> Value:
    """Batch normalisation; by fixed statistics, it is an element-wise expression.

    Without running averages, it normalises by the batch's statistics in evaluation, too.
    """
    mean, variance = node["running_mean"], node["running_var"]
    running = mean is not None and variance is not None
    if not node["training"] and running:
        return fixed_batch_norm(lowerer, node)
    if running and node["momentum"] is None:
        raise Unsupported("its running averages are those of all batches (momentum None)")
    x = lowerer.value(node["input"])
    if running and any(axis.repeated for run in x.seen for axis in run):
        # The running variance is over n - 1 of the n elements that are seen.
        raise Unsupported("it keeps averages of elements that are repeated")
    tensor, outer, channels = channels_last(lowerer, x, 1)
    name = lowerer.name(node)
    gamma, beta = (vector(node, n) for n in ("weight", "bias"))
    momentum = float(node["momentum"]) if running else 0.0
    moments = add_moments(lowerer.model.graph, tensor, momentum, name, running)
    for source, weight in zip((mean, variance), moments.weights, strict=False):
        layout = Layout(source.shape, (0,), source.shape)
        weight.initializer = first_values(source, layout)
        lowerer.own(source, layout, weight)
    kind = BatchNorm(node["eps"], node.get("activation", "none"), *initial(gamma, beta))
    inputs = [tensor, moments.output]
    if node.get("residual") is not None:
        inputs.append(_same_arrangement(lowerer, lowerer.value(node["residual"]), tensor))
    output = lowerer.apply(kind, inputs, name, layouts(gamma, beta)).output
    return Value(output, (*outer, channels), x.seen)


def fixed_batch_norm(lowerer: Lowerer, node: Node) -> Value:
    """Each channel scaled and shifted by statistics that never change."""
    names = ("input", "running_mean", "running_var", "weight", "bias")
    sources = [node[name] for name in names if node[name] is not None]
    values = [lowerer.value(sources[0])]
    trailing = ((),) * (len(node.shape) - 2)
    for source in sources[1:]:
        value = lowerer.value(source)
        values.append(value.with_seen((*value.seen, *trailing)))
    formula = f"((x0 - x1) * rsqrt(x2 + {node['eps']!r}))"
    number = 3
    if node["weight"] is not None:
        formula, number = f"({formula} * x{number})", number + 1
    if node["bias"] is not None:
        formula = f"({formula} + x{number})"
    result = apply(lowerer, formula, values, lowerer.name(node))
    if node.get("residual") is not None:
        both = [result, lowerer.value(node["residual"])]
        name = lowerer.name(node, suffix="add")
        result = apply(lowerer, "(x0 + x1)", both, name)
    if node.get("activation", "none") != "none":
        name = lowerer.name(node, suffix=node["activation"])
        result = apply(lowerer, f"{node['activation']}(x0)", [result], name)
    return result


@lowers("layer_norm")
def layer_norm(lowerer: Lowerer, node: Node) -> Value:
    tensor, as_seen, (gamma, beta) = over_last(lowerer, node, "weight", "bias")
    kind = LayerNorm(
        node["eps"],
        gamma_initializer=Constant() if gamma is None else gamma.values,
        beta_initializer=Zeros() if beta is None else beta.values,
    )
    weights = [None if held is None else held.place for held in (gamma, beta)]
    return as_seen(lowerer.apply(kind, [tensor], lowerer.name(node), weights).output)


@dataclass(frozen=True)
class Held:
    """A parameter as the vector of an operator: its elements, and where they come from."""

    values: Initializer
    place: tuple[Node, Layout]


def over_last(
    lowerer: Lowerer, node: Node, *names: str
) -> tuple[Tensor, Callable[[Tensor], Value], list[Held | None]]:
    """What an operator needs that normalises over a module's last dimensions.

    It normalises over its tensor's last dimension alone, so several become one, in the order in
    which they are stored: images stay as they are.

    Returns
    -------
    tuple
        The tensor; how a result of its shape is seen; and the parameters of these names in the
        order of the tensor's last dimension, None for those that there are not.
    """
    x, count = lowerer.value(node["input"]), len(node["normalized_shape"])
    held: list[Held | None] = []
    if count == 1:
        tensor, outer, channels = channels_last(lowerer, x, -1)
        for one in (vector(node, name) for name in names):
            held.append(None if one is None else Held(_given(one), _as_it_is(one)))
        return tensor, lambda output: Value(output, (*outer, channels), x.seen), held
    sources = [node[name] for name in names]
    given = [source for source in sources if source is not None]
    if any(source.op not in WEIGHTS for source in given):
        raise Unsupported("its weight or bias is computed, not a parameter")
    rank = len(node.shape)
    values = [lowerer.in_graph(explicit(x, node.shape)), *map(lowerer.value, given)]
    cut = refined([v.with_seen(((),) * (rank - len(v.seen)) + v.seen) for v in values])
    assert cut is not None  # the parameters have a single axis for each dimension
    x, *own = cut
    normalised = tuple(axis for run in x.seen[-count:] for axis in run)
    order = tuple(axis for axis in x.axes if axis in normalised)
    if len(order) != len(normalised):
        raise Unsupported("its channels are expanded")
    as_one = x.with_seen((*x.seen[:-count], order))
    tensor, outer, channels = channels_last(lowerer, as_one, -1)
    for source in sources:
        if source is None:
            held.append(None)
            continue
        value = own.pop(0)
        its = dict(zip(normalised, (a for run in value.seen for a in run), strict=True))
        initializer, layout = lowerer.weight(source, [tuple(its[a] for a in channels)], value)
        held.append(Held(initializer, (source, layout)))
    return tensor, lambda output: Value(output, (*outer, channels), x.seen), held


@lowers("softmax", "_softmax", "log_softmax", "_log_softmax")
def softmax(lowerer: Lowerer, node: Node) -> Value:
    x = lowerer.value(node["self"])
    d = node["dim"] % len(node.shape)
    tensor, outer, channels = channels_last(lowerer, x, d)
    kind = Softmax(log=node.op.endswith("log_softmax"))
    output = lowerer.model.graph.add(kind, [tensor], lowerer.name(node))
    return Value(output, (*outer, channels), x.seen)


@lowers("dropout")
def dropout(lowerer: Lowerer, node: Node) -> Value:
    x = lowerer.in_graph(lowerer.value(node["input"]))
    output = lowerer.model.dropout(x.source, float(node["p"]), lowerer.name(node))
    return Value(output, x.stored, x.seen)


@lowers("feature_dropout")
def feature_dropout(lowerer: Lowerer, node: Node) -> Value:
    """Whole channels are dropped: those whose one was, of a one for each channel."""
    x = lowerer.value(node["input"])
    samples, channels, *positions = node.shape
    if samples != SAMPLES or channels % SAMPLES == 0:
        raise Unsupported("its first two dimensions are not samples and channels")
    model = lowerer.model
    name = lowerer.name(node)
    ones = model.constant(np.ones(channels, np.float32), name=lowerer.unique(f"{name}.ones"))
    ones = lowerer.over_samples(ones)
    kept = plain(model.dropout(ones, float(node["p"]), name), (samples, channels))
    kept = kept.with_seen((*kept.seen, *(() for _ in positions)))
    return apply(lowerer, "(x0 * x1)", [x, kept], lowerer.unique(f"{name}.product"))


def channels_last(lowerer: Lowerer, x: Value, d: int) -> tuple[Tensor, tuple[Run, ...], Run]:
    """A tensor whose last dimension is the one that is seen at `d`; the others as they are."""
    x = lowerer.in_graph(x)
    channels = x.seen[d]
    if any(axis.repeated or axis.extent == SAMPLES for axis in channels):
        raise Unsupported("its channels are expanded, or merged with samples")
    outer = [
        left
        for i, run in enumerate(x.stored)
        if (left := tuple(axis for axis in run if axis not in channels)) or i == 0
    ]
    while len(outer) >= MAX_RANK:
        last = outer.pop()
        outer[-1] = (*outer[-1], *last)
    return lowerer.arranged(x, [*outer, channels]), tuple(outer), channels


def _same_arrangement(lowerer: Lowerer, value: Value, tensor: Tensor) -> Tensor:
    """What is seen with the channels second, with the channels last as `tensor` has them."""
    samples, channels, *positions = value.seen
    runs = [samples, *(run for run in positions if run), channels]
    return lowerer.reshape(lowerer.arranged(lowerer.in_graph(value), runs), tensor.shape[1:])


def vector(node: Node, name: str) -> Node | None:
    vector: Node | None = node[name]
    if vector is not None and (vector.op not in WEIGHTS or len(vector.shape) != 1):
        raise Unsupported(f"its {name} is computed, not a parameter")
    return vector


def initial(gamma: Node | None, beta: Node | None) -> tuple[Initializer, Initializer]:
    return (
        Constant() if gamma is None else _given(gamma),
        Zeros() if beta is None else _given(beta),
    )


def _given(vector: Node) -> Initializer:
    return first_values(*_as_it_is(vector))


def layouts(*vectors: Node | None) -> list[tuple[Node, Layout] | None]:
    """For `Lowerer.apply`: a vector that a layer has not got is a constant here."""
    return [None if v is None else _as_it_is(v) for v in vectors]


def _as_it_is(vector: Node) -> tuple[Node, Layout]:
    return vector, Layout(vector.shape, (0,), vector.shape)

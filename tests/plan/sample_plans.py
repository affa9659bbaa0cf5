"""Plans whose properties are tested: of random graphs and strategies, and of the zoo."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import numpy as np
from hypothesis import strategies as st

from flexlegion import Model, ParallelConfig, Strategy
from flexlegion.graph.graph import Graph
from flexlegion.graph.operator_type import DimKind
from flexlegion.graph.tensor import Tensor
from flexlegion.known_strategies import resolve
from flexlegion.machine.devices import Devices
from flexlegion.ops.losses import MeanSquaredError
from flexlegion.plan.plan import Plan
from flexlegion.strategy.configuration import Sums
from flexlegion.strategy.granularity import DEFAULT_GRANULARITY, Granularity
from flexlegion.transforms.losses import add_loss
from flexlegion.zoo import build

DEVICES = Devices.of(cpus=3)
IN_NODES = Devices(Devices.of(cpus=5).names, [0, 0, 1, 1, 1])  # of two sizes


def _grow(model: Model, x: Tensor, draw: st.DrawFn) -> Tensor:
    """One more layer after `x`, of those that take its shape."""
    kinds = ["dense", "softmax", "relu", "gelu", "dropout", "flatten", "other", "other"]
    if len(x.shape) == 4:
        kinds += ["conv2d", "conv2d", "pool2d", "pool2d"]
    if len(x.shape) == 3:
        kinds += ["lstm", "lstm", "luong_attention"]
    kind = draw(st.sampled_from(kinds))
    if kind in ("lstm", "luong_attention"):
        return _grow_sequence(model, x, kind, draw)
    if kind == "other":
        return _grow_other(model, x, draw)
    if kind == "dense":
        return model.dense(
            x,
            draw(st.integers(1, 5)),
            activation=draw(st.sampled_from([None, "relu", "gelu"])),
            use_bias=draw(st.booleans()),
        )
    if kind in ("conv2d", "pool2d"):
        padding = draw(st.integers(0, 2))
        sizes = [draw(st.integers(1, n + 2 * padding)) for n in x.shape[1:3]]
        kernel = (max(sizes[0], padding + 1), max(sizes[1], padding + 1))
        stride = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
        if kind == "pool2d":
            how = draw(st.sampled_from(["max", "average"]))
            return model.pool2d(x, kernel, stride, padding, how)
        return model.conv2d(x, draw(st.integers(1, 4)), kernel, stride, padding)
    if kind == "dropout":
        return model.dropout(x, 0.5)
    return {
        "softmax": model.softmax,
        "relu": model.relu,
        "gelu": model.gelu,
        "flatten": model.flatten,
    }[kind](x)


def _look_up(model: Model, tokens: Tensor, draw: st.DrawFn) -> list[Tensor]:
    """One embedding or two of a table, which a product may use, too."""
    x = model.embedding(tokens, 5, draw(st.integers(1, 7)))
    how = draw(st.sampled_from(["once", "twice", "twice", "tied"]))
    if how == "twice":
        return [model.add([x, model.embedding(tokens, 5, x.shape[-1], share=x)])]
    return [x, model.dense(x, 5, use_bias=False, share=x)] if how == "tied" else [x]


def _grow_sequence(model: Model, x: Tensor, kind: str, draw: st.DrawFn) -> Tensor:
    """A layer of sequences after `x` (n, steps, channel): two steps of an LSTM, or attention."""
    units = draw(st.integers(1, 5))
    if kind == "luong_attention":
        return model.luong_attention(x, x, units)
    first = model.lstm(x, units)
    second = model.lstm(x, units, first.state, share=first.y)
    return draw(st.sampled_from([first.y, *second]))


def _grow_other(model: Model, x: Tensor, draw: st.DrawFn) -> Tensor:
    """A normalisation, a change of shape, or a merge."""
    axis = draw(st.integers(1, len(x.shape) - 1))
    extent = x.shape[axis]
    cut = draw(st.integers(1, extent))
    inner = draw(st.permutations(range(1, len(x.shape))))
    divisors = [k for k in range(1, 7) if np.prod(x.shape[1:]) % k == 0]
    k = draw(st.sampled_from(divisors))
    residuals = st.sampled_from([lambda: x, lambda: model.tanh(x)])
    layers: dict[str, Callable[[], Tensor]] = {
        "batch_norm": lambda: model.batch_norm(x, "relu"),
        "batch_norm_residual": lambda: model.batch_norm(x, residual=draw(residuals)()),
        "layer_norm": lambda: model.layer_norm(x),
        "reshape": lambda: model.reshape(x, (k, int(np.prod(x.shape[1:])) // k)),
        "transpose": lambda: model.transpose(x, (0, *inner)),
        "split": lambda: model.split(x, [cut, extent - cut] if cut < extent else [cut], axis)[-1],
        "concat": lambda: model.concat([x, model.relu(x)], axis),
        "multiply": lambda: model.multiply([x, model.tanh(x)]),
        "parameter": lambda: model.multiply([x, model.parameter([1, *x.shape[2:]])]),
        "constant": lambda: model.add([x, model.constant(np.ones(x.shape[-1:]))]),
        "reduce": lambda: model.divide(x, model.reduce(x, "sum", axis, keepdims=True)),
        "group_norm": lambda: model.group_norm(x, x.shape[-1]),
        "frozen": lambda: model.dense(x, 3, trainable=False),
    }
    return layers[draw(st.sampled_from(sorted(layers)))]()


def _share_weights(graph: Graph) -> None:
    """Make later operators use the weights of earlier ones of the same shapes."""
    by_shape: dict[tuple[tuple[int, ...], ...], list[Tensor]] = {}
    for operator in graph.operators:
        shapes = tuple(weight.shape for weight in operator.trained_weights)
        if not shapes or operator.looks_up:
            continue
        shared = by_shape.setdefault(shapes, operator.weights)
        if shared != operator.weights:
            for weight in operator.weights:
                if weight in graph.tensors:  # unless steps of one layer shared it before
                    graph.tensors.remove(weight)
            operator.weights = shared


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Graph, Tensor]:
    """A graph with a loss, and the tensor to predict."""
    model = Model(draw(st.integers(1, 5)))
    rank = draw(st.sampled_from([0, 1, 2, 3]))
    shape = draw(st.lists(st.integers(1, 6), min_size=rank, max_size=rank))
    if rank == 0 or draw(st.integers(0, 3)) == 0:
        made = _look_up(model, model.input(shape, "int32"), draw)
    else:
        made = [model.input(shape, requires_gradient=draw(st.booleans()))]
    inputs = list(made)
    for _ in range(draw(st.integers(1, 6))):
        made.append(_grow(model, draw(st.sampled_from(made[-3:])), draw))
    layers = [t for t in made if t not in inputs]
    output = draw(st.sampled_from(layers))
    if draw(st.booleans()):
        # Two branches meet in the loss; perhaps it is even twice the same tensor.
        graph = model.graph.copy()
        graph.add(MeanSquaredError(), [draw(st.sampled_from(layers)), output], "loss")
    elif len(output.shape) == 2:
        graph = add_loss(model.graph, output, "sparse_categorical_crossentropy")
    else:
        graph = add_loss(model.graph, output, "mean_squared_error")
    if draw(st.booleans()):
        _share_weights(graph)
    return graph, draw(st.sampled_from(layers))


@st.composite
def plans(draw: st.DrawFn, granularity: Granularity) -> Plan:
    graph, output = draw(graphs())
    machine = draw(st.sampled_from([DEVICES, IN_NODES]))
    if draw(st.integers(0, 3)) == 0:
        strategy = resolve("data", graph, machine)
        every = {op: replace(its, hierarchical=True) for op, its in strategy.items()}
        strategy = Strategy(every).checked(graph, machine)
    elif draw(st.booleans()):
        strategy = resolve(f"random:{draw(st.integers(0, 1000))}", graph, machine)
    else:
        configs = {}
        for operator in graph.operators:
            degrees = tuple(
                draw(st.integers(1, 1 if dim.kind is DimKind.NONE else min(n, 3)))
                for dim, n in zip(operator.dims, operator.space, strict=True)
            )
            tasks = int(np.prod(degrees))
            few = draw(st.sampled_from([machine.names, machine.names[:1], machine.names[1:]]))
            devices = draw(st.lists(st.sampled_from(few), min_size=tasks, max_size=tasks))
            sums = draw(st.sampled_from(get_args(Sums)))
            hierarchical = draw(st.booleans())
            configs[operator.name] = ParallelConfig(
                degrees, tuple(devices), sums, hierarchical=hierarchical
            )
        strategy = Strategy(configs).checked(graph, machine)
    states, clips = draw(st.integers(0, 2)), draw(st.booleans())
    return Plan(strategy, output, states, clips, granularity)


def zoo_plan(
    model: str,
    strategy: str,
    batch_size: int = 6,
    granularity: Granularity = DEFAULT_GRANULARITY,
    **sizes: object,
) -> Plan:
    layers = build(model, batch_size, **sizes).graph
    output = layers.operators[-1].output
    graph = add_loss(layers, output, "sparse_categorical_crossentropy")
    return Plan(resolve(strategy, graph, DEVICES), output, 1, granularity=granularity)


def weights_of(graph: Graph) -> int:
    """How many numbers are trained."""
    return sum(math.prod(tensor.shape) for tensor in graph.trained_weights)

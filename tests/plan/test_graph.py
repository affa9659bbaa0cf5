"""The layer API builds the operator graph: shapes, SOAP dimensions, weights, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flexlegion import Model, UserError
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.initializers import Given, Zeros
from flexlegion.graph.tensor import Tensor
from flexlegion.known_strategies import resolve
from flexlegion.machine.devices import Devices
from flexlegion.objective.losses import LOSSES
from flexlegion.ops.dense import Dense
from flexlegion.ops.merge import Multiply
from flexlegion.ops.normalization import LayerNorm
from flexlegion.plan.plan import Plan
from flexlegion.profiling.machines import load_machine
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import full
from flexlegion.transforms.losses import add_loss
from flexlegion.zoo import ZOO, build

DEVICES = Devices.of(cpus=4)


def layer(shape: tuple[int, ...], method: str, *args: Any, **kwargs: Any) -> Operator:
    """The operator that a layer adds after an input of that shape, in batches of 4."""
    model = Model(4)
    getattr(model, method)(model.input(shape), *args, **kwargs)
    return model.graph.operators[0]


def refusal(shape: tuple[int, ...], method: str, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(UserError) as e:
        layer(shape, method, *args, **kwargs)
    assert "\n" not in str(e.value)
    return str(e.value)


def weight_shapes(operator: Operator) -> dict[str, tuple[int, ...]]:
    return {weight.name: weight.shape for weight in operator.weights}


# Output extents by hand: floor((extent + 2 padding - kernel) / stride) + 1.
@pytest.mark.parametrize(
    ("args", "kwargs", "output"),
    [
        ((6, 3), {}, (4, 26, 22, 6)),
        ((6, (3, 5)), {}, (4, 26, 20, 6)),
        ((2, 3), {"padding": "same"}, (4, 28, 24, 2)),
        ((2, 3), {"padding": "valid", "stride": 2}, (4, 13, 11, 2)),
        ((2, 3), {"padding": 1, "stride": (3, 4)}, (4, 10, 6, 2)),
        ((2, (28, 24)), {}, (4, 1, 1, 2)),
        ((2, 5), {"padding": (4, 0)}, (4, 32, 20, 2)),
    ],
)
def test_conv2d(args: Any, kwargs: Any, output: tuple[int, ...]) -> None:
    operator = layer((28, 24, 3), "conv2d", *args, **kwargs, name="c")
    assert operator.output.shape == output
    kernel = args[1] if isinstance(args[1], tuple) else (args[1], args[1])
    assert weight_shapes(operator) == {
        "c.kernel": (args[0], *kernel, 3),
        "c.bias": (args[0],),
    }
    assert [(d.name, d.kind.value) for d in operator.dims] == [
        ("sample", "sample"),
        ("height", "attribute"),
        ("width", "attribute"),
        ("channel", "parameter"),
        ("in", "reduction"),
    ]


def test_conv2d_without_bias() -> None:
    operator = layer((5, 5, 2), "conv2d", 3, 1, use_bias=False, name="c")
    assert weight_shapes(operator) == {"c.kernel": (3, 1, 1, 2)}


@pytest.mark.parametrize(
    ("shape", "args", "kwargs", "text"),
    [
        ((5,), (2, 3), {}, "takes an input of 4 dimensions (sample, height, width, channel)"),
        ((5, 5, 1), (2, 6), {}, "a kernel of 6 does not fit into 5 positions with padding 0"),
        ((5, 5, 1), (2, 3), {"padding": 3}, "padding 3 must be smaller than the kernel 3"),
        ((5, 5, 1), (0, 3), {}, "filters has to be at least 1, but is 0"),
        ((5, 5, 1), (2, 0), {}, "kernel has to be positive, but is 0"),
        ((5, 5, 1), (2, (3, -1)), {}, "kernel has to be one or two numbers, but is (3, -1)"),
        ((5, 5, 1), (2, (3, 3, 3)), {}, "a whole number or a list of 2"),
        ((5, 5, 1), (2, 3), {"stride": 0}, "stride has to be positive, but is 0"),
        ((5, 5, 1), (2, 2), {"padding": "same"}, "'same' needs odd kernels and stride 1"),
        ((5, 5, 1), (2, 3), {"padding": "same", "stride": 2}, "give the padding as numbers"),
        ((5, 5, 1), (2, 3), {"padding": "full"}, "unknown padding 'full'; use 'valid', 'same'"),
        ((5, 5, 1), (2, 3), {"padding": -1}, "padding has to be one or two numbers, but is -1"),
        ((5, 5, 1), (2, 3), {"activation": "swish"}, "unknown activation 'swish'"),
    ],
)
def test_conv2d_refuses(shape: tuple[int, ...], args: Any, kwargs: Any, text: str) -> None:
    assert text in refusal(shape, "conv2d", *args, **kwargs)


@pytest.mark.parametrize(
    ("args", "kwargs", "output"),
    [
        ((2,), {}, (4, 14, 12, 3)),
        ((3,), {}, (4, 9, 8, 3)),
        ((3,), {"stride": 2, "padding": 1}, (4, 14, 12, 3)),
        (((2, 3), 1), {"kind": "average"}, (4, 27, 22, 3)),
        ((3,), {"padding": "same", "stride": 1}, (4, 28, 24, 3)),
    ],
)
def test_pool2d(args: Any, kwargs: Any, output: tuple[int, ...]) -> None:
    operator = layer((28, 24, 3), "pool2d", *args, **kwargs)
    assert operator.output.shape == output
    assert operator.weights == []
    assert [d.kind.value for d in operator.dims] == ["sample", *["attribute"] * 3]


@pytest.mark.parametrize(
    ("shape", "args", "kwargs", "text"),
    [
        ((5, 5), (2,), {}, "takes an input of 4 dimensions"),
        ((5, 5, 1), (6,), {}, "a kernel of 6 does not fit into 5 positions"),
        ((5, 5, 1), (2,), {"kind": "min"}, "unknown kind of pooling 'min'; use 'max' or 'average'"),
        ((5, 5, 1), (2,), {"padding": 2}, "padding 2 must be smaller than the kernel 2"),
        ((5, 5, 1), (2,), {"stride": (1, 0)}, "stride has to be positive"),
    ],
)
def test_pool2d_refuses(shape: tuple[int, ...], args: Any, kwargs: Any, text: str) -> None:
    assert text in refusal(shape, "pool2d", *args, **kwargs)


def test_dense() -> None:
    operator = layer((7,), "dense", 5, name="d")
    assert operator.output.shape == (4, 5)
    assert weight_shapes(operator) == {"d.kernel": (5, 7), "d.bias": (5,)}
    assert [(d.name, d.kind.value) for d in operator.dims] == [
        ("sample", "sample"),
        ("channel", "parameter"),
        ("in", "reduction"),
    ]
    assert operator.space == (4, 5, 7)
    operator = layer((3, 7), "dense", 5, use_bias=False, name="d")
    assert operator.output.shape == (4, 3, 5)
    assert weight_shapes(operator) == {"d.kernel": (5, 7)}
    assert [d.kind.value for d in operator.dims] == [
        "sample",
        "attribute",
        "parameter",
        "reduction",
    ]


def test_dense_refuses() -> None:
    assert refusal((), "dense", 5, name="d") == (
        "operator 'd': dense takes at least 2 dimensions, but got shape [4]"
    )
    assert refusal((7,), "dense", 0) == "units has to be at least 1, but is 0"
    assert "unknown activation 'elo'" in refusal((7,), "dense", 2, activation="elo")


@pytest.mark.parametrize(
    ("shape", "output"), [((2, 3, 5), (4, 30)), ((6,), (4, 6)), ((), (4, 1)), ((2, 3), (4, 6))]
)
def test_flatten(shape: tuple[int, ...], output: tuple[int, ...]) -> None:
    assert layer(shape, "flatten").output.shape == output


@pytest.mark.parametrize("method", ["relu", "sigmoid", "tanh", "gelu", "softmax"])
def test_same_shape(method: str) -> None:
    operator = layer((3, 4, 5), method)
    assert operator.output.shape == (4, 3, 4, 5)
    assert [d.name for d in operator.dims] == ["sample", "height", "width", "channel"]
    assert operator.weights == []


def test_dropout() -> None:
    assert layer((3, 4), "dropout", 0.5).output.shape == (4, 3, 4)
    assert layer((3,), "dropout", 0).output.shape == (4, 3)
    for rate in (1, -0.1, float("nan")):
        assert refusal((3,), "dropout", rate).startswith("a dropout rate has to be at least 0")


def test_softmax_refuses() -> None:
    assert refusal((), "softmax", name="s") == (
        "operator 's': softmax takes at least 2 dimensions, but got [4]"
    )


@pytest.mark.parametrize("activation", ["relu", "sigmoid", "tanh"])
def test_fused_activations(activation: str) -> None:
    operator = layer((7,), "dense", 5, activation=activation)
    assert operator.kind.attributes()["activation"] == activation


@pytest.mark.parametrize("activation", ["gelu", "softmax"])
def test_separate_activations(activation: str) -> None:
    model = Model(4)
    x = model.dense(model.input((7,)), 5, activation=activation, name="d")
    assert [op.name for op in model.graph.operators] == ["d", f"d.{activation}"]
    assert x.producer is model.graph.operators[1]


# Inputs, names, models


@pytest.mark.parametrize("batch_size", [0, -3, 2**31, 10**30])
def test_batch_size(batch_size: int) -> None:
    with pytest.raises(UserError, match=f"has to be 1 to 2147483647, but is {batch_size}"):
        Model(batch_size)


def test_input_shape() -> None:
    model = Model(4)
    assert model.input((3, 2)).shape == (4, 3, 2)
    with pytest.raises(UserError, match="extents have to be positive"):
        model.input((3, 0))
    with pytest.raises(UserError, match="at most 5 dimensions"):
        model.input((1, 1, 1, 1, 1))


def test_names() -> None:
    model = Model(4)
    x = model.input((3,))
    assert x.name == "input_1"
    model.dense(x, 2)
    model.dense(x, 2)
    model.relu(x, name="r")
    assert [op.name for op in model.graph.operators] == ["dense_1", "dense_2", "r"]
    assert [t.name for t in model.graph.weights][:2] == ["dense_1.kernel", "dense_1.bias"]
    for name in ("r", "input_1"):
        with pytest.raises(UserError, match=f"the name '{name}' is taken"):
            model.relu(x, name=name)
    with pytest.raises(UserError, match="the name 'r' is taken"):
        model.input((3,), name="r")


def test_tensor_of_another_model() -> None:
    first, second = Model(4), Model(4)
    x = first.input((3,))
    with pytest.raises(UserError, match=r"operator 'r': input .* belongs to another model"):
        second.relu(x, name="r")


def test_refusal_leaves_the_graph_alone() -> None:
    model = Model(4)
    x = model.input((3,))
    with pytest.raises(UserError):
        model.conv2d(x, 2, 3)
    assert model.graph.operators == []
    assert model.graph.tensors == [x]


def test_branches() -> None:
    model = Model(4)
    x = model.input((3,))
    a, b = model.dense(x, 2), model.dense(x, 2)
    assert model.graph.operators[0].inputs == model.graph.operators[1].inputs == [x]
    assert a is not b


def test_not_compiled() -> None:
    model = Model(4)
    with pytest.raises(UserError, match="call compile"):
        model.evaluate([[1]], [0])
    with pytest.raises(UserError, match="the model has no layers"):
        model.compile()


# Losses


def model_with(output: Callable[[Model, Tensor], Tensor]) -> tuple[Graph, Tensor]:
    model = Model(4)
    y = output(model, model.input((3,), name="x"))
    return model.graph, y


def test_cross_entropy_reads_the_logits() -> None:
    graph, y = model_with(lambda m, x: m.softmax(m.dense(x, 5)))
    extended = add_loss(graph, y, "sparse_categorical_crossentropy")
    own_logit, statistics, loss = extended.operators[-3:]
    for operator in (own_logit, statistics):
        assert operator.inputs[0] is graph.operators[0].output
        assert operator.space == (4, 5)
    labels = loss.inputs[-1]
    assert (labels.name, labels.shape, labels.dtype) == ("labels", (4,), "int32")
    assert loss.output.shape == (4,)
    assert not own_logit.output.requires_gradient  # none passes through it
    assert [t.requires_gradient for t in statistics.outputs] == [True, False]
    assert len(graph.operators) == 2  # the model's own graph stays


def test_other_losses() -> None:
    graph, y = model_with(lambda m, x: m.dense(x, 5))
    for name in ("categorical_crossentropy", "mean_squared_error"):
        loss = add_loss(graph, y, name).operators[-1]
        assert loss.inputs[0] is y
        assert (loss.inputs[1].shape, loss.inputs[1].dtype) == ((4, 5), "float32")
    graph, y = model_with(lambda m, x: m.softmax(m.dense(x, 5)))
    assert add_loss(graph, y, "mean_squared_error").operators[-1].inputs[0] is y


def test_losses_refuse() -> None:
    graph, y = model_with(lambda m, x: m.dense(x, 5))
    with pytest.raises(
        UserError, match=f"unknown loss 'hinge'; choose one of {next(iter(LOSSES))}"
    ):
        add_loss(graph, y, "hinge")
    model = Model(4)  # each position of an image is classified
    y = model.dense(model.input((3, 3, 3)), 5)
    added = add_loss(model.graph, y, "sparse_categorical_crossentropy")
    assert added.operators[-1].inputs[-1].shape == (4, 9)
    with pytest.raises(UserError, match="the name 'labels' is taken"):
        Model(4).input((3,), name="labels")
    model = Model(4)
    integers = model.input((3,), "int32", name="ids")
    with pytest.raises(UserError, match="'d' takes float32 values, but ids has int32"):
        model.dense(integers, 5, name="d")
    with pytest.raises(UserError, match="has type float64, but only float32 or int32"):
        model.input((3,), "float64")  # type: ignore[arg-type]


# The zoo


def test_lenet_shapes() -> None:
    graph = build("lenet", 4).graph
    assert {op.name: op.output.shape[1:] for op in graph.operators} == {
        "c1": (28, 28, 6),
        "s2": (14, 14, 6),
        "c3": (10, 10, 16),
        "s4": (5, 5, 16),
        "flatten": (400,),
        "c5": (120,),
        "f6": (84,),
        "output": (10,),
        "softmax": (10,),
    }


def test_zoo_refuses() -> None:
    with pytest.raises(UserError, match="unknown model 'yolo'; choose one of " + ", ".join(ZOO)):
        build("yolo", 4)
    for shape in ((15, 32, 1), (8,), (3, 3)):
        with pytest.raises(UserError, match="of at least 16x16 pixels, but the data have shape"):
            build("lenet", 4, shape)


def test_summary() -> None:
    model = Model(4)
    model.dense(model.input((3,)), 5, name="fc")
    text = model.summary()
    assert "fc" in text
    assert "4 x 5" in text
    assert "sample (S), channel (P)" in text
    assert "20 weights" in text


def test_summary_counts_shared_weights_once() -> None:
    text = build("rnnlm", 2, steps=2, layers=1, hidden=3, vocabulary=7).summary()
    assert "sample (S), length (-), channel (P)" in text
    # Table, four gates over 3 + 3 values and a bias, output layer.
    assert f"{7 * 3 + 12 * 7 + 7 * 4} weights" in text


def test_merges() -> None:
    model = Model(4)
    x, y = model.input((6, 5, 3)), model.input((6, 5, 2))
    assert model.concat([x, y, x]).shape == (4, 6, 5, 8)
    assert model.concat([x, x], axis=1).shape == (4, 12, 5, 3)
    assert model.add([x, x, x]).shape == (4, 6, 5, 3)
    for layer, inputs, text in (
        (model.add, [x, y], "cannot be broadcast to one another"),
        (model.add, [x], "add takes at least 2 inputs, but got 1"),
        (model.concat, [], "concat takes at least 2 inputs, but got 0"),
        (lambda i: model.concat(i, axis=1), [x, y], "differ in dimension 1 alone"),
        (lambda i: model.concat(i, axis=0), [x, x], "along a dimension 1 to 3"),
        (lambda i: model.concat(i, axis=9), [x, x], "but axis is 9"),
    ):
        with pytest.raises(UserError, match=text):
            layer(inputs)


def test_frozen_weights() -> None:
    """Constants: everybody reads them, and they have neither gradient nor update."""
    model = Model(4)
    x = model.dense(model.input((6,)), 6, name="trained")
    frozen = model.graph.apply(LayerNorm(), [x], "frozen", trainable=False)
    model.graph.apply(Dense(3), [frozen.output], "last", trainable=False)
    assert all(weight.constant for weight in frozen.weights)
    assert [w.name for w in model.graph.trained_weights] == ["trained.kernel", "trained.bias"]
    graph = add_loss(model.graph, model.graph.operators[-1].output, "mean_squared_error")
    plan = Plan(resolve("data", graph, DEVICES), frozen.output)
    for launch in plan.launches:
        for requirement in launch.requirements:
            if requirement.tensor.constant:
                assert (requirement.field, requirement.privilege) == ("value", "read")
    assert [plan.gradient_slots(weight) for weight in frozen.weights] == [0, 0]
    updates = [launch.operator.name for launch in plan.launches if launch.pass_ == "update"]
    assert updates == ["trained"]


def test_frozen_weights_do_not_move() -> None:
    """The simulator moves what changes; of frozen weights, each device holds its own copy."""
    moved, held = [], []
    for trainable in (True, False):
        model = Model(4)
        x = model.dense(model.input((6,)), 6)
        model.graph.add(Dense(300), [x], "wide", trainable=trainable)
        topology = load_machine("p100x4")
        graph = add_loss(model.graph, model.graph.operators[-1].output, "mean_squared_error")
        problem = Problem(graph, topology, AnalyticCosts(), graph.operators[1].output)
        timeline = full(problem, resolve("data", graph, topology.names))
        moved.append(timeline.bytes_moved)
        held.append(timeline.allocated_bytes[topology.devices[0].memory])
    # Of the seven parts of 300 x 6 + 300 weights, three are sent to, and from, one device.
    assert moved[0] - moved[1] == 2 * 3 * 4 * (300 * 6 + 300)
    assert held[0] - held[1] == 4 * (300 * 6 + 300)


def test_weights_that_operators_share() -> None:
    """A weight of nobody's own is read among the inputs; it is updated once."""
    graph = Graph()
    x = graph.add_input("x", (1, 6), "float32")
    scale = graph.add_weight("scale", (1, 6), Zeros())
    y = graph.add(Multiply(), [x, scale], "a")
    graph.add(Multiply(), [scale, y], "b")
    assert graph.trained_weights == graph.weights == [scale]
    assert graph.sources == [x, scale]
    graph = add_loss(graph, graph.operators[-1].output, "mean_squared_error")
    plan = Plan(resolve("single", graph, DEVICES), y)
    assert plan.gradient_slots(scale) == 1
    updates = [launch for launch in plan.launches if launch.pass_ == "update"]
    assert [[r.tensor.name for r in update.requirements] for update in updates] == [["scale"] * 2]
    with pytest.raises(UserError, match="the name 'scale' is taken"):
        graph.copy().add_weight("scale", (1, 6), Zeros())
    with pytest.raises(UserError, match="'given' has shape"):
        graph.copy().add_weight("given", (1, 6), Given(np.zeros(6)))

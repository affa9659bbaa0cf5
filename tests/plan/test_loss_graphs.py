"""Losses join a graph: which operators and labels, their names and weights; and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from flexlegion import Model, UserError
from flexlegion.graph.tensor import Tensor
from flexlegion.objective.losses import (
    LOSSES,
    BinaryCrossentropy,
    CategoricalCrossentropy,
    Huber,
    SparseCategoricalCrossentropy,
    Written,
    labels_of,
    losses_of,
    output_name,
    parts_of_loss,
)
from flexlegion.objective.metrics import MetricSums, goal_of
from flexlegion.transforms.losses import add_losses


class Heads(NamedTuple):
    """A model of two outputs."""

    model: Model
    a: Tensor
    b: Tensor


def two_heads() -> Heads:
    model = Model(4)
    x = model.dense(model.input((3,), name="x"), 5, name="trunk")
    a = model.dense(x, 2, activation="softmax", name="a")
    return Heads(model, a, model.dense(x, 3, activation="sigmoid", name="b"))


def test_each_output_has_its_loss() -> None:
    model, a, b = two_heads()
    graph = add_losses(
        model.graph, [a, b], ["sparse_categorical_crossentropy", Huber(0.5)], {"b": 0.25}
    )
    losses = losses_of(graph)
    assert [op.name for op in losses.values()] == ["loss.a", "loss.b"]
    assert {name: t.name for name, t in labels_of(graph).items()} == {
        "a": "labels.a",
        "b": "labels.b",
    }
    assert [(t.shape, t.dtype) for t in labels_of(graph).values()] == [
        ((4,), "int32"),
        ((4, 3), "float32"),
    ]
    labels = labels_of(graph)["a"]
    own, statistics = (op for op in graph.operators if op.name in parts_of_loss("loss.a"))
    assert own.inputs == [a.producer.inputs[0], labels]
    assert statistics.inputs == [a.producer.inputs[0], labels, own.output]
    assert losses["a"].inputs == [*statistics.outputs, labels]
    assert losses["b"].kind.attributes() == {"delta": "0.5"}  # the runtime weighs
    goal = goal_of(graph, ["accuracy", "mean_absolute_error"])
    sums = [MetricSums(loss=6, correct=2, labels=4), MetricSums(loss=8, absolute_error=4, labels=4)]
    assert goal.means(sums) == {
        "loss": 1.5 + 0.25 * 2,
        "a_loss": 1.5,
        "a_accuracy": 0.5,
        "b_loss": 2.0,
        "b_mean_absolute_error": 1.0,
    }
    assert len(model.graph.operators) == 4  # the model's own graph stays


def test_an_output_without_a_loss() -> None:
    model, a, b = two_heads()
    for loss in (["huber", None], {"a": "huber"}):
        graph = add_losses(model.graph, [a, b], loss)
        assert list(losses_of(graph)) == ["a"]


@pytest.mark.parametrize("name", LOSSES)
def test_names(name: str) -> None:
    model, a, _ = two_heads()
    (loss,) = losses_of(add_losses(model.graph, [a], name)).values()
    # A margin is an operator of its own, before the loss.
    margins = {"arcface", "cosface"}
    assert loss.kind.title == ("sparse_categorical_crossentropy" if name in margins else name)
    assert LOSSES[name]().name == name


def test_binary_crossentropy_reads_a_sigmoids_input() -> None:
    model, _, fused = two_heads()
    logits = model.dense(fused, 2)
    sigmoid = model.sigmoid(logits)
    wanted = {
        (sigmoid, None): ("logits", logits),
        (logits, None): ("logits", logits),
        (fused, None): ("probabilities", fused),
        (fused, True): ("logits", fused),
        (logits, False): ("probabilities", logits),
    }
    for (output, from_logits), expected in wanted.items():
        graph = add_losses(model.graph, [output], BinaryCrossentropy(from_logits))
        (loss,) = losses_of(graph).values()
        assert (loss.kind.of, loss.inputs[0]) == expected


def test_written_losses() -> None:
    model, a, b = two_heads()
    tensor = model.multiply([b, b], name="squares")
    graph = add_losses(model.graph, [a, b], tensor, 0.5)
    (loss,) = losses_of(graph).values()
    assert (loss.name, loss.inputs, loss.kind.weight) == ("loss", [tensor], 0.5)
    assert labels_of(graph) == {}

    def product(layers: Any, output: Tensor, labels: Tensor) -> Tensor:
        return layers.multiply([output, layers.dense(labels, 3, name="of_labels")])

    graph = add_losses(model.graph, [a, b], {"b": product})
    assert graph.has("of_labels")
    assert not model.graph.has("of_labels")
    assert labels_of(graph)["b"].shape == (4, 3)
    graph = add_losses(model.graph, [b], Written(product, labels_shape=(7,)))
    assert labels_of(graph)["labels"].shape == (4, 7)
    assert losses_of(graph)[""].dims[0].kind.value == "sample"
    whole = model.unary(model.parameter((3,)), "square")
    (loss,) = losses_of(add_losses(model.graph, [b], whole)).values()
    assert (loss.output.shape, loss.dims[0].kind.value) == ((1,), "none")


def test_names_of_outputs() -> None:
    model, a, b = two_heads()
    assert [output_name(t) for t in (a, b)] == ["a", "b"]
    state = model.lstm(model.input((2, 3)), 4, name="r")
    assert [output_name(t) for t in state] == ["r", "r.h", "r.c"]
    assert output_name(model.tanh(a, name="a.more.tanh")) == "a.more.tanh"


def test_outputs_of_a_model() -> None:
    model, a, b = two_heads()
    assert model.outputs == [b]
    model.set_outputs([a, b])
    assert model.outputs == [a, b]
    model.set_outputs(a)
    assert model.outputs == [a]


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (
            lambda t: add_losses(t.model.graph, [t.a], "mse"),
            r"unknown loss 'mse' \(did you mean 'mean_squared_error'\?\)",
        ),
        (
            lambda t: add_losses(t.model.graph, [t.a, t.b], {"bb": "huber"}),
            "loss: no output 'bb'; did you mean b?",
        ),
        (
            lambda t: add_losses(t.model.graph, [t.a, t.b], ["huber"]),
            "loss: a list of 1 was given, but the model has 2 outputs: a, b",
        ),
        (
            lambda t: add_losses(t.model.graph, [t.a, t.b], "huber", {"c": 1.0}),
            "loss weight: no output 'c'; there are a, b",
        ),
        (
            lambda t: add_losses(t.model.graph, [t.a], "huber", float("nan")),
            "a loss weight has to be a finite number, but is nan",
        ),
        (
            lambda t: add_losses(t.model.graph, [t.a, t.b], [None, None]),
            "no output has a loss, so there is nothing to train",
        ),
        (
            lambda t: add_losses(t.model.graph, [t.b, t.b], "huber"),
            "two outputs are called 'b'; each can be given but once",
        ),
        (lambda t: t.model.set_outputs([]), "a model needs an output"),
        (
            lambda t: t.model.set_outputs(t.model.graph.inputs),
            "the output x is computed by no layer",
        ),
        (
            lambda t: t.model.set_outputs(two_heads().a),
            r"the output Tensor\('a.softmax.output', .* is no tensor of this model",
        ),
        (
            lambda t: add_losses(t.model.graph, [t.a], t.model.graph.inputs[0]),
            r"the loss Tensor\('x', .* is computed by no layer of this model",
        ),
        (
            lambda t: add_losses(t.model.graph, [t.a], lambda *_: 3),
            "a loss has to return a tensor, but <lambda> returned int",
        ),
        (lambda _: Huber(0), "Huber's delta has to be a number above 0, but is 0"),
        (
            lambda _: SparseCategoricalCrossentropy(1),
            "label_smoothing has to be at least 0 and below 1, but is 1",
        ),
        (
            lambda _: CategoricalCrossentropy(-0.1),
            "label_smoothing has to be at least 0 and below 1, but is -0.1",
        ),
        (
            lambda t: goal_of(add_losses(t.model.graph, [t.a], "huber"), ["accuracy"]),
            "metric 'accuracy' does not go with the loss huber; choose among mean_squared_error",
        ),
        (
            lambda t: goal_of(add_losses(t.model.graph, [t.a, t.b], "huber"), {"c": ["accuracy"]}),
            "metrics: no loss of an output 'c'; there are a, b",
        ),
        (lambda t: t.model.input((3,), name="labels.a"), "the name 'labels.a' is taken"),
    ],
)
def test_refuses(refused: Callable[[Heads], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        refused(two_heads())


def test_layers_share_weights_and_freeze_them() -> None:
    model = Model(4)
    x = model.input((6, 5, 4))
    a = model.conv2d(x, 4, 3, padding=1, activation="silu", name="a")
    b = model.conv2d(a, 4, 3, padding=1, share=a, name="b")
    assert b.producer.weights == a.producer.inputs[0].producer.weights
    norm = model.batch_norm(b, trainable=False, name="n")
    again = model.batch_norm(a, share=norm, name="m")
    assert again.producer.weights == norm.producer.weights
    assert [w.name for w in model.graph.weights if w.state] == [
        f"{name}.moments.running_{what}" for name in "nm" for what in ("mean", "variance")
    ]
    assert [w.name for w in model.graph.trained_weights] == ["a.kernel", "a.bias"]
    with pytest.raises(UserError, match=r"'d' cannot share the weights of 'a': it needs shapes"):
        model.conv2d(x, 4, 1, share=a, name="d")
    with pytest.raises(UserError, match="'d' cannot freeze the weights of 'a', which that one tr"):
        model.conv2d(x, 4, 3, share=a, name="d", trainable=False)

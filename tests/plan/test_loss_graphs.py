"""Losses join a graph: which operators and labels, their names and weights; and what is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import flexlegion as fl
from flexlegion import Model, UserError
from flexlegion.graph.tensor import Tensor
from flexlegion.objective.losses import (
    LOSSES,
    BinaryCrossentropy,
    CategoricalCrossentropy,
    Huber,
    MeanAbsoluteError,
    MeanSquaredError,
    SparseCategoricalCrossentropy,
    Written,
    kept_weights,
    labels_of,
    losses_of,
    output_name,
    parts_of_loss,
)
from flexlegion.objective.metrics import MetricSums, goal_of
from flexlegion.objective.others_losses import loss_of_torch
from flexlegion.ops.losses import CrossEntropy
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


WEIGHED = SparseCategoricalCrossentropy(0.1, class_weights=[1.0, 3.0], weighted=True)


def test_weights_of_labels_are_inputs_and_those_of_classes_constants() -> None:
    model, a, b = two_heads()
    graph = add_losses(model.graph, [a, b], [WEIGHED, Huber(weighted=True)])
    assert {name: tensor.shape for name, tensor in labels_of(graph).items()} == {
        "a": (4,),
        "a.weights": (4,),
        "b": (4, 3),
        "b.weights": (4,),
    }
    loss = losses_of(graph)["a"]
    assert [tensor.name for tensor in loss.inputs] == [
        "loss.a.logit_statistics.log_sum",
        "loss.a.logit_statistics.rank",
        "loss.a.logit_statistics.mean",
        "loss.a.class_weights",
        "labels.a.weights",
        "labels.a",
    ]
    assert loss.inputs[3].constant
    assert {tensor.name for tensor in kept_weights(graph)} == {
        tensor.name for tensor in model.graph.weights
    }
    own, statistics = (op for op in graph.operators if op.name in parts_of_loss("loss.a"))
    assert loss.inputs[3] in statistics.inputs
    assert statistics.kind.attributes() == {"mean_weight": "2.0"}
    assert own.kind.attributes() == {}
    assert loss.kind.attributes() == {
        "smoothing": "0.1",
        "classes": "2",
        "class_weights": "1",
        "mean_weight": "2.0",
        "label_weights": "1",
    }


def test_what_counts_is_the_weight_of_a_labels_class() -> None:
    labels = np.array([[0, 1, -1], [2, 2, -100]], np.int32)
    plain = CrossEntropy(classes=3, ignored=2)
    assert plain.counted(labels).tolist() == [[1, 1, 0], [0, 0, 0]]
    weighed = CrossEntropy(classes=3, class_weights=(0.5, 0.0, 2.0))
    assert weighed.counted(labels).tolist() == [[0.5, 0, 0], [2, 2, 0]]
    sums = MetricSums(loss=9, correct=3, labels=4)
    sums.excess = float(weighed.counted(labels).sum()) - 4
    assert sums.means(["accuracy"]) == {"loss": 2.0, "accuracy": 0.75}


def test_weighed_losses_are_simulated_and_searched() -> None:
    net = Model(8)
    net.dense(net.input((6, 3)), 4, name="kind")
    plain = fl.simulate(net, "p100x4", loss=SparseCategoricalCrossentropy(0.1))
    loss = SparseCategoricalCrossentropy(0.1, class_weights=[1, 2, 0, 1], weighted=True)
    result = fl.simulate(net, "p100x4", loss=loss)
    assert result.iteration_time_ns >= plain.iteration_time_ns
    found = fl.search(net, "p100x4", loss=loss, budget="200", seed=1)
    assert found.iteration_time_ns <= result.iteration_time_ns


OF_TORCH: list[tuple[Any, Any]] = [
    (torch.nn.CrossEntropyLoss(), SparseCategoricalCrossentropy()),
    (
        torch.nn.CrossEntropyLoss(torch.tensor([1.0, 0.5]), ignore_index=1, label_smoothing=0.25),
        SparseCategoricalCrossentropy(0.25, ignore_index=1, class_weights=[1.0, 0.5]),
    ),
    (F.cross_entropy, SparseCategoricalCrossentropy()),
    (
        functools.partial(F.cross_entropy, ignore_index=0),
        SparseCategoricalCrossentropy(ignore_index=0),
    ),
    (
        torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor([3.0])),
        BinaryCrossentropy(True, positive_weight=3.0),
    ),
    (torch.nn.BCELoss(), BinaryCrossentropy(False)),
    (torch.nn.MSELoss(), MeanSquaredError()),
    (F.l1_loss, MeanAbsoluteError()),
    (torch.nn.HuberLoss(delta=0.5), Huber(0.5)),
    (torch.nn.SmoothL1Loss(), Huber(1.0)),
    (torch.nn.NLLLoss(), None),
    (two_heads, None),
]


@pytest.mark.parametrize(("theirs", "ours"), OF_TORCH)
def test_losses_of_torch_are_read(theirs: Any, ours: Any) -> None:
    assert loss_of_torch(theirs) == ours


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (torch.nn.CrossEntropyLoss(reduction="none"), "has reduction='none'"),
        (functools.partial(F.cross_entropy, reduce=False), "the option 'reduce' of the loss"),
        (torch.nn.BCELoss(torch.ones(3)), "'weight' of each value is not known in the loss"),
        (torch.nn.BCEWithLogitsLoss(pos_weight=torch.ones(3)), "pos_weight .* has 3 numbers"),
        (functools.partial(F.mse_loss, weight=torch.ones(3)), "'weight' of each value .* mse_loss"),
        (functools.partial(F.l1_loss, ignore_index=0), "the option 'ignore_index' of the loss"),
        (functools.partial(F.cross_entropy, pos_weight=1.0), "the option 'pos_weight' of the loss"),
        (torch.nn.SmoothL1Loss(beta=2.0), r"beta=2 is Huber\(2\) divided by beta"),
    ],
)
def test_options_of_torch_that_are_not_known(loss: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        loss_of_torch(loss)

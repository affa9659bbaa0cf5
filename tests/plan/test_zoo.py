"""The zoo's networks have the sizes that the literature gives."""

from __future__ import annotations

import math

import pytest

from flexlegion.errors import UserError
from flexlegion.zoo import ZOO, build


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        # LeNet-5's layers, S2 and C3 fully connected: 156 + 2416 + 48120 + 10164 + 850.
        ("lenet", 61706),
        # One weird trick's AlexNet, 61.1 million.
        ("alexnet", 61100840),
    ],
)
def test_numbers_of_weights(name: str, weights: int) -> None:
    graph = build(name, 2).graph
    assert sum(math.prod(tensor.shape) for tensor in graph.weights) == weights


@pytest.mark.parametrize("name", ZOO)
def test_output_is_a_distribution_over_the_classes(name: str) -> None:
    last = build(name, 2).graph.operators[-1]
    assert last.kind.type == "softmax"
    assert last.output.shape == (2, ZOO[name].classes)


def test_unfit_data_are_refused() -> None:
    with pytest.raises(UserError, match=r"alexnet takes images .* have shape \[8, 8, 1\]"):
        build("alexnet", 2, (8, 8, 1))


def test_flops_of_alexnet() -> None:
    """0.71 billion multiply-adds a sample, as commonly reported: 1.43 GFLOP, biases included."""
    graph = build("alexnet", 3).graph
    flops = sum(op.kind.flops(op.input_shapes) for op in graph.operators)
    assert flops / 3 == pytest.approx(2 * 0.7142e9, rel=0.005)

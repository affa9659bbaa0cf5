"""Element-wise formulas: what they refuse, what they compute, which tiles they read."""

from __future__ import annotations

import re

import numpy as np
import pytest
from touched import boxes, dims, last, reads, refusal

from flexlegion import Model, UserError
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.graph.initializers import initial_weights
from flexlegion.known_strategies import named
from flexlegion.known_strategies.registry import STRATEGIES
from flexlegion.model.summary import table
from flexlegion.ops.expression import Expression, broadcast
from flexlegion.ops.formula import FUNCTIONS, program_of
from flexlegion.profiling.machines import load_machine
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import full
from flexlegion.strategy.configuration import splits
from flexlegion.transforms.losses import add_loss


@pytest.mark.parametrize(
    ("formula", "program"),
    [
        ("x0", ""),
        ("x0 + x1", "add 0 1"),
        ("x0 * sigmoid(x1) + 0.5", "sigmoid 1;multiply 0 2;number 0.5;add 3 4"),
        ("x0 / 4 - (1 + 2)", "number 0.25;multiply 0 1;number 3.0;subtract 2 3"),
        ("-x0 ** 2", "multiply 0 0;negate 1"),
        ("x0**3 / x0**2", "multiply 0 0;multiply 1 0;divide 2 1"),  # the square but once
        ("x0**-0.5 + x0**2.5", "rsqrt 0;number 2.5;power 0 2;add 1 3"),
        ("x0 > x1", "less 1 0"),
        ("where(x0 <= 0, 1, x0)", "number 0.0;less_equal 0 1;number 1.0;where 2 3 0"),
        ("silu(x0)", "sigmoid 0;multiply 0 1"),
        ("clamp(x0, -1, 1)", "number -1.0;number 1.0;clamp 0 1 2"),
        ("relu6(x0)", "number 0.0;number 6.0;hardtanh 0 1 2"),
        ("clamp(x0, -1e999, x1)", "number -inf;clamp 0 2 1"),
    ],
)
def test_programs(formula: str, program: str) -> None:
    assert str(program_of(formula)) == program


@pytest.mark.parametrize(
    ("formula", "read"),
    [
        ("x0 + x1 - 2 * x2", set()),
        ("x0 * x1", {0, 1}),
        ("x0 * 3 + exp(x1)", {1}),
        ("relu(x0 + x1) + x2", {0, 1}),
        ("where(x0 > 0, x1, x2)", {0}),
        ("x0 > x1", set()),
    ],
)
def test_values_that_gradients_need(formula: str, read: set[int]) -> None:
    assert program_of(formula).read_backward() == read


def test_integers_need_no_partner() -> None:
    """The product's slope by an integer is not wanted, so the other factor is not read."""
    assert program_of("x0 * x1").read_backward(constant=[1]) == {1}


@pytest.mark.parametrize(
    ("formula", "why"),
    [
        ("x0 +", "it is no expression"),
        ("x0 + x2", "it does not use x1"),
        ("1 + 2", "it takes 1 to 8 inputs, x0 to x7"),
        ("x0 + x8", "it takes 1 to 8 inputs, x0 to x7"),
        ("x0 + y", "there is no 'y'; its inputs are x0"),
        ("x0.real", "'x0.real' is not possible in a formula"),
        ("x0 if x0 else 1", "'x0 if x0 else 1' is not possible in a formula"),
        ("(lambda: x0)()", "'(lambda: x0)()' is not possible in a formula"),
        ("x0 @ x1", "'x0 @ x1' is not possible in a formula"),
        ("sigmoid(x0, 1)", "sigmoid takes 1 arguments, but got 2"),
        ("x0 * (1 / 0)", "its numbers cannot be computed"),
        ("x0 * (-8) ** 0.5", "its numbers cannot be computed"),
        ("+".join(f"exp(x0 * {i}.5)" for i in range(30)), "only 63 are possible; cut it in two"),
    ],
)
def test_refused_formulas(formula: str, why: str) -> None:
    with pytest.raises(UserError, match=r"^formula '") as e:
        program_of(formula)
    assert why in str(e.value)


def test_unknown_function() -> None:
    assert "there is no function 'foo'; there are where, " in refusal(program_of, "foo(x0)")
    model = Model(2)
    x = model.input((3,))
    assert "unknown function 'foo'" in refusal(model.unary, x, "foo")
    assert "unknown activation 'foo'" in refusal(model.dense, x, 4, activation="foo")
    assert "takes 2 inputs, but got 1" in refusal(model.elementwise, "x0 + x1", [x])
    assert "takes at least 2 inputs, but got 1" in refusal(model.multiply, [2.0])


def test_every_function_is_a_layer_and_an_activation() -> None:
    model = Model(2)
    x = model.input((3,))
    for name in FUNCTIONS:
        assert model.unary(x, name).shape == (2, 3)
        x = model.dense(x, 3, activation=name)
        assert last(model).kind.flops([(2, 3)]) > 0


def test_broadcasting() -> None:
    """Samples go with samples, other dimensions from the last one on."""
    assert broadcast([(4, 5, 6), (1, 6)]) == (4, 5, 6)
    assert broadcast([(4, 6), (4, 5, 6)]) == (4, 5, 6)
    assert broadcast([(1, 5, 1), (1, 1, 6)]) == (1, 5, 6)
    assert refusal(broadcast, [(4, 5), (4, 6)]) == (
        "shapes [4, 5] and [4, 6] cannot be broadcast to one another"
    )


def test_tiles() -> None:
    """A task reads its own range of what has one, and what is repeated whole."""
    model = Model(4)
    x, scale = model.input((5, 6), name="x"), model.parameter((6,), name="scale")
    rows = model.constant(np.arange(5).reshape(5, 1), name="rows")
    y = model.elementwise("x0 * x1 + x2", [x, scale, rows], name="y")
    assert y.shape == (4, 5, 6)
    assert (scale.shape, rows.shape, rows.dtype) == ((1, 6), (1, 5, 1), "int32")
    op = last(model)
    assert dims(op) == "SAA"
    found = reads(op, model, 2, 1, 2)
    assert found["x"][1] == ((0, 2), (0, 5), (3, 6))
    assert found["scale"] == [((0, 1), (0, 3)), ((0, 1), (3, 6))] * 2
    assert found["rows"] == [((0, 1), (0, 5), (0, 1))] * 4
    assert [a.saved for a in op.kind.input_access(op.input_shapes)] == [True, True, False]
    assert op.kind.flops(op.input_shapes) == 2 * 120
    assert [w.name for w in model.graph.trained_weights] == ["scale"]
    assert re.search(
        r"^y .* 6 ", table(model.graph), re.M
    )  # the scale's weights, where it is first read


def test_one_for_all_samples() -> None:
    """What belongs to no sample cannot be split by samples."""
    model = Model(4)
    x = model.elementwise("x0 + x1", [model.parameter((5, 1)), model.parameter((6,))])
    assert x.shape == (1, 5, 6)
    assert dims(last(model)) == "NAA"
    assert splits(last(model), 2) == [(1, 1, 1), (1, 1, 2), (1, 2, 1)]
    assert model.expand(x, (3, 5, 6)).shape == (4, 3, 5, 6)
    assert dims(last(model)) == "SAAA"
    assert boxes(last(model), model, 2, 2, 1, 1)["output"][3] == ((2, 4), (1, 3), (0, 5), (0, 6))
    assert "an extent that is not 1 stays" in refusal(model.expand, x, (5, 1))
    assert "cannot be broadcast" in refusal(model.expand, x, (5, 7))


def test_sums_and_products_of_one_shape_have_operators_of_their_own() -> None:
    model = Model(4)
    x, y = model.input((5,)), model.input((1,))
    kinds = []
    for layer in (model.add, model.multiply):
        for terms in ([x, x], [x, y], [x, 2], [x, x, x]):
            layer(terms)
            kinds.append(last(model).kind.type)
    assert kinds == ["add", *["expression"] * 2, "add", "multiply", *["expression"] * 3]
    model.subtract(1, x)
    assert last(model).kind == Expression("(1.0) - x0")
    model.divide(x, y)
    assert last(model).kind == Expression("x0 / x1")


def test_constants() -> None:
    """Integers stay integers, and keep their values."""
    model = Model(2)
    whole = model.constant([[2**24 + 1, -3]], name="whole")
    flags = model.constant(np.array([True, False]), name="flags")
    real = model.constant(np.float64(0.5), name="real")
    assert (whole.shape, flags.shape, real.shape) == ((1, 1, 2), (1, 2), (1,))
    values = initial_weights(model.graph, 0)
    assert values["whole"].tolist() == [[[2**24 + 1, -3]]]
    assert (values["flags"].dtype, values["real"].dtype) == (np.int32, np.float32)
    assert all(tensor.constant for tensor in (whole, flags, real))
    assert "is no 32-bit integer" in refusal(model.constant, [2**31])
    assert "an array of numbers" in refusal(model.constant, ["a"])
    assert "at most 4 positive extents" in refusal(model.parameter, (2, 0))
    assert "'p' has shape [3]" in refusal(model.parameter, (3,), np.ones(4), "p")


def _with_sources() -> Model:
    """A network of parameters, constants, and what belongs to all samples."""
    model = Model(8)
    x = model.dense(model.input((6, 16)), 16)
    bias = model.elementwise("x0 * tanh(x1)", [model.parameter((16,)), model.constant(np.eye(16))])
    x = model.add([x, model.elementwise("x0 + x1", [x, model.parameter((6, 1))])])
    x = model.add([x, model.constant(np.ones((6, 16)))])
    token = model.expand(model.parameter((1, 16)), (16, 16))
    x = model.concat([x, token, model.expand(bias, (16, 16))], axis=1)
    model.dense(model.flatten(x), 5)
    return model


# Those that need what the model has not: pairs of layers, classes, tables, signatures; or what the
# machine has not, many devices.
OTHERS = {
    "random",
    "sbp",
    "optcnn-coarse",
    "megatron",
    "pipeline",
    "interleaved",
    "3d",
    "vocabulary",
    "wide-deep",
}


@pytest.mark.parametrize("name", [*(name for name in STRATEGIES if name not in OTHERS), "random:3"])
def test_strategies_and_costs(name: str) -> None:
    """Every strategy takes weights among inputs; the simulator prices them."""
    model = _with_sources()
    graph = add_loss(model.graph, model.graph.operators[-1].output, "mean_squared_error")
    topology = load_machine("p100x4")
    problem = Problem(graph, topology, AnalyticCosts(), graph.operators[0].output, 1)
    assert full(problem, named(name, problem)).iteration_time_ns > 0

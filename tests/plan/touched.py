"""What an operator's tasks touch by its access maps, and how it refuses, in a few words."""

from __future__ import annotations

import math
from typing import Any

import pytest

from flexlegion import Model, ParallelConfig, Strategy, UserError
from flexlegion.graph.graph import Operator
from flexlegion.known_strategies import resolve
from flexlegion.machine.devices import Devices
from flexlegion.plan.plan import Box, Launch, Plan

DEVICES = Devices.of(cpus=4)


def dims(operator: Operator) -> str:
    """The dimensions' kinds, as SAPN."""
    return "".join(dim.kind.value[0].upper() for dim in operator.dims)


def last(model: Model) -> Operator:
    return model.graph.operators[-1]


def forward(operator: Operator, model: Model, *degrees: int) -> Launch:
    """The operator's forward launch; all other operators are whole."""
    strategy = dict(resolve("single", model.graph, DEVICES))
    tasks = math.prod(degrees)
    strategy[operator.name] = ParallelConfig(degrees, tuple(DEVICES.names[:tasks]))
    whole = Strategy(strategy).checked(model.graph, DEVICES)
    plan = Plan(whole, last(model).output)
    return next(x for x in plan.launches if x.operator is operator and x.pass_ == "forward")


def boxes(operator: Operator, model: Model, *degrees: int) -> dict[str, list[Box]]:
    """What each task of the operator touches, by the last part of the tensor's name."""
    requirements = forward(operator, model, *degrees).requirements
    return {r.tensor.name.rpartition(".")[2]: r.boxes for r in requirements}


def reads(operator: Operator, model: Model, *degrees: int) -> dict[str, list[Box]]:
    """What each task of the operator reads, by the tensor's name."""
    requirements = forward(operator, model, *degrees).requirements
    return {r.tensor.name: r.boxes for r in requirements if r.privilege == "read"}


def refusal(call: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(UserError) as e:
        call(*args, **kwargs)
    assert "\n" not in str(e.value)
    return str(e.value)


def weights(operator: Operator) -> dict[str, tuple[int, ...]]:
    return {weight.name.rpartition(".")[2]: weight.shape for weight in operator.weights}

"""What an operator's function is called with, beside its operands.

Programs write these arguments down; `importers.evaluation` calls the functions with them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields, replace
from math import prod
from types import ModuleType
from typing import Any

from flexlegion.graph.graph import Operator
from flexlegion.graph.initializers import Initializer
from flexlegion.ops.formula import with_real_comparisons
from flexlegion.ops.given_weights import GivenWeights

# Of the operators that look something up by number: where the dimension is that they look it up in,
# as its number in their space.
_LOOKS_UP: dict[str, Callable[[Any], int]] = {
    "embedding": lambda op: len(op.space) - 1 - (op.dims[-1].name != "row"),
    "own_logit": lambda op: len(op.output.shape),
    "angular_margin": lambda _: 1,
    "softmax": lambda op: len(op.output.shape) - 1,
    "roll": lambda op: op.kind.axis,
    "take": lambda op: op.kind.axis,
}
# How many elements a whole operator reduces, or has, where its function has to know.
_COUNTS: dict[str, Callable[[Any], int]] = {
    "reduce": lambda op: prod(op.inputs[0].shape[axis] for axis in op.kind.axes),
    "group_norm": lambda op: op.inputs[0].shape[-1],
}


def with_weights(operator: Operator) -> Operator:
    """The operator that has weights, of one whose weights are computed by others."""
    kind = operator.kind
    if not isinstance(kind, GivenWeights):
        return operator
    own, given = operator.inputs[: kind.own_inputs], operator.inputs[kind.own_inputs :]
    return replace(operator, kind=kind.kind, inputs=own, weights=given)


def function_of(operator: Operator, modules: Iterable[ModuleType]) -> Callable[..., Any] | None:
    """What computes an operator, in one of some modules; None: there is nothing.

    Of one whose weights are computed by others, it takes them as weights.
    """
    name = with_weights(operator).kind.type
    found = (getattr(module, name, None) for module in modules)
    return next(filter(None, found), None)


def attributes(operator: Operator, function: Callable[..., Any]) -> dict[str, Any]:
    """The operator's attributes that its function takes and that are not the function's defaults.

    What depends on the tile (`shape`, `low`) and on random numbers (`key`) is left to the caller.
    """
    operator = with_weights(operator)
    wanted = inspect.signature(function).parameters
    kind: Any = operator.kind
    result: dict[str, Any] = {}
    for field in fields(kind):
        value = getattr(kind, field.name)
        if field.name not in wanted or isinstance(value, Initializer) or field.name == "shape":
            continue
        default = None if field.default is MISSING else field.default
        if wanted[field.name].default != value or default is None:
            result[field.name] = value
    if "formula" in result:
        result["formula"] = with_real_comparisons(result["formula"])
    if "count" in wanted:
        result["count"] = _COUNTS[kind.type](operator)
    return result


def looked_up_in(operator: Operator) -> int:
    """The dimension of its space in which an operator looks something up by number."""
    operator = with_weights(operator)
    return _LOOKS_UP[operator.kind.type](operator)

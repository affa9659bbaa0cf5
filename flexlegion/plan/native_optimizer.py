"""Optimizers as the native libraries take them."""

from __future__ import annotations

from typing import Any

from flexlegion.bindings.native import Arrays
from flexlegion.objective.groups import groups_of
from flexlegion.objective.optimizers import Optimizer
from flexlegion.plan.plan import Plan


def to_native(array: Arrays, optimizer: Optimizer, plan: Plan | None = None) -> Any:
    """The header's ``fl_optimizer``; `array` keeps it.

    Parameters
    ----------
    array
        Keeps what is made.
    optimizer
        What to make it of.
    plan
        Whose weights belong to the optimizer's groups; None: its groups are left out.

    Raises
    ------
    UserError
        If a group has no weight.
    """
    its = {
        "type": array.text(optimizer.type),
        "attributes": array.attributes(optimizer.attributes()),
        "ema": optimizer.ema or 0.0,
    }
    if plan is not None and optimizer.groups:
        weights = [weight for weight in plan.graph.weights if weight in plan.facts.updated]
        numbers = dict(zip(weights, groups_of(weights, optimizer.groups), strict=True))
        groups = [
            {
                "attributes": array.attributes(optimizer.of_group(group).attributes()),
                "rate": 1.0 if group.lr is None else group.lr / optimizer.lr,
            }
            for group in optimizer.groups
        ]
        its |= {
            "n_groups": len(groups),
            "groups": array("fl_parameter_group", groups),
            "group_of": array("int32_t", [numbers.get(t, -1) for t in plan.graph.tensors]),
        }
    return array("fl_optimizer", [its])

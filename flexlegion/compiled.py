"""What `Model.compile` makes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flexlegion.binding import Binding
from flexlegion.graph import Graph
from flexlegion.machine.running import RunningMachine
from flexlegion.metrics import Goal
from flexlegion.optimizers import Optimizer
from flexlegion.plan import Plan
from flexlegion.runtime.position import Position
from flexlegion.runtime.program import Program
from flexlegion.schedules import Schedule, factor_at
from flexlegion.strategy import Strategy
from flexlegion.tensor import Tensor


@dataclass
class Compiled:
    """What `compile` made, and how far training is."""

    graph: Graph
    outputs: list[Tensor]
    goal: Goal
    optimizer: Optimizer
    schedule: Schedule
    strategy: Strategy
    machine: RunningMachine
    plan: Plan
    program: Program
    binding: Binding
    position: Position = field(default_factory=Position)
    resumed: Mapping[str, Any] | None = None

    def rate_after(self, steps: int) -> float:
        """The learning rate of the last of so many iterations."""
        return self.optimizer.lr * factor_at(self.schedule, max(steps - 1, 0))


def warn_of_idle(plan: Plan) -> None:
    """Name layers that are left out, which their user may have taken for outputs."""
    names = [f"'{op.name}'" for op in plan.facts.idle]
    if not names:
        return
    few = 3
    shown = ", ".join(names[:few]) + (f" and {len(names) - few} more" if names[few:] else "")
    warnings.warn(
        f"layers that lead to no output and no loss are left out: {shown}; outputs that are not "
        "the last layer's have to be set by set_outputs",
        stacklevel=3,
    )

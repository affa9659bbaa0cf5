"""What `Model.compile` makes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from flexlegion.base.errors import UserError
from flexlegion.graph.fingerprint import Fingerprint
from flexlegion.graph.graph import Graph
from flexlegion.graph.tensor import Tensor
from flexlegion.machine.running import RunningMachine
from flexlegion.objective.metrics import Goal
from flexlegion.objective.schedules import Schedule, factor_at
from flexlegion.objective.training import TrainingSpec
from flexlegion.plan.plan import Plan
from flexlegion.strategy.strategy import ResolvedStrategy
from flexlegion.training.binding import Binding
from flexlegion.training.position import Position
from flexlegion.training.program import Program


@dataclass
class Compiled:
    """What `compile` made, of which arguments, and how far training is."""

    arguments: Mapping[str, Any]
    graph: Graph
    training: TrainingSpec
    outputs: list[Tensor]
    goal: Goal
    schedule: Schedule
    strategy: ResolvedStrategy
    machine: RunningMachine
    plan: Plan
    program: Program
    binding: Binding
    position: Position = field(default_factory=Position)
    resumed: Mapping[str, Any] | None = None

    in_training: bool = False
    averaged: bool = False  # whether the weights are their moving averages for now

    @contextmanager
    def while_training(self) -> Iterator[None]:
        """Refuse, until the end, what a training cannot live through.

        Raises
        ------
        UserError
            If the model is in training.
        """
        self.check_at_rest()
        self.in_training = True
        try:
            yield
        finally:
            self.in_training = False

    def check_at_rest(self) -> None:
        """Raise `UserError` if a callback asks for what ends the training that it belongs to."""
        if self.averaged:
            raise UserError(
                "the model's weights are their moving averages for now; until averaged() has "
                "ended, it can evaluate, predict and save, but not be trained, compiled or closed"
            )
        if self.in_training:
            raise UserError(
                "the model is in training, and until that has ended it cannot be trained, compiled "
                "or closed; a callback can evaluate and predict, read and write weights, and end "
                "the training (training.stop())"
            )

    def about(self) -> dict[str, Any]:
        """What trains, and on what, as the program was made; for JSON."""
        program, steps = self.program, self.position.step
        return self.training.facts() | {
            "learning_rates": {"first": self.rate_after(1), "last": self.rate_after(steps)},
            "seed": program.seed,
            "fingerprint": Fingerprint.of(program.plan.graph).value,
            "strategy": self.strategy.source,
            "iterations": steps,
            "devices": list(self.machine.devices.names),
            "threads": self.machine.threads,
            "ranks": self.machine.ranks,
        }

    def rate_after(self, steps: int) -> float:
        """The learning rate of the last of so many iterations."""
        return self.training.optimizer.lr * factor_at(self.schedule, max(steps - 1, 0))


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

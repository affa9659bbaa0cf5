"""Metrics: means over labels of the sums that loss tasks return."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from flexlegion.base.errors import UserError
from flexlegion.graph.graph import Graph
from flexlegion.objective.losses import losses_of, near
from flexlegion.ops.losses import LossOperator

Metrics = Sequence[str] | Mapping[str, Sequence[str]]


@dataclass
class MetricSums:
    """Sums over labels that count; they add up over tasks, batches and ranks.

    A sample has one label, a sequence one for each of its steps. Of classes with equal logits, the
    first is taken to be the likelier.

    Parameters
    ----------
    loss, correct, correct_top5, squared_error, absolute_error
        Sums of each label's value; `correct_top5`: its class is among the five likeliest.
    labels
        Number of labels that count.
    samples
        Number of samples.
    overflows
        Of the first loss: iterations whose scaled gradients were not finite, and changed nothing.
    excess
        Where classes have weights: the sum of those of the labels, less the number of labels. The
        loss is a weighted mean, metrics are not.
    """

    loss: float = 0.0
    correct: float = 0.0
    correct_top5: float = 0.0
    squared_error: float = 0.0
    absolute_error: float = 0.0
    labels: int = 0
    samples: int = 0
    overflows: int = 0
    excess: float = 0.0

    def add(self, other: MetricSums) -> None:
        """Add another batch's sums."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def means(self, metrics: Sequence[str]) -> dict[str, float]:
        """The loss and the named metrics, as means over the labels that count."""
        n = max(self.labels, 1)
        weight = self.labels + self.excess
        values = {"loss": self.loss / weight if weight > 0 else 0.0}
        for name in metrics:
            if name == "perplexity":
                values[name] = _exp(values["loss"])
            else:
                values[name] = getattr(self, _SUM_OF[name]) / n
        return values


_SUM_OF = {
    "accuracy": "correct",
    "top_5_accuracy": "correct_top5",
    "mean_squared_error": "squared_error",
    "mean_absolute_error": "absolute_error",
}


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


@dataclass(frozen=True)
class Term:
    """A loss of the goal, and what is shown beside it.

    Parameters
    ----------
    name
        Its output's; empty if the model has but one.
    weight
        What its mean is multiplied with.
    metrics
        Names.
    """

    name: str
    weight: float
    metrics: tuple[str, ...]


@dataclass(frozen=True)
class Goal:
    """What training minimises: the weighted sum of the means of a graph's losses."""

    terms: tuple[Term, ...]

    def means(self, sums: Sequence[MetricSums]) -> dict[str, float]:
        """Values by name: ``loss``, the goal; then of each loss ``NAME_loss`` and its metrics.

        Parameters
        ----------
        sums
            Of each loss.
        """
        goal = 0.0
        values: dict[str, float] = {}
        for term, its in zip(self.terms, sums, strict=True):
            means = its.means(term.metrics)
            goal += term.weight * means["loss"]
            values |= {f"{term.name}_{key}" if term.name else key: v for key, v in means.items()}
        return {"loss": goal} | {key: value for key, value in values.items() if key != "loss"}


def check_counted(goal: Goal, sums: Sequence[MetricSums], data: str) -> None:
    """Raise `UserError` if no label of any loss counts: zero would be told as the loss of nothing.

    Of losses some of which have such labels, the others are told in a warning.

    Parameters
    ----------
    goal
        Whose losses the sums are of.
    sums
        Over all samples; of no samples, there are none.
    data
        What they are of, for messages: ``"the validation data"``.
    """
    empty = [t.name for t, its in zip(goal.terms, sums, strict=False) if its.labels == 0]
    if not empty:
        return
    if len(empty) == len(goal.terms):
        raise UserError(
            f"no label of {data} counts (all are -1 or ignored), so that there is no loss; give "
            "labels, or predict without"
        )
    names = ", ".join(f"'{name}'" for name in empty)
    warnings.warn(
        f"no label of {names} in {data} counts (all are -1 or ignored); told as a loss of 0",
        stacklevel=2,
    )


@dataclass
class Totals:
    """Sums over the batches of a series that are done.

    Parameters
    ----------
    losses
        Of each loss.
    samples, batches
        How many.
    """

    losses: list[MetricSums] = field(default_factory=list)
    samples: int = 0
    batches: int = 0

    def add(self, losses: Sequence[MetricSums], samples: int) -> None:
        """Add a batch of so many samples."""
        if not self.losses:
            self.losses = [MetricSums() for _ in losses]
        for total, its in zip(self.losses, losses, strict=True):
            total.add(its)
        self.samples += samples
        self.batches += 1


def goal_of(graph: Graph, metrics: Metrics = ()) -> Goal:
    """The goal of a graph with losses.

    Parameters
    ----------
    graph
        As `transforms.losses.add_losses` makes it.
    metrics
        Names, each for all losses that it goes with; or by the outputs' names.

    Raises
    ------
    UserError
        If a metric is unknown, or does not go with its loss.
    """
    losses = {
        name: op.kind for name, op in losses_of(graph).items() if isinstance(op.kind, LossOperator)
    }
    if isinstance(metrics, Mapping):
        for name in metrics:
            if name not in losses:
                raise UserError(f"metrics: no loss of an output '{name}'; {near(name, [*losses])}")
        chosen = {name: tuple(metrics.get(name, ())) for name in losses}
        for name, its in chosen.items():
            _check(its, [losses[name]])
    else:
        _check(metrics, list(losses.values()))
        chosen = {
            name: tuple(metric for metric in metrics if metric in kind.metrics)
            for name, kind in losses.items()
        }
    return Goal(tuple(Term(name, kind.weight, chosen[name]) for name, kind in losses.items()))


def _check(metrics: Sequence[str], losses: Sequence[LossOperator]) -> None:
    """Raise `UserError` unless each metric goes with one of the losses."""
    possible = list(dict.fromkeys(metric for loss in losses for metric in loss.metrics))
    for metric in metrics:
        if metric not in possible:
            titles = " or ".join(dict.fromkeys(loss.title for loss in losses))
            raise UserError(
                f"metric '{metric}' does not go with the loss {titles}; "
                f"choose among {', '.join(possible)}"
            )

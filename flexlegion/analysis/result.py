"""What all results share: printed they are tables, in notebooks HTML, and facts for programs."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flexlegion.base.errors import UserError
from flexlegion.console.blocks import Block, as_html, as_text
from flexlegion.report.timelines import figures, save_trace, time_excess
from flexlegion.sim.simulator import Timeline
from flexlegion.strategy.strategy import ResolvedStrategy

if TYPE_CHECKING:
    from flexlegion.report.html.picture import Picture


class Result(ABC):
    """An answer."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What the command prints with ``--json``: times in ns, sizes in bytes."""

    @abstractmethod
    def blocks(self) -> Sequence[Block]:
        """What the command prints without."""

    def to_json(self) -> str:
        """`facts` as a line of JSON."""
        return json.dumps(self.facts(), allow_nan=False)

    def __str__(self) -> str:
        return as_text(self.blocks())

    def _repr_html_(self) -> str:
        return as_html(self.blocks())


@dataclass(frozen=True, repr=False)
class Iteration(Result):
    """A strategy's simulated training iteration.

    Attributes
    ----------
    strategy : ResolvedStrategy
        What was simulated; `Model.compile` takes it, or the result itself.
    timeline : Timeline
        Every task, on which device, and when.
    iteration_time_ns : int
        The latest end.
    bytes_moved : int
        Between memories.
    computation_time_ns : int
        The sum over all devices.
    allocated_bytes : int
        The most that training allocates in any memory, and keeps throughout; tensors that are
        needed for a short while take turns in it.
    contents_bytes : dict
        What the fullest memory has of that for what: weights, weight gradients, optimizer states,
        activations, gradients, batch.
    peak_memory_bytes : int
        The most that any memory holds at one time of what is still needed.
    load_balance : float
        Mean load of the devices over the largest.
    fits : bool
        Whether every memory is large enough for what is allocated there.
    """

    strategy: ResolvedStrategy
    timeline: Timeline
    iteration_time_ns: int
    bytes_moved: int
    computation_time_ns: int
    peak_memory_bytes: int
    allocated_bytes: int
    contents_bytes: dict[str, int]
    load_balance: float
    fits: bool

    def save(self, path: str | Path) -> None:
        """Write the strategy as a file, which training and all commands take.

        Raises
        ------
        UserError
            If it cannot be written there.
        """
        self.strategy.save(path)

    def plot(self) -> Picture:
        """The network by layers, coloured by split: notebooks show it, `save` writes an SVG."""
        from flexlegion.report.html.picture import Picture

        return Picture(self.timeline.problem.graph, self.strategy, self.strategy.source)

    def save_trace(self, path: str | Path) -> None:
        """Write the timeline, to look at in https://ui.perfetto.dev.

        Raises
        ------
        UserError
            If it cannot be written there.
        """
        about = {key: str(value) for key, value in self.facts().items() if key != "memories"}
        save_trace(path, self.timeline, about)


def iteration_of(strategy: ResolvedStrategy, timeline: Timeline) -> dict[str, Any]:
    """The fields of an `Iteration`; `UserError` if a task of it takes too long to be simulated."""
    if reason := time_excess(timeline):
        raise UserError(reason)
    return {"strategy": strategy, "timeline": timeline} | figures(timeline)

"""Where a strategy leaves data parallelism, and what that saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from flexlegion.analysis import SHOWN
from flexlegion.analysis.result import Iteration, iteration_of
from flexlegion.analysis.setting import AnyMachine, AnyModel, Given, Setting
from flexlegion.base.arguments import typed
from flexlegion.base.errors import UserError
from flexlegion.console.blocks import Block, Pairs, Table
from flexlegion.console.progress import ProgressBar
from flexlegion.console.text import common_name, count, duration, volume
from flexlegion.known_strategies import AnyStrategy, samples_only
from flexlegion.objective.training import TrainingOptions
from flexlegion.report.timelines import figures, memory_excess
from flexlegion.sim.deviations import Deviation, configuration, deviations
from flexlegion.sim.simulator import NO_MEMORY, TOO_MANY_TASKS, Reference, full, reference


@dataclass(frozen=True, repr=False)
class Explained(Iteration):
    """What `explain` returns.

    Attributes
    ----------
    setting : Setting
        Model, machine and costs.
    name : str
        The strategy's, as it was given.
    data_parallel : Reference
        Data parallelism's iteration, or why its time is not known.
    data_parallel_time_ns : int or None
        Its time.
    speedup : float or None
        Over data parallelism.
    deviations : tuple of Deviation
        Groups of operators that are not configured as data parallelism does, with what that saves;
        those that save most come first.
    top : int
        How many of them are printed.
    """

    setting: Setting
    name: str
    data_parallel: Reference
    speedup: float | None
    deviations: tuple[Deviation, ...]
    top: int

    @property
    def data_parallel_time_ns(self) -> int | None:
        return self.data_parallel.time_ns

    def facts(self) -> dict[str, Any]:
        return (
            self.setting.about()
            | {"strategy": self.name, "in_words": self.setting.in_words(self.strategy)}
            | figures(self.timeline)
            | self.setting.throughput(self.iteration_time_ns).facts()
            | {
                "data_parallel_time_ns": self.data_parallel_time_ns,
                "data_parallel_reason": self.data_parallel.reason,
                "speedup": self.speedup,
                "deviations": [_facts(deviation) for deviation in self.deviations],
            }
        )

    def blocks(self) -> Sequence[Block]:
        data, speedup = self.data_parallel_time_ns, self.speedup
        number = sum(len(deviation.operators) for deviation in self.deviations)
        rows = [
            ("in words", self.setting.in_words(self.strategy)),
            ("data parallelism", duration(data) if data else self.data_parallel.reason),
            ("this strategy", duration(self.iteration_time_ns)),
            ("speed-up", f"{speedup:.2f}x" if speedup else "none: nothing to compare with"),
            *self.setting.throughput(self.iteration_time_ns).rows(),
            (
                "deviations",
                f"{number} of {count(len(self.setting.problem.graph.operators), 'operator')}, in "
                f"{count(len(self.deviations), 'group')}",
            ),
        ]
        heading = f"{self.setting}; strategy {self.name}"
        return [heading, Pairs(rows), *(_table(self.deviations, self.top))]


@typed
def explain(
    model: AnyModel,
    machine: AnyMachine,
    strategy: AnyStrategy,
    *,
    costs: str = "auto",
    profile_db: str | None = None,
    top: int = SHOWN,
    progress: bool = True,
    **training: Unpack[TrainingOptions],
) -> Explained:
    """Say where a strategy leaves data parallelism, and what each such choice saves.

    One group of operators at a time is put back to data parallelism, and that is simulated.

    Parameters
    ----------
    model, machine, strategy, costs, profile_db
        See `flexlegion.simulate`.
    top
        How many groups are printed.
    progress
        Whether to show a bar, on a terminal.
    **training
        How it is trained, see `flexlegion.simulate`.

    Raises
    ------
    UserError
        If something does not exist or does not fit, or the strategy does not fit into memory.

    Examples
    --------
    >>> explain("lenet", "p100x2", "single").deviations[0].saved_bytes < 0
    True
    """
    if top < 1:
        raise UserError(f"the number of groups to show has to be at least 1, but is {top}")
    given = Given.of(model, machine, strategy, costs=costs, profile_db=profile_db, **training)
    resolved, problem = given.strategy, given.setting.problem
    timeline = full(problem, resolved)
    excess = memory_excess(resolved, timeline)
    if excess is not None:
        raise UserError(excess)
    usual = samples_only(problem)
    with ProgressBar("counterfactual simulation", progress) as bar:
        found = deviations(problem, resolved, usual, bar.steps)
    data = reference(problem, usual)
    return Explained(
        **iteration_of(resolved, timeline),
        setting=given.setting,
        name=given.name,
        data_parallel=data,
        speedup=data.time_ns / timeline.iteration_time_ns if data.time_ns else None,
        deviations=tuple(found),
        top=top,
    )


def _facts(deviation: Deviation) -> dict[str, Any]:
    first = deviation.operators[0]
    return {
        "operators": [operator.name for operator in deviation.operators],
        "type": first.kind.type,
        "degrees": list(deviation.config.degrees),
        "devices": list(deviation.config.devices),
        "configuration": configuration(first, deviation.config),
        "data_parallel_configuration": configuration(first, deviation.usual),
        "saved_ns": deviation.saved_ns,
        "saved_bytes": deviation.saved_bytes,
        "reason": deviation.reason,
        "sketched": deviation.sketched,
    }


def _saving(deviation: Deviation) -> str:
    if deviation.saved_ns is not None:
        return duration(deviation.saved_ns)
    return "needed to fit" if deviation.reason == NO_MEMORY else "not known"


def _table(found: Sequence[Deviation], top: int) -> list[Block]:
    if not found:
        return []
    rows = [
        (
            common_name([operator.name for operator in deviation.operators]),
            str(len(deviation.operators)),
            configuration(deviation.operators[0], deviation.config),
            _saving(deviation),
            "" if deviation.saved_bytes is None else volume(deviation.saved_bytes),
        )
        for deviation in found[:top]
    ]
    columns = ("operators", "number", "configuration", "saves", "moves less")
    more = ""
    if len(found) > top:
        more = f"and {count(len(found) - top, 'more group')}; --top {len(found)} shows all\n"
    if found[0].sketched:
        more += "of so many tasks, savings are estimated by sketches; bytes are not counted\n"
    if any(deviation.reason == TOO_MANY_TASKS for deviation in found[:top]):
        more += f"not known: with data parallelism there, the iteration {TOO_MANY_TASKS}\n"
    return [
        Table(columns, rows, texts=(0, 2)),
        f"{more}saves: what the iteration would take longer if these operators alone went back to "
        "data parallelism;\nsavings do not add up, and a negative one pays only together with "
        "others",
    ]

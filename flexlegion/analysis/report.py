"""A strategy as a page: everything that is known about it, to look at and to show to others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

from flexlegion.analysis.compare import FOUND, KNOWN, Compared, known_rows
from flexlegion.analysis.result import Result, iteration_of
from flexlegion.analysis.setting import AnyMachine, AnyModel
from flexlegion.analysis.simulate import Simulated, simulate
from flexlegion.base.arguments import typed
from flexlegion.console.blocks import Block
from flexlegion.console.progress import ProgressBar
from flexlegion.known_strategies import AnyStrategy, samples_only
from flexlegion.objective.training import TrainingOptions
from flexlegion.report.html import views
from flexlegion.report.html.groups import levels
from flexlegion.report.html.page import page, save_page
from flexlegion.report.html.picture import Picture
from flexlegion.report.html.tracks import LINKS_DRAWN, link_loads, measured_tracks, simulated_tracks
from flexlegion.searches.registry import SPECIAL
from flexlegion.sim.deviations import Deviation, deviations
from flexlegion.sim.simulator import Reference, reference
from flexlegion.sim.throughput import rates

OPTCNN_DEVICES = 16  # on more of them, OptCNN's strategy of a large network takes tens of seconds
# On more of them, strategies for networks of a kind may take minutes and gigabytes: `3d` tries all
# divisions of the machine.
SPECIAL_DEVICES = 128


@dataclass(frozen=True, repr=False)
class Report(Result):
    """What `report_on` returns: printed it is the simulation, saved it is the page.

    Attributes
    ----------
    simulated : Simulated
        The strategy's iteration.
    strategies : tuple of dict
        Figures of the strategies that it stands beside, as `compare` has them.
    data_parallel : Reference
        Data parallelism's iteration, or why its time is not known.
    deviations : tuple of Deviation
        Where it leaves data parallelism, and what that saves.
    measured : dict or None
        The measured timeline, if one was given.
    story : mapping
        How a search found it, as strategy files tell it.
    """

    simulated: Simulated
    strategies: tuple[dict[str, Any], ...]
    data_parallel: Reference
    deviations: tuple[Deviation, ...]
    measured: Mapping[str, Any] | None = None
    story: Mapping[str, Any] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        return self.simulated.facts() | {
            "data_parallel_time_ns": self.data_parallel.time_ns,
            "strategies": list(self.strategies),
        }

    def blocks(self) -> Sequence[Block]:
        return self.simulated.blocks()

    @property
    def picture(self) -> Picture:
        """The network by layers, coloured by split: for papers."""
        graph = self.simulated.setting.problem.graph
        title = f"{self.simulated.setting}; strategy {self.simulated.name}"
        return Picture(graph, self.simulated.strategy, title)

    def html(self) -> str:
        """The page."""
        simulated, timeline = self.simulated, self.simulated.timeline
        problem = timeline.problem
        facts = self.facts()
        folded = levels(problem.graph)
        graphs = views.graph_views(folded, timeline)
        loads = link_loads(timeline)
        is_data = dict(simulated.strategy) == dict(samples_only(problem))
        data = {
            "facts": facts,
            "graphs": [graph["nodes"] for graph in graphs],
            "timeline": simulated_tracks(timeline) | {"links": loads[:LINKS_DRAWN]},
            "measured": self.measured,
        }
        shown = {
            "title": f"{simulated.setting.network} on {simulated.setting.machine}",
            "strategy": simulated.name,
            "setting": simulated.setting,
            "facts": facts,
            "rates": rates(facts["samples_per_s"], facts["tokens_per_s"]).split(", "),
            "reason": simulated.reason,
            "headline": views.headline(
                timeline.iteration_time_ns,
                self.data_parallel,
                self.deviations,
                fits=simulated.fits,
                same=is_data,
            ),
            "strategies": views.times_view(self.strategies, facts, self.measured),
            "graphs": graphs,
            "heat": views.heat_view(folded[0], timeline),
            "timeline": data["timeline"],
            "measured": self.measured,
            "memory": views.memory_view(timeline),
            "links": views.links_view(loads, timeline),
            "deviations": views.deviations_view(self.deviations, len(problem.graph.operators)),
            "search": views.search_view(self.story),
            "sources": views.sources_view(timeline, simulated.strategy),
            "machine": views.machine_view(timeline),
        }
        return page("report.html", shown, data)

    def save(self, path: str | Path) -> None:
        """Write the page: one HTML file that needs no network.

        Raises
        ------
        UserError
            If it cannot be written there.
        """
        save_page(path, self.html())


@typed
def report_on(
    model: AnyModel,
    machine: AnyMachine,
    strategy: AnyStrategy,
    *,
    measured: str | Path | None = None,
    costs: str = "auto",
    profile_db: str | None = None,
    progress: bool = True,
    **training: Unpack[TrainingOptions],
) -> Report:
    """Everything that is known about a strategy, as a page; see docs/report.md.

    Parameters
    ----------
    model, machine, strategy, costs, profile_db
        See `flexlegion.simulate`.
    measured
        A timeline that training wrote (``flexlegion train --timeline``), to show beside the
        simulated one.
    progress
        Whether to show a bar, on a terminal.
    **training
        How it is trained, see `flexlegion.simulate`.

    Raises
    ------
    UserError
        If something does not exist or does not fit.

    Examples
    --------
    >>> report_on("lenet", "p100x2", "expert").save("lenet.html")
    """
    tracks = None if measured is None else measured_tracks(measured)
    simulated = simulate(
        model,
        machine,
        strategy,
        costs=costs,
        profile_db=profile_db,
        **training,
    )
    with ProgressBar("known strategies", progress) as bar:
        devices = len(simulated.setting.problem.devices)
        names = [n for n in KNOWN if n != "optcnn" or devices <= OPTCNN_DEVICES]
        if devices <= SPECIAL_DEVICES:
            names += [n for n in SPECIAL if n != "optcnn-coarse"]
        rows = known_rows(simulated.setting, names, lambda name, share: bar.show(share, name))
    return report_of(simulated, rows, tracks, progress=progress)


def report_of_compared(compared: Compared, *, progress: bool = True) -> Report:
    """The report of the strategy that `compare` found, beside all that it was compared with."""
    found = compared.found
    simulated = Simulated(
        **iteration_of(found.strategy, found.timeline),
        setting=found.setting,
        name=FOUND,
        reason=None,
        algorithm="full",
        simulations=None,
    )
    rows = [row for row in compared.strategies if row["strategy"] != FOUND]
    return report_of(simulated, rows, progress=progress)


def report_of(
    simulated: Simulated,
    rows: Sequence[dict[str, Any]],
    measured: Mapping[str, Any] | None = None,
    story: Mapping[str, Any] | None = None,
    *,
    progress: bool = True,
) -> Report:
    """The report of an iteration that is simulated already.

    Parameters
    ----------
    simulated
        The iteration.
    rows
        Figures of the strategies to show beside it, as `compare` has them.
    measured
        Tracks of a measured timeline.
    story
        How a search found it; by default as the strategy itself tells it.
    progress
        Whether to show a bar, on a terminal.
    """
    problem, strategy = simulated.setting.problem, simulated.strategy
    usual = samples_only(problem)
    found: list[Deviation] = []
    if simulated.reason is None:
        with ProgressBar("counterfactual simulation", progress) as bar:
            found = deviations(problem, strategy, usual, bar.steps)
    return Report(
        simulated,
        tuple(rows),
        reference(problem, usual),
        tuple(found),
        measured,
        strategy.told if story is None else story,
    )

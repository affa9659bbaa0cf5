"""One iteration of a strategy on a machine (FlexFlow, section 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from flexlegion.analysis.result import Iteration, iteration_of
from flexlegion.analysis.setting import AnyMachine, AnyModel, Given, Setting
from flexlegion.base.arguments import typed
from flexlegion.base.suggestions import unknown
from flexlegion.console.blocks import Block, Pairs
from flexlegion.console.progress import ProgressBar
from flexlegion.console.text import count
from flexlegion.known_strategies import AnyStrategy, samples_only
from flexlegion.objective.training import TrainingOptions
from flexlegion.report.timelines import described, details, memory_excess
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import ALGORITHMS, SIMULATED, Simulation, Timeline, full
from flexlegion.sim.throughput import Throughput
from flexlegion.strategy.configuration import ParallelConfig
from flexlegion.strategy.strategy import ResolvedStrategy


@dataclass(frozen=True, repr=False)
class Simulated(Iteration):
    """What `simulate` returns; `facts` has more than the attributes.

    Attributes
    ----------
    setting : Setting
        Model, machine and costs.
    name : str
        The strategy's, as it was given.
    reason : str or None
        Why it does not fit into memory, if it does not.
    algorithm : str
        By which it was simulated.
    simulations : int or None
        How many delta simulations it took.
    """

    setting: Setting
    name: str
    reason: str | None
    algorithm: str
    simulations: int | None

    def facts(self) -> dict[str, Any]:
        about = self.setting.about() | {"runtime": "legion"}
        about |= {"strategy": self.name, "algorithm": self.algorithm}
        about |= {"in_words": self.setting.in_words(self.strategy)}
        if self.simulations is not None:
            about["simulations"] = self.simulations
        rate = self.throughput.facts()
        return about | details(self.timeline, self._priced_by()) | rate

    def blocks(self) -> Sequence[Block]:
        heading = f"{self.setting}; strategy {self.name}"
        if self.simulations is not None:
            what = count(self.simulations, "delta simulation")
            heading += f"\n{what} from data parallelism; all figures as in a full simulation"
        pairs, *rest = described(self.timeline, self._priced_by())
        assert isinstance(pairs, Pairs)
        first, *others = pairs.rows
        words = ("in words", self.setting.in_words(self.strategy))
        return [heading, Pairs([words, first, *self.throughput.rows(), *others]), *rest]

    @property
    def throughput(self) -> Throughput:
        """What the time means: samples and tokens a second, and the share of the peak."""
        return self.setting.throughput(self.iteration_time_ns)

    def _priced_by(self) -> Mapping[str, int]:
        return self.setting.problem.priced_by(self.strategy)


@typed
def simulate(
    model: AnyModel,
    machine: AnyMachine,
    strategy: AnyStrategy = "data",
    *,
    costs: str = "auto",
    profile_db: str | None = None,
    algorithm: str = "full",
    **training: Unpack[TrainingOptions],
) -> Simulated:
    """Simulate a training iteration of a strategy; needs neither that machine nor Legion.

    Parameters
    ----------
    model
        A `Model`, or how it is named (see `flexlegion.load_model`).
    machine
        A shipped machine's name, as in ``p100x16``, a machine file's path, or a `Topology`.
    strategy
        A known one's name, a file's path, a `Strategy`, or a result that has one.
    costs
        Tasks' times: "analytic" estimates; "measured" ones of the profile data base, and no others;
        "auto": measured where the data base has them.
    profile_db
        The profile data base's file; by default the user's.
    algorithm
        "full", or "delta", which goes from data parallelism to the strategy operator by operator,
        each time simulating only what changes: the same figures.
    loss, optimizer, precision, storage, micro_batches, loss_weights
        How it is trained, as `Model.compile` takes them; by default the model's own loss, "sgd",
        "fp32" twice, one micro-batch, and weights of 1.

    Returns
    -------
    Simulated
        Printed it is a table. One that does not fit into memory says so (`fits`, `reason`).

    Raises
    ------
    UserError
        If something does not exist or does not fit.

    Examples
    --------
    >>> simulate("lenet", "p100x4", "expert").iteration_time_ns > 0
    True
    """
    if algorithm not in ALGORITHMS:
        raise unknown("algorithm", algorithm, ALGORITHMS)
    given = Given.of(model, machine, strategy, costs=costs, profile_db=profile_db, **training)
    resolved, problem = given.strategy, given.setting.problem
    timeline = full(problem, resolved)
    reason = memory_excess(resolved, timeline)
    simulations = None
    if algorithm == "delta" and reason is None:
        simulations = _check_delta(problem, resolved, timeline)
    return Simulated(
        **iteration_of(resolved, timeline),
        setting=given.setting,
        name=given.name,
        reason=reason,
        algorithm="full" if simulations is None else algorithm,
        simulations=simulations,
    )


def _check_delta(problem: Problem, strategy: ResolvedStrategy, expected: Timeline) -> int:
    """Reach a strategy by delta simulations; how many it took.

    Where an intermediate strategy does not fit into memory, the next operator changes with it.
    """
    # The order of launches is no change that a delta simulation can make.
    start = samples_only(problem)
    start = start.changed({name: c.in_order_of(strategy[name]) for name, c in start.items()})
    simulation = Simulation(problem, start)
    pending: dict[str, ParallelConfig] = {}
    simulations = 0
    operators = problem.graph.operators
    with ProgressBar("delta simulation") as bar:
        for done, operator in enumerate(operators):
            pending[operator.name] = strategy[operator.name]
            if simulation.propose(pending, "delta") == SIMULATED:
                simulation.accept()
                pending = {}
                simulations += 1
            else:
                simulation.reject()
            bar.steps(done + 1, len(operators))
    reached = simulation.timeline()
    if pending or not _same(reached, expected):
        raise RuntimeError("the delta simulation differs from the full one; please report this")
    return simulations


def _same(a: Timeline, b: Timeline) -> bool:
    return (
        a.iteration_time_ns == b.iteration_time_ns
        and a.bytes_moved == b.bytes_moved
        and a.computation_time_ns == b.computation_time_ns
        and a.peak_memory_bytes == b.peak_memory_bytes
        and a.load_ns == b.load_ns
        and bool((a.tasks == b.tasks).all())
    )

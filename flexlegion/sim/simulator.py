"""The execution simulator, a thin view of the native one (``native/sim``; FlexFlow, section 5).

It simulates one training iteration: the tasks that the plan launches, and the transfers that their
rectangles imply on a device topology. `full` builds everything from nothing; a `Simulation` holds a
strategy and tries changes of it, by the delta algorithm or by the full one, with one result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from flexlegion.base.errors import UserError
from flexlegion.base.memory import memory_bytes
from flexlegion.bindings.native import Arrays, core, layout, names
from flexlegion.plan.passes import FIELDS, GATHERING, PASSES, RECOMPUTING, ROWS
from flexlegion.sim.problem import Problem
from flexlegion.strategy.configuration import ParallelConfig
from flexlegion.strategy.strategy import ResolvedStrategy

if TYPE_CHECKING:
    import numpy.typing as npt

FLOWS = names("fl_flow", " ")
CONTENTS = names("fl_content", " ")  # what memory is for
_ALGORITHMS = names("fl_algorithm")
ALGORITHMS = _ALGORITHMS[:2]  # the paper's
VERDICTS = names("fl_verdict")  # on a proposal
DETAILS = names("fl_detail")  # a strategy is simulated, or sketched with bundles of transfers
# The columns of a timeline that say which task it is, whatever the micro-batch.
_WHICH = ["pass", "index", "part", "flow", "tensor", "source", "destination", "hop"]
LARGE = 5_000_000  # tasks, of a task graph that takes seconds to simulate
SIMULATED, OUT_OF_MEMORY = "simulated", "out_of_memory"
NO_MEMORY, TOO_MANY_TASKS = "does not fit into memory", "has too many tasks to be simulated"


@dataclass(frozen=True)
class Timeline:
    """A simulated iteration; times in ns, sizes in bytes.

    Parameters
    ----------
    problem, strategy
        What was simulated.
    iteration_time_ns
        The latest end.
    moved_bytes
        Of each pass, the bytes that pass between memories of what it writes, however many links
        they pass.
    computation_ns
        Of each pass, the time that its tasks take, summed over all devices.
    crossings
        Dependencies between tasks of two devices that share a memory.
    simulated
        Gives `tasks`.
    peak_memory_bytes
        Of each memory, the most that it holds at one time of what is still needed. Nothing is
        decided by it.
    allocated_bytes
        Of each memory, what it holds throughout, as in flexlegion's runtime: for training, and for
        the predictions and evaluations of the same process. Tensors that take turns in memory are
        counted once.
    load_ns
        Of each device and link, the time that it is busy.
    contents_bytes
        Of each memory, what of `allocated_bytes` is for what, by `CONTENTS`. Gradients that take
        turns in memory with activations count as such.
    played
        Of the tasks, those that were played: groups of devices that do the same until the last
        micro-batch are played once; and the delta algorithm plays what follows a change.
    """

    problem: Problem
    strategy: ResolvedStrategy
    iteration_time_ns: int
    moved_bytes: dict[str, int]
    computation_ns: dict[str, int]
    crossings: int
    simulated: Callable[[], npt.NDArray[Any]] = field(repr=False)
    peak_memory_bytes: dict[str, int]
    allocated_bytes: dict[str, int]
    load_ns: dict[str, int]
    contents_bytes: dict[str, dict[str, int]]
    played: int

    @cached_property
    def tasks(self) -> npt.NDArray[Any]:
        """A row a task (the header's ``fl_task``); of large machines, there are tens of millions.

        Normal tasks, launch by launch, then communication tasks. Of a communication task, pass,
        index and part name its writer; `index` is an operator's number, or for a load a tensor's;
        `hop` is -1 for a normal task.
        """
        return self.simulated()

    @property
    def bytes_moved(self) -> int:
        """Between memories, of all passes."""
        return sum(self.moved_bytes.values())

    @property
    def computation_time_ns(self) -> int:
        """Of all passes and devices."""
        return sum(self.computation_ns.values())

    @property
    def load_balance(self) -> float:
        """Mean load of the devices over the largest: 1 if all compute for equally long."""
        loads = [self.load_ns[name] for name in self.problem.devices.names]
        return sum(loads) / len(loads) / max(*loads, 1)

    @property
    def idle_share(self) -> float:
        """Of the devices' time, the share in which they do not compute: 0 to 1.

        A pipeline's bubble is in it.
        """
        whole = self.iteration_time_ns * len(self.problem.devices.names)
        return 1 - self.computation_time_ns / max(whole, 1)

    @property
    def recomputed_ns(self) -> int:
        """Of the computation time, what is for values that the backward pass computes again."""
        return sum(self.computation_ns[name] for name in RECOMPUTING)

    @property
    def gathered_bytes(self) -> int:
        """Of the bytes moved, those of sharded weights that are gathered."""
        return sum(self.moved_bytes[name] for name in GATHERING)

    @cached_property
    def fits(self) -> bool:
        """Whether every memory holds what is allocated; in a space, whether the program fits."""
        try:
            self.problem.require_memory(self.strategy, self.allocated_bytes)
        except UserError:
            return False
        return True

    @cached_property
    def places(self) -> list[str]:
        """Names of devices and links, as the rows number them."""
        return [*self.problem.devices.names, *self.problem.topology.channels]

    def describe(self, row: Any) -> str:
        """A task's name, for people: ``forward conv1 [2]``, ``conv1.output -> gpu:3``."""
        graph = self.problem.graph
        its = ROWS[row["pass"]]
        pass_ = its.name
        if row["hop"] < 0:
            owner = (
                graph.tensors[row["index"]] if its.of == "input" else graph.operators[row["index"]]
            )
            return f"{pass_} {owner.name} [{row['part']}]"
        flow = FLOWS[row["flow"]]
        if flow == "weights":
            name = graph.operators[row["tensor"]].name
            what = f"weights of {name}" if pass_ == "update" else f"weight gradients of {name}"
        elif flow == "iteration":
            what = FIELDS[row["tensor"]]
        else:
            what = graph.tensors[row["tensor"]].name
            if flow == "value" and graph.tensors[row["tensor"]].kind == "weight":
                what = f"gathered {what}"
            if flow != "value":
                what = f"{'gradient' if flow == 'gradient' else 'partial values'} of {what}"
        return f"{what} [{row['part']}] -> {self.problem.memories[row['destination']]}"

    def rows(self) -> Iterator[tuple[str, str, int, int, dict[str, Any]]]:
        """(device or link, task name, start in ns, duration in ns, details), for exporters."""
        tasks = self.tasks[_WHICH].tolist()
        of_rounds: set[tuple[int, ...]] = set()  # of what is there once an iteration, none
        if self.problem.graph.micro_batches > 1:
            of_rounds = {tasks[at] for at in (self.tasks["round"] == 0).nonzero()[0]}
        for task, row in zip(tasks, self.tasks, strict=True):
            details: dict[str, Any] = {
                "ready_time_ns": int(row["ready_time"]),
                "exe_time_ns": int(row["exe_time"]),
            }
            if task in of_rounds:
                details["micro_batch"] = int(row["round"])
            for what in ("contention_time", "runtime_time"):
                if row[what]:
                    details[f"{what}_ns"] = int(row[what])
            if row["hop"] >= 0:
                details["bytes"] = int(row["bytes"])
            elif ROWS[row["pass"]].price == "of_task":
                details["priced_by"] = self._priced_by(row)
            start, end = int(row["start_time"]), int(row["end_time"])
            yield self.places[row["device"]], self.describe(row), start, end - start, details

    def _priced_by(self, row: Any) -> str:
        operator = self.problem.graph.operators[row["index"]]
        degrees = self.strategy[operator.name].degrees
        return self.problem.source_of(operator, degrees, int(row["device"]))


class Simulation:
    """A strategy and its timeline, under changes.

    Parameters
    ----------
    problem
        Graph, machine and costs.
    strategy
        Where to start; simulated in full.

    Attributes
    ----------
    strategy
        What is held, the last accepted.
    iteration_time_ns
        Of the timeline.
    """

    def __init__(self, problem: Problem, strategy: ResolvedStrategy) -> None:
        problem.price(strategy)
        self.problem = problem
        self.strategy = strategy
        self._proposed: Mapping[str, ParallelConfig] = {}
        core = problem.core
        self._core = core
        array, time_ns = Arrays(), core.ffi.new("int64_t *")
        self._handle = core.ffi.gc(
            core.check(
                core.lib.fl_simulator_create(
                    problem.handle, problem.to_native(array, strategy), memory_bytes(), time_ns
                )
            ),
            core.lib.fl_simulator_destroy,
        )
        self.iteration_time_ns = self._held_time = int(time_ns[0])

    def propose(
        self,
        configs: Mapping[str, ParallelConfig],
        algorithm: str = "delta",
        limit_ns: int = 0,
    ) -> str:
        """Try other configurations of some operators.

        Parameters
        ----------
        configs
            By operator name.
        algorithm
            ``full`` or ``delta``; or ``unfolded``, which is full, and plays all tasks, also those
            of groups of devices that do the same as others. All give the same timeline.
        limit_ns
            Give up once the iteration is sure to take longer; 0: never.

        Returns
        -------
        str
            One of `VERDICTS`. Afterwards `timeline` is the proposal's, if it was simulated, until
            `accept` or `reject`.
        """
        lib = self._core.lib
        problem = self.problem
        for name, config in configs.items():
            problem.prepare(problem.graph.operators[problem.operator_numbers[name]], config.degrees)
        array, time_ns = Arrays(), self._core.ffi.new("int64_t *", self._held_time)
        number = int(
            self._core.check(
                lib.fl_simulator_propose(
                    self._handle,
                    problem.to_native(array, configs),
                    _ALGORITHMS.index(algorithm),
                    limit_ns,
                    time_ns,
                )
            )
        )
        self._proposed = configs if VERDICTS[number] == SIMULATED else {}
        self.iteration_time_ns = int(time_ns[0])
        return VERDICTS[number]

    def accept(self) -> None:
        """Hold the proposal."""
        self._core.check(self._core.lib.fl_simulator_decide(self._handle, True))
        self.strategy = self.strategy.changed(self._proposed)
        self._held_time = self.iteration_time_ns
        self._proposed = {}

    def reject(self) -> None:
        """Return to what was held before the proposal."""
        self._core.check(self._core.lib.fl_simulator_decide(self._handle, False))
        self.iteration_time_ns = self._held_time
        self._proposed = {}

    def timeline(self) -> Timeline:
        """All of it, copied."""
        tasks = self.tasks()
        return self.timeline_of(lambda: tasks)

    def tasks(self) -> npt.NDArray[Any]:
        """Those of the timeline, copied."""
        import numpy as np

        its = self._core.ffi.new("fl_tasks *")
        self._core.check(self._core.lib.fl_simulator_tasks(self._handle, its))
        row = layout("fl_task", pass_id="pass")
        size = its.n_tasks * row.itemsize
        return np.frombuffer(self._core.ffi.buffer(its.tasks, size), row).copy()

    def timeline_of(self, tasks: Callable[[], npt.NDArray[Any]]) -> Timeline:
        """The timeline without its tasks, which it asks for when they are needed."""
        core, problem = self._core, self.problem
        its = core.ffi.new("fl_timeline *")
        core.check(core.lib.fl_simulator_timeline(self._handle, its))
        memories, places = problem.memories, [*problem.devices.names, *problem.topology.channels]
        of_content = iter(core.items(its.contents, len(memories) * len(CONTENTS)))
        return Timeline(
            problem,
            self.strategy.changed(self._proposed),
            int(its.iteration_time),
            dict(zip(PASSES, core.items(its.moved, len(PASSES)), strict=True)),
            dict(zip(PASSES, core.items(its.computation, len(PASSES)), strict=True)),
            int(its.crossings),
            tasks,
            dict(zip(memories, core.items(its.peak, len(memories)), strict=True)),
            dict(zip(memories, core.items(its.allocated, len(memories)), strict=True)),
            dict(zip(places, core.items(its.load, len(places)), strict=True)),
            {memory: dict(zip(CONTENTS, of_content, strict=False)) for memory in memories},
            int(its.played),
        )


class Judged(NamedTuple):
    """What `judge` says of a strategy.

    Attributes
    ----------
    time_ns : int or None
        How long an iteration takes; None: it does not fit, or takes longer than the limit.
    missing_bytes : int
        By how much memories do not suffice, all told; 0: it fits.
    tasks : int
        Of its task graph: those of launches, and hops of transfers, or of bundles of them.
    all_tasks : int
        Those that it has if each transfer is looked at.
    too_large : bool
        Whether there are too many tasks to look at (`most_judged`); all else is unknown then.
    seconds : float
        What it took to find that out.
    """

    time_ns: int | None
    missing_bytes: int
    tasks: int
    all_tasks: int
    too_large: bool = False
    seconds: float = 0.0

    @property
    def fits(self) -> bool:
        """Whether memories are known to hold it."""
        return self.missing_bytes == 0 and not self.too_large

    @property
    def reason(self) -> str:
        """Why it has no time, as the end of a sentence; empty: it has one, or is just too late."""
        if self.too_large:
            return TOO_MANY_TASKS
        return "" if self.fits else NO_MEMORY

    @property
    def can_be_simulated(self) -> bool:
        """Whether few enough tasks are left if each transfer is looked at."""
        return not self.too_large and self.all_tasks <= most_judged()


def most_judged() -> int:
    """How many tasks are simulated at most, unless it is asked for: more take many gigabytes."""
    return int(core().lib.FL_MOST_JUDGED)


def judge(
    problem: Problem,
    strategy: ResolvedStrategy,
    limit_ns: int = 0,
    detail: str = "transfers",
    simulable: bool = False,
) -> Judged:
    """Whether a strategy fits, and how long an iteration takes: less work than a `full` timeline.

    What does not fit is not simulated, and nothing is copied. Who asks again of the same strategy
    is told the same at once.

    Parameters
    ----------
    problem, strategy
        What is judged.
    limit_ns
        Give up once the iteration is sure to take longer; 0: never.
    detail
        One of `DETAILS`: with ``bundles`` it is sketched (``native/sim/sketch.h``), which is many
        times as quick on large machines, and ranks strategies, but gives no one's time.
    simulable
        Whether to give up as soon as there are too many tasks to simulate it in the end.
    """
    known = strategy.known.setdefault(problem, {})
    before: Judged | None = known.get(detail)
    if before is not None and limit_ns >= 0:
        late = limit_ns > 0 and before.time_ns is not None and before.time_ns > limit_ns
        return before._replace(time_ns=None) if late else before
    problem.price(strategy)
    core, array = problem.core, Arrays()
    its = core.ffi.new("fl_judged *")
    begin = time.monotonic()
    verdict = core.check(
        core.lib.fl_problem_judge(
            problem.handle,
            problem.to_native(array, strategy),
            DETAILS.index(detail),
            limit_ns,
            simulable,
            its,
        )
    )
    seconds = time.monotonic() - begin
    said = VERDICTS[int(verdict)]
    time_ns = int(its.iteration_time) if said == SIMULATED else None
    numbers = int(its.missing), int(its.tasks), int(its.all_tasks)
    judged = Judged(time_ns, *numbers, said == "too_fine", seconds)
    # Neither later than the limit, nor only too large to be simulated.
    if time_ns is not None or not (judged.fits or (simulable and judged.too_large)):
        known[detail] = judged
    return judged


class Reference(NamedTuple):
    """An iteration of a strategy that others are compared with.

    Attributes
    ----------
    time_ns : int or None
        How long it takes; None: that is not known.
    reason : str
        Why not, as the end of a sentence.
    """

    time_ns: int | None
    reason: str = ""


def reference(problem: Problem, strategy: ResolvedStrategy, *, quickly: bool = False) -> Reference:
    """The time of a strategy that may be larger than what is looked at: it is sketched first.

    Parameters
    ----------
    problem, strategy
        What is simulated.
    quickly
        Whether it has to take less than some seconds.
    """
    sketched = judge(problem, strategy, 0, "bundles")
    if not sketched.fits:
        return Reference(None, sketched.reason)
    if not sketched.can_be_simulated:
        return Reference(None, TOO_MANY_TASKS)
    if quickly and sketched.all_tasks >= LARGE and "transfers" not in strategy.known[problem]:
        return Reference(None, f"not simulated: {sketched.all_tasks:,} tasks and transfers")
    judged = judge(problem, strategy)
    return Reference(judged.time_ns, judged.reason)


def full(problem: Problem, strategy: ResolvedStrategy) -> Timeline:
    """Simulate one training iteration from nothing (the full simulation algorithm).

    Who asks again of the same strategy is told the same at once. Tasks are kept for the first one
    alone, unless there are gigabytes of them; others have them simulated when they look at them.

    Raises
    ------
    UserError
        If that takes more memory than this machine has.
    """
    known = strategy.known.setdefault(problem, {})
    before: Timeline | None = known.get("timeline")
    if before is not None:
        return replace(before, strategy=strategy)
    simulation = Simulation(problem, strategy)
    timeline = simulation.timeline_of(partial(_tasks_of, problem, strategy))
    known["timeline"] = timeline
    return timeline if timeline.played > LARGE else replace(timeline, simulated=simulation.tasks)


def _tasks_of(problem: Problem, strategy: ResolvedStrategy) -> npt.NDArray[Any]:
    return Simulation(problem, strategy).tasks()


def price(problem: Problem, strategy: ResolvedStrategy, tasks: int, limit_ns: int = 0) -> Judged:
    """`judge` a strategy that is known to fit, looking at each transfer.

    Of a large one, with about so many tasks, the `full` timeline is kept, in case that somebody
    asks: it takes as long.
    """
    known = strategy.known.setdefault(problem, {})
    if tasks >= LARGE and "transfers" not in known:
        begin = time.monotonic()
        time_ns = full(problem, strategy).iteration_time_ns
        seconds = time.monotonic() - begin
        known["transfers"] = Judged(time_ns, 0, tasks, tasks, seconds=seconds)
    return judge(problem, strategy, limit_ns)

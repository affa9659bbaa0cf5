"""Measured timelines: when each task of some training iterations ran, and on which processor.

Leaf tasks themselves note start and end. (Legion answers a mapper's profiling requests only for
tasks that it maps, and a traced iteration, the normal case, replays its first mapping.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion.bindings import native
from flexlegion.machine.running import RunningMachine, all_gather
from flexlegion.plan.passes import CLOSING
from flexlegion.plan.plan import Box, Plan
from flexlegion.profiling.timing import clock_offset
from flexlegion.report.perfetto import Slice, Track, write_trace
from flexlegion.training.program import Program

# What runs beside the plan's launches, by the header's `fl_own_launch`.
_OWN_TASKS = {"staged": "stage", "other": "other"}


@dataclass(frozen=True)
class MeasuredTimeline:
    """What ran when, on all ranks.

    Parameters
    ----------
    plan
        Whose tasks they are.
    machine
        Where they ran.
    iterations
        How many training iterations there are.
    tasks
        Rows of `Program.records` by start; times in ns from the first start.
    """

    plan: Plan
    machine: RunningMachine
    iterations: int
    tasks: npt.NDArray[Any]

    @property
    def iteration_time_ns(self) -> int:
        """Mean time of an iteration, if the first ones of all tasks begin them."""
        return round(int(self.tasks["end_time"].max()) / self.iterations)

    def pace(self, iteration_ns: float) -> float:
        """How many times as long as in these iterations everything takes in one that takes so long.

        They ran at one moment; a machine's speed at another is a few percent higher or lower.
        """
        return iteration_ns / max(1, self.iteration_time_ns)

    def busy_ns(self) -> dict[str, int]:
        """For each device, the time that tasks ran there in an iteration."""
        durations = self.tasks["end_time"] - self.tasks["start_time"]
        return {
            name: round(int(durations[self.tasks["device"] == number].sum()) / self.iterations)
            for number, name in enumerate(self.machine.devices.names)
        }

    def computing_ns(self) -> dict[str, int]:
        """The same without what others took from them: the time that these tasks had a core."""
        return {
            name: round(
                int(self.tasks["computing_time"][self.tasks["device"] == number].sum())
                / self.iterations
            )
            for number, name in enumerate(self.machine.devices.names)
        }

    def launching_ns(self) -> dict[str, int]:
        """For each device, what the runtime takes of an iteration.

        That is the time for which tasks that ran had no core, and what passes from when a task
        could begin until it does: its device is free, and what it needs is there.
        """
        totals = dict.fromkeys(self.machine.devices.names, 0)
        names = self.machine.devices.names
        needs = predecessors(self.plan)
        # Of each micro-batch, a task's latest end. What ends an iteration waits for all of them.
        rounds = range(self.plan.graph.micro_batches)
        ends: dict[tuple[int, int, int], int] = {}
        free: dict[int, int] = {}
        for row in self.tasks:
            task, device = (int(row["launch"]), int(row["part"])), int(row["device"])
            mine = int(row["round"])
            pass_ = self.plan.launches[task[0]].pass_ if task[0] >= 0 else ""
            awaited = rounds if pass_ in CLOSING else (mine,)
            start, end = int(row["start_time"]), int(row["end_time"])
            before = [ends.get((*p, j), 0) for p in needs.get(task, ()) for j in awaited]
            could = max([free.get(device, start), *before])
            totals[names[device]] += max(0, start - could) + end - start
            totals[names[device]] -= int(row["computing_time"])
            ends[*task, mine] = free[device] = end
        return {name: round(total / self.iterations) for name, total in totals.items()}

    def describe(self, row: Any) -> str:
        """A task's name, as in simulated timelines: ``forward conv1 [2]``."""
        number = int(row["launch"])
        if number < 0:
            return f"{self._own_tasks[number]} [{row['part']}]"
        launch = self.plan.launches[number]
        return f"{launch.pass_} {launch.name} [{row['part']}]"

    @cached_property
    def _own_tasks(self) -> dict[int, str]:
        numbers = native.enumeration("fl_own_launch")
        return {number: _OWN_TASKS[name] for name, number in numbers.items()}

    def rows(self) -> Iterator[tuple[str, str, int, int, dict[str, Any]]]:
        """(device, task name, start in ns, duration in ns, details), for exporters."""
        for row in self.tasks:
            start, end = int(row["start_time"]), int(row["end_time"])
            device = self.machine.devices.names[row["device"]]
            details = {"micro_batch": int(row["round"])} if self._is_of_one(row) else {}
            yield device, self.describe(row), start, end - start, details

    def _is_of_one(self, row: Any) -> bool:
        """Whether a task works on one of several micro-batches."""
        if self.plan.graph.micro_batches == 1 or row["launch"] < 0:
            return False
        return self.plan.launches[row["launch"]].pass_ not in CLOSING

    def save(self, path: str | Path, about: Mapping[str, Any] | None = None) -> None:
        """Write it for https://ui.perfetto.dev, as `flexlegion simulate --trace` writes its own.

        Raises
        ------
        UserError
            If the file cannot be written there.
        """
        devices = self.machine.devices.names
        node = {
            name: f"node {rank}" for name, rank in zip(devices, self.machine.owners, strict=True)
        }
        slices = (
            Slice(device, node[device], name, start, duration, args=details)
            for device, name, start, duration, details in self.rows()
        )
        tracks = [Track(node[name], name) for name in devices]
        about = {**(about or {}), "iterations": self.iterations}
        write_trace(path, slices, tracks=tracks, about=about)


def predecessors(plan: Plan) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """For each task (launch, part): those of the same iteration that write what it reads."""
    writers: dict[tuple[object, str], list[tuple[tuple[int, int], Box]]] = {}
    needs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for number, launch in enumerate(plan.launches):
        for part in range(len(launch.devices)):
            found = {
                writer
                for r in launch.requirements
                if r.privilege != "write"
                for writer, box in writers.get((r.tensor, r.field), ())
                if _overlap(r.boxes[part], box)
            }
            needs[number, part] = sorted(found)
        for r in launch.requirements:
            if r.privilege != "read":
                its = writers.setdefault((r.tensor, r.field), [])
                its += (((number, part), box) for part, box in enumerate(r.boxes))
    return needs


def _overlap(a: Box, b: Box) -> bool:
    return all(lo < end and begin < hi for (lo, hi), (begin, end) in zip(a, b, strict=True))


def recorded(program: Program, machine: RunningMachine, iterations: int) -> MeasuredTimeline:
    """What all ranks noted since `Program.record`; every rank gets it, by one rank's clock.

    From now on nothing is noted.
    """
    mine = program.record(False)
    counts = [
        int.from_bytes(part, "little") for part in all_gather(len(mine).to_bytes(8, "little"))
    ]
    padded = np.zeros(max(counts), mine.dtype)
    padded[: len(mine)] = mine
    parts = [
        np.frombuffer(part, mine.dtype)[:count].copy()
        for part, count in zip(all_gather(padded.tobytes()), counts, strict=True)
    ]
    # Ranks' clocks differ, but on one machine; all times become those of the first rank's.
    first = [machine.owners.index(rank) for rank in range(machine.ranks)]
    for its, device in zip(parts[1:], first[1:], strict=True):
        ahead = clock_offset(first[0], device)
        its["start_time"] -= ahead
        its["end_time"] -= ahead
    tasks = np.concatenate(parts)
    tasks.sort(order=["start_time", "launch", "part"])
    if len(tasks):
        first = tasks["start_time"].min()
        tasks["start_time"] -= first
        tasks["end_time"] -= first
    return MeasuredTimeline(program.plan, machine, iterations, tasks)

"""In which order the stages of a pipeline take micro-batches, and when each is done.

Stages that have one run each go "one forward, one backward" (1F1B): stage s of p lets p - s
micro-batches in, and then takes one backward before each further one. Where a stage has several
runs, micro-batches go round the stages in groups of p (Narayanan et al. 2021, section 2.2). "gpipe"
takes all forward first. So does a program whose runs do not go round its stages in order.

If p does not divide the number of micro-batches, groups are larger: there are as many as p fits
into that number, at least one (as in PyTorch's interleaved schedule). If they would not be equal,
all micro-batches go forward first.

Programs for JAX take their turns themselves: they have the text between the marks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

# begin


class Turn(NamedTuple):
    """A micro-batch's pass through a run."""

    backward: bool
    run: int
    micro_batch: int


def orders(stages: Sequence[int], micro_batches: int, kind: str) -> list[list[Turn]]:
    """The turns of each stage, in order.

    Parameters
    ----------
    stages
        Of each run, its stage.
    micro_batches
        How many there are.
    kind
        ``"1f1b"`` or ``"gpipe"``.
    """
    count = max(stages) + 1
    runs = len(stages) // count
    round_robin = list(stages) == [run % count for run in range(count * runs)]
    equal = runs == 1 or micro_batches % group_size(count, micro_batches) == 0
    if kind == "gpipe" or not round_robin or not equal:
        return [_all_forward_first(stages, stage, micro_batches) for stage in range(count)]
    return [_one_by_one(stage, count, runs, micro_batches) for stage in range(count)]


def group_size(stages: int, micro_batches: int) -> int:
    """How many micro-batches go round the stages together, where a stage has several runs."""
    return micro_batches // max(1, micro_batches // stages)


def _all_forward_first(stages: Sequence[int], stage: int, micro_batches: int) -> list[Turn]:
    mine = [run for run, its in enumerate(stages) if its == stage]
    forward = [Turn(False, run, mb) for mb in range(micro_batches) for run in mine]
    return forward + [Turn(True, turn.run, turn.micro_batch) for turn in reversed(forward)]


def _one_by_one(stage: int, count: int, runs: int, micro_batches: int) -> list[Turn]:
    total = micro_batches * runs
    together = group_size(count, micro_batches)

    def turn(k: int, backward: bool) -> Turn:
        """The k-th turn of that pass."""
        if runs == 1:
            return Turn(backward, stage, k)
        group, within = divmod(k, together * runs)
        visit, place = divmod(within, together)
        visit = runs - 1 - visit if backward else visit
        return Turn(backward, visit * count + stage, group * together + place)

    ahead = count - stage - 1 if runs == 1 else 2 * (count - stage - 1) + (runs - 1) * together
    ahead = min(ahead, total)
    order = [turn(k, False) for k in range(ahead)]
    for k in range(total - ahead):
        order += [turn(ahead + k, False), turn(k, True)]
    return order + [turn(k, True) for k in range(total - ahead, total)]


# end


@dataclass(frozen=True)
class Schedule:
    """When the turns of an iteration run.

    Parameters
    ----------
    ends
        Of each turn, in ns.
    in_flight
        Of each run, how many micro-batches have been forward and not yet backward, at most.
    """

    ends: Mapping[Turn, int]
    in_flight: tuple[int, ...]


def scheduled(
    stages: Sequence[int],
    turns: Sequence[Sequence[Turn]],
    times_ns: Mapping[tuple[bool, int], int],
    readers: Mapping[int, Mapping[int, int]],
    waits: bool = False,
) -> Schedule:
    """When turns run, each stage taking its own in order.

    Parameters
    ----------
    stages
        Of each run, its stage.
    turns
        What `orders` gives.
    times_ns
        Of (backward, run): how long a turn takes.
    readers
        Of each run, the later runs that read what it computes, and the ns that sending it takes;
        gradients take as long.
    waits
        Whether a stage takes its next turn only when what the last one computed has been sent.
    """
    before: dict[tuple[bool, int], list[tuple[tuple[bool, int], int]]] = {}
    sends: dict[tuple[bool, int], int] = {}
    for run, its in readers.items():
        for reader, send_ns in its.items():
            before.setdefault((False, reader), []).append(((False, run), send_ns))
            before.setdefault((True, run), []).append(((True, reader), send_ns))
            if waits:
                sends[False, run] = max(sends.get((False, run), 0), send_ns)
                sends[True, reader] = max(sends.get((True, reader), 0), send_ns)
    ends: dict[Turn, int] = {}
    free = [0] * len(turns)
    at = [0] * len(turns)
    waiting = True
    while waiting:
        waiting = False
        for stage, order in enumerate(turns):
            while at[stage] < len(order):
                turn = order[at[stage]]
                start = _ready(turn, before, ends, free[stage])
                if start is None:
                    break
                ends[turn] = start + times_ns[turn.backward, turn.run]
                free[stage] = ends[turn] + sends.get((turn.backward, turn.run), 0)
                at[stage] += 1
                waiting = True
    return Schedule(ends, in_flight(stages, turns))


def _ready(
    turn: Turn,
    before: Mapping[tuple[bool, int], Sequence[tuple[tuple[bool, int], int]]],
    ends: Mapping[Turn, int],
    free: int,
) -> int | None:
    """When a turn can begin; None: nobody knows yet."""
    start = free
    for (backward, run), send_ns in before.get((turn.backward, turn.run), ()):
        end = ends.get(Turn(backward, run, turn.micro_batch))
        if end is None:
            return None
        start = max(start, end + send_ns)
    if turn.backward:
        end = ends.get(Turn(False, turn.run, turn.micro_batch))
        return None if end is None else max(start, end)
    return start


def in_flight(stages: Sequence[int], turns: Sequence[Sequence[Turn]]) -> tuple[int, ...]:
    """Of each run, of how many micro-batches at most it has activations."""
    most = [0] * len(stages)
    now = [0] * len(stages)
    for its in turns:
        for turn in its:
            now[turn.run] += -1 if turn.backward else 1
            most[turn.run] = max(most[turn.run], now[turn.run])
    return tuple(most)

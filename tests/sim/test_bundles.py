"""Task graphs with bundles: all but the transfers stays, and these are told in fewer tasks."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from deltas import Case, problem_for
from simulated import strategy_of

from flexlegion.sim.simulator import Simulation, Timeline, judge

CASES = [
    Case("rnnlm", "p100x16"),
    Case("alexnet", "p100x16"),
    Case("transformer", "k80x8"),
    Case("images", "v100x8"),
    Case("tables", "shared"),
    Case("sequences", "p100x4", micro_batches=4),
]
Sent = tuple[int, ...]  # which launch has written what of a flow

SPECS = ("data", "model", "expert", *(f"random:{seed}" for seed in range(4)))


def timelines(case: Case, spec: str) -> tuple[Timeline, Timeline]:
    """With transfers, and with bundles."""
    problem = problem_for(case)
    strategy = strategy_of(problem, spec)
    return Simulation(problem, strategy).timeline(), Simulation(
        problem, strategy, "bundles"
    ).timeline()


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("case", CASES)
def test_what_stays(case: Case, spec: str) -> None:
    """Launches and their times, memory, bytes; and what links carry, but for rounding each hop."""
    exact, coarse = timelines(case, spec)
    which = ["device", "pass", "index", "part", "round", "exe_time"]
    ours, theirs = (its.tasks[its.tasks["hop"] < 0][which] for its in (coarse, exact))
    assert np.array_equal(np.sort(ours), np.sort(theirs))
    assert coarse.allocated_bytes == exact.allocated_bytes
    assert coarse.bytes_moved == exact.bytes_moved
    hops: dict[str, int] = defaultdict(int)
    for device in exact.tasks["device"][exact.tasks["hop"] >= 0]:
        hops[exact.places[device]] += 1
    for place, load in exact.load_ns.items():
        assert 0 <= load - coarse.load_ns[place] <= hops[place]
    assert len(coarse.tasks) <= len(exact.tasks)


@pytest.mark.parametrize("case", [case for case in CASES if case.micro_batches == 1])
def test_what_a_bundle_is(case: Case) -> None:
    """Hops of a bundle are ready at once, and there is one a link.

    Transfers that share a writer or a destination, directly or by way of others, are found anew,
    from the exact timeline; of a launch whose transfers all belong together, all hops are one
    bundle's.
    """
    whole = 0
    for spec in SPECS:
        exact, coarse = timelines(case, spec)
        transfers: dict[Sent, list[tuple[int, int]]] = defaultdict(list)
        for row in exact.tasks[exact.tasks["hop"] == 0]:
            transfers[sent(row)].append((int(row["part"]), int(row["destination"])))
        hops: dict[Sent, list[tuple[int, int]]] = defaultdict(list)
        for row in coarse.tasks[coarse.tasks["hop"] >= 0]:
            hops[sent(row)].append((int(row["device"]), int(row["ready_time"])))
        assert set(hops) == set(transfers)
        for key, its in transfers.items():
            if len(its) < 4 or len(components(its)) > 1:
                continue
            whole += 1
            links, ready = zip(*hops[key], strict=True)
            assert len(set(ready)) == 1
            assert len(set(links)) == len(links)
    assert whole > 0


def sent(row: np.void) -> Sent:
    """Of a row of a transfer."""
    return tuple(int(row[name]) for name in ("pass", "index", "flow", "tensor"))


def components(transfers: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Groups of transfers that share a writer or a destination with another of the group."""
    groups: list[list[tuple[int, int]]] = []
    for transfer in transfers:
        joined = [
            group
            for group in groups
            if any(other[0] == transfer[0] or other[1] == transfer[1] for other in group)
        ]
        groups = [group for group in groups if group not in joined]
        groups.append([transfer, *(other for group in joined for other in group)])
    return groups


@pytest.mark.parametrize("case", [Case("images", "p100x2", 5), Case("tables", "p100x2")])
def test_nothing_to_bundle(case: Case) -> None:
    """On two devices a launch has two transfers at most, so the timelines are the same."""
    for spec in SPECS[:2]:
        exact, coarse = timelines(case, spec)
        assert exact.tasks.tobytes() == coarse.tasks.tobytes()


def test_judged() -> None:
    problem = problem_for(CASES[0])
    strategy = strategy_of(problem, "data")
    coarse = Simulation(problem, strategy, "bundles").timeline()
    judged = judge(problem, strategy, 0, "bundles")
    assert judged == (coarse.iteration_time_ns, 0, len(coarse.tasks))
    assert judge(problem, strategy, coarse.iteration_time_ns - 1, "bundles").time_ns is None

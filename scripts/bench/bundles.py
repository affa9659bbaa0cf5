"""What task graphs with bundles of transfers are worth to a search.

    python scripts/bench/bundles.py [--only nmt] [--strategies 40] [--seconds 5] [--out FILE]

For pairs of a network and a machine of `search_quality.py`: strategies of all qualities, which
chains of both kinds pass on their way from known ones, are simulated with each transfer and with
bundles. Told are the rank correlation (Spearman's) of the two times, how far they are apart, tasks,
seconds for a simulation from nothing, and proposals a second from the best of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table
from search_quality import PAIRS, Pair

from flexlegion.analysis.starts import starts_of
from flexlegion.searches.chain import Chain, ChainOptions, prepare_candidates
from flexlegion.searches.registry import ANNEALING, SEARCHES
from flexlegion.searches.start import tie_groups
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import DETAILS, judge
from flexlegion.strategy.strategy import ResolvedStrategy

NAMES = ("alexnet-p100x16", "rnntc-p100x16", "nmt-p100x16", "inception_v3-p100x64", "nmt-k80x64")


def passed(problem: Problem, count: int) -> Iterator[ResolvedStrategy]:
    """Strategies that chains pass, and the known ones that they begin with."""
    starts, _ = starts_of(None, problem, 0, SEARCHES[ANNEALING].starts)
    groups = tie_groups(problem)
    chains = []
    for number, strategy in enumerate(starts.values()):
        yield strategy
        chains.append(Chain(problem, strategy, number, groups, "bundles"))
    options = ChainOptions(temperature=0.005, tied=True)
    for number in range(count - len(starts)):
        chain = chains[number % len(chains)]
        chain.run(30, 0.0, options)
        yield chain.best


def ranks(values: list[float]) -> list[float]:
    """From 0; equal values share the middle of theirs."""
    order = sorted(values)
    return [order.index(v) + (order.count(v) - 1) / 2 for v in values]


def compared(pair: Pair, count: int, seconds: float) -> dict[str, Any]:
    """What is told of a pair."""
    problem = pair.problem()
    prepare_candidates(problem, parts=True)
    times: dict[str, list[float]] = {detail: [] for detail in DETAILS}
    took: dict[str, list[float]] = {detail: [] for detail in DETAILS}
    tasks: dict[str, list[float]] = {detail: [] for detail in DETAILS}
    best: tuple[float, ResolvedStrategy] | None = None
    for strategy in passed(problem, count):
        for detail in DETAILS:
            begin = time.perf_counter()
            judged = judge(problem, strategy, 0, detail)
            if judged.time_ns is None:
                break  # it does not fit into memory, whatever is looked at
            took[detail].append(time.perf_counter() - begin)
            times[detail].append(judged.time_ns)
            tasks[detail].append(judged.tasks)
        else:
            exact = times["transfers"][-1]
            if best is None or exact < best[0]:
                best = exact, strategy
    assert best is not None
    speed = {}
    for detail in DETAILS:
        chain = Chain(problem, best[1], 0, tie_groups(problem), detail)
        chain.run(10**9, seconds, ChainOptions(temperature=0.0005))
        speed[detail] = chain.state.proposals / seconds
    ratios = [b / e for b, e in zip(times["bundles"], times["transfers"], strict=True)]
    return {
        "pair": pair.name,
        "strategies": len(ratios),
        "rank_correlation": statistics.correlation(*(ranks(times[d]) for d in reversed(DETAILS))),
        "ratio": (min(ratios), statistics.median(ratios), max(ratios)),
        "tasks": {d: max(tasks[d]) for d in DETAILS},
        "seconds": {d: max(took[d]) for d in DETAILS},
        "proposals_a_second": speed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", default=",".join(NAMES), help="names of pairs: a,b")
    parser.add_argument("--strategies", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each kind of proposals")
    parser.add_argument("--out", help="a JSON file for all figures")
    args = parser.parse_args()
    results = []
    table = Table("pair", "ranks", "bundles/transfers", "tasks", "seconds", "proposals/s", box=None)
    for pair in PAIRS:
        if not any(pair.name.startswith(name) for name in args.only.split(",")):
            continue
        its = compared(pair, args.strategies, args.seconds)
        results.append(its)
        table.add_row(
            its["pair"].split("-layers")[0],
            f"{its['rank_correlation']:.3f}",
            " ".join(f"{ratio:.2f}" for ratio in its["ratio"]),
            " ".join(f"{its['tasks'][d]:,}" for d in DETAILS),
            " ".join(f"{its['seconds'][d]:.2f}" for d in DETAILS),
            " ".join(f"{its['proposals_a_second'][d]:.0f}" for d in DETAILS),
        )
        print(json.dumps(its), flush=True)
    Console().print(table)
    if args.out:
        with open(args.out, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()

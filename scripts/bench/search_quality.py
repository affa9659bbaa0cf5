"""How good searches are after how long, beside the best strategies that were ever found.

    python scripts/bench/search_quality.py [--budgets 10s,60s] [--seeds 5] [--only nmt] [--out FILE]

For each pair of a network and a machine, from 2 to 1,024 devices, searches from several seeds: what
they find in each budget, how much slower that is than the best known, when a search was within 1 %
of it, what it took by the clock, and the gap: how far the best known is above what any strategy
takes at least. Times are simulated, so they are the same on any machine; how far a search gets in
its budget is not. The best known strategies are in `best_known/`, in files that `flexlegion
simulate --strategy` reads; a better one that is found replaces the file's.

`--starts data,random` is the protocol of FlexFlow's paper, where searches start from nothing that
somebody knew.

A change that makes the median of these worse is not an improvement. For another checkout, run the
same file by the Python of that one with `--keep`, so that files stay as they are.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import flexlegion as fl
from flexlegion.analysis.setting import Setting, network_of
from flexlegion.analysis.starts import starts_of
from flexlegion.base.errors import UserError
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.known_strategies import resolve
from flexlegion.searches.budget import seconds_of
from flexlegion.searches.least_time import least_time
from flexlegion.searches.options import Budget, SearchOptions
from flexlegion.searches.registry import ANNEALING, SEARCHES, SearchTask, run_search
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import full

BEST = Path(__file__).parent / "best_known"


@dataclass(frozen=True)
class Pair:
    """A network and a machine.

    Parameters
    ----------
    model, machine
        Names.
    batch
        Samples; None: the network's own.
    sizes
        Of the network.
    training
        How it is trained, as for `flexlegion.search`.
    """

    model: str
    machine: str
    batch: int | None = None
    sizes: tuple[tuple[str, Any], ...] = ()
    training: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """Of its file."""
        sizes = [f"{key}{value}" for key, value in (*self.sizes, *self.training)]
        return "-".join((self.model, self.machine, *sizes))

    def problem(self) -> Problem:
        """With estimated costs, so that no machine's measurements count."""
        model = fl.zoo.build(self.model, self.batch, **dict[str, Any](self.sizes))
        network = network_of(model, **dict(self.training))
        setting = Setting.of(network, self.machine)
        return network.problem(setting.problem.topology, AnalyticCosts())


BF16 = (("optimizer", "adam"), ("storage", "bf16"))
PAIRS = (
    Pair("lenet", "p100x2"),
    Pair("alexnet", "p100x4"),
    Pair("inception_v3", "p100x4"),
    Pair("rnntc", "p100x4"),
    Pair("nmt", "p100x4"),
    Pair("transformer", "p100x8"),
    Pair("wide_deep", "v100x8"),
    Pair("alexnet", "p100x16"),
    Pair("inception_v3", "p100x16"),
    Pair("resnet101", "p100x16"),
    Pair("rnntc", "p100x16"),
    Pair("rnnlm", "p100x16"),
    Pair("nmt", "p100x16"),
    Pair("moe", "a100x16"),
    Pair("gpt", "v100x32", 128, (), (*BF16, ("micro_batches", 4))),
    Pair("rnnlm", "p100x64"),
    Pair("inception_v3", "p100x64"),
    Pair("nmt", "k80x64"),
    Pair("gpt", "h100x64", 256, (("layers", 24), ("hidden", 2048), ("heads", 16)), BF16),
    Pair("bert", "h100x256", 1024, (), BF16),
    # These want minutes: an iteration has some 100 million tasks.
    Pair("llama", "h100x512", 512, (("preset", "3-70b"),), (*BF16, ("micro_batches", 64))),
    Pair(
        "gpt",
        "h100x1024",
        2048,
        (("layers", 48), ("hidden", 8192), ("heads", 64), ("steps", 2048)),
        (*BF16, ("micro_batches", 16)),
    ),
)


def best_known(pair: Pair, problem: Problem) -> int | None:
    """Simulated time of the file's strategy, ns; None: there is none."""
    path = BEST / f"{pair.name}.json"
    if not path.exists():
        return None
    strategy = resolve(str(path), problem.graph, problem.devices)
    return full(problem, problem.checked(strategy)).iteration_time_ns


def searched(
    pair: Pair, seconds: float, seed: int, options: SearchOptions, names: list[str] | None
) -> tuple[Problem, Any, dict[str, Any]]:
    """One search: the problem, the strategy found, and what is to be told."""
    begin = time.monotonic()
    problem = pair.problem()
    starts, _ = starts_of(names, problem, seed, SEARCHES[ANNEALING].starts)
    began = time.monotonic() - begin
    seen: list[tuple[float, int]] = []

    def note(share: float, best_ns: int, phase: str = "") -> None:
        del share, phase
        if best_ns >= 0 and (not seen or best_ns < seen[-1][1]):
            seen.append((time.monotonic() - begin, best_ns))

    left = Budget(max(0.1, seconds - began))
    result = run_search(ANNEALING, SearchTask(problem, starts, left, seed, None, options, note))
    took = time.monotonic() - begin
    fastest = min((its for its in result.start_times_ns.values() if its), default=None)
    return (
        problem,
        result.strategy,
        {
            "found_ns": result.iteration_time_ns,
            "start_ns": fastest,
            "began_s": began,
            "took_s": took,
            "proposals": result.proposals,
            "seen": [*seen, (took, result.iteration_time_ns)],
        },
    )


def measured(pair: Pair, args: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """All searches of a pair."""
    rows = []
    best = best_known(pair, pair.problem())
    for budget in args.budgets.split(","):
        for seed in range(args.seeds):
            problem, strategy, its = searched(
                pair, seconds_of(budget), seed, args.options, args.starts
            )
            say(f"{pair.name}, {budget}, seed {seed}: {its['found_ns'] / 1e6:,.2f} ms")
            rows.append({"budget": budget, "seed": seed} | its)
            if best is None or its["found_ns"] < best:
                best = its["found_ns"]
                if not args.keep:
                    BEST.mkdir(exist_ok=True)
                    strategy.save(BEST / f"{pair.name}.json")
            del problem
    assert best is not None, "something was found"
    for row in rows:
        near = [moment for moment, found_ns in row["seen"] if found_ns <= 1.01 * best]
        row["within_1_percent_s"] = near[0] if near else None
        row["over_best"] = row["found_ns"] / best
    least = least_time(pair.problem()).time_ns
    return {"pair": pair.name, "best_ns": best, "least_ns": least, "searches": rows}


def lines(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """A line a budget: the median of the seeds, and the worst."""
    found: list[tuple[str, ...]] = []
    for budget in dict.fromkeys(row["budget"] for row in result["searches"]):
        rows = [row for row in result["searches"] if row["budget"] == budget]
        over = [row["over_best"] - 1 for row in rows]
        near: list[float] = [row["within_1_percent_s"] for row in rows]
        near = [moment for moment in near if moment is not None]
        gain = statistics.median(row["start_ns"] / row["found_ns"] for row in rows)
        found.append(
            (
                result["pair"],
                f"{result['best_ns'] / 1e6:,.2f} ms",
                f"{100 * (result['best_ns'] / result['least_ns'] - 1):.0f} %",
                budget,
                f"{100 * statistics.median(over):.1f} %",
                f"{100 * max(over):.1f} %",
                f"{gain:.2f}x",
                f"{len(near)} of {len(rows)}"
                + (f", {statistics.median(near):.0f} s" if near else ""),
                f"{statistics.median(row['began_s'] for row in rows):.1f} s",
                f"{max(row['took_s'] for row in rows):.1f} s",
            )
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--budgets", default="10s,60s")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="", help="pairs whose names have this; several: a,b")
    parser.add_argument("--keep", action="store_true", help="leave the best known as they are")
    parser.add_argument("--starts", type=lambda names: names.split(","), help="these alone: a,b")
    parser.add_argument("--without", default="", help="switches of SearchOptions to turn off: a,b")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    off: dict[str, Any] = {name: False for name in args.without.split(",") if name}
    args.options = SearchOptions(**off)
    console = Console(stderr=True)
    results = []
    for pair in PAIRS:
        if not any(text in pair.name for text in args.only.split(",")):
            continue
        try:
            results.append(measured(pair, args, lambda text: console.print(text, highlight=False)))
        except UserError as e:
            console.print(f"{pair.name}: not run: {e}", highlight=False)
        if args.out is not None:
            args.out.write_text(json.dumps(results, indent=1))
    table = Table("pair", "best known", "gap", "budget", box=None)
    for heading in ("median over", "worst", "over starts", "within 1 %", "begins", "took"):
        table.add_column(heading, justify="right")
    over: dict[str, list[float]] = {}
    for result in results:
        for line in lines(result):
            table.add_row(*line)
        for row in result["searches"]:
            over.setdefault(row["budget"], []).append(row["over_best"])
    Console().print(table)
    for budget, its in over.items():
        mean = math.exp(statistics.mean(map(math.log, its)))
        print(f"{budget}: geometric mean {mean:.3f} of the best known, over {len(its)} searches")


if __name__ == "__main__":
    main()

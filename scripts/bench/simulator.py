"""What a simulation and a proposal cost, and what each idea gains: one core, in one run.

For each network and machine, a search settles for some seconds; then the same chain (same seed, so
the very same proposals and decisions) is run with more and more ideas:

- rebuild:   the task graph is built from nothing for each proposal, and simulated in full;
- splice:    only the blocks and flows of the changed operators are built, then a full simulation;
- delta:     and the simulation keeps what comes before the first change;
- reject:    and proposals end as soon as a lower bound passes the acceptance limit.

    python scripts/bench/simulator.py
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.known_strategies import resolve
from flexlegion.profiling.machines import load_machine
from flexlegion.searches.chain import Chain, ChainOptions, prepare_candidates
from flexlegion.searches.start import tie_groups
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import Simulation
from flexlegion.transforms.losses import add_loss
from flexlegion.transforms.micro_batches import micro_batched
from flexlegion.zoo import ZOO, build

CASES: tuple[tuple[str, dict[str, int], str], ...] = (
    ("lenet", {}, "p100x4"),
    ("alexnet", {}, "p100x16"),
    ("nmt", {}, "p100x4"),
    ("nmt", {"steps_per_op": 10}, "p100x64"),
    ("nmt", {"steps_per_op": 10}, "k80x64"),
    ("nmt", {}, "p100x64"),
    ("nmt", {}, "k80x64"),
    ("inception_v3", {}, "p100x64"),
    ("inception_v3", {}, "k80x64"),
)
IDEAS = {
    "splice": ChainOptions(algorithm="full", early_rejection=False),
    "delta": ChainOptions(algorithm="delta", early_rejection=False),
    "reject": ChainOptions(algorithm="delta", early_rejection=True),
}


def problem_of(name: str, sizes: dict[str, Any], machine: str, micro_batches: int = 1) -> Problem:
    """A network's training on a machine, priced by the analytic model."""
    model = build(name, **sizes)
    output = model.graph.operators[-1].output
    graph = add_loss(model.graph, output, ZOO[name].loss)
    graph, outputs = micro_batched(graph, (output,), micro_batches)
    problem = Problem(graph, load_machine(machine), AnalyticCosts(), outputs)
    prepare_candidates(problem)
    return problem


def run(problem: Problem, settle: float, proposals: int, tied: bool, seed: int) -> dict[str, float]:
    """Settle, then time every idea on the same proposals; ns."""
    groups = tie_groups(problem)
    start = resolve("expert", problem.graph, problem.devices)
    chain = Chain(problem, start, seed, groups)
    chain.run(10**12, settle, ChainOptions(temperature=0.003, tied=True))
    best = chain.best
    rebuilds = []
    for _ in range(3):
        begin = time.perf_counter()
        simulation = Simulation(problem, best)
        rebuilds.append(time.perf_counter() - begin)
    tasks = len(simulation.timeline().tasks)
    row = {"tasks": float(tasks), "rebuild": min(rebuilds) * 1e9}
    decisions = set()
    for idea, options in IDEAS.items():
        chain = Chain(problem, best, seed + 1, groups)
        begin = time.perf_counter()
        its = ChainOptions(
            temperature=3e-4,
            tied=tied,
            algorithm=options.algorithm,
            early_rejection=options.early_rejection,
        )
        chain.run(proposals, 0, its)
        seconds = time.perf_counter() - begin
        state = chain.state
        decisions.add((state.best_time, state.current_time, state.accepted))
        made = state.proposals - state.unchanged
        row[idea] = seconds * 1e9 / max(made, 1)
        row[f"{idea}_tasks_per_s"] = state.tasks_played / seconds
        row["too_fine"] = float(state.too_fine)
    assert len(decisions) == 1, "the ideas must not change the chain"
    return row


def main() -> None:
    """Print a table, or with --json one object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--settle", type=float, default=5.0, help="seconds of search before")
    parser.add_argument("--proposals", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="a network's name")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    if not args.json:
        print(
            f"{'':34}{'tasks':>9} {'rebuild':>9} {'splice':>9} {'delta':>9} {'reject':>9}"
            f"  {'gain':>6}  {'Mtasks/s':>8}   (us a proposal)"
        )
    for name, sizes, machine in CASES:
        if args.only not in (None, name):
            continue
        problem = problem_of(name, sizes, machine)
        for tied in (False, True):
            row = run(problem, args.settle, args.proposals, tied, args.seed)
            label = " ".join([name, *(f"{k}={v}" for k, v in sizes.items()), machine])
            label += " tied" if tied else ""
            rows.append({"case": label} | row)
            if args.json:
                continue
            print(
                f"{label:34}{row['tasks']:9,.0f} {row['rebuild'] / 1e3:9,.0f} "
                f"{row['splice'] / 1e3:9,.1f} {row['delta'] / 1e3:9,.1f} "
                f"{row['reject'] / 1e3:9,.1f}  {row['rebuild'] / row['reject']:5.0f}x"
                f"  {row['splice_tasks_per_s'] / 1e6:8.1f}",
                flush=True,
            )
    if args.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()

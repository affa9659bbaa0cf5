"""What data parallelism gains where gradients are summed inside nodes first.

    python scripts/bench/nodes.py [--machine p100x16] [--networks alexnet,nmt] [--json FILE]

For each network, without and with: the simulated time of an iteration with plain SGD; the bytes
that come into nodes for weights and their gradients, by the plan (a node counting as one memory,
which keeps what it has) and by the simulator's transfers; and how many tasks the simulator has,
the hops of transfers among them.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from flexlegion.console.text import duration
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.known_strategies import resolve
from flexlegion.networks.network import Network
from flexlegion.networks.references import load_model
from flexlegion.objective.training import TrainingSpec
from flexlegion.plan.coherence import moved_bytes
from flexlegion.plan.plan import Plan
from flexlegion.profiling.machines import load_machine
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import FLOWS, Timeline, full
from flexlegion.strategy.strategy import ResolvedStrategy

NETWORKS = ("alexnet", "inception_v3", "resnet101", "rnntc", "rnnlm", "nmt")


def everywhere(strategy: ResolvedStrategy, hierarchical: bool) -> ResolvedStrategy:
    """The strategy, with or without sums inside nodes; with, where it says so."""
    if hierarchical:
        return strategy
    return strategy.changed(
        {name: replace(config, hierarchical=False) for name, config in strategy.items()}
    )


def planned(problem: Problem, strategy: ResolvedStrategy) -> int:
    """Bytes of weights that nodes lack, by the plan."""
    plan = Plan(strategy, problem.outputs, problem.optimizer_states)
    nodes = {d.name: str(d.node) for d in problem.topology.devices}
    return moved_bytes(plan, nodes)


def simulated(timeline: Timeline) -> int:
    """Bytes of weights and gradients that pass from node to node."""
    problem = timeline.problem
    nodes = {device.memory: device.node for device in problem.topology.devices}
    rows = timeline.tasks[timeline.tasks["hop"] == 0]
    rows = rows[rows["flow"] == FLOWS.index("weights")]
    return sum(
        int(row["bytes"])
        for row in rows
        if nodes[problem.memories[row["source"]]] != nodes[problem.memories[row["destination"]]]
    )


def figures(network: str, machine: str, by_plan: bool) -> list[dict[str, Any]]:
    """Of one network, without and with."""
    model = Network.of(load_model(network), TrainingSpec())
    problem = model.problem(load_machine(machine), AnalyticCosts())
    data = resolve("data", problem.graph, problem.devices)
    found = []
    for hierarchical in (False, True):
        strategy = everywhere(data, hierarchical)
        timeline = full(problem, strategy)
        found.append(
            {
                "network": network,
                "machine": machine,
                "hierarchical": hierarchical,
                "iteration_time_ns": timeline.iteration_time_ns,
                "planned_bytes": planned(problem, strategy) if by_plan else None,
                "simulated_bytes": simulated(timeline),
                "tasks": len(timeline.tasks),
            }
        )
    return found


def main() -> None:
    """All networks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--machine", default="p100x16")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--no-plan", action="store_true", help="leave out the plan, which is slow")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    args = parser.parse_args()
    shown = Table(
        title=f"data parallelism on {args.machine}, summed directly -> inside nodes first"
    )
    shown.add_column("network")
    for column in ("iteration", "between nodes: plan", "simulator", "simulated tasks"):
        shown.add_column(column, justify="right")
    rows = []
    for network in args.networks.split(","):
        found = figures(network, args.machine, not args.no_plan)
        rows += found
        texts = [[duration(row["iteration_time_ns"]) for row in found]]
        for key in ("planned_bytes", "simulated_bytes"):
            texts.append(
                ["-" if row[key] is None else f"{row[key] / 1e6:,.0f} MB" for row in found]
            )
        texts.append([f"{row['tasks']:,}" for row in found])
        shown.add_row(network, *(" -> ".join(pair) for pair in texts))
    Console(width=110).print(shown)
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()

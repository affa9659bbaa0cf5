"""What a network's iteration is made of on a GPU: runs under legate, answers in one JSON line.

How much of the time the GPU computes, by the events around its tasks, and what the simulator says
of an iteration with tasks' times measured on this GPU.
"""

from __future__ import annotations

import argparse
import json

from common.workloads import LEARNING_RATE, Workload

from flexlegion import SGD
from flexlegion.cost.profile_db import ProfileDB
from flexlegion.known_strategies import resolve
from flexlegion.networks.network import Network
from flexlegion.objective.training import TrainingSpec
from flexlegion.profiling.local import local_topology
from flexlegion.profiling.tasks import task_requests
from flexlegion.sim.simulator import full
from flexlegion.tuner.trials import problem_of, profile
from flexlegion.zoo import ZOO, build

ITERATIONS = 5  # of the timeline


def main() -> None:
    """Measure, simulate, answer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", type=Workload.from_json, required=True)
    parser.add_argument("--strategy", required=True)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--storage", default="fp32")
    parser.add_argument("--profile-db", metavar="FILE")
    args = parser.parse_args()
    work: Workload = args.workload
    loss = ZOO[work.network].loss
    model = work.model()
    optimizer = SGD(LEARNING_RATE)
    how = {"precision": args.precision, "storage": args.storage}
    model.compile(optimizer, loss, strategy=args.strategy, **how)
    timeline = model.timeline(*work.data(), ITERATIONS)
    model.close()
    everywhere = timeline.busy_ns()
    busy = {name: everywhere[name] for name in timeline.machine.devices.preferred}
    layers = build(work.network, work.batch_size, **work.sizes)
    network = Network.of(layers, TrainingSpec(loss, **how))
    with ProfileDB(args.profile_db) as db:
        topology = local_topology(db)
        strategy = resolve(args.strategy, network.graph, topology.names)
        requests = task_requests(strategy, topology)
        measured = profile(requests, network, topology, db, shown=False)
        problem = problem_of(network, topology, db)
        simulated = full(problem, strategy).iteration_time_ns
        priced_by = dict(problem.priced_by(strategy))
    result = {
        "iteration_time_ns": timeline.iteration_time_ns,
        "busy_ns": busy,
        "busy": max(busy.values()) / timeline.iteration_time_ns,
        "simulated_iteration_time_ns": simulated,
        "priced_by": priced_by,
        "tasks_measured": measured,
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()

"""Measures what tasks of networks take on this GPU, into a profile data base: runs under legate.

    legate --gpus 1 --fbmem 60000 scripts/bench/workers/profile_worker.py --out h100.sqlite \
        --workload '{"network": "gpt", "batch_size": 8, "iterations": 1,
                     "sizes": {"preset": "1.3b"}}'

One task of each shape that a split over so many devices makes, of the products first, then of what
moves bytes; the least split first. When the time is over, what was measured is kept.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from itertools import product
from math import prod

from common.workloads import Workload

from flexlegion.base.errors import UserError
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.cost.profile_db import ProfileDB
from flexlegion.graph.operator_type import DimKind
from flexlegion.machine.topology import Topology
from flexlegion.networks.network import Network
from flexlegion.objective.training import TrainingSpec
from flexlegion.plan.passes import TASK_PASSES
from flexlegion.profiling.local import local_topology
from flexlegion.profiling.tasks import TaskRequest, measure, measure_linears
from flexlegion.profiling.timing import Repeats
from flexlegion.strategy.configuration import SPLIT, splits
from flexlegion.zoo import ZOO, build

# A GPU's times differ by little from run to run.
REPEATS = Repeats(warmups=2, least=5, most=15, budget_ns=10_000_000)
FIRST = ("matmul", "convolution")  # families whose times say most
IMAGES = 4  # dimensions; of splits of height and width there are too many


def requests_of(
    network: Network, devices: int, topology: Topology
) -> Iterator[tuple[tuple[int, int], list[TaskRequest]]]:
    """The first and the last task of each split, with what decides when its turn is."""
    problem = network.problem(topology, AnalyticCosts())
    device = topology.device(topology.names.preferred[0])
    for number, op in enumerate(network.graph.operators):
        if problem.class_of(op) != number:
            continue  # its tasks take what those of an operator before it take
        late = 0 if op.kind.family in FIRST else 1
        images = len(op.output.shape) == IMAGES
        for degrees in splits(op, devices, SPLIT - {DimKind.ATTRIBUTE} if images else SPLIT):
            count = prod(degrees)
            if count & (count - 1):
                continue  # machines have powers of two
            tasks = product((0, count - 1), TASK_PASSES)
            requests = [TaskRequest(op, degrees, k, p, device, network.graph) for k, p in tasks]
            yield (late, count), requests


def main() -> None:
    """Measure until the time is over, and say how many."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", type=Workload.from_json, action="append", required=True)
    parser.add_argument("--devices", type=int, default=8, help="over which operators are split")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--storage", default="bf16")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", metavar="FILE", required=True, help="the data base")
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    counts: dict[str, list[int]] = {}
    failures: list[str] = []
    with ProfileDB(args.out) as db:
        topology = local_topology(db)
        device = topology.device(topology.names.preferred[0])
        measure_linears(device, db, None, REPEATS, args.precision)
        wanted: list[tuple[tuple[int, int], str, list[TaskRequest]]] = []
        for work in args.workload:
            model = build(work.network, work.batch_size, **work.sizes)
            training = TrainingSpec(
                ZOO[work.network].loss, precision=args.precision, storage=args.storage
            )
            network = Network.of(model, training)
            name = f"{work.network} {work.sizes} {work.batch_size}"
            counts[name] = [0, 0]
            for turn, requests in requests_of(network, args.devices, topology):
                wanted.append((turn, name, requests))
        wanted.sort(key=lambda item: item[0])
        for _, name, requests in wanted:
            counts[name][1] += len(requests)
            if time.monotonic() > end:
                continue
            try:
                counts[name][0] += measure(requests, db, None, REPEATS, args.precision)
            except UserError as e:
                first = requests[0]
                failures.append(f"{name}: {first.operator.name} {first.degrees}: {e}")
    print(json.dumps({"measured_of_wanted": counts, "failures": failures[:20]}), flush=True)


if __name__ == "__main__":
    main()

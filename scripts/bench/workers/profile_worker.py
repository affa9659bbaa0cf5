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
from math import prod

from common.workloads import Workload

from flexlegion.base.errors import UserError
from flexlegion.cost.profile_db import ProfileDB
from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.operator_type import DimKind
from flexlegion.machine.topology import Device
from flexlegion.networks.network import Network
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


def unlike(graph: Graph) -> Iterator[Operator]:
    """One operator of each kind, attributes and shapes."""
    seen = set()
    for op in graph.operators:
        attributes = [item for item in op.kind.attributes().items() if item[0] != "id"]
        dtypes = [t.dtype for t in (*op.inputs, *op.outputs)]
        grads = [t.requires_gradient for t in op.inputs]
        key = str((op.kind.type, sorted(attributes), op.input_shapes, dtypes, grads))
        if key not in seen:
            seen.add(key)
            yield op


def requests_of(
    network: Network, devices: int, device: Device
) -> Iterator[tuple[int, TaskRequest]]:
    """The first and the last task of each split, with how much later than others it comes."""
    for op in unlike(network.graph):
        late = 0 if op.kind.family in FIRST else 1
        images = len(op.output.shape) == IMAGES
        for degrees in splits(op, devices, SPLIT - {DimKind.ATTRIBUTE} if images else SPLIT):
            count = prod(degrees)
            if count & (count - 1):
                continue  # machines have powers of two
            for part in {0, count - 1}:
                for pass_ in TASK_PASSES:
                    yield late, TaskRequest(op, degrees, part, pass_, device, network.graph)


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
        wanted: list[tuple[tuple[int, int], str, TaskRequest]] = []
        for work in args.workload:
            model = build(work.network, work.batch_size, **work.sizes)
            network = Network.of(
                model, ZOO[work.network].loss, "sgd", args.precision, storage=args.storage
            )
            name = f"{work.network} {work.sizes} {work.batch_size}"
            counts[name] = [0, 0]
            for late, request in requests_of(network, args.devices, device):
                wanted.append(((late, prod(request.degrees)), name, request))
        wanted.sort(key=lambda item: item[0])
        for _, name, request in wanted:
            counts[name][1] += 1
            if time.monotonic() > end:
                continue
            try:
                counts[name][0] += measure([request], db, None, REPEATS, args.precision)
            except UserError as e:
                failures.append(f"{name}: {request.operator.name} {request.degrees}: {e}")
    print(json.dumps({"measured_of_wanted": counts, "failures": failures[:20]}), flush=True)


if __name__ == "__main__":
    main()

"""One side of a benchmark: flexlegion, under legate. Reads ``round N`` lines, answers as JSON.

On several ranks the first one reads and answers.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator

from common.processes import turn
from common.rounds import seconds_of_round
from common.workloads import LEARNING_RATE, Workload

from flexlegion import SGD, Model, ParallelConfig, Strategy, set_threads
from flexlegion.machine.running import all_gather, running_machine, traffic
from flexlegion.training.program import TRAIN, Batch
from flexlegion.training.trainer import run_series
from flexlegion.transforms.losses import add_loss
from flexlegion.zoo import ZOO


def parameter_parallel(model: Model, loss: str) -> Strategy:
    """Every layer split by its channels: each device owns a part of every weight."""
    graph = add_loss(model.graph, model.graph.operators[-1].output, loss)
    devices = tuple(running_machine().devices.names)
    configs = {}
    for op in graph.operators:
        degrees = [1] * len(op.dims)
        degrees[-1 if len(degrees) > 1 else 0] = len(devices)
        configs[op.name] = ParallelConfig(tuple(degrees), devices)
    return Strategy(configs, "parameter")


def times(model: Model, batch: Batch) -> dict[str, int]:
    """ns of one more iteration's tasks, over this rank's devices, by operator type and pass."""
    model.program.record(True)
    run_series(model.program, TRAIN, [batch], lr=LEARNING_RATE)
    sums: Counter[str] = Counter()
    for task in model.program.record(False):
        launch = model.plan.launches[task["launch"]] if task["launch"] >= 0 else None
        if launch is not None and launch.operator is not None:
            key = f"{launch.operator.kind.type} {launch.pass_}"
            sums[key] += int(task["end_time"] - task["start_time"])
    return sums


def numbers_of_rounds() -> Iterator[int]:
    """Those that the first rank reads, on every rank; all end together."""
    first = running_machine().rank == 0
    while True:
        line = sys.stdin.readline() if first else ""
        number = int(line.split()[1]) if line else -1
        told = all_gather(number.to_bytes(8, "little", signed=True))[0]
        number = int.from_bytes(told, "little", signed=True)
        if number < 0:
            return
        yield number


def main() -> None:
    """Serve rounds until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", type=Workload.from_json, required=True)
    parser.add_argument("--strategy", required=True, help="as elsewhere, or 'parameter'")
    parser.add_argument("--precision", default="fp32", help="of GPUs; default: fp32")
    parser.add_argument("--storage", default="fp32", help="of activations; default: fp32")
    parser.add_argument("--threads", type=int, default=1, help="of a CPU processor; default: 1")
    parser.add_argument("--turn", metavar="FILE", help="warm up when others who know it do not")
    args = parser.parse_args()
    set_threads(args.threads)
    work: Workload = args.workload
    model = work.model()
    loss = ZOO[work.network].loss
    parameter = args.strategy == "parameter"
    strategy = parameter_parallel(model, loss) if parameter else args.strategy
    model.compile(
        SGD(LEARNING_RATE),
        loss,
        strategy=strategy,
        precision=args.precision,
        storage=args.storage,
    )
    program = model.program
    alone = program.ranks == 1  # elsewhere copies cannot be counted
    if alone:
        traffic(count_copies=True)  # from here on, without initial weights
    data, _ = model.bind(*work.data())

    def one_round(number: int) -> float:
        samples = work.batch_size * work.iterations
        return samples / seconds_of_round(program, work, data, number)

    with turn(args.turn):
        one_round(0)  # warm: the trace is recorded, and with it every copy that an iteration makes
    launches = [launch for launch in model.plan.launches if launch.runs & TRAIN]
    ready = {
        "ready": True,
        "copied_bytes": traffic().copied if alone else None,
        "tasks": sum(len(launch.devices) for launch in launches),
        "launches": len(launches),
    }
    first = running_machine().rank == 0
    if first:
        print(json.dumps(ready), flush=True)
    for number in numbers_of_rounds():
        rate = one_round(number)
        its = times(model, Batch(data, work.batch_rows(number)[0]))
        if first:
            print(json.dumps({"samples_per_second": rate, "times_ns": its}), flush=True)


if __name__ == "__main__":
    main()

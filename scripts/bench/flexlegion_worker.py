"""One side of a benchmark: flexlegion, under legate. Reads ``round N`` lines, answers as JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time

from networks import LEARNING_RATE, WORKLOADS, Workload

from flexlegion import SGD, Model, ParallelConfig, Strategy
from flexlegion._native import rt
from flexlegion.losses import add_loss
from flexlegion.runtime.machine import running_machine
from flexlegion.runtime.program import TRAIN, Batch
from flexlegion.runtime.trainer import run_series
from flexlegion.zoo.lenet import lenet
from flexlegion.zoo.mlp import mlp


def network(name: str, work: Workload) -> Model:
    """The workload's network."""
    model = Model(work.batch_size)
    if name == "lenet":
        lenet(model, work.input_shape, work.classes)
    else:
        mlp(model, work.input_shape, work.classes, hidden=(4096, 4096, 4096))
    return model


def parameter_parallel(model: Model) -> Strategy:
    """Every layer split by its channels: each device owns a part of every weight."""
    graph = add_loss(model.graph, model.graph.operators[-1].output, LOSS)
    devices = tuple(running_machine().devices.names)
    configs = {}
    for op in graph.operators:
        degrees = [1] * len(op.dims)
        degrees[-1 if len(degrees) > 1 else 0] = len(devices)
        configs[op.name] = ParallelConfig(tuple(degrees), devices)
    return Strategy(configs, "parameter")


LOSS = "sparse_categorical_crossentropy"


def main() -> None:
    """Serve rounds until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", required=True)
    parser.add_argument("--strategy", choices=["data", "parameter"], required=True)
    args = parser.parse_args()
    work = WORKLOADS[args.workload]
    model = network(args.workload, work)
    strategy = parameter_parallel(model) if args.strategy == "parameter" else "data"
    library = rt()
    model.compile(SGD(LEARNING_RATE), LOSS, strategy=strategy)
    program = model.program
    library.check(library.lib.fl_rt_count_copies(1))  # from here on, without initial weights
    data, _ = model.bind(*work.data())

    def one_round(number: int) -> float:
        series = [Batch(data, rows) for rows in work.batch_rows(number)]
        started = time.perf_counter()
        run_series(program, TRAIN, series, lr=LEARNING_RATE)
        program.wait()
        return work.batch_size * len(series) / (time.perf_counter() - started)

    one_round(0)  # warm: the trace is recorded here, and with it every copy that an iteration makes
    launches = [launch for launch in model.plan.launches if launch.runs & TRAIN]
    ready = {
        "ready": True,
        "copied_bytes": int(library.lib.fl_rt_copied_bytes()),
        "tasks": sum(len(launch.devices) for launch in launches),
        "launches": len(launches),
    }
    print(json.dumps(ready), flush=True)
    for line in sys.stdin:
        print(json.dumps({"samples_per_second": one_round(int(line.split()[1]))}), flush=True)


if __name__ == "__main__":
    main()

"""One side of a benchmark: flexlegion trains an imported module of pytorch/full.py, under legate.

Reads ``round N`` lines, answers samples/s as JSON, and how long operators took by type and pass.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import numpy as np
from common.workloads import LEARNING_RATE
from imports_case import labels, losses, samples_of
from pytorch.full import FULL

from flexlegion import SGD, from_torch, set_threads
from flexlegion.model.model import Model
from flexlegion.training.program import TRAIN, Batch
from flexlegion.training.trainer import run_series
from workers.flexlegion_worker import times


def compiled(args: argparse.Namespace) -> tuple[Model, list[int], int]:
    """The model, its data's arrays, and samples of a batch."""
    module, example = FULL[args.model]()
    model = from_torch(module, example)
    assert model.origin is not None
    chosen = losses(list(model.origin.outputs), [tensor.shape for tensor in model.outputs])
    model.compile(
        SGD(LEARNING_RATE),
        chosen if len(chosen) > 1 else chosen[0],
        strategy=args.strategy,
        storage=args.storage,
    )
    trained = [(t.shape, loss) for t, loss in zip(model.outputs, chosen, strict=True) if loss]
    y = labels(0, [shape for shape, _ in trained], [loss for _, loss in trained])
    data, _ = model.bind(model.origin.arrays(example), y if len(y) > 1 else y[0])
    return model, data, samples_of(example)


def main() -> None:
    """Serve rounds until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True, help="of a processor")
    parser.add_argument("--storage", default="fp32")
    parser.add_argument("--strategy", default="data")
    args = parser.parse_args()
    set_threads(args.threads)
    model, data, samples = compiled(args)
    rows = np.arange(samples)

    def one_round() -> float:
        series = [Batch(data, rows) for _ in range(args.iterations)]
        started = time.perf_counter()
        run_series(model.program, TRAIN, series, lr=LEARNING_RATE)
        model.program.wait()
        return float(args.iterations * samples / (time.perf_counter() - started))

    one_round()  # warm: the trace is recorded
    launches = sum(1 for launch in model.plan.launches if launch.runs & TRAIN)
    print(json.dumps({"ready": True, "launches": launches}), flush=True)
    for _ in sys.stdin:
        answer = {"samples_per_second": one_round(), "times_ns": times(model, Batch(data, rows))}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

"""A long training, under legate: time and resident memory now and then, as JSON lines."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator

import numpy as np
from common.workloads import LEARNING_RATE, Workload

from flexlegion import SGD
from flexlegion.objective.metrics import Totals
from flexlegion.training.program import TRAIN, Batch
from flexlegion.training.trainer import run_series
from flexlegion.zoo import ZOO
from workers.memory_worker import resident


def main() -> None:
    """Train, with one line every so many iterations."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", type=Workload.from_json, required=True)
    parser.add_argument("--strategy", required=True)
    parser.add_argument("--every", type=int, required=True, help="iterations between two lines")
    args = parser.parse_args()
    work: Workload = args.workload
    model = work.model()
    model.compile(SGD(LEARNING_RATE), ZOO[work.network].loss, strategy=args.strategy)
    data, _ = model.bind(*work.data())
    rng = np.random.default_rng(0)
    done = 0

    def series() -> Iterator[Batch]:
        for _ in range(work.iterations):
            yield Batch(data, rng.permutation(work.samples)[: work.batch_size])

    def report(_: Totals) -> None:
        nonlocal done
        done += 1
        if done % args.every == 0:
            line = {"done": done, "seconds": time.perf_counter(), "resident": resident()}
            print(json.dumps(line), flush=True)

    run_series(model.program, TRAIN, series(), lr=LEARNING_RATE, report=report)
    model.close()


if __name__ == "__main__":
    main()

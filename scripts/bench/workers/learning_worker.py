"""One side of the comparison of learning: flexlegion, under legate. Prints a JSON line a seed."""

from __future__ import annotations

import argparse
import json
import time

from common.learning_tasks import TASKS

from flexlegion.zoo import ZOO


def main() -> None:
    """Train once a seed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", required=True, choices=TASKS)
    parser.add_argument("--seeds", type=int, required=True, help="how many: 0, 1, ...")
    parser.add_argument("--strategy", required=True)
    args = parser.parse_args()
    task = TASKS[args.network]
    train, test, sizes = task.data()
    for seed in range(args.seeds):
        model = task.model(sizes, seed)
        loss = ZOO[task.network].loss
        model.compile(task.optimizer, loss, (task.metric,), args.strategy)
        started = time.perf_counter()
        history = model.fit(train.x, train.y, task.epochs, progress=False)
        seconds = time.perf_counter() - started
        values = model.evaluate(test.x, test.y)
        model.close()
        line = {
            "seed": seed,
            "value": values[task.metric],
            "train_losses": [epoch["loss"] for epoch in history.epochs],
            "seconds": seconds,
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

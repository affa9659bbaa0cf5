"""One side of the comparison of learning: flexlegion, under legate. Prints a JSON line a seed.

With --to-goal, it trains until the test set's metric reaches the goal, after a search for a
strategy, whose time counts.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from common.learning_tasks import TASKS, LearningTask

from flexlegion.data import Dataset
from flexlegion.model.model import Model
from flexlegion.training.callbacks import Callback, Values
from flexlegion.training.fit import Training
from flexlegion.tuner.tune import tune
from flexlegion.zoo import ZOO


class Until(Callback):
    """Ends training at the goal.

    Attributes
    ----------
    values
        The test set's metric after each epoch, and the seconds until then.
    """

    def __init__(self, task: LearningTask) -> None:
        self.task, self.started = task, time.perf_counter()
        self.values: list[tuple[float, float]] = []

    def on_epoch_end(self, training: Training, values: Values) -> None:
        """Note the value; stop if it is good enough."""
        value = values[f"val_{self.task.metric}"]
        self.values.append((value, time.perf_counter() - self.started))
        if self.task.reached(value):
            training.stop()


def to_goal(
    task: LearningTask, model: Model, train: Dataset, test: Dataset, args: argparse.Namespace
) -> dict[str, Any]:
    """Search, then train until the goal, or in vain; all of it in seconds."""
    until = Until(task)
    loss = ZOO[task.network].loss
    strategy: Any = args.strategy
    if args.search is not None:
        strategy = tune(
            model, loss=loss, optimizer=task.optimizer, budget=args.search, progress=False
        )
    searched = time.perf_counter() - until.started
    model.compile(task.optimizer, loss, (task.metric,), strategy)
    model.fit(
        train.x,
        train.y,
        task.patience,
        validation_data=(test.x, test.y),
        progress=False,
        callbacks=[until],
    )
    model.close()
    chosen = "" if args.search is None else strategy.chosen
    return {"search_seconds": searched, "chosen": chosen, "epochs": until.values}


def main() -> None:
    """Train once a seed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", required=True, choices=TASKS)
    parser.add_argument("--seeds", type=int, required=True, help="how many: 0, 1, ...")
    parser.add_argument("--strategy", required=True)
    parser.add_argument("--storage", default="fp32", help="of activations; default: fp32")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--to-goal", action="store_true")
    parser.add_argument("--search", metavar="TIME", help="with --to-goal; none: --strategy")
    args = parser.parse_args()
    task = TASKS[args.network]
    train, test, sizes = task.data()
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        model = task.model(sizes, seed)
        loss = ZOO[task.network].loss
        if args.to_goal:
            print(json.dumps({"seed": seed} | to_goal(task, model, train, test, args)), flush=True)
            continue
        model.compile(task.optimizer, loss, (task.metric,), args.strategy, storage=args.storage)
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

"""Whether networks learn real data as well as they do in PyTorch.

    python scripts/bench/learning.py [--networks rnnlm,nmt] [--seeds 3] [--json FILE]

The six networks of FlexFlow's evaluation and a transformer, reduced, learn the samples that come
along: handwritten digits and texts. Both sides have the same data, initial weights, order of
samples and optimizer, so that they differ by rounding, and AlexNet in what dropout drops. With
``--storage bf16``, the other side is flexlegion in single precision. Of the metric on the test set,
the table shows mean, lowest and highest over the seeds, beside what knows only how frequent labels
are.
Exit status 1 unless the means of both sides reach the goal. Needs the ``dev`` extra.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common.learning_tasks import TASKS, LearningTask, untrained
from common.sides import WORKERS, environment, legate
from rich.console import Console
from rich.table import Table

from flexlegion.console.progress import ProgressBar
from flexlegion.objective.precision import DEFAULT_STORAGE, STORAGES

SEEDS = 3


def values(runs: list[dict[str, Any]]) -> list[float]:
    """The metric, a seed."""
    return [float(run["value"]) for run in runs]


def train(name: str, command: list[str], seeds: int) -> list[dict[str, Any]]:
    """What a worker found, a seed."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment()
        )
        assert process.stdout is not None
        with process, ProgressBar(name) as bar:
            for text in process.stdout:
                if text.startswith("{"):
                    found.append(json.loads(text))
                    bar.steps(len(found), seeds)
        if len(found) < seeds:
            errors.seek(0)
            said = errors.read().strip().splitlines()
            sys.exit(f"error: {name}: " + (said[-1] if said else "it said nothing"))
    return found


def compare(task: LearningTask, args: argparse.Namespace) -> dict[str, Any]:
    """Both sides of one network."""
    options = ["--network", task.network, "--seeds", str(args.seeds)]
    strategy = ["--strategy", args.strategy or task.strategy]

    def ours(storage: str) -> list[str]:
        its = ["--storage", storage]
        return legate("learning_worker.py", args.cpus, *options, *strategy, *its)

    other = ours(DEFAULT_STORAGE)
    if args.storage == DEFAULT_STORAGE:
        other = [sys.executable, str(WORKERS / "torch_learning_worker.py"), *options]
        other += ["--threads", str(args.cpus)]
    train_set, test_set, sizes = task.data()
    results = {
        side: train(f"{task.network}, {side}", command, args.seeds)
        for side, command in zip(sides(args), (ours(args.storage), other), strict=True)
    }
    means = {side: statistics.mean(values(runs)) for side, runs in results.items()}
    return {
        **dataclasses.asdict(task),
        "optimizer": _described(task),
        "strategy": args.strategy or task.strategy,
        "metric": task.metric,
        "sizes": sizes,
        "samples": [len(train_set), len(test_set)],
        "untrained": untrained(task.metric, train_set, test_set),
        **results,
        "means": means,
        "reached": all(map(task.reached, means.values())),
    }


def sides(args: argparse.Namespace) -> tuple[str, str]:
    """What is compared."""
    if args.storage == DEFAULT_STORAGE:
        return "flexlegion", "PyTorch"
    return f"flexlegion in {args.storage}", f"flexlegion in {DEFAULT_STORAGE}"


def _described(task: LearningTask) -> str:
    given = {name: getattr(task.optimizer, name, None) for name in ("lr", "momentum")}
    parts = [f"{name} {value:g}" for name, value in given.items() if value]
    return f"{task.optimizer.type}, " + ", ".join(parts)


def spread(numbers: list[float], metric: str) -> str:
    """Mean, and the range."""
    if metric == "accuracy":
        texts = [f"{100 * number:.1f}" for number in numbers]
        mean = f"{100 * statistics.mean(numbers):.1f} %"
    else:
        texts = [f"{number:.1f}" for number in numbers]
        mean = f"{statistics.mean(numbers):.1f}"
    low, high = min(texts, key=float), max(texts, key=float)
    return f"{mean} ({low} to {high})"


def table(results: dict[str, dict[str, Any]], args: argparse.Namespace) -> Table:
    """All networks."""
    found = Table(title=f"{args.cpus} processors, {args.seeds} seeds; mean (lowest to highest)")
    for column in ("network", "training", "metric", "without input", "goal"):
        found.add_column(column)
    for column in (*sides(args), "reached"):
        found.add_column(column, justify="right")
    for name, result in results.items():
        task, metric = TASKS[name], result["metric"]
        percent = metric == "accuracy"

        def figure(value: float, percent: bool = percent) -> str:
            return f"{100 * value:.0f} %" if percent else f"{value:,.0f}"

        sizes = ", ".join(f"{key} {_size(value)}" for key, value in result["sizes"].items())
        train_samples, test_samples = result["samples"]
        found.add_row(
            name,
            f"{sizes}; {train_samples:,} samples, {test_samples:,} to test; {task.epochs} epochs, "
            f"batch {task.batch_size}; {result['optimizer']}; {result['strategy']}",
            metric,
            figure(result["untrained"]),
            ("at least " if percent else "at most ") + figure(task.goal),
            *(spread(values(result[side]), metric) for side in sides(args)),
            "yes" if result["reached"] else "[red]no[/red]",
            end_section=True,
        )
    return found


def _size(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--networks", default=",".join(TASKS), help=f"of {', '.join(TASKS)}; default: all"
    )
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"default: {SEEDS}")
    parser.add_argument("--strategy", help="of flexlegion; default: data, for some a hybrid")
    parser.add_argument("--cpus", type=int, default=2, help="of each side; default: 2")
    parser.add_argument(
        "--storage", choices=STORAGES, default=DEFAULT_STORAGE, help="of activations; default: fp32"
    )
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    args = parser.parse_args()
    names = args.networks.split(",")
    for name in names:
        if name not in TASKS:
            parser.error(f"'{name}' is none of {', '.join(TASKS)}")
    if args.seeds < 1:
        parser.error("--seeds has to be at least 1")
    console = Console(width=150)
    results: dict[str, dict[str, Any]] = {}
    for name in names:
        results[name] = compare(TASKS[name], args)
        if args.json:
            Path(args.json).write_text(json.dumps(results, indent=2, default=str) + "\n")
    console.print(table(results, args))
    if not all(result["reached"] for result in results.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()

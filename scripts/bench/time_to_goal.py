"""How long networks take to learn as well as they are to, beside PyTorch (FlexFlow, figure 9).

    python scripts/bench/time_to_goal.py [--networks alexnet,rnntc] [--seeds 3] [--search 10s]

The reduced networks of learning.py learn the samples that come along. After each epoch the test set
tells whether the goal is reached. Flexlegion first measures its operators, searches, and tries what
it found (`fl.tune`), which counts; PyTorch has as many threads as flexlegion has processors. They
take turns, seed by seed. Needs the ``dev`` extra, and a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common.learning_tasks import TASKS, LearningTask
from common.sides import WORKERS, environment, legate

from flexlegion.console.text import table

Run = dict[str, Any]


def last_line(command: list[str]) -> Run:
    """What a worker says of its one seed."""
    with tempfile.TemporaryDirectory() as folder:  # profiles: a machine that is met the first time
        variables = {**environment(), "FLEXLEGION_PROFILE_DB": str(Path(folder) / "profiles")}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=variables)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    result: Run = json.loads(lines[-1])
    return result


def seconds_of(task: LearningTask, run: Run) -> float:
    """Until the goal; infinite where it was not reached."""
    value, seconds = run["epochs"][-1]
    return seconds if task.reached(value) else float("inf")


def compare(task: LearningTask, args: argparse.Namespace) -> dict[str, list[Run]]:
    """Both sides, in turns. Workers count their seeds from 0: each is told of one more."""
    found: dict[str, list[Run]] = {"flexlegion": [], "pytorch": []}
    options = ["--network", task.network, "--to-goal", "--strategy", task.strategy]
    ours = legate("learning_worker.py", args.cpus, *options, "--search", args.search)
    torch = [sys.executable, str(WORKERS / "torch_learning_worker.py"), *options[:3]]
    torch += ["--threads", str(args.cpus)]
    for seed in range(args.seeds):
        sides = [("flexlegion", ours), ("pytorch", torch)]
        for side, command in sides[:: 1 if seed % 2 else -1]:
            run = last_line([*command, "--seeds", "1", "--first-seed", str(seed)])
            found[side].append(run)
            print(
                f"{task.network}, seed {seed}, {side}: {seconds_of(task, run):.0f} s",
                file=sys.stderr,
                flush=True,
            )
    return found


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", default="alexnet,rnntc", help="default: alexnet,rnntc")
    parser.add_argument("--seeds", type=int, default=3, help="default: 3")
    parser.add_argument("--search", default="10s", help="for a strategy; default: 10s")
    parser.add_argument("--cpus", type=int, default=2, help="of each side; default: 2")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    args = parser.parse_args()
    names = args.networks.split(",")
    if unknown := [name for name in names if name not in TASKS]:
        parser.error(f"'{unknown[0]}' is none of {', '.join(TASKS)}")
    results, rows = {}, []
    for name in names:
        task = TASKS[name]
        results[name] = found = compare(task, args)
        ours, theirs = (
            statistics.median(seconds_of(task, run) for run in found[side])
            for side in ("flexlegion", "pytorch")
        )
        search = statistics.median(run["search_seconds"] for run in found["flexlegion"])
        goal = f"{task.goal:.0%}" if task.metric == "accuracy" else f"{task.goal:g}"
        epochs = " | ".join(
            ", ".join(str(len(run["epochs"])) for run in found[side])
            for side in ("flexlegion", "pytorch")
        )
        chosen = ", ".join(dict.fromkeys(run["chosen"] for run in found["flexlegion"]))
        times = (f"{ours:.0f} s", f"{search:.0f} s", f"{theirs:.0f} s", f"{theirs / ours:.2f}x")
        rows.append((name, f"{task.metric} {goal}", *times, epochs, chosen))
    heads = ("network", "goal", "flexlegion", "of it search", "PyTorch", "as fast")
    print(table((*heads, "epochs (ours | PyTorch)", "strategy"), rows, (0, 1, 6, 7)))
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()

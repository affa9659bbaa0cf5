"""Whether the strategies that are simulated to be the fastest really are.

    python scripts/bench/ranking.py [--model lenet] [--batch-size 256] [--random 50] [--seed 0]

`flexlegion accuracy` trains with so many random strategies (and known and found ones beside them).
Of the random ones: which of the five that are simulated to be the fastest are among the three that
really are? And is what a search found ever slower than data parallelism, beyond the intervals of
both? Needs a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from common.sides import environment

from flexlegion.console.text import duration, table

SIMULATED, REALLY = 5, 3
OTHERS = 12  # known strategies, and such as a search finds


def facts_of(args: argparse.Namespace) -> dict[str, Any]:
    """What `flexlegion accuracy` finds."""
    command = [sys.executable, "-m", "flexlegion", "accuracy", "--model", args.model]
    command += ["--batch-size", str(args.batch_size), "--cpus", str(args.cpus)]
    command += ["--strategies", str(args.random + OTHERS), "--seed", str(args.seed)]
    command += ["--trial-budget", args.trial_budget, "--json"]
    for size in args.size:
        command += ["--size", size]
    done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, text=True, check=True)
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def main() -> None:
    """Compare, and say what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="lenet", help="default: lenet")
    parser.add_argument("--batch-size", type=int, default=256, help="default: 256")
    parser.add_argument("--size", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--random", type=int, default=50, help="strategies; default: 50")
    parser.add_argument("--cpus", type=int, default=2, help="processors; default: 2")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--trial-budget", default="120s", help="default: 120s")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    args = parser.parse_args()
    facts = facts_of(args)
    if args.json:
        Path(args.json).write_text(json.dumps(facts, indent=2) + "\n")
    random = [row for row in facts["strategies"] if row["strategy"].startswith("random:")]
    random = random[: args.random]
    simulated = sorted(random, key=lambda row: row["iteration_time_ns"])
    measured = sorted(random, key=lambda row: row["measured_iteration_time_ns"])
    place = {row["strategy"]: number + 1 for number, row in enumerate(measured)}
    rows = [
        (
            row["strategy"],
            duration(row["iteration_time_ns"]),
            duration(row["measured_iteration_time_ns"]),
            str(place[row["strategy"]]),
        )
        for row in simulated[:SIMULATED]
    ]
    print(f"of {len(random)} random strategies, the {SIMULATED} simulated to be the fastest:\n")
    print(table(("strategy", "simulated", "measured", "really at place"), rows))
    hits = sum(place[row["strategy"]] <= REALLY for row in simulated[:SIMULATED])
    print(f"{hits} of them are among the {REALLY} really fastest")
    reference = facts["reference"]
    print(f"\n{reference['strategy']}: {duration(reference['measured_iteration_time_ns'])}")
    slower = 0
    for row in facts["strategies"]:
        if not row["strategy"].startswith("found"):
            continue
        low, _ = row["measured_interval_ns"] or (0, 0)
        _, high = reference["measured_interval_ns"] or (0, 0)
        clearly = low > high > 0
        slower += clearly
        print(
            f"{row['strategy']}: {duration(row['measured_iteration_time_ns'])}"
            f"{', clearly slower' if clearly else ''}"
        )
    tau = facts["kendall_tau"]
    print(
        f"\nmean error {facts['mean_error']:.1%}, worst {facts['worst_error']:.1%}, tau "
        f"{'-' if tau is None else f'{tau:.3f}'} over {facts['pairs_compared']} pairs; "
        f"{facts['rest']['verdict']}"
    )
    sys.exit(0 if hits and not slower else 1)


if __name__ == "__main__":
    main()

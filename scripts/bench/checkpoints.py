"""What checkpoints cost: stretches of training with one and without take turns, in one run.

    python scripts/bench/checkpoints.py [--pairs 7] [--folder DIR]

LeNet, of which a stretch is 60,000 samples, and AlexNet, of which it is 20 iterations, with Adam,
on all cores. The checkpoint is taken in the middle of its stretch, and is written before the end.
The cost is the median of the ratios of neighbouring stretches. Needs a machine with nothing else to
do, and a folder on the disk that checkpoints are to be written to.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from common.sides import environment, legate
from rich.console import Console
from rich.table import Table

WORKER = "checkpoints_worker.py"
NETWORKS = {"lenet": (64, -(-60_000 // 64)), "alexnet": (64, 20)}  # batch size, iterations
LIMIT = 0.03


def main() -> int:
    """Run both, and print a table; 1 if one costs too much."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=7, help="of stretches; default: 7")
    parser.add_argument("--folder", default=None, help="where to write; default: a temporary one")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    args = parser.parse_args()
    columns = ("network", "batch", "iterations", "MB", "s without", "s with", "stops (ms)", "cost")
    table = Table(*columns)
    costs = []
    for name in args.networks.split(","):
        batch, length = NETWORKS[name]
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            out = Path(folder) / "out.json"
            arguments = map(str, (name, batch, length, args.pairs, folder, out))
            command = legate(WORKER, len(os.sched_getaffinity(0)), *arguments)
            subprocess.run(command, env=environment(), check=True)
            its = json.loads(out.read_text())
        ratios = [b / a for a, b in zip(its["without"], its["with"], strict=True)]
        costs.append(statistics.median(ratios) - 1)
        low, high = min(ratios) - 1, max(ratios) - 1
        table.add_row(
            name,
            str(batch),
            str(length),
            f"{its['bytes'] / 1e6:,.1f}",
            f"{statistics.median(its['without']):.2f}",
            f"{statistics.median(its['with']):.2f}",
            f"{1000 * statistics.median(its['stalled']):,.0f}",
            f"{costs[-1]:.1%} ({low:.1%} to {high:.1%})",
        )
    Console(width=110).print(table)
    return 1 if max(costs) > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())

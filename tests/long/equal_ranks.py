"""Several ranks compute what one device does, under many strategies, and the same bits again.

    python tests/long/equal_ranks.py [--strategies 200] [--ranks 2,3] [--networks images,tables]

Trains small networks (images and sequences, with dropout, shared weights and all kinds of layers)
twice under each strategy, and once on one device; between epochs it predicts, evaluates, and reads
and writes the weights. (None has batch normalisations: over the two samples of a short batch, they
enlarge what rounding does a hundred times an iteration.) Prints a line for each number of ranks;
exits with 1 if a loss is off by more than 1e-5, a weight by more than 1e-4 in norm, or two runs of
one strategy differ in a bit. Some three seconds a strategy.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from launch import run_ranks

WORKER = Path(__file__).parent / "equal_ranks_worker.py"
NETWORKS = "images,sequences,tables,branches,gated,several,sentences,activations,shared"
A_PROCESS = 10  # strategies, of each network
LIMITS = {"loss": 1e-5, "weights": 1e-4}


def main() -> int:
    """Run all, in processes that share the work."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--strategies", type=int, default=200, help="at least; default: 200")
    parser.add_argument("--networks", default=NETWORKS, help=f"default: {NETWORKS}")
    parser.add_argument("--ranks", default="2,3", help="default: 2,3")
    args = parser.parse_args()
    networks = args.networks.split(",")
    wrong = []
    for ranks in map(int, args.ranks.split(",")):
        started, found = time.perf_counter(), {}
        with tempfile.TemporaryDirectory() as folder:
            for first in range(0, -(-args.strategies // len(networks)), A_PROCESS):
                out = Path(folder) / str(first)
                numbers = (first, first + A_PROCESS)
                run_ranks(WORKER, out, args.networks, *numbers, ranks=ranks, timeout=1800)
                for rank in range(ranks):
                    told = json.loads(Path(f"{out}.{rank}").read_text())
                    assert told["ranks"] == ranks
                    assert told["owners"] == list(range(ranks))
                    found |= {f"{name}, rank {rank}": its for name, its in told["found"].items()}
        bad = {
            name: its
            for name, its in found.items()
            if not its["repeats"] or any(not its[key] <= limit for key, limit in LIMITS.items())
        }
        wrong += [f"{ranks} ranks, {name}: {its}" for name, its in bad.items()]
        worst = {key: max(its[key] for its in found.values()) for key in LIMITS}
        repeated = sum(its["repeats"] for its in found.values())
        print(
            f"{ranks} ranks: {len(found) // ranks} strategies; largest error of losses "
            f"{worst['loss']:.1e}, of weights {worst['weights']:.1e}; the same bits again in "
            f"{repeated} of {len(found)} ({time.perf_counter() - started:.0f} s)",
            flush=True,
        )
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

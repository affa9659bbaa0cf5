"""Random strategies that split reductions train as one device does: a table.

    python tests/long/reductions.py [--strategies 600] [--each 54] [--seed 1] [--gpus [only]]
                                    [--ranks 1,2,3] [--out FOLDER]

Of each small network of tests/support/networks.py in turn, a strategy in which most operators that
reduce something (the inputs of a dense layer, say) are split in that, their partial values combined
by who reads them or shard by shard; on one to four processors, on two and three ranks, and with
`--gpus` on GPUs in software (tests/soft_gpu). Each trains twice, three iterations. Beside one
device: the largest relative errors of losses, outputs, gradients, weights, and of the optimizer's
states; and whether the second training gave the same bits. Exits with 1 if an error is more than
1e-4, if bits differ, or if a task ran elsewhere than its strategy says.

What is done is kept in the folder: the same command goes on from there, and shows all of it. Some
two seconds a strategy.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from launch import run_legate, run_ranks
from networks import NETWORKS

from flexlegion.console.text import table

WORKER = Path(__file__).parents[1] / "runtime" / "strategies_worker.py"
KINDS = ("losses", "outputs", "gradients", "weights", "states")
SEEDS = 100_000  # strategies of one seed
COUNT = 3 * len(NETWORKS)  # of a run


@dataclass(frozen=True)
class Setup:
    """Where to train; processors are those of each rank."""

    ranks: int
    cpus: int
    gpus: int = 0

    def __str__(self) -> str:
        gpus = f" {self.gpus} GPU" if self.gpus else ""
        return f"{self.ranks} x {self.cpus} CPU{gpus}"

    def run(self, first: int, count: int, out: Path) -> list[dict[str, Any]]:
        """Train that many strategies; what each rank found."""
        arguments = ["--first", first, "--count", count, "--reductions", "--out", out]
        if self.gpus:
            arguments += ["--reference", "cpu"]
        options = {"cpus": self.cpus, "gpus": self.gpus, "timeout": 60 + 30 * count}
        if self.ranks > 1:
            run_ranks(WORKER, *arguments, ranks=self.ranks, **options)
        else:
            run_legate(WORKER, *arguments, **options)
        return [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(self.ranks)]


SETUPS = (
    *(Setup(1, cpus) for cpus in (1, 2, 3, 4)),
    *(Setup(2, 1), Setup(2, 2), Setup(3, 1)),
    *(Setup(1, 2, 2), Setup(1, 1, 4)),
)


def row(setup: Setup, found: list[list[dict[str, Any]]]) -> tuple[str, ...]:
    """A line of the table; of each run, what all ranks found."""
    ones = [ranks[0] for ranks in found]
    every = [result for ranks in found for result in ranks]
    sums, reduced = Counter[str](), 0
    for one in ones:
        sums.update(one["sums"])
        reduced += sum(one["reduced"].values())
    worst = [max(result["worst"].get(kind, 0.0) for result in every) for kind in KINDS]
    failures = sum(len(result["failures"]) for result in every)
    return (
        str(setup),
        *(str(sum(one[key] for one in ones)) for key in ("strategies", "tasks")),
        str(reduced),
        str(sums["readers"]),
        str(sums["shards"]),
        *(f"{error:.0e}" for error in worst),
        str(failures),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--strategies", type=int, default=600, help="at least so many")
    parser.add_argument(
        "--each", type=int, default=COUNT, help=f"strategies of a run; default: {COUNT}"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--gpus", nargs="?", const="too", choices=("too", "only"), help="also on GPUs in software"
    )
    parser.add_argument("--ranks", default="1,2,3", help="numbers of ranks; default: 1,2,3")
    parser.add_argument("--out", type=Path, help="what is done; the same folder goes on")
    args = parser.parse_args()
    folder = args.out or Path(tempfile.mkdtemp(prefix="reductions-"))
    folder.mkdir(parents=True, exist_ok=True)
    began, known = time.perf_counter(), 0
    ranks = set(map(int, args.ranks.split(",")))
    wanted = {True: args.gpus is not None, False: args.gpus != "only"}
    found: dict[Setup, list[list[dict[str, Any]]]] = {setup: [] for setup in SETUPS}
    done = failed = 0
    for number, setup in enumerate(islice(cycle(SETUPS), SEEDS // COUNT)):
        file = folder / f"{args.seed}-{number}-{str(setup).replace(' ', '')}.json"
        if file.exists():
            results = json.loads(file.read_text())
            known += 1
        elif done >= args.strategies or setup.ranks not in ranks or not wanted[bool(setup.gpus)]:
            continue
        else:
            first = args.seed * SEEDS + number * COUNT
            results = setup.run(first, args.each, folder / "running")
            file.write_text(json.dumps(results))
        found[setup].append(results)
        done += results[0]["strategies"]
        for failure in (text for result in results for text in result["failures"]):
            failed += 1
            print(f"{setup}: {failure}", flush=True)
        print(f"{done} strategies, {setup}", file=sys.stderr, flush=True)
    heads = ("on", "strategies", "tasks", "split reductions", "by readers", "by shards")
    rows = [row(setup, results) for setup, results in found.items() if results]
    print(table((*heads, *KINDS, "failures"), rows, (0,)))
    seconds = time.perf_counter() - began
    kept = f", {known} of {sum(map(len, found.values()))} runs done before" if known else ""
    print(f"{done} strategies, each twice; {failed} failures ({seconds:.0f} s{kept}); {folder}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

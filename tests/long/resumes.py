"""Training goes on with another strategy, on other processors and ranks: a table.

    python tests/long/resumes.py [--gpus]

Trains a small network (convolution, batch norm, dropout, Adam, a schedule, validation) once to its
end, and interrupts it in its second of four epochs on some machines. From there it is resumed on
each machine of the table, with each strategy. Beside the training that nobody interrupted: the
largest difference of an iteration's loss, and the largest relative one of weights, of Adam's m and
v, and of batch norm's running averages at the end. Exits with 1 if one is more than 1e-4. About
eight seconds a line. `--gpus` adds GPUs in software (tests/soft_gpu).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from launch import run_legate, run_ranks

from flexlegion.console.text import table

WORKER = Path(__file__).parents[1] / "runtime" / "checkpoint_worker.py"
STOP = 45  # iterations, of 32 an epoch
BOUND = 1e-4
OTHER = ("steps", "losses", "epochs", "validation")
KINDS = {"m": ("/m",), "v": ("/v",), "averages": (".running_mean", ".running_variance")}


@dataclass(frozen=True)
class Setup:
    """Where and how to train; processors are those of each rank."""

    ranks: int
    cpus: int
    strategy: str
    gpus: int = 0

    def train(self, folder: Path, **options: Any) -> dict[str, Any]:
        """What the worker came to."""
        out = folder / "trained.npz"
        out.unlink(missing_ok=True)
        text = json.dumps({"out": str(out), "strategy": self.strategy, **options})
        if self.ranks > 1:
            run_ranks(WORKER, text, ranks=self.ranks, cpus=self.cpus, gpus=self.gpus)
        else:
            run_legate(WORKER, text, cpus=self.cpus, gpus=self.gpus)
        with np.load(out) as arrays:
            return dict(arrays)

    def __str__(self) -> str:
        gpus = f" {self.gpus} GPU" if self.gpus else ""
        return f"{self.ranks} x {self.cpus} CPU{gpus}, {self.strategy}"


def setups(gpus: bool) -> tuple[list[Setup], list[Setup]]:
    """Where training is interrupted, and where it is resumed."""
    first = [Setup(1, 2, "data"), Setup(2, 1, "model")]
    then = [
        Setup(ranks, cpus, strategy)
        for ranks in (1, 2)
        for cpus in (1, 2, 3)
        for strategy in ("data", "model", "random:4")
        if ranks * cpus > 1 or strategy == "data"
    ]
    soft = [Setup(1, 1, "data", 2), Setup(2, 1, "random:4", 1)]
    return (first + soft[:1], then + soft) if gpus else (first, then)


def differences(one: dict[str, Any], whole: dict[str, Any]) -> list[float]:
    """Of the losses, and relative ones of each kind of array."""
    losses = one["losses"]
    found = [float(np.abs(losses - whole["losses"][-len(losses) :]).max())]
    kinds: dict[str, list[float]] = {"weights": [], **{kind: [] for kind in KINDS}}
    for name in set(whole) - set(OTHER):
        kind = next((kind for kind, ends in KINDS.items() if name.endswith(ends)), "weights")
        error = np.abs(one[name] - whole[name]).max() / np.abs(whole[name]).max()
        kinds[kind].append(float(error))
    return found + [max(errors) for errors in kinds.values()]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpus", action="store_true", help="also on GPUs in software")
    args = parser.parse_args()
    began = time.perf_counter()
    rows, worst = [], 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first, then = setups(args.gpus)
        whole = first[0].train(folder)
        for number, setup in enumerate(first):
            kept = folder / f"kept-{number}"
            setup.train(folder, checkpoint=str(kept), stop=STOP)
            for other in then:
                shutil.copytree(kept, folder / "copy")
                resumed = other.train(folder, checkpoint=str(folder / "copy"), resume=True)
                shutil.rmtree(folder / "copy")
                found = differences(resumed, whole)
                worst = max(worst, *found)
                rows.append((str(setup), str(other), *(f"{error:.0e}" for error in found)))
                print(*rows[-1], sep="  ", flush=True)
    print(table(("interrupted on", "resumed on", "losses", "weights", *KINDS), rows, (0, 1)))
    steps = np.abs(np.diff(whole["losses"])).mean()
    seconds = time.perf_counter() - began
    print(
        f"{len(rows)} resumptions, the largest difference {worst:.1e} ({seconds:.0f} s); "
        f"losses of one iteration and the next differ by {steps:.2f} in the mean"
    )
    return int(not worst <= BOUND)


if __name__ == "__main__":
    sys.exit(main())

"""How fast several ranks of one machine are: beside one process, one processor, and PyTorch's DDP.

    python scripts/bench/ranks.py [--networks lenet,alexnet] [--found 20s] [--json FILE]

All in one run: every side is a process (or a group) that stays; in each round each computes for a
while, one after the other, and those that wait are stopped. First a chain of small layers, where
all that takes time is the runtime and the network, beside a bare program of Legion's; then
networks, data-parallel, and with ``--found`` also under the strategy that ``flexlegion tune`` finds
for one process of two processors, and for two ranks of one. Needs the ``dev`` extra, mpirun, and
two cores with nothing else to do.
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

from common.sides import WORKERS, Side, environment, legate, ratios
from common.workloads import Workload
from rich.console import Console
from rich.table import Table

WORKLOADS = {
    "lenet": Workload("lenet", 256, 60),
    "mlp": Workload(
        "mlp",
        256,
        3,
        {"input_shape": (4096,), "classes": 4096, "hidden": (4096, 4096, 4096)},
        samples=512,
    ),
    "alexnet": Workload("alexnet", 32, 4, samples=128),
    # All 40 steps of a layer are one operator, as in PyTorch; one alone reads all weights for few
    # products.
    "rnnlm": Workload("rnnlm", 16, 2, {"steps_per_op": 40}, samples=128),
    "transformer": Workload("transformer", 4, 4, {"steps": 128, "layers": 4}, samples=64),
}
# Two ranks beside one process of two processors, and beside DDP, are to be at least so fast.
TARGETS = {"lenet": (0.5, 0.6)}
DEFAULT_TARGETS = (0.8, 1.2)
CHAIN_TARGETS = {"one": 80.0, "alternating": 300.0}  # us a layer and pass
SYSMEM = 4000  # MiB a rank


def ours(name: str, work: Workload, strategy: str, ranks: int, cpus: int) -> Side:
    """Flexlegion on so many ranks of so many processors."""
    options = ["--workload", work.to_json(), "--strategy", strategy]
    sysmem = SYSMEM * 2 // ranks
    return Side(name, legate("flexlegion_worker.py", cpus, *options, sysmem=sysmem, ranks=ranks))


def ddp(work: Workload) -> Side:
    """PyTorch on two processes of one thread."""
    command = [sys.executable, str(WORKERS / "torch_worker.py"), "--workload", work.to_json()]
    images = ["--channels-last"] if len(work.data()[0][0].shape) == 4 else []
    return Side("PyTorch DDP", [*command, "--threads", "1", "--processes", "2", *images])


def found(work: Workload, ranks: int, budget: str, folder: Path) -> str:
    """The strategy that tuning finds for so many ranks that have two processors together."""
    out = folder / f"{work.network}-{ranks}.json"
    sizes = [f"--size={name}={_size(value)}" for name, value in work.sizes.items()]
    command = [sys.executable, "-m", "flexlegion", "tune", "--model", work.network, *sizes]
    command += [
        "--data",
        "synthetic",
        "--batch-size",
        str(work.batch_size),
        "--budget",
        budget,
        "--out",
        str(out),
    ]
    command += ["--ranks", str(ranks), "--cpus", str(2 // ranks)]
    subprocess.run(command, check=True, env=environment(), stdout=sys.stderr)
    return str(out)


def _size(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def rounds_of(sides: list[Side], rounds: int) -> None:
    """Interleave the sides' rounds, and end them."""
    try:
        for number in range(1, rounds + 1):
            for side in sides:
                side.round(number)
    finally:
        for side in sides:
            side.end()


def chain(rounds: int, console: Console) -> dict[str, Any]:
    """The chain, on one process and on two ranks."""
    sides = [
        Side("1 process, 2 processors", legate("ranks_chain_worker.py", 2, sysmem=500)),
        Side("2 ranks", legate("ranks_chain_worker.py", 1, sysmem=500, ranks=2)),
    ]
    rounds_of(sides, rounds)
    table = Table(title="a chain of 20 dense layers of 8 units: us a layer and pass, medians")
    for column in ("side", "on one device", "alternating", "bare Legion's hop"):
        table.add_column(column, justify="left" if column == "side" else "right")
    result: dict[str, Any] = {}
    for side in sides:
        keys = ("one", "alternating", "bare")
        medians = {key: statistics.median(a[key] for a in side.answers) for key in keys}
        table.add_row(side.name, *(f"{medians[key]:.0f}" for key in keys))
        result[side.name] = {key: [a[key] for a in side.answers] for key in keys}
    console.print(table)
    for key, target in CHAIN_TARGETS.items():
        console.print(f"target of 2 ranks, {key}: {target:.0f} us")
    return result


def network(
    work: Workload, args: argparse.Namespace, folder: Path, console: Console
) -> dict[str, Any]:
    """One network: all sides, and a table."""
    sides = [
        ours("1 process, 2 processors", work, "data", 1, 2),
        ours("2 ranks of 1", work, "data", 2, 1),
        ours("1 processor", work, "single", 1, 1),
        ddp(work),
    ]
    if args.found:
        one, two = (found(work, ranks, args.found, folder) for ranks in (1, 2))
        sides.append(ours("1 process, found", work, one, 1, 2))
        sides.append(ours("2 ranks, found", work, two, 2, 1))
    sides += [ours(f"{n} ranks of 1", work, "data", n, 1) for n in args.more]
    rounds_of(sides, args.rounds)
    by_name = {side.name: side for side in sides}
    two_ranks = by_name["2 ranks of 1"]
    table = Table(title=f"{work.network}, batch {work.batch_size}: samples/s over rounds")
    for column in ("side", "median", "lowest", "highest", "2 ranks are"):
        table.add_column(column, justify="left" if column == "side" else "right")
    for side in sides:
        ratio = statistics.median(ratios(two_ranks, side))
        rates = [side.median, min(side.rates), max(side.rates)]
        shown = "" if side is two_ranks else f"{ratio:.2f}x"
        table.add_row(side.name, *(f"{rate:,.1f}" for rate in rates), shown)
    console.print(table)
    beside_process, beside_ddp = TARGETS.get(work.network, DEFAULT_TARGETS)
    console.print(
        f"targets of 2 ranks: {beside_process}x of 1 process, {beside_ddp}x of DDP, 1x of 1 "
        "processor; of 3 and 4 ranks: 0.5x of 2\n"
    )
    return {side.name: side.rates for side in sides}


def main() -> None:
    """The chain, then the networks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", default=",".join(WORKLOADS), help="default: all")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--found", metavar="TIME", help="also tune, with searches of that time")
    parser.add_argument(
        "--more",
        type=lambda text: [int(n) for n in text.split(",") if n],
        default=[3, 4],
        metavar="RANKS",
        help="more ranks than cores, too; default: 3,4",
    )
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    args = parser.parse_args()
    console = Console(width=100)
    results: dict[str, Any] = {"chain": chain(args.rounds, console)}
    with tempfile.TemporaryDirectory() as folder:
        for name in filter(None, args.networks.split(",")):
            results[name] = network(WORKLOADS[name], args, Path(folder), console)
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()

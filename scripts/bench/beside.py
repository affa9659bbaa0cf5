"""This checkout beside another one, in runs that take turns on the same machine.

    python scripts/bench/beside.py FOLDER samples [--networks lenet,nmt] [--rounds 5]
    python scripts/bench/beside.py FOLDER accuracy [--networks lenet,transformer] [--rounds 2]

The folder is a checkout with its own environment (scripts/setup.sh dev there). `samples` has a
process of each train by data parallelism, one after the other in each round, and shows how many
times as many samples a second this one trains. `accuracy` runs `flexlegion accuracy` in each, one
after the other in each round; random strategies split reductions where that checkout knows them.
Needs a machine with nothing else to do.
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
from typing import Any

from accuracy import CASES
from common.sides import ROOT, Side, environment, legate, ratios
from networks import NETWORKS, workload

from flexlegion.console.text import table

ACCURACY = ("lenet", "alexnet", "transformer", "nmt")
OPTIONS = {case.name: case.options for case in CASES}  # how `flexlegion accuracy` is asked for each


def samples(args: argparse.Namespace) -> dict[str, Any]:
    """Samples a second of each network, in both checkouts."""
    rows, found = [], {}
    for name in args.networks or NETWORKS:
        work = workload(name, args)
        options = ["--workload", work.to_json(), "--strategy", "data"]
        sides: list[Side] = []
        try:
            for title, root in (("there", args.folder), ("here", ROOT)):
                command = legate("flexlegion_worker.py", args.cpus, *options, root=root)
                sides.append(Side(title, command, root=root))
            for number in range(args.rounds):
                for side in sides[:: 1 if number % 2 else -1]:
                    side.round(number)
        finally:
            for side in sides:
                side.end()
        there, here = sides
        times = ratios(here, there)
        middle, least, most = (f(times) for f in (statistics.median, min, max))
        rows.append(
            (
                name,
                *(f"{side.median:,.1f}" for side in sides),
                f"{middle:.3f}x ({least:.3f} to {most:.3f})",
                f"{max(here.other_load + there.other_load):.0%}",
            )
        )
        found[name] = {side.name: side.rates for side in sides}
        print(f"{name}: {rows[-1][3]}", file=sys.stderr, flush=True)
    print(table(("network", "there", "here", "here beside there", "others' load"), rows, (0,)))
    return found


def accuracy_of(name: str, root: Path, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """What the command of one checkout finds; profiles stay in a file of its own."""
    with tempfile.TemporaryDirectory() as folder:
        profiles = str(Path(folder) / "profiles.db")
        command = [str(root / ".venv" / "bin" / "flexlegion"), "accuracy", *OPTIONS[name]]
        command += ["--cpus", str(args.cpus), "--seed", str(seed), "--json"]
        command += ["--strategies", str(args.strategies), "--rounds", str(args.trials)]
        done = subprocess.run(
            [*command, "--profile-db", profiles],
            env=environment(root),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def drift_of(result: dict[str, Any]) -> float:
    """How the machine's speed changed meanwhile, as either checkout tells it."""
    drift: float = result.get("rest", result["calibration"])["drift"]
    return drift


def accuracy(args: argparse.Namespace) -> dict[str, Any]:
    """Errors of simulated iterations, of both checkouts."""
    rows, found = [], dict[str, Any]()
    for name in args.networks or ACCURACY:
        for number in range(args.rounds):
            pair = [("there", args.folder), ("here", ROOT)]
            for title, root in pair[:: 1 if number % 2 else -1]:
                result = accuracy_of(name, root, number, args)
                found.setdefault(name, []).append({"side": title} | result)
                reduced = [
                    row for row in result["strategies"] if row.get("split_reductions", 0) > 0
                ]
                errors = [abs(row["error"]) for row in reduced]
                tau = result["kendall_tau"]
                rows.append(
                    (
                        name,
                        str(number + 1),
                        title,
                        f"{result['mean_error']:.1%}",
                        f"{result['worst_error']:.1%}",
                        "-" if tau is None else f"{tau:.2f}",
                        f"{len(reduced)} of {len(result['strategies'])}",
                        f"{statistics.mean(errors):.1%}" if errors else "-",
                        f"{drift_of(result):.2f}",
                    )
                )
                print(*rows[-1], file=sys.stderr, flush=True)
    heads = ("network", "round", "checkout", "mean error", "worst", "tau")
    print(table((*heads, "with reductions", "their mean error", "drift"), rows, (0, 2)))
    return found


def main() -> None:
    """Run one of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    cases = {"samples": samples, "accuracy": accuracy}
    parser.add_argument("folder", type=Path, help="the other checkout")
    parser.add_argument("case", choices=cases)
    parser.add_argument("--networks", help="separated by commas; default: all that it knows")
    parser.add_argument("--rounds", type=int, default=2, help="default: 2")
    parser.add_argument("--cpus", type=int, default=2, help="processors; default: 2")
    parser.add_argument("--iterations", type=int, help="of a round of samples")
    parser.add_argument("--batch-size", type=int, help="of samples; default: the network's")
    parser.add_argument("--steps-per-op", type=int, default=40, help="of samples; default: 40")
    parser.add_argument("--size", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--strategies", type=int, default=11, help="of accuracy; default: 11")
    parser.add_argument("--trials", type=int, default=3, help="of each strategy; default: 3")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    args = parser.parse_args()
    args.folder = args.folder.resolve()
    args.networks = args.networks.split(",") if args.networks else None
    if os.getloadavg()[0] > 0.5:
        print(f"warning: the load average is {os.getloadavg()[0]:.1f}", file=sys.stderr)
    found = cases[args.case](args)
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

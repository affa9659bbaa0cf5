"""How fast the zoo's networks train, beside PyTorch on the same processors.

    python scripts/bench/networks.py [--networks alexnet,rnnlm] [--strategy nmt=nmt.json]

Every side is a process that stays; in each round, each trains for some iterations, one after the
other, and those that wait are stopped. Sides are flexlegion on all processors, on one, and on one
that has a thread for each core; and PyTorch in several variants: eager, with channels last,
compiled, data-parallel by a process for each processor (DDP); each as installed, and tuned (huge
pages; on AMD's processors, MKL's fast paths). Needs the ``dev`` extra, a C++ compiler, and a
machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from common.networks_report import Comparison, report
from common.sides import WORKERS, Side, WorkerError, legate
from common.tuned import tuned_variables
from common.workloads import Workload
from rich.console import Console

from flexlegion.base.errors import UserError
from flexlegion.cli.sizes import given_sizes
from flexlegion.networks.references import target_of
from flexlegion.objective.precision import STORAGES
from flexlegion.zoo import ZOO

NETWORKS = {
    "alexnet": Workload("alexnet", 32, 3, samples=128),
    "inception_v3": Workload("inception_v3", 8, 2, samples=32),
    "resnet101": Workload("resnet101", 8, 2, samples=32),
    "rnntc": Workload("rnntc", 16, 4, samples=128),
    "rnnlm": Workload("rnnlm", 16, 2, samples=128),
    "nmt": Workload("nmt", 16, 2, samples=128),
    "transformer": Workload("transformer", 4, 2, {"steps": 128}, samples=64),
    "lenet": Workload("lenet", 256, 50),
}
DEFAULT = [name for name in NETWORKS if name != "lenet"]
# Options of workers/torch_worker.py; {cpus} is replaced.
SINGLE = {
    "eager": "--threads {cpus}",
    "channels_last": "--threads {cpus} --channels-last",
    "compiled": "--threads {cpus} --compiled",
    "compiled channels_last": "--threads {cpus} --compiled --channels-last",
}
DDP = {
    "ddp": "--threads 1 --processes {cpus}",
    "ddp channels_last": "--threads 1 --processes {cpus} --channels-last",
}


def torch_command(work: Workload, options: str, args: argparse.Namespace) -> list[str]:
    """How to start a worker."""
    command = [sys.executable, str(WORKERS / "torch_worker.py"), "--workload", work.to_json()]
    return [*command, "--precision", args.storage, *options.format(cpus=args.cpus).split()]


class Run:
    """The sides of one network, from start to end."""

    def __init__(self, work: Workload, args: argparse.Namespace, tuned: dict[str, str]) -> None:
        self.work, self.args, self.tuned = work, args, tuned
        self.result = Comparison(work, args.cpus)
        self.console: Console = args.console
        self.running: list[Side] = []

    def compare(self) -> Comparison:
        """Start all sides, alternate rounds, end them."""
        try:
            strategy = self.args.strategies.get(self.work.network, self.args.strategies.get("*"))
            self.result.ours = self._ours(self.args.cpus, strategy or "data")
            self.result.single = self._ours(1, "single")
            self.result.team = self._ours(1, "single", self.args.cpus)
            self._start_torch()
            command = torch_command(self.work, "--threads {cpus} --peak", self.args)
            peak = self._start("matrix products, for the peak", command, self.tuned)
            for number in range(1, self.args.rounds + 1):
                for side in list(self.running):
                    side.round(number)
            if peak is not None:
                self.result.peaks = [answer["gflops"] for answer in peak.answers]
        finally:
            for side in self.running:
                side.end()
        return self.result

    def _ours(self, cpus: int, strategy: str, threads: int = 1) -> Side | None:
        name = f"flexlegion {strategy}, {cpus} processor{'s' * (cpus > 1)}"
        if threads > 1:
            name += f" of {threads} threads"
        options = ["--workload", self.work.to_json(), "--strategy", strategy]
        options += ["--threads", str(threads), "--storage", self.args.storage]
        return self._start(name, legate("flexlegion_worker.py", cpus, *options), {})

    def _start_torch(self) -> None:
        images = len(self.work.graph().inputs[0].shape) == 4
        for group, variants, variables in (
            ("as installed", SINGLE, {}),
            ("tuned", SINGLE, self.tuned),
            ("DDP", DDP, {}),
            ("DDP", DDP, self.tuned),
        ):
            for variant, options in variants.items():
                if variant not in self.args.torch or ("channels_last" in variant and not images):
                    continue
                command = torch_command(self.work, options, self.args)
                name = f"PyTorch {variant}" + (", tuned" if variables else "")
                side = self._start(name, command, variables)
                if side is not None:
                    self.result.theirs.setdefault(group, []).append(side)

    def _start(self, name: str, command: list[str], variables: dict[str, str]) -> Side | None:
        self.console.print(f"{self.work.network}: starting {name}", style="dim", highlight=False)
        try:
            side = Side(name, command, variables)
        except WorkerError as e:
            self.result.failures.append(str(e))
            return None
        self.running.append(side)
        return side


def workload(name: str, args: argparse.Namespace) -> Workload:
    """A network's, with what the options change."""
    work = NETWORKS[name]
    sizes = dict(work.sizes)
    known = ZOO[name].sizes
    if "steps_per_op" in known:
        sizes["steps_per_op"] = args.steps_per_op
    given = [text for text in args.size if text.split("=")[0] in known]
    changes: dict[str, Any] = {"sizes": sizes | given_sizes(given, target_of(work.network))}
    if args.batch_size is not None:
        changes["batch_size"] = args.batch_size
        changes["samples"] = max(work.samples, args.batch_size)
    if args.iterations is not None:
        changes["iterations"] = args.iterations
    return dataclasses.replace(work, **changes)


def strategies(given: list[str]) -> dict[str, str]:
    """What ``--strategy`` says, by network; ``*`` for all."""
    found = {}
    for text in given:
        name, equals, strategy = text.partition("=")
        found.update({name: strategy} if equals and name in NETWORKS else {"*": text})
    return found


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--networks", default=",".join(DEFAULT), help=f"of {', '.join(NETWORKS)}; default: most"
    )
    parser.add_argument(
        "--strategy",
        action="append",
        default=[],
        metavar="[NETWORK=]NAME|FILE",
        help="of flexlegion on all processors; default: data; may be repeated",
    )
    parser.add_argument(
        "--torch",
        default=",".join([*SINGLE, *DDP]),
        help="variants of PyTorch, separated by commas; default: all",
    )
    parser.add_argument("--cpus", type=int, default=2, help="processors; default: 2")
    parser.add_argument(
        "--storage",
        choices=STORAGES,
        default=STORAGES[0],
        help="of activations; with bf16, PyTorch runs under autocast; default: fp32",
    )
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--iterations", type=int, help="of a round; default: the network's")
    parser.add_argument("--batch-size", type=int, help="default: the network's")
    parser.add_argument(
        "--steps-per-op", type=int, default=40, help="of recurrent networks; default: 40"
    )
    parser.add_argument(
        "--size",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a size, for those of the networks that have it; may be repeated",
    )
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    args = parser.parse_args()
    args.networks = args.networks.split(",")
    args.torch = args.torch.split(",")
    for given, known in ((args.networks, NETWORKS), (args.torch, SINGLE | DDP)):
        for name in given:
            if name not in known:
                parser.error(f"'{name}' is none of {', '.join(known)}")
    args.strategies = strategies(args.strategy)
    args.console = Console(width=110)
    return args


def main() -> None:
    """Run everything and print the tables."""
    args = options()
    busy = os.getloadavg()[0]
    if busy > 0.5:
        args.console.print(f"[yellow]warning:[/yellow] the load average is {busy:.1f} at the start")
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        tuned = tuned_variables(Path(folder))
        try:
            works = {name: workload(name, args) for name in args.networks}
        except UserError as e:
            sys.exit(f"error: {e}")
        for name, work in works.items():
            try:
                comparison = Run(work, args, tuned).compare()
            except WorkerError as e:
                sys.exit(f"error: {name}: {e}")
            report(comparison, args.console)
            results[name] = comparison.to_json()
            if args.json:
                Path(args.json).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()

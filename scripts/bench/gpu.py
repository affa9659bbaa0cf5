"""How fast the zoo's networks train on a GPU, beside PyTorch on the same GPU.

    python scripts/bench/gpu.py [--networks alexnet,rnnlm] [--precisions tf32,bf16]

As scripts/bench/networks.py does on CPUs: every side is a process that stays; in each round, each
trains for some iterations, one after the other, and those that wait are stopped. They start beside
each other, and warm up one after the other. Of PyTorch's variants (eager, channels last, compiled)
the best one counts. In bf16, PyTorch runs under autocast, and flexlegion stores activations as
bfloat16. The batch sizes are the paper's. Afterwards, how much of an iteration the GPU computes,
and the simulated time of an iteration, with tasks' times measured on this GPU, beside the measured
one.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.sides import WORKERS, Side, WorkerError, best, environment, legate, ratios
from common.workloads import Workload
from rich.console import Console
from rich.table import Table

from flexlegion.base.errors import UserError
from flexlegion.cli.sizes import given_sizes
from flexlegion.networks.references import target_of
from flexlegion.objective.precision import PRECISIONS
from flexlegion.zoo import ZOO

NETWORKS = ("alexnet", "inception_v3", "resnet101", "rnntc", "rnnlm", "nmt", "transformer")
ITERATIONS = {"alexnet": 20, "rnntc": 20, "rnnlm": 20}
CPUS, THREADS = 1, 10  # processors that serve the GPU, and threads of each
BATCHES = 4  # of data
STEPS_PER_OP = 40  # of recurrent networks: all in one operator
VARIANTS = {
    "eager": [],
    "channels_last": ["--channels-last"],
    "compiled": ["--compiled"],
    "compiled channels_last": ["--compiled", "--channels-last"],
}
PROFILE_SECONDS = 600  # that measuring and simulating a network may take


@dataclass
class Comparison:
    """A network in a precision.

    Parameters
    ----------
    work
        What was trained.
    precision
        Of products.
    ours, theirs
        The sides that ran.
    peaks
        GFLOP/s of PyTorch's large matrix products, of each round.
    profile
        What workers/gpu_worker.py found.
    failures
        Sides that did not run, and why.
    """

    work: Workload
    precision: str
    ours: Side | None = None
    theirs: list[Side] = field(default_factory=list)
    peaks: list[float] = field(default_factory=list)
    profile: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def ratios(self) -> list[float]:
        """How many times as fast we are as the best of PyTorch, round by round."""
        if self.ours is None or not self.theirs:
            return []
        return ratios(self.ours, best(self.theirs))

    @property
    def iteration_ns(self) -> float:
        """Of ours, by the median rate."""
        return 1e9 * self.work.batch_size / self.ours.median if self.ours else float("nan")

    def to_json(self) -> dict[str, Any]:
        """All figures."""
        sides = [*([self.ours] if self.ours else []), *self.theirs]
        return {
            "workload": self.work.to_json(),
            "precision": self.precision,
            "flops": self.work.flops(),
            "peak_gflops": self.peaks,
            "samples_per_second": {side.name: side.rates for side in sides},
            "best_of_pytorch": best(self.theirs).name if self.theirs else None,
            "ratios": self.ratios(),
            "iteration_time_ns": self.iteration_ns if self.ours else None,
            "profile": self.profile,
            "failures": self.failures,
        }


class Run:
    """The sides of one network in one precision, from start to end."""

    def __init__(self, work: Workload, precision: str, args: argparse.Namespace) -> None:
        self.args = args
        self.result = Comparison(work, precision)
        self.running: list[Side] = []
        self._peak: Side | None = None

    def start(self) -> None:
        """Start all sides, beside each other."""
        result, precision = self.result, self.result.precision
        options = ["--workload", result.work.to_json()]
        turns = ["--turn", self.args.turns]
        ours = [*options, *self._ours(), "--threads", str(THREADS), *turns]
        torch = [sys.executable, str(WORKERS / "torch_worker.py"), *options]
        torch += ["--precision", precision, "--device", "cuda", "--threads", "4"]
        images = len(result.work.graph().inputs[0].shape) == 4
        commands = {"flexlegion": self._legate("flexlegion_worker.py", *ours)}
        for name in self.args.torch:
            if images or "channels_last" not in name:
                commands[f"PyTorch {name}"] = [*torch, *VARIANTS[name], *turns]
        commands["peak"] = [*torch, "--peak"]
        with ThreadPoolExecutor(len(commands)) as pool:
            sides = list(pool.map(self._start, commands, commands.values()))
        result.ours, *theirs, self._peak = sides
        result.theirs = [side for side in theirs if side is not None]

    def measure(self) -> None:
        """Have the sides take turns, round by round."""
        for number in range(1, self.args.rounds + 1):
            for side in list(self.running):
                self._round(side, number)
        if self._peak is not None:
            self.result.peaks = [float(answer["gflops"]) for answer in self._peak.answers]

    def end(self) -> None:
        """End all sides."""
        for side in self.running:
            side.end()

    def profile(self) -> None:
        """Find out how much of our iteration the GPU computes, and what the simulator says."""
        if self.result.ours is None or self.args.no_profile:
            return
        options = ["--workload", self.result.work.to_json(), *self._ours()]
        self._profile(self._legate("gpu_worker.py", *options, *self.args.profile))

    def _ours(self) -> list[str]:
        # What is not stored narrow, of a network that is, is computed in tf32.
        narrow = self.result.precision == "bf16"
        precision, storage = ("tf32", "bf16") if narrow else (self.result.precision, "fp32")
        strategy = ["--strategy", self.args.strategy]
        return [*strategy, "--precision", precision, "--storage", storage]

    def _legate(self, script: str, *options: str) -> list[str]:
        command = legate(script, CPUS, *options, sysmem=8000, gpus=1)
        at = command.index("--gpus")
        return [*command[:at], "--fbmem", str(self.args.fbmem), "--zcmem", "2048", *command[at:]]

    def _start(self, name: str, command: list[str]) -> Side | None:
        work = self.result.work
        self.args.console.print(f"{work.network}: starting {name}", style="dim", highlight=False)
        try:
            side = Side(name, command)
        except WorkerError as e:
            self.result.failures.append(str(e))
            return None
        self.running.append(side)
        return side

    def _round(self, side: Side, number: int) -> None:
        """A side that fails (without memory, say) leaves; the others go on."""
        try:
            side.round(number)
        except WorkerError as e:
            self.result.failures.append(str(e))
            side.end()
            self.running.remove(side)
            if side is self.result.ours:
                self.result.ours = None
            self.result.theirs = [other for other in self.result.theirs if other is not side]

    def _profile(self, command: list[str]) -> None:
        try:
            done = subprocess.run(
                command,
                env=environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PROFILE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            self.result.failures.append(f"profile: not done after {PROFILE_SECONDS} s")
            return
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode == 0 and lines:
            self.result.profile = json.loads(lines[-1])
        else:
            said = done.stderr.strip().splitlines() or ["it said nothing"]
            self.result.failures.append(f"profile: exit status {done.returncode}: {said[-1]}")


def workload(name: str, args: argparse.Namespace) -> Workload:
    """A network at the paper's batch size, unless the options say another."""
    entry = ZOO[name]
    sizes = {"steps_per_op": STEPS_PER_OP} if "steps_per_op" in entry.sizes else {}
    given = [text for text in args.size if text.split("=")[0] in entry.sizes]
    batch_size = args.batch_size or entry.batch_size
    iterations = args.iterations or ITERATIONS.get(name, 10)
    work = Workload(name, batch_size, iterations, sizes, BATCHES * batch_size)
    return dataclasses.replace(work, sizes=sizes | given_sizes(given, target_of(name)))


def table_of(comparisons: list[Comparison]) -> Table:
    """A line for each network and precision."""
    table = Table(title="samples/s in training, medians of rounds")
    columns = ("flexlegion", "PyTorch", "ratio", "from", "to", "busy", "measured", "simulated")
    for column in ("network", "batch", "precision", "best of PyTorch"):
        table.add_column(column)
    for column in columns:
        table.add_column(column, justify="right")
    for c in comparisons:
        theirs = best(c.theirs) if c.theirs else None
        found, profile = c.ratios(), c.profile
        table.add_row(
            c.work.network,
            str(c.work.batch_size),
            c.precision,
            theirs.name.removeprefix("PyTorch ") if theirs else "-",
            f"{c.ours.median:,.0f}" if c.ours else "failed",
            f"{theirs.median:,.0f}" if theirs else "failed",
            *([f"{f(found):.2f}x" for f in (statistics.median, min, max)] if found else ["-"] * 3),
            f"{profile['busy']:.0%}" if profile else "-",
            f"{c.iteration_ns / 1e6:,.2f} ms" if c.ours else "-",
            f"{profile['simulated_iteration_time_ns'] / 1e6:,.2f} ms" if profile else "-",
        )
    return table


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", default=",".join(NETWORKS), help="default: all seven")
    parser.add_argument("--precisions", default=",".join(PRECISIONS), help="default: all three")
    parser.add_argument("--torch", default=",".join(VARIANTS), help="PyTorch's variants")
    parser.add_argument("--strategy", default="data", help="of flexlegion; default: data")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--iterations", type=int, help="of a round; default: the network's")
    parser.add_argument("--batch-size", type=int, help="default: the paper's")
    parser.add_argument("--size", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument(
        "--fbmem", type=int, default=40000, help="MiB of the GPU for Legion; default: 40000"
    )
    parser.add_argument("--no-profile", action="store_true", help="only compare rates")
    parser.add_argument("--profile-db", metavar="FILE", help="default: the user's own")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    args = parser.parse_args()
    known: Mapping[str, tuple[str, ...]] = {
        "networks": NETWORKS,
        "precisions": PRECISIONS,
        "torch": tuple(VARIANTS),
    }
    for option, choices in known.items():
        chosen = getattr(args, option).split(",")
        setattr(args, option, chosen)
        for name in chosen:
            if name not in choices:
                parser.error(f"--{option}: '{name}' is none of {', '.join(choices)}")
    if args.rounds < 1 or (args.iterations is not None and args.iterations < 1):
        parser.error("there has to be at least one round, of at least one iteration")
    args.profile = ["--profile-db", args.profile_db] if args.profile_db else []
    args.console = Console(width=140)
    return args


def tell(comparisons: list[Comparison], args: argparse.Namespace) -> None:
    """What the last one lacks; and all figures so far, should what follows be interrupted."""
    for failure in comparisons[-1].failures:
        args.console.print(f"[red]failed:[/red] {failure}", highlight=False)
    if args.json:
        figures = [comparison.to_json() for comparison in comparisons]
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")


def main() -> int:
    """Run everything and print the table; 1 if a side of ours failed."""
    args = options()
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        print("error: there is no NVIDIA GPU on this machine", file=sys.stderr)
        return 2
    try:
        works = [workload(name, args) for name in args.networks]
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    comparisons: list[Comparison] = []
    with tempfile.NamedTemporaryFile() as turns:
        args.turns = turns.name
        for work in works:
            runs = [Run(work, precision, args) for precision in args.precisions]
            try:
                with ThreadPoolExecutor(len(runs)) as pool:
                    list(pool.map(Run.start, runs))
                for run in runs:
                    run.measure()
            finally:
                for run in runs:
                    run.end()
            for run in runs:
                run.profile()
                comparisons.append(run.result)
                tell(comparisons, args)
    args.console.print(table_of(comparisons))
    lacking = [c for c in comparisons if c.ours is None or not (c.profile or args.no_profile)]
    return int(bool(lacking))


if __name__ == "__main__":
    sys.exit(main())

"""What splitting reductions is worth, simulated: language models, and faces by the million.

    python scripts/bench/reductions_pay.py gpt        # GPT 1.3 B on one DGX A100, and on four
    python scripts/bench/reductions_pay.py scaling    # BERT and GPT on 1 to 32 GPUs, with clipping
    python scripts/bench/reductions_pay.py faces      # InsightFace, a million classes on 8 V100

A row a strategy: known ones, and what searches of the same budget find with and without reductions.
"megatron by 2" splits layers over two GPUs and samples over the pairs of them. "computing" is how
long the busiest GPU computes in an iteration: no strategy with these splits takes less. `scaling`
has the batch grow with the GPUs, as OneFlow's figure 10 does; `faces` is its figure 12.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from flexlegion.analysis.search import search
from flexlegion.analysis.setting import Setting
from flexlegion.analysis.simulate import simulate
from flexlegion.base.errors import DoesNotApply
from flexlegion.console.text import duration, memory
from flexlegion.known_strategies import AnyStrategy, resolve
from flexlegion.machine.devices import Devices
from flexlegion.networks.references import load_model
from flexlegion.objective.optimizers import Adam, Optimizer
from flexlegion.sim.simulator import Timeline
from flexlegion.strategy.strategy import Strategy

UNREDUCED = ("sample", "attribute", "parameter")


@dataclass(frozen=True)
class Row:
    """A line of a table: times in ns, sizes in bytes."""

    strategy: str
    time: int
    computing: int
    moved: int
    memory: int
    fits: bool

    @classmethod
    def of(cls, name: str, timeline: Timeline) -> Row:
        """What a simulated iteration comes to."""
        devices = timeline.problem.devices.names
        return cls(
            name,
            timeline.iteration_time_ns,
            max(timeline.load_ns[device] for device in devices),
            timeline.bytes_moved,
            max(timeline.allocated_bytes.values()),
            timeline.fits,
        )


def known(names: Iterable[AnyStrategy], **setting: Any) -> Iterator[Row]:
    """Known strategies; those that a network or a machine has nothing for are left out."""
    for name in names:
        try:
            result = simulate(strategy=name, **setting)
        except DoesNotApply:
            continue
        yield Row.of(name.source if isinstance(name, Strategy) else str(name), result.timeline)


def by_groups(sizes: Iterable[int], **setting: Any) -> list[Strategy]:
    """Megatron's strategy with layers split over fewer GPUs than a node has."""
    problem = Setting.of(**setting).problem
    found = []
    for size in sizes:
        names = problem.devices.names
        groups = Devices(names, [number // size for number in range(len(names))])
        strategy = resolve("megatron", problem.graph, groups)
        found.append(Strategy(dict(strategy), f"megatron by {size}"))
    return found


def found(
    what: str,
    args: argparse.Namespace,
    dimensions: tuple[str, ...] | None = None,
    start: Iterable[AnyStrategy] | None = None,
    **setting: Any,
) -> Row:
    """What a search finds."""
    limits = {"budget": None if args.proposals else args.budget, "proposals": args.proposals}
    start = None if start is None else list(start)
    given = {"seed": args.seed, "dimensions": dimensions, "start": start, "progress": False}
    result = search(**limits, **given, **setting)
    if args.folder:
        parts = args.case, setting["model"].batch_size, setting["machine"], what.replace(" ", "-")
        result.save(f"{args.folder}/{'-'.join(map(str, parts))}.json")
    name = f"{what}, from {result.start}, {result.proposals:,} proposals"
    return Row.of(name + ", a local optimum" * result.local_optimum, result.timeline)


def show(title: str, rows: Iterable[Row], batch: int) -> None:
    """A table; throughput beside its first row's."""
    table = Table(title=title)
    columns = ("strategy", "iteration", "samples/s", "over data", "computing", "moved", "memory")
    for column in columns:
        table.add_column(column, justify="left" if column == "strategy" else "right")
    first = 0
    for row in rows:
        first = first or row.time
        table.add_row(
            row.strategy,
            duration(row.time),
            f"{batch / row.time * 1e9:,.1f}",
            f"{first / row.time:.2f}x",
            duration(row.computing),
            memory(row.moved),
            memory(row.memory) + (" (does not fit)" if not row.fits else ""),
        )
        gc.collect()
    Console(width=130).print(table)


def compared(
    names: Iterable[AnyStrategy], args: argparse.Namespace, **setting: Any
) -> Iterator[Row]:
    """Known strategies, and what is found without reductions and with them.

    The latter starts from OptCNN's strategy, and from the fastest known one that fits into memory.
    """
    times: dict[int, AnyStrategy] = {}
    for name in names:
        for row in known([name], **setting):
            yield row
            if row.fits:
                times[row.time] = name
    yield found("found without reductions", args, UNREDUCED, **setting)
    yield found("found", args, start=["optcnn", times[min(times)]], **setting)


def gpt(args: argparse.Namespace) -> None:
    """The third size of GPT-3, 1.3 billion weights, trained with Adam."""
    for machine in args.machines or ("a100x8", "a100x32"):
        setting: dict[str, Any] = {
            "model": load_model("gpt", 32, {"preset": "1.3b"}),
            "machine": machine,
            "optimizer": Adam(),
            "precision": args.precision or "tf32",
        }
        groups = by_groups((2, 4), **setting)
        rows = compared(("data", "megatron", *groups, "vocabulary"), args, **setting)
        show(f"gpt 1.3b, batch 32, {setting['precision']}, Adam, {machine}", rows, 32)


def scaling(args: argparse.Namespace) -> None:
    """From one GPU to 32, with and without clipping of the gradients by their norm."""
    each = {"bert": 32, "gpt": 8}
    strategies = ("data", "megatron", "vocabulary")
    for name, samples in each.items():
        for clip in (None, 1.0):
            table = Table(title=f"{name}, {samples} samples a GPU, clip norm {clip}: samples/s")
            for column in ("GPUs", *strategies, "found", "found without reductions"):
                table.add_column(column, justify="right")
            for gpus in args.gpus:
                optimizer: Optimizer = Adam(clip_norm=clip)
                setting: dict[str, Any] = {
                    "model": load_model(name, samples * gpus, {}),
                    "machine": f"v100x{gpus}",
                    "optimizer": optimizer,
                    "precision": args.precision or "fp32",
                }
                rows = {row.strategy: row.time for row in known(strategies, **setting)}
                if gpus > 1:
                    rows["found"] = found("found", args, **setting).time
                    rows["without"] = found("without", args, UNREDUCED, **setting).time
                cells = [str(gpus)]
                for what in (*strategies, "found", "without"):
                    time_ns = rows.get(what)
                    speed = f"{samples * gpus / time_ns * 1e9:,.1f}" if time_ns else "-"
                    cells.append(speed)
                table.add_row(*cells)
                gc.collect()
            Console(width=100).print(table)


def faces(args: argparse.Namespace) -> None:
    """A million persons: each V100 has an eighth of their vectors, or all."""
    for batch in (512, 1024):
        setting: dict[str, Any] = {
            "model": load_model("insightface", batch, {"classes": 10**6}),
            "machine": "v100x8",
            "precision": args.precision or "fp32",
        }
        rows = compared(("data", "vocabulary"), args, **setting)
        show(f"insightface, 1,000,000 classes, batch {batch}, v100x8", rows, batch)


def main() -> None:
    """Print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    cases = {"gpt": gpt, "scaling": scaling, "faces": faces}
    parser.add_argument("case", choices=cases)
    parser.add_argument("--budget", default="120s", help="of each search")
    parser.add_argument("--proposals", type=int, help="of each chain, in place of a budget in time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--machines", nargs="*", help="of gpt")
    parser.add_argument(
        "--gpus", nargs="*", type=int, default=[1, 2, 4, 8, 16, 32], help="of scaling"
    )
    parser.add_argument("--precision", help="fp32, tf32 or bf16")
    parser.add_argument("--folder", help="where the strategies found are kept")
    args = parser.parse_args()
    cases[args.case](args)


if __name__ == "__main__":
    main()

"""What splitting reductions is worth, simulated: language models, and faces by the million.

    python scripts/bench/reductions_pay.py gpt        # GPT 1.3 B on one DGX A100, and on four
    python scripts/bench/reductions_pay.py scaling    # BERT and GPT on 1 to 32 GPUs, with clipping
    python scripts/bench/reductions_pay.py faces      # InsightFace, a million classes on 8 V100

A row a strategy: known ones, and what searches of the same budget find with and without reductions.
`scaling` has the batch grow with the GPUs, as OneFlow's figure 10 does; `faces` is its figure 12.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from flexlegion.analysis.search import search
from flexlegion.analysis.simulate import simulate
from flexlegion.errors import UserError
from flexlegion.optimizers import Adam, Optimizer
from flexlegion.references import load_model
from flexlegion.report.text import duration, memory

UNREDUCED = ("sample", "attribute", "parameter")
Row = tuple[
    str, int, int, int
]  # strategy, iteration in ns, bytes moved, bytes of the fullest memory


def known(names: Iterable[str], **setting: Any) -> Iterator[Row]:
    """Known strategies; those that a network has nothing for are left out."""
    for name in names:
        try:
            result = simulate(strategy=name, **setting)
        except UserError as e:
            print(f"{name}: {e}")
            continue
        held = max(result.timeline.allocated_bytes.values())
        yield name, result.iteration_time_ns, result.timeline.bytes_moved, held


def found(what: str, dimensions: tuple[str, ...] | None, args: Any, **setting: Any) -> Row:
    """What a search finds."""
    result = search(
        budget=args.budget, seed=args.seed, dimensions=dimensions, progress=False, **setting
    )
    timeline = result.timeline
    name = f"{what}, from {result.start}, {result.proposals:,} proposals"
    if args.folder:
        result.save(f"{args.folder}/{what.replace(' ', '-')}-{setting['machine']}.json")
    held = max(timeline.allocated_bytes.values())
    return name, result.iteration_time_ns, timeline.bytes_moved, held


def show(title: str, rows: Iterable[Row], batch: int) -> None:
    """A table; throughput beside its first row's."""
    table = Table(title=title)
    for column in ("strategy", "iteration", "samples/s", "over data", "moved", "memory"):
        table.add_column(column, justify="left" if column == "strategy" else "right")
    first = 0
    for name, time_ns, moved, held in rows:
        first = first or time_ns
        table.add_row(
            name,
            duration(time_ns),
            f"{batch / time_ns * 1e9:,.1f}",
            f"{first / time_ns:.2f}x",
            memory(moved),
            memory(held),
        )
        gc.collect()
    Console(width=120).print(table)


def compared(names: Iterable[str], args: Any, **setting: Any) -> Iterator[Row]:
    """Known strategies, and what is found without reductions and with them."""
    yield from known(names, **setting)
    yield found("found without reductions", UNREDUCED, args, **setting)
    yield found("found", None, args, **setting)


def gpt(args: Any) -> None:
    """The third size of GPT-3, 1.3 billion weights, trained with Adam."""
    for machine in args.machines or ("a100x8", "a100x32"):
        setting = {
            "model": load_model("gpt", 32, {"preset": "1.3b"}),
            "machine": machine,
            "optimizer": Adam(),
            "precision": args.precision or "tf32",
        }
        rows = compared(("data", "megatron", "vocabulary"), args, **setting)
        show(f"gpt 1.3b, batch 32, {setting['precision']}, Adam, {machine}", rows, 32)


def scaling(args: Any) -> None:
    """From one GPU to 32, with and without clipping of the gradients by their norm."""
    each = {"bert": 32, "gpt": 8}
    for name, samples in each.items():
        for clip in (None, 1.0):
            table = Table(title=f"{name}, {samples} samples a GPU, clip norm {clip}: samples/s")
            for column in ("GPUs", "data", "megatron", "vocabulary", "found"):
                table.add_column(column, justify="right")
            for gpus in (1, 2, 4, 8, 16, 32):
                optimizer: Optimizer = Adam(clip_norm=clip)
                setting = {
                    "model": load_model(name, samples * gpus, {}),
                    "machine": f"v100x{gpus}",
                    "optimizer": optimizer,
                    "precision": args.precision or "fp32",
                }
                cells = [str(gpus)]
                rows = {
                    row[0]: row[1] for row in known(("data", "megatron", "vocabulary"), **setting)
                }
                if gpus > 1:
                    rows["found"] = found("found", None, args, **setting)[1]
                for what in ("data", "megatron", "vocabulary", "found"):
                    time_ns = rows.get(what)
                    speed = f"{samples * gpus / time_ns * 1e9:,.1f}" if time_ns else "-"
                    cells.append(speed)
                table.add_row(*cells)
                gc.collect()
            Console(width=100).print(table)


def faces(args: Any) -> None:
    """A million persons: each V100 has an eighth of their vectors, or all."""
    for batch in (512, 1024):
        setting = {
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
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--machines", nargs="*", help="of gpt")
    parser.add_argument("--precision", help="fp32, tf32 or bf16")
    parser.add_argument("--folder", help="where the strategies found are kept")
    args = parser.parse_args()
    cases[args.case](args)


if __name__ == "__main__":
    main()

"""How fast imported PyTorch models train, beside the modules that they were imported from.

    python scripts/bench/imported_speed.py [--models gpt2,resnet50] [--storage bf16]

Models of torchvision and transformers in their usual sizes (pytorch/full.py), plain SGD, random
data. Every side is a process that stays; they take turns in each round. Ours are two processors,
data-parallel, and one processor with a thread for each core; PyTorch's are eager, with channels
last for images, and compiled. With --times, what each type of operator takes in a forward or
backward pass. Needs the ``dev`` extra, a C++ compiler, and a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from common.sides import WORKERS, Side, WorkerError, legate, ratios
from pytorch.full import FULL

from flexlegion.console.text import table
from flexlegion.objective.precision import STORAGES

TORCH = {"eager": [], "channels_last": ["--channels-last"], "compiled": ["--compiled"]}
WITHOUT_CHANNELS = ("vit_b_16", "lstm_lm", "bert_base", "gpt2", "llama", "t5_small")
ITERATIONS = {"lstm_lm": 8}
MOST_TIMES = 8  # types of operators in a list


def sides_of(name: str, args: argparse.Namespace) -> tuple[list[Side], list[Side]]:
    """Ours and PyTorch's; those that cannot start are said and left out."""
    work = ["--model", name, "--storage", args.storage]
    work += ["--iterations", str(args.iterations or ITERATIONS.get(name, 3))]
    found: tuple[list[Side], list[Side]] = ([], [])

    def start(group: int, title: str, command: list[str]) -> None:
        try:
            found[group].append(Side(title, command))
        except WorkerError as e:
            print(f"{name}: {title}: {e}", file=sys.stderr)

    for cpus, threads in ((args.cpus, 1), (1, args.cpus)):
        title = f"{cpus} processors" if cpus > 1 else f"1 of {threads} threads"
        start(0, title, legate("imported_worker.py", cpus, *work, "--threads", str(threads)))
    for variant in args.torch:
        if variant == "channels_last" and name in WITHOUT_CHANNELS:
            continue
        command = [sys.executable, str(WORKERS / "torch_imported_worker.py"), *work]
        start(1, variant, [*command, "--threads", str(args.cpus), *TORCH[variant]])
    return found


def times_of(side: Side) -> str:
    """The types of operators that take longest, in ms of an iteration."""
    times: dict[str, int] = side.answers[-1]["times_ns"]
    longest = sorted(times.items(), key=lambda item: -item[1])[:MOST_TIMES]
    return ", ".join(f"{name} {ns / 1e6:.1f}" for name, ns in longest)


def compare(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """All sides' samples a second, and the best of ours beside the best of PyTorch's."""
    ours, theirs = sides_of(name, args)
    sides = [*ours, *theirs]
    try:
        for number in range(args.rounds):
            for side in sides[:: 1 if number % 2 else -1]:
                side.round(number)
        found: dict[str, Any] = {side.name: side.rates for side in sides}
        if args.times and ours:
            print(f"{name}: {times_of(max(ours, key=lambda side: side.median))}", file=sys.stderr)
        if ours and theirs:
            best, other = (max(group, key=lambda side: side.median) for group in (ours, theirs))
            found["best"] = best.name, other.name, ratios(best, other)
    finally:
        for side in sides:
            side.end()
    return found


def row_of(name: str, found: dict[str, Any]) -> tuple[str, ...]:
    """A line of the table."""
    titles = [title for title in found if title != "best"]
    rates = {title: f"{statistics.median(found[title]):.1f}" for title in titles}
    ours = [f"{rates[t]} ({t})" for t in titles if t not in TORCH]
    theirs = [f"{rates[t]} ({t})" for t in titles if t in TORCH]
    ratio = "-"
    if "best" in found:
        times = found["best"][2]
        ratio = f"{statistics.median(times):.2f}x ({min(times):.2f} to {max(times):.2f})"
    return name, "\n".join(ours), "\n".join(theirs), ratio


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(FULL), help="default: all")
    parser.add_argument("--torch", default=",".join(TORCH), help="default: all")
    parser.add_argument("--cpus", type=int, default=2, help="processors; default: 2")
    parser.add_argument("--storage", choices=STORAGES, default=STORAGES[0])
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--iterations", type=int, help="of a round; default: the model's")
    parser.add_argument("--times", action="store_true", help="say which operators take longest")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    args = parser.parse_args()
    args.torch = args.torch.split(",")
    results: dict[str, Any] = {}
    rows = []
    for name in args.models.split(","):
        if name not in FULL:
            parser.error(f"'{name}' is none of {', '.join(FULL)}")
        results[name] = compare(name, args)
        rows.append(row_of(name, results[name]))
        print(f"{name}: {rows[-1][3]}", file=sys.stderr, flush=True)
        if args.json:
            Path(args.json).write_text(json.dumps(results, indent=2) + "\n")
    print(table(("model", "flexlegion", "PyTorch", "best beside best"), rows, (0,)))


if __name__ == "__main__":
    main()

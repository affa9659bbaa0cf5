"""What splitting reductions is worth: beside data parallelism and PyTorch, on the same processors.

    python scripts/bench/reductions.py [--networks mlp,transformer] [--rounds 5] [--json FILE]
    python scripts/bench/reductions.py --networks insightface --ranks 2

Two dense layers, of which the first is split by its channels and the second by its inputs; the
Transformer in Megatron's way; and InsightFace of a hundred thousand persons, whose vectors are
split among the processors, or among ranks of one each. As in networks.py, every side is a process
that stays, and in each round each trains for some iterations, one after the other. Needs a machine
with nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.sides import Side, WorkerError, alternate, legate, ratios
from common.workloads import Workload
from networks import DDP, SINGLE, torch_command

from flexlegion import ParallelConfig, Strategy
from flexlegion.console.text import table
from flexlegion.graph.graph import Operator
from flexlegion.graph.operator_type import DimKind
from flexlegion.known_strategies import resolve
from flexlegion.machine.devices import Devices

WORKLOADS = {
    "mlp": Workload(
        "mlp", 32, 10, {"input_shape": (2048,), "hidden": (8192,), "classes": 2048}, samples=256
    ),
    "transformer": Workload("transformer", 4, 2, {"steps": 128}, samples=64),
    "insightface": Workload(
        "insightface",
        32,
        3,
        {"input_shape": (32, 32, 1), "width": 16, "embedding": 512, "classes": 10**5},
        samples=64,
    ),
}
SPLIT = {"transformer": "megatron", "insightface": "vocabulary"}  # by a known strategy
SYSMEM = 6000  # MiB for Legion, of all ranks
TORCH = {name: (SINGLE | DDP)[name] for name in ("eager", "compiled", "ddp")}


def reduced_by_its_inputs(op: Operator, devices: tuple[str, ...]) -> ParallelConfig:
    """A dense layer that computes partial values: each device reads its channels of the input."""
    degrees = [len(devices) if dim.kind is DimKind.REDUCTION else 1 for dim in op.dims]
    return ParallelConfig(tuple(degrees), devices, "shards")


def strategies(name: str, work: Workload, cpus: int) -> Mapping[str, Strategy]:
    """Data parallelism, and one that splits reductions."""
    graph, devices = work.graph(), Devices.of(cpus)
    found = {"data": resolve("data", graph, devices)}
    if name in SPLIT:
        return found | {SPLIT[name]: resolve(SPLIT[name], graph, devices)}
    names = tuple(devices.names)
    configs = {op: found["data"][op] for op in found["data"]}
    configs["hidden1"] = ParallelConfig((1, len(names), 1), names)
    output = next(op for op in graph.operators if op.name == "output")
    configs["output"] = reduced_by_its_inputs(output, names)
    return found | {"by its inputs": Strategy(configs, "by its inputs")}


def compare(name: str, work: Workload, args: argparse.Namespace) -> list[Side]:
    """All sides of one network, after their rounds."""
    commands: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (title, strategy) in enumerate(strategies(name, work, args.cpus).items()):
            file = Path(folder) / f"{number}.json"
            strategy.save(file)
            options = ["--workload", work.to_json(), "--strategy", str(file)]
            command = legate(
                "flexlegion_worker.py",
                args.cpus // args.ranks,
                *options,
                sysmem=SYSMEM // args.ranks,
                ranks=args.ranks,
            )
            commands[f"flexlegion, {title}"] = command
        for title, how in TORCH.items():
            commands[f"PyTorch, {title}"] = torch_command(work, how, args.cpus)
        return alternate(commands, args.rounds)


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", default="mlp,transformer", help="default: mlp,transformer")
    parser.add_argument("--cpus", type=int, default=2, help="processors; default: 2")
    parser.add_argument("--ranks", type=int, default=1, help="that share them; default: 1")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    args = parser.parse_args()
    if os.getloadavg()[0] > 0.5:
        print(f"warning: the load average is {os.getloadavg()[0]:.1f}", file=sys.stderr)
    rows, figures = [], dict[str, Any]()
    for name in args.networks.split(","):
        try:
            sides = compare(name, WORKLOADS[name], args)
        except WorkerError as e:
            sys.exit(f"error: {name}: {e}")
        first = sides[0]
        for side in sides:
            times = statistics.median(ratios(side, first))
            rows.append((name, side.name, f"{side.median:,.1f}", f"{times:.2f}"))
        figures[name] = {side.name: side.rates for side in sides}
    print(table(("network", "side", "samples/s", "times data's"), rows, (0, 1)))
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()

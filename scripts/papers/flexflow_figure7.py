"""FlexFlow's figure 7: six networks on 1 to 64 GPUs of two clusters, simulated.

    python scripts/papers/flexflow_figure7.py [--machine p100] [--networks nmt] [--gpus 4,16]
        [--in-all] [--budget 20s] [--json OUT] [--picture OUT.svg]

Samples a second and GPU by data parallelism, by what experts do, and by what a search finds. The
settings are section 8.1's: a batch of 64 a GPU (AlexNet 256), SGD, recurrent networks of 40 steps;
16 P100 of four nodes, 64 K80 of sixteen. Networks and machines are the zoo's and the shipped ones,
costs are estimates (there are no such GPUs here), and gradients are summed inside nodes first,
which the paper's runtime did not do. With ``--in-all`` the batch is that of all GPUs together.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import flexlegion as fl
from flexlegion.base.errors import UserError
from flexlegion.zoo import build

NETWORKS = ("alexnet", "inception_v3", "resnet101", "rnntc", "rnnlm", "nmt")
BATCHES = {"alexnet": 256}  # of a GPU; 64 of all others
GPUS = {"p100": (1, 2, 4, 8, 16), "k80": (1, 2, 4, 8, 16, 32, 64)}
WAYS = {"data": "data parallelism", "expert": "experts", "found": "found"}

Row = dict[str, Any]


def simulated(network: str, machine: str, gpus: int, budget: str, in_all: bool) -> Row:
    """A point of the figure: times of an iteration in ms."""
    batch = BATCHES.get(network, 64) * (1 if in_all else gpus)
    model, name = build(network, batch), f"{machine}x{gpus}"
    began = time.monotonic()
    times: dict[str, float | None] = {}
    for way in ("data", "expert"):
        try:
            its = fl.simulate(model, name, way, optimizer="sgd", costs="analytic")
            times[way] = its.iteration_time_ns / 1e6
        except UserError:
            times[way] = None
    try:
        found = fl.search(model, name, budget, optimizer="sgd", costs="analytic", progress=False)
        times["found"] = found.iteration_time_ns / 1e6
        proposals = found.facts()["proposals"]
    except UserError:
        times["found"], proposals = None, 0
    return {
        "network": network,
        "machine": machine,
        "gpus": gpus,
        "batch": batch,
        "times_ms": times,
        "proposals": proposals,
        "took_s": round(time.monotonic() - began, 1),
    }


def per_gpu(row: Row, way: str) -> float | None:
    """Samples a second and GPU."""
    ms = row["times_ms"][way]
    return None if ms is None else row["batch"] / row["gpus"] / ms * 1e3


def report(rows: list[Row]) -> None:
    """A table: samples a second and GPU, and how much faster what was found is."""
    table = Table(title="samples a second and GPU, simulated")
    for column in ("network", "machine", "batch", *WAYS.values(), "over data", "over the better"):
        table.add_column(column, justify="left" if column in ("network", "machine") else "right")
    for row in rows:
        values = [per_gpu(row, way) for way in WAYS]
        times = row["times_ms"]
        known = [times[way] for way in ("data", "expert") if times[way]]
        found = times["found"]
        gains = ["", ""]
        if found and times["data"]:
            gains = [f"{times['data'] / found:.2f}x", f"{min(known) / found:.2f}x"]
        table.add_row(
            row["network"],
            f"{row['machine']}x{row['gpus']}",
            str(row["batch"]),
            *("does not fit" if value is None else f"{value:.1f}" for value in values),
            *gains,
        )
    Console(width=110).print(table)


def markdown(document: dict[str, Any], machine: str, gpus: int) -> str:
    """The rows of so many GPUs as a table: times of an iteration, and what a search gains."""
    columns = ("network", "data parallelism", "experts", "found", "over the better")
    lines = [f"| {' | '.join(columns)} |", f"|---|{'---:|' * (len(columns) - 1)}"]
    for row in document["rows"]:
        if (row["machine"], row["gpus"]) != (machine, gpus):
            continue
        data, expert, found = (row["times_ms"][way] for way in WAYS)
        better = min(its for its in (data, expert) if its is not None)
        times = " | ".join(f"{its:.1f} ms" for its in (data, expert, found))
        lines.append(f"| {row['network']} | {times} | {better / found:.2f}x |")
    return "\n".join(lines)


def picture(rows: list[Row], file: Path) -> None:
    """Six panels, as the paper's: a line for each way and cluster."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(2, 3, figsize=(9.5, 5.5))
    for network, axes in zip(NETWORKS, panels.flat, strict=True):
        for machine, style in (("p100", "-"), ("k80", "--")):
            its = [row for row in rows if (row["network"], row["machine"]) == (network, machine)]
            for (way, label), color in zip(WAYS.items(), ("C0", "C1", "C2"), strict=True):
                points = [(row["gpus"], per_gpu(row, way)) for row in its]
                points = [(gpus, value) for gpus, value in points if value is not None]
                if points:
                    axes.plot(
                        *zip(*points, strict=True),
                        style,
                        marker=".",
                        color=color,
                        label=f"{label}, {machine.upper()}",
                    )
        axes.set(title=network, xscale="log", xlabel="GPUs")
        axes.set_xticks([1, 4, 16, 64], labels=["1", "4", "16", "64"])
        axes.set_ylim(bottom=0)
    panels[0][0].set_ylabel("samples/s and GPU")
    panels[1][0].set_ylabel("samples/s and GPU")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=3, loc="lower center", fontsize=8)
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    figure.savefig(file)


def main() -> None:
    """Simulate and search all points."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--machine", choices=GPUS, help="default: both")
    parser.add_argument("--networks", default=",".join(NETWORKS), help="default: all six")
    parser.add_argument("--gpus", help="default: all of the figure")
    parser.add_argument("--in-all", action="store_true", help="the batch is of all GPUs together")
    parser.add_argument("--budget", default="20s", help="of each search; default: 20s")
    parser.add_argument("--json", type=Path, help="write all points there")
    parser.add_argument("--picture", type=Path, help="draw them; takes matplotlib")
    args = parser.parse_args()
    rows: list[Row] = []
    for machine in [args.machine] if args.machine else GPUS:
        wanted = [int(n) for n in args.gpus.split(",")] if args.gpus else GPUS[machine]
        for network in args.networks.split(","):
            for gpus in (n for n in wanted if n in GPUS[machine]):
                rows.append(simulated(network, machine, gpus, args.budget, args.in_all))
                if args.json:
                    lines = ",\n".join(map(json.dumps, rows))
                    head = json.dumps({"budget": args.budget})[1:-1]
                    args.json.write_text(f'{{{head}, "rows": [\n{lines}\n]}}\n')
    report(rows)
    if args.picture:
        picture(rows, args.picture)


if __name__ == "__main__":
    main()

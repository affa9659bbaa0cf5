"""Published training runs, simulated at their settings, beside what was published.

    python scripts/bench/published.py --rows published.json --json OUT [--only TEXT]
        [--picture FILE]

A row says network, machine, batch, precision, optimizer, and how training was divided: data,
tensor, pipeline, context and expert parallelism, ZeRO's stage, micro-batches, recomputation. It is
simulated as a program of collectives (`flexlegion.spmd`), which is what ran. Rows that cannot be
said are listed with the reason. OUT is ``{"rows": [{"id", "ratio", "why_not", ...}]}``; the ratio
is simulated : published time of an iteration.

What is known of a *system* are its habits, never a factor: whether attention is one kernel, in
which type gradients are sent, whether they are reduced during the backward pass, and whether
operators are issued one by one. See `common/published_systems.py`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.published_machines import CannotBeSaidError, machine_of
from common.published_networks import (
    Row,
    is_lazy,
    more_bytes,
    network_of,
    sorted_bytes,
    storage_of,
)
from common.published_settings import not_said
from common.published_systems import costs_of, system_of, ways_of
from common.rows import write_rows
from rich.console import Console
from rich.table import Table

from flexlegion.base.errors import UserError
from flexlegion.console.progress import ProgressBar
from flexlegion.console.text import memory
from flexlegion.spmd.timeline import ProgramTimeline, Training, simulated
from flexlegion.spmd.ways import divided

Result = dict[str, Any]


def simulated_row(row: Row) -> Result:
    """A row of the result."""
    found: Result = {
        "id": row["id"],
        "source": row["source"],
        "category": row["category"],
        "grade": row["grade"],
        "table": row["group"],
        "family": row["model"]["family"],
        "precision": row["precision"],
        "gpu": row["hardware"]["gpu"],
        "gpus": row["hardware"]["gpus"],
        "ratio": None,
        "why_not": None,
    }
    began = time.monotonic()
    try:
        if row["iteration_s"] is None:
            raise CannotBeSaidError("no time of an iteration was published")
        if (why := not_said(row)) is not None:
            raise CannotBeSaidError(why)
        line, time_ns = _timeline(row)
    except CannotBeSaidError as e:
        return found | {"why_not": str(e)}
    except UserError as e:
        return found | {"why_not": f"refused: {e}"}
    except Exception as e:  # so that other rows are simulated all the same
        return found | {"why_not": f"a fault of this program: {type(e).__name__}: {e}"}
    return found | {
        "published_s": row["iteration_s"],
        "simulated_s": round(time_ns / 1e9, 6),
        "ratio": round(time_ns / 1e9 / row["iteration_s"], 4),
        "fits": line.fits,
        "needed_bytes": max(its.needed for its in line.memory),
        "parts_ms": {name: round(its / 1e6, 3) for name, its in line.parts_ns.items() if its},
        "took_s": round(time.monotonic() - began, 2),
    }


def _timeline(row: Row) -> tuple[ProgramTimeline, int]:
    """The iteration, and its time in ns; of rows about one layer, that layer's."""
    if row["model"]["name"].startswith("one layer"):
        one, two = (_whole(row, layers) for layers in (1, 2))
        passes = ("forward", "backward", "again", "waiting")
        return one, sum(two.parts_ns[name] - one.parts_ns[name] for name in passes)
    line = _whole(row)
    return line, line.iteration_time_ns


def _whole(row: Row, layers: int | None = None) -> ProgramTimeline:
    network = network_of(row, layers)
    topology = machine_of(row)
    program = divided(network.graph, ways_of(row))
    if len(topology.devices) != sum(len(stage.devices) for stage in program.stages):
        raise CannotBeSaidError("data x tensor x pipeline x context is not the number of GPUs")
    return simulated(
        program,
        topology,
        costs_of(row, storage_of(row)),
        replace(
            Training.of(network.training.optimizer),
            lazy=is_lazy(row),
            more_bytes=more_bytes(row),
            sorted_bytes=sorted_bytes(row),
        ),
        system_of(row),
    )


def _groups(results: Sequence[Result], key: Callable[[Result], str]) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    for row in results:
        found.setdefault(key(row), []).append(row)
    return dict(sorted(found.items()))


def _kind_of_precision(row: Result) -> str:
    return next(p for p in ("fp8", "bf16", "fp16", "tf32", "fp32", "not") if p in row["precision"])


GROUPINGS: dict[str, Callable[[Result], str]] = {
    "source": lambda row: row["source"],
    "network": lambda row: row["family"],
    "precision": _kind_of_precision,
    "GPU": lambda row: row["gpu"].partition(" ")[0],
    "nodes": lambda row: "several" if row["gpus"] > 8 else "one",
    "category": lambda row: row["category"],
    "grade": lambda row: row["grade"],
}


def summary(rows: Sequence[Result]) -> dict[str, float]:
    """Of rows with a ratio: how far they are off."""
    ratios = [row["ratio"] for row in rows]
    errors = sorted(abs(ratio - 1) for ratio in ratios)
    return {
        "rows": len(ratios),
        "geometric_mean": math.exp(statistics.mean(map(math.log, ratios))),
        "mean_error": statistics.mean(errors),
        "within_30": sum(error <= 0.3 for error in errors) / len(errors),
        "fit": sum(row["fits"] for row in rows) / len(rows),
    }


def order_kept(results: Sequence[Result]) -> dict[str, float]:
    """Kendall's tau of published and simulated times, of each published table.

    Of the pairs of runs whose published times differ by 2 % at least: how many more are in the same
    order than in the other one. Tables without such a pair are left out.
    """
    found = {}
    for table, rows in _groups(results, lambda row: row["table"]).items():
        kept = pairs = 0
        for one, other in itertools.combinations(rows, 2):
            published = one["published_s"] / other["published_s"]
            if abs(math.log(published)) < math.log(1.02):
                continue
            same = (published - 1) * (one["simulated_s"] - other["simulated_s"])
            pairs += 1
            kept += (same > 0) - (same < 0)
        if pairs:
            found[table] = kept / pairs
    return found


def summaries(
    results: Sequence[Result], console: Console
) -> list[tuple[str, str, dict[str, float]]]:
    """A table of all groups, printed; and what it says."""
    said = [row for row in results if row["ratio"] is not None]
    found = [("all", "", summary(said))] if said else []
    for name, key in GROUPINGS.items():
        found += [(name, group, summary(rows)) for group, rows in _groups(said, key).items()]
    table = Table(title=f"simulated : published, {len(said)} of {len(results)} rows")
    for column in ("by", "", "rows", "mean ratio", "mean error", "within 30 %", "said to fit"):
        table.add_column(column, justify="left" if column in ("by", "") else "right")
    for name, group, its in found:
        table.add_row(
            name,
            group,
            f"{its['rows']:.0f}",
            f"{its['geometric_mean']:.2f}",
            f"{its['mean_error']:.0%}",
            f"{its['within_30']:.0%}",
            f"{its['fit']:.0%}",
        )
    console.print(table)
    orders = order_kept(said)
    good = sum(tau >= 0.9 for tau in orders.values())
    console.print(
        f"order within a published table: Kendall's tau is 0.9 or more in {good} of {len(orders)}, "
        f"the median {statistics.median(list(orders.values()) or [1.0]):.2f}"
    )
    return found


def report(results: Sequence[Result], console: Console) -> None:
    """Each row that was simulated; what was not, by reason."""
    table = Table(title="simulated beside published")
    for column in ("run", "published", "simulated", "ratio", "needed", "fits", "takes most"):
        table.add_column(column, justify="left" if column in ("run", "takes most") else "right")
    for row in results:
        if row["ratio"] is None:
            continue
        most = sorted(row["parts_ms"].items(), key=lambda its: -its[1])[:3]
        table.add_row(
            row["id"],
            f"{row['published_s']:.4g} s",
            f"{row['simulated_s']:.4g} s",
            f"{row['ratio']:.2f}",
            memory(row["needed_bytes"]),
            "yes" if row["fits"] else "no",
            ", ".join(f"{name} {its / 1e3 / row['simulated_s']:.0%}" for name, its in most),
        )
    console.print(table)
    reasons = _groups([row for row in results if row["why_not"]], lambda row: row["why_not"])
    for reason, rows in sorted(reasons.items(), key=lambda its: -len(its[1])):
        console.print(f"not simulated, {len(rows)}: {reason}")


def picture(results: Sequence[Result], file: Path) -> None:
    """Simulated over published times, a point a row, by network."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullFormatter

    said = [row for row in results if row["ratio"] is not None]
    figure, axes = plt.subplots(figsize=(6.5, 5))
    for family, rows in _groups(said, lambda row: row["family"]).items():
        axes.scatter(
            [row["published_s"] for row in rows], [row["ratio"] for row in rows], s=12, label=family
        )
    axes.axhspan(0.7, 1.3, color="0.9", zorder=0)
    axes.axhline(1, color="0.4", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="published s", ylabel="simulated : published")
    ticks = [0.3, 0.5, 0.7, 1, 1.3, 2, 3]
    axes.set_yticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(0.25, 3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file)


def markdown(document: dict[str, Any]) -> str:
    """The table of docs/results.md, from what was written."""
    rows = [
        f"| {its['by']} {its['group']} | {its['rows']} | {its['geometric_mean']:.2f} "
        f"| {its['mean_error']:.0%} | {its['within_30']:.0%} | {its['fit']:.0%} |"
        for its in document["summaries"]
        if its["by"] in ("all", "network", "precision", "nodes", "grade")
    ]
    columns = ("runs", "number", "mean ratio", "mean error", "within 30 %", "said to fit")
    head = f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"
    return "\n".join([head, *rows])


def main() -> None:
    """Simulate the rows, print tables, write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=Path, required=True, help="the published runs")
    parser.add_argument("--json", type=Path, help="write all results there")
    parser.add_argument("--only", default="", help="rows with this text in their name")
    parser.add_argument("--picture", type=Path, help="draw them: an SVG or PNG; takes matplotlib")
    args = parser.parse_args()
    rows = [
        row
        for row in json.loads(args.rows.read_text())
        if "source" in row and args.only in row["id"]
    ]
    results = []
    with ProgressBar("simulating") as bar:
        for done, row in enumerate(rows):
            results.append(simulated_row(row))
            bar.steps(done + 1, len(rows))
    console = Console(width=130)
    report(results, console)
    found = summaries(results, console)
    if args.json:
        said = [row for row in results if row["ratio"] is not None]
        facts = [{"by": by, "group": group, **its} for by, group, its in found]
        write_rows(args.json, {"summaries": facts, "order_kept": order_kept(said), "rows": results})
    if args.picture:
        picture(results, args.picture)


if __name__ == "__main__":
    main()

"""Published training runs of transformers, simulated at their settings, beside what was published.

    python scripts/bench/published.py --rows published.json --json OUT [--only TEXT]
        [--most-gpus N] [--machines FOLDER]

A row says network, machine, batch, precision, optimizer, and how training was divided: data x
tensor x pipeline, ZeRO's stage, micro-batches, recomputation. What can be said so is simulated.
Every other row is listed with the reason. OUT is ``{"rows": [{"id", "ratio", "why_not", ...}]}``;
the ratio is simulated : published time of an iteration. Machines that do not come along are looked
for in a folder, as ``KINDxN.json``.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from flexlegion import Adam
from flexlegion.base.errors import UserError
from flexlegion.console.progress import ProgressBar
from flexlegion.console.text import memory
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.known_strategies.hybrid import stages
from flexlegion.machine.topology import Topology
from flexlegion.networks.network import Network
from flexlegion.objective.training import TrainingSpec
from flexlegion.profiling.machines import load_machine
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import full
from flexlegion.strategy.additions import with_additions
from flexlegion.strategy.hierarchy import hierarchical
from flexlegion.strategy.strategy import Strategy
from flexlegion.zoo import build

Row = Mapping[str, Any]

FAMILIES = ("gpt", "mpt")  # the zoo's gpt: learned positions, a tied head, an MLP of 4 h
# By the GPU and its memory (GB): machines, of which the first that there is is taken.
KINDS = {
    ("A100-SXM4", 80): ("a100",),
    ("A100-SXM4", 40): ("a100_40",),
    ("H100-SXM", 80): ("h100",),
    ("H200", 141): ("h200",),
    ("V100-SXM2", 16): ("dlperf_v100", "v100"),
}
STORAGES = ("fp32", "fp16", "bf16")  # by how the precision begins


class CannotBeSaidError(Exception):
    """Why a row is not simulated."""


def machine_of(row: Row, folder: Path | None) -> Topology:
    """The machine that it ran on."""
    its = row["hardware"]
    kinds = KINDS.get((its["gpu"], its["gpu_memory_gb"]))
    if kinds is None:
        raise CannotBeSaidError(f"no machine of {its['gpu']} with {its['gpu_memory_gb']} GB")
    if "Omni-Path" in (its["inter_node"] or ""):
        raise CannotBeSaidError("no machine with Omni-Path between its nodes")
    names = [f"{kind}x{its['gpus']}" for kind in kinds]
    if its["gpus"] > its["gpus_per_node"]:
        names = names[:1]  # whose network is that
    for name in names:
        file = folder / f"{name}.json" if folder is not None else None
        try:
            topology = load_machine(file if file is not None and file.exists() else name)
            break
        except UserError:
            continue
    else:
        raise CannotBeSaidError(f"no machine {' or '.join(names)}")
    of_first = [device for device in topology.devices if device.node == 0]
    if len(of_first) != min(its["gpus"], its["gpus_per_node"]):
        raise CannotBeSaidError(f"{its['gpus_per_node']} GPUs a node, {len(of_first)} in {name}")
    return topology


def network_of(row: Row) -> Network:
    """The network, and how it is trained."""
    model = row["model"]
    if model["family"] not in FAMILIES:
        raise CannotBeSaidError(f"no network like {model['name']} ({model['family']})")
    if model["ffn"] != 4 * model["hidden"] or model["kv_heads"] != model["heads"]:
        raise CannotBeSaidError("another MLP, or shared heads")
    storage = next((its for its in STORAGES if row["precision"].startswith(its)), None)
    if storage is None:
        raise CannotBeSaidError(f"precision {row['precision']}")
    if "adam" not in row["optimizer"]:
        raise CannotBeSaidError(f"optimizer {row['optimizer']}")
    its = build(
        "gpt",
        row["global_batch"],
        layers=model["layers"],
        hidden=model["hidden"],
        heads=model["heads"],
        steps=model["seq"],
        vocabulary=model["vocab"],
    )
    training = TrainingSpec.of(
        optimizer=Adam(clip_norm=1.0 if "clip" in row["optimizer"] else None),
        micro_batches=row["accumulation"] or 1,
        storage=storage,
    )
    return Network.of(its, training)


def strategy_of(row: Row, problem: Problem) -> Strategy:
    """How training was divided."""
    ways = row["parallel"]
    for name in ("cp", "ep"):
        if ways[name] != 1:
            raise CannotBeSaidError(f"{name} {ways[name]}")
    if ways["dp"] * ways["tp"] * ways["pp"] != row["hardware"]["gpus"]:
        raise CannotBeSaidError("data x tensor x pipeline is not the number of GPUs")
    if ways["dp"] * row["micro_batch"] * (row["accumulation"] or 1) != row["global_batch"]:
        raise CannotBeSaidError("micro-batches are not the batch")
    graph, devices = problem.graph, problem.devices
    configs: Mapping[str, Any] = stages(graph, devices, ways["tp"], ways["pp"], ways["vpp"] or 1)
    configs = hierarchical(configs, graph, devices)
    added = []
    if row["recompute"] == "full":
        added.append("again")
    elif row["recompute"] != "none":
        raise CannotBeSaidError(f"recomputation: {row['recompute']}")
    if ways["zero"] in (2, 3):
        added.append(f"zero{ways['zero']}")
    configs = with_additions(configs, added, graph)
    return Strategy(configs, f"row {row['id']}")


def simulated(row: Row, args: argparse.Namespace) -> dict[str, Any]:
    """A row of the result."""
    found: dict[str, Any] = {"id": row["id"], "ratio": None, "why_not": None}
    began = time.monotonic()
    try:
        if row["iteration_s"] is None:
            raise CannotBeSaidError("no time of an iteration was published")
        ways = (row["parallel"][name] for name in ("dp", "tp", "pp"))
        if None in (row["hardware"]["gpus"], row["global_batch"], row["micro_batch"], *ways):
            raise CannotBeSaidError("GPUs, batch, or how they were divided was not published")
        if row["hardware"]["gpus"] > args.most_gpus:
            raise CannotBeSaidError(f"more than {args.most_gpus} GPUs (--most-gpus)")
        topology = machine_of(row, args.machines)
        problem = network_of(row).problem(topology, AnalyticCosts())
        strategy = problem.checked(strategy_of(row, problem))
        line = full(problem, strategy)
    except CannotBeSaidError as e:
        return found | {"why_not": str(e)}
    except UserError as e:
        return found | {"why_not": f"refused: {e}"}
    return found | {
        "published_s": row["iteration_s"],
        "simulated_s": line.iteration_time_ns / 1e9,
        "ratio": line.iteration_time_ns / 1e9 / row["iteration_s"],
        "fits": line.fits,
        "allocated_bytes": max(line.allocated_bytes.values()),
        "parallel": row["parallel"],
        "micro_batches": row["accumulation"],
        "recompute": row["recompute"],
        "took_s": time.monotonic() - began,
    }


def ways_of(row: Row) -> str:
    """``DP 8 TP 4 PP 2, ZeRO-3, recomputed``."""
    its = row["parallel"]
    parts = " ".join(f"{name.upper()} {its[name]}" for name in ("dp", "tp", "pp") if its[name] > 1)
    zero = f", ZeRO-{its['zero']}" if its["zero"] else ""
    again = ", recomputed" if row["recompute"] == "full" else ""
    rounds = f", m = {row['micro_batches']}" if (row["micro_batches"] or 1) > 1 else ""
    return f"{parts or 'one GPU'}{zero}{rounds}{again}"


def report(results: list[dict[str, Any]], console: Console) -> None:
    """What was simulated, one a row; what was not, by reason."""
    table = Table(title="simulated beside published")
    for column in ("run", "divided"):
        table.add_column(column)
    for column in ("published", "simulated", "ratio", "allocated", "fits"):
        table.add_column(column, justify="right")
    said = [row for row in results if row["ratio"] is not None]
    for row in said:
        table.add_row(
            row["id"],
            ways_of(row),
            f"{row['published_s']:.3f} s",
            f"{row['simulated_s']:.3f} s",
            f"{row['ratio']:.2f}",
            memory(row["allocated_bytes"]),
            "yes" if row["fits"] else "no",
        )
    console.print(table)
    reasons: dict[str, list[str]] = {}
    for row in results:
        if row["why_not"]:
            reasons.setdefault(row["why_not"], []).append(row["id"])
    for reason, ids in sorted(reasons.items(), key=lambda its: -len(its[1])):
        console.print(f"not simulated, {len(ids)}: {reason}")
    if said:
        logs = [math.log(row["ratio"]) for row in said]
        mean = math.exp(statistics.mean(logs))
        error = statistics.mean(abs(row["ratio"] - 1) for row in said)
        fitting = sum(row["fits"] for row in said)
        console.print(
            f"{len(said)} of {len(results)} rows: geometric mean of the ratio {mean:.2f}, mean "
            f"error {error:.0%}; {fitting} are simulated to fit"
        )


def main() -> None:
    """Simulate the rows, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=Path, required=True, help="the published runs")
    parser.add_argument("--json", type=Path, help="write all results there")
    parser.add_argument("--only", default="", help="rows with this text in their name")
    parser.add_argument("--most-gpus", type=int, default=512, help="default: 512")
    parser.add_argument("--machines", type=Path, help="a folder with more machines")
    args = parser.parse_args()
    rows = [
        row
        for row in json.loads(args.rows.read_text())
        if "source" in row and args.only in row["id"]
    ]
    results = []
    with ProgressBar("simulating") as bar:
        for done, row in enumerate(rows):
            results.append(simulated(row, args))
            bar.steps(done + 1, len(rows))
    report(results, Console(width=130))
    if args.json:
        args.json.write_text(json.dumps({"rows": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""FlexFlow's figures 8, 10, 12, 13 and 14 and its table 4, simulated at the paper's settings.

    python scripts/papers/flexflow_figures.py [--only 8,10,12,13,4] [--budget 30s] [--seconds 5]
        [--json OUT] [--picture OUT.svg]

- 8: NMT on 64 K80: time, bytes moved and computation of data parallelism, experts and what a
  search finds.
- 10: what placements of whole operators reach (REINFORCE's space, 4 K80), and what OptCNN finds
  (16 P100), beside what a search finds.
- 12: the best time of NMT on 16 P100 so far, as the search of the paper's section 6 goes on by the
  full and by the delta algorithm.
- 13, 14: what is found on 4 P100: time and bytes of synchronisation beside data parallelism. The
  pictures are ``flexlegion report --svg``.
- 4: how long 1,000 proposals of the paper's search take, by full and by delta simulation, from
  random strategies; delta makes the very proposals that full makes in `--seconds`.

The batch is 64 a GPU (AlexNet 256), as in `flexflow_figure7.py`, which has figure 7. Figure 11 is
`scripts/bench/accuracy.py`, figure 9 trains to the end, and section 8.4 is
`scripts/bench/exhaustive.py` and `local_optimum.py`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
from flexflow_figure7 import BATCHES, NETWORKS
from rich.console import Console
from rich.table import Table

import flexlegion as fl
from flexlegion.analysis.setting import Setting
from flexlegion.base.errors import UserError
from flexlegion.known_strategies import named
from flexlegion.searches.chain import Chain, ChainOptions, prepare_candidates
from flexlegion.searches.start import tie_groups
from flexlegion.sim.problem import Problem
from flexlegion.sim.simulator import FLOWS, Timeline
from flexlegion.zoo import build

Row = dict[str, Any]

GPUS = (4, 8, 16, 32, 64)  # of table 4
SEEDS = 3  # random starts of a cell; the paper has 10
# Figure 10b: its networks that are no chains of operators, then those that are.
OF_OPTCNN = ("inception_v3", "rnntc", "rnnlm", "nmt", "alexnet", "resnet101")
TEMPERATURE = 0.005


def model_for(network: str, gpus: int) -> fl.Model:
    """A network, of as many samples as the paper has."""
    return build(network, BATCHES.get(network, 64) * gpus)


def figures(its: Any) -> Row:
    """Of a result with a timeline: what figure 8 shows."""
    return {
        "time_ms": its.iteration_time_ns / 1e6,
        "moved_gb": its.timeline.bytes_moved / 1e9,
        "synchronised_gb": synchronised(its.timeline) / 1e9,
        "computing_ms": its.timeline.computation_time_ns / 1e6,
    }


def synchronised(timeline: Timeline) -> int:
    """Bytes of weights and of their gradients that move in an iteration."""
    tasks = timeline.tasks
    of_weights = (tasks["flow"] == FLOWS.index("weights")) & (tasks["hop"] == 0)
    return int(tasks["bytes"][of_weights].sum())


def ways(network: str, machine: str, gpus: int, budget: str, *names: str) -> list[Row]:
    """Strategies by name, or "found", or "placement"; their figures."""
    model, rows = model_for(network, gpus), []
    for name in names:
        row: Row = {"network": network, "machine": f"{machine}x{gpus}", "way": name}
        on: Any = {"optimizer": "sgd", "costs": "analytic"}
        try:
            if name in ("found", "placement", "paper"):
                kind = "annealing" if name == "found" else name
                its: Any = fl.search(
                    model, f"{machine}x{gpus}", budget, search=kind, progress=False, **on
                )
            else:
                its = fl.simulate(model, f"{machine}x{gpus}", name, **on)
            rows.append(row | figures(its))
        except UserError as error:
            rows.append(row | {"time_ms": None, "why_not": str(error)})
    return rows


def figure_8(budget: str, _: float) -> list[Row]:
    return ways("nmt", "k80", 64, budget, "data", "expert", "found")


def figure_10(budget: str, _: float) -> list[Row]:
    rows = []
    for network in ("inception_v3", "nmt"):
        rows += ways(network, "k80", 4, budget, "placement", "found")
    for network in OF_OPTCNN:
        rows += ways(network, "p100", 16, budget, "optcnn", "paper", "found")
    return rows


def figure_13(budget: str, _: float) -> list[Row]:
    rows = []
    for network in ("inception_v3", "nmt"):
        rows += ways(network, "p100", 4, budget, "data", "found")
    return rows


def problem_of(network: str, machine: str, gpus: int) -> Problem:
    """What chains ask for, all candidates priced."""
    setting = Setting.of(
        model_for(network, gpus), f"{machine}x{gpus}", costs="analytic", optimizer="sgd"
    )
    prepare_candidates(setting.problem)
    return setting.problem


def chain_of(problem: Problem, start: str, seed: int) -> Chain:
    return Chain(problem, named(start, problem), seed, tie_groups(problem))


def options(algorithm: str) -> ChainOptions:
    """The paper's search: any configuration of any operator, each proposal simulated."""
    return ChainOptions(TEMPERATURE, uniform=True, early_rejection=False, algorithm=algorithm)


def figure_12(_: str, seconds: float) -> list[Row]:
    problem, rows = problem_of("nmt", "p100", 16), []
    for algorithm in ("full", "delta"):
        chain = chain_of(problem, "random:0", 0)
        used, next_point = 0.0, 0.0
        while used < 12 * seconds:
            begin = time.perf_counter()
            chain.run(10, 0, options(algorithm))
            used += time.perf_counter() - begin
            if used >= next_point:
                best = chain.state.best_time  # negative: nothing has fitted into memory yet
                best_ms = best / 1e6 if best >= 0 else None
                point = {"seconds": round(used, 2), "best_ms": best_ms}
                rows.append({"algorithm": algorithm, "proposals": chain.state.proposals} | point)
                next_point = max(used * 1.15, used + 0.1)
    return rows


def table_4(_: str, seconds: float) -> list[Row]:
    rows = []
    for gpus in GPUS:
        for network in NETWORKS:
            problem = problem_of(network, "p100", gpus)
            taken = {"full": 0.0, "delta": 0.0}
            proposals = 0
            for seed in range(SEEDS):
                start = f"random:{seed}"
                try:
                    full, delta = (chain_of(problem, start, seed) for _ in taken)
                except UserError:
                    continue  # it does not fit
                begin = time.perf_counter()
                while time.perf_counter() - begin < seconds / SEEDS:
                    full.run(1, 0, options("full"))
                taken["full"] += time.perf_counter() - begin
                begin = time.perf_counter()
                while delta.state.proposals < full.state.proposals:
                    delta.run(1, 0, options("delta"))
                taken["delta"] += time.perf_counter() - begin
                assert delta.state.best_time == full.state.best_time
                proposals += full.state.proposals
            row: Row = {"network": network, "machine": f"p100x{gpus}", "made": proposals}
            if proposals:
                row |= {f"{name}_s": 1e3 * its / proposals for name, its in taken.items()}
            rows.append(row)
    return rows


FIGURES: dict[str, Callable[[str, float], list[Row]]] = {
    "8": figure_8,
    "10": figure_10,
    "12": figure_12,
    "13": figure_13,
    "4": table_4,
}


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def cells_of(name: str, rows: list[Row]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns and lines of a figure, for people and for the documentation."""
    if name == "4":
        columns: tuple[str, ...] = ("GPUs", *NETWORKS)
        machines = list(dict.fromkeys(row["machine"] for row in rows))
        at = {(row["machine"], row["network"]): row for row in rows}
        lines = []
        for machine in machines:
            cells = [machine]
            for network in NETWORKS:
                its = at[machine, network]
                if "full_s" not in its:
                    cells.append("does not fit")
                    continue
                gain = its["full_s"] / its["delta_s"]
                cells.append(f"{its['full_s']:.3g}, {its['delta_s']:.3g}: {gain:.1f}x")
            lines.append(tuple(cells))
        return columns, lines
    if name == "12":
        columns = ("algorithm", "proposals", "seconds", "best, ms")
        last = {row["algorithm"]: row for row in rows}
        return columns, [
            (key, f"{its['proposals']:,}", f"{its['seconds']:.0f}", f"{its['best_ms'] or nan:.1f}")
            for key, its in last.items()
        ]
    columns = ("network", "machine", "way", "time, ms", "moved, GB", "of weights", "computing, ms")
    return columns, [
        (
            row["network"],
            row["machine"],
            row["way"],
            _number(row["time_ms"], ".1f") or "does not fit",
            _number(row.get("moved_gb"), ".2f"),
            _number(row.get("synchronised_gb"), ".2f"),
            _number(row.get("computing_ms"), ".0f"),
        )
        for row in rows
    ]


def markdown(document: Row, name: str) -> str:
    """A figure as a table of the documentation."""
    columns, lines = cells_of(name, document["figures"][name])
    head = f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"
    return "\n".join([head, *(f"| {' | '.join(line)} |" for line in lines)])


def report(name: str, rows: list[Row]) -> None:
    """The same on a terminal."""
    titles = {"4": "seconds for 1,000 proposals by full and delta simulation"}
    table = Table(title=titles.get(name, f"figure {name}"))
    columns, lines = cells_of(name, rows)
    for column in columns:
        table.add_column(column)
    for line in lines:
        table.add_row(*line)
    Console(width=130).print(table)


def picture(rows: list[Row], file: Path) -> None:
    """Figure 12: the best time over the time that the search took."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5, 3.2))
    # Both often find the same at the same time: the wider line shows behind the other.
    for algorithm, color, width in (("full", "C1", 4), ("delta", "C0", 1.5)):
        # While no strategy has fitted into the memories yet, the best time is negative.
        its = [row for row in rows if row["algorithm"] == algorithm and row["best_ms"]]
        points = np.array([(row["seconds"], row["best_ms"]) for row in its])
        axes.step(
            points[:, 0], points[:, 1], where="post", color=color, linewidth=width, label=algorithm
        )
    axes.set(xlabel="seconds of search", ylabel="best time, ms", title="NMT on 16 P100, simulated")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.1 * max(row["best_ms"] or 0 for row in rows))
    axes.legend()
    figure.tight_layout()
    figure.savefig(file)


def main() -> None:
    """Simulate and search."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(FIGURES), help="figures; default: all")
    parser.add_argument("--budget", default="30s", help="of each search; default: 30s")
    parser.add_argument(
        "--seconds",
        type=float,
        default=5.0,
        help="of full simulation in a cell of table 4; "
        "figure 12 has 12 times as many for each algorithm; default: 5",
    )
    parser.add_argument("--json", type=Path, help="write all there; what is there already stays")
    parser.add_argument("--picture", type=Path, help="draw figure 12; takes matplotlib")
    args = parser.parse_args()
    document: Row = {"figures": {}}
    if args.json and args.json.exists():
        document = json.loads(args.json.read_text())
    for name in args.only.split(","):
        rows = FIGURES[name](args.budget, args.seconds)
        report(name, rows)
        document["figures"][name] = rows
        document.setdefault("options", {})[name] = {
            "budget": args.budget,
            "seconds": args.seconds,
            "version": fl.__version__,
        }
        if args.json:
            write(document, args.json)
    if args.picture:
        picture(document["figures"]["12"], args.picture)


def write(document: Row, file: Path) -> None:
    """A row a line."""
    parts = []
    for name, rows in document["figures"].items():
        lines = ",\n".join(json.dumps(row) for row in rows)
        parts.append(f'"{name}": [\n{lines}\n]')
    head = json.dumps(document["options"])
    figures = ",\n".join(parts)
    file.write_text(f'{{"options": {head},\n"figures": {{\n{figures}\n}}}}\n')


if __name__ == "__main__":
    main()

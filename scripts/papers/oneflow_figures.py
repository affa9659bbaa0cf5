"""OneFlow's figures whose numbers were published: what they have, and what is simulated.

    python scripts/papers/oneflow_figures.py [--rows FILE] [--picture OUT]

Oneflow-Inc/DLPerf has the numbers behind figures 10 (ResNet-50, BERT), 12 (face recognition), 13
(Wide & Deep), 15 (the optimizer's states in shards) and 16 (GPT); FILE has what
`scripts/bench/published.py` simulated at the same settings. Figure 9 compares loaders of data,
figures 11 and 14 are drawings; figure 12's other side was measured by the paper alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
from math import ceil, floor, log10
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

FILE = Path(__file__).parents[2] / "docs/measurements/published.json"
FIGURES = {
    "10: ResNet-50": ("dlperf_report", "cnn"),
    "10: BERT-base": ("dlperf_report", "bert"),
    "12: face recognition": ("dlperf_face", "face"),
    "13: Wide & Deep": ("dlperf_wdl", "recsys"),
    "15: states in shards": ("dlperf_zero", "gpt"),
    "16: GPT": ("dlperf_gpt", "gpt"),
}

Row = dict[str, Any]


def rows_of(document: dict[str, Any], figure: str) -> list[Row]:
    """The rows of a figure that were simulated."""
    return [
        row
        for row in document["rows"]
        if (row["source"], row["family"]) == FIGURES[figure] and row["ratio"] is not None
    ]


COLUMNS = ("figure", "runs", "least", "median", "most", "within 30 %")


def lines_of(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """Of each figure, how simulated times are beside published ones."""
    lines = []
    for figure in FIGURES:
        ratios = sorted(row["ratio"] for row in rows_of(document, figure))
        near = sum(abs(ratio - 1) <= 0.3 for ratio in ratios) / len(ratios)
        values = (ratios[0], statistics.median(ratios), ratios[-1])
        cells = (f"{value:.2f}" for value in values)
        lines.append((figure, str(len(ratios)), *cells, f"{near:.0%}"))
    return lines


def markdown(document: dict[str, Any]) -> str:
    """The table of docs/results.md."""
    head = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"
    return "\n".join([head, *(f"| {' | '.join(line)} |" for line in lines_of(document))])


def report(document: dict[str, Any]) -> None:
    """The same for people."""
    table = Table(title="OneFlow's figures, simulated : published")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "figure" else "right")
    for line in lines_of(document):
        table.add_row(*line)
    Console(width=100).print(table)


def picture(document: dict[str, Any], file: Path) -> None:
    """A panel for each figure: times of its runs, as published and simulated."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    figure, panels = plt.subplots(2, 3, figsize=(11, 6))
    for name, axes in zip(FIGURES, panels.flat, strict=True):
        rows = rows_of(document, name)
        places = range(len(rows))
        for key, marker, label in (
            ("published_s", "o", "published"),
            ("simulated_s", "x", "simulated"),
        ):
            axes.plot(places, [1e3 * row[key] for row in rows], marker, ms=4, label=label)
        axes.set(title=f"figure {name}", yscale="log", xticks=[])
        axes.set_xlabel("runs, as in the file")
        # From a power of ten to a power of ten, with times as they are read.
        times = [1e3 * row[key] for row in rows for key in ("published_s", "simulated_s")]
        axes.set_ylim(10 ** floor(log10(min(times))), 10 ** ceil(log10(max(times))))
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    panels[0][0].set_ylabel("ms an iteration")
    panels[1][0].set_ylabel("ms an iteration")
    panels[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file)


def main() -> None:
    """Print the table; draw the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=Path, default=FILE, help="what published.py wrote")
    parser.add_argument("--picture", type=Path, help="draw them; takes matplotlib")
    args = parser.parse_args()
    document = json.loads(args.rows.read_text())
    report(document)
    if args.picture:
        picture(document, args.picture)


if __name__ == "__main__":
    main()

"""Simulated iterations beside measured ones, of ten networks: one report.

    python scripts/bench/accuracy.py --out report.json [--compare earlier.json] [--seed 7]
        [--model scripts/bench/imported_net.py:model]

LeNet, the six networks of FlexFlow's paper and the transformer, and two of them on two ranks,
within an hour; `--model` adds one. Each is a `flexlegion accuracy` of its own, which is given all
further options: what one does to the process does not reach the next. The report is written after
each, and says which machine it is of; started again, the script goes on with the networks that it
lacks. Reports of several days and machines make a history, which is kept in
docs/measurements/accuracy-*.json. Status 2 if a network could not be compared. Needs a machine with
nothing else to do.

A report has a row for each network, and one for each of its strategies. The first of them is the
one that the others' times are compared with.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from common.rows import write_rows
from common.sides import environment

from flexlegion.base.documents import Section, read_json
from flexlegion.base.errors import UserError
from flexlegion.base.files import check_writable
from flexlegion.base.quoting import note
from flexlegion.cli.accuracy import add_comparison_options, check_comparison_options
from flexlegion.cli.how_trained import add_training_options
from flexlegion.console.text import count, table
from flexlegion.objective.precision import DEFAULT, DEFAULT_STORAGE
from flexlegion.profiling.local import cpu_model

SCHEMA_VERSION = 2
FAILED = 2  # the status where some networks could not be compared


@dataclass(frozen=True)
class Case:
    """A network of a size that a small machine trains in a moment, and how it is run.

    Parameters
    ----------
    name
        For the table.
    options
        Of the command.
    """

    name: str
    options: tuple[str, ...]


def _case(model: str, batch: int, *sizes: str, ranks: int = 1) -> Case:
    options = ["--model", model, "--batch-size", str(batch)]
    for size in sizes:
        options += ["--size", size]
    if ranks == 1:
        return Case(model, tuple(options))
    return Case(f"{model}, {ranks} ranks", (*options, "--ranks", str(ranks), "--cpus", "1"))


_UNROLLED = ("steps=20", "steps_per_op=20")
_TRANSFORMER = ("steps=128", "layers=4")
CASES = (
    _case("lenet", 256),
    _case("alexnet", 32),
    _case("inception_v3", 8, "input_shape=149x149x3"),
    _case("resnet101", 8, "input_shape=112x112x3"),
    _case("rnntc", 16, "steps_per_op=40"),
    _case("rnnlm", 16, *_UNROLLED),
    _case("nmt", 16, *_UNROLLED),
    _case("transformer", 4, *_TRANSFORMER),
    _case("alexnet", 32, ranks=2),
    _case("transformer", 4, *_TRANSFORMER, ranks=2),
)
OWN = ("out", "compare", "model", "profile_db")  # options that say nothing of how networks run
# What is kept of the command's result: of the network, and of each strategy.
OF_NETWORK = (
    "fingerprint",
    "calibration",
    "rest",
    "mean_error",
    "worst_error",
    "kendall_tau",
    "pairs_compared",
    "calibrated",
)
OF_STRATEGY = (
    "strategy",
    "iteration_time_ns",
    "calibrated_time_ns",
    "measured_iteration_time_ns",
    "measured_interval_ns",
    "rounds",
    "simulated_parts_ns",
    "measured_parts_ns",
)


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--out", type=Path, required=True, help="the report (.json); started again, it goes on"
    )
    parser.add_argument(
        "--compare",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="show an earlier report, too; can be given more than once",
    )
    parser.add_argument("--model", help="one more network to compare")
    add_comparison_options(parser)
    add_training_options(parser)
    return parser


def asked(args: argparse.Namespace) -> dict[str, Any]:
    """The options that say how each network is run."""
    return {name: value for name, value in vars(args).items() if name not in OWN}


def run(args: argparse.Namespace) -> int:
    """Compare all networks, and ``--model`` beside them, that the report lacks; the status.

    Raises `UserError` if the report cannot be written, or is of another machine or other options.
    """
    check_comparison_options(args)
    earlier = [read(path) for path in args.compare]
    check_writable(args.out, "report")
    report = begun(args)
    cases = [*CASES, *([Case(args.model, ("--model", args.model))] if args.model else [])]
    done = {row["network"] for row in report["networks"] if "error" not in row}
    missing = [case for case in cases if case.name not in done]
    for number, case in enumerate(missing):
        note(f"{case.name} ({count(len(missing) - number, 'network')} to go)")
        network, strategies = compared(case, args)
        others = [row for row in report["networks"] if row["network"] != case.name]
        report["networks"] = [*others, network]
        report["strategies"] += strategies
        write_rows(args.out, report)
    print(described([*earlier, report]))
    return FAILED if any("error" in row for row in report["networks"]) else 0


def begun(args: argparse.Namespace) -> dict[str, Any]:
    """The report so far."""
    about = {
        "schema_version": SCHEMA_VERSION,
        "machine": machine(),
        "options": asked(args),
    }
    if args.out.is_file() and args.out.stat().st_size:
        found = read(args.out)
        for key, value in about.items():
            if found[key] != value:
                raise UserError(
                    f"{args.out}: this report has another {key.replace('_', ' ')} "
                    f"({found[key]}, not {value}); name another file, or remove this one"
                )
        return found
    now = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    return about | {"begun": now, "networks": [], "strategies": []}


def machine() -> dict[str, Any]:
    """What a report says of the machine that it is of."""
    return {
        "processor": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "software": f"legate {metadata.version('legate')}",
    }


def read(path: Path) -> dict[str, Any]:
    """A report that was written here."""
    like = "that scripts/bench/accuracy.py wrote"
    value = read_json(path, "accuracy report", "give one " + like, like)
    keys = ("schema_version", "machine", "options", "begun", "networks", "strategies")
    report = Section.of(value, str(path), keys)
    report.integer("schema_version", SCHEMA_VERSION, SCHEMA_VERSION)
    its = Section.of(report.values["machine"], f"{path}: machine", tuple(machine()))
    its.text("processor")
    for rows in ("networks", "strategies"):
        if not isinstance(report.values[rows], list):
            raise report.fail(rows, "a list")
    for row in report.values["networks"]:
        usual, either = ("network", "command", "seconds"), ("error", "options", "pairs")
        Section.of(row, f"{path}: networks", usual, (*either, *OF_NETWORK))
    for row in report.values["strategies"]:
        Section.of(row, f"{path}: strategies", ("network", *OF_STRATEGY))
    return report.values


def compared(case: Case, args: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the command for one network says, of it and of its strategies, or why it failed."""
    command = ["accuracy", *case.options, "--json"]
    for name, value in (asked(args) | {"profile_db": args.profile_db}).items():
        if value is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "flexlegion", *command],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    network = {
        "network": case.name,
        "command": shlex.join(["flexlegion", *command]),
        "seconds": round(time.monotonic() - begin, 1),
    }
    try:
        facts = json.loads(done.stdout)
    except ValueError:
        return network | {"error": f"it ended with status {done.returncode}"}, []
    difference = differing(facts, args)
    if difference is not None:
        return network | {"error": difference}, []
    number = len(facts["strategies"])
    network |= {"options": ran(facts, args), "pairs": number * (number - 1) // 2}
    network |= {name: facts[name] for name in OF_NETWORK}
    strategies = [
        {"network": case.name} | {name: row[name] for name in OF_STRATEGY}
        for row in (facts["reference"], *facts["strategies"])
    ]
    return network, strategies


def ran(facts: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """The options `asked`, with the values with which a network's command says that it ran."""
    said = facts | facts["options"]
    return {name: said.get(name) for name in asked(args)}


def differing(facts: dict[str, Any], args: argparse.Namespace) -> str | None:
    """Where a network's command says that it ran otherwise than it was asked to; None: nowhere."""
    said = ran(facts, args)
    for name, value in asked(args).items():
        if value is not None and said[name] != value:
            what = name.replace("_", " ")
            return f"it ran with {what} {said[name]}, but {value} was asked for"
    return None


def described(reports: Sequence[dict[str, Any]]) -> str:
    """For people: a table of each report, the earliest first."""
    return "\n\n".join(table_of(report) for report in reports)


COLUMNS = ("network", "mean", "worst", "tau", "pairs", "calibrated", "the machine", "took")


def table_of(report: dict[str, Any]) -> str:
    """A line for each network."""
    its, asked_for = report["machine"], report["options"]
    heading = (
        f"{its['processor']}, {its['cores']} cores, {its['software']}; "
        f"{report['begun']}; {asked_for['strategies']} strategies, seed {asked_for['seed']}"
        f"{trained(report['networks'])}"
    )
    rows = [line(row) for row in report["networks"]]
    return f"{heading}\n\n{table(COLUMNS, rows, (0, 6)).rstrip()}"


def trained(networks: Iterable[dict[str, Any]]) -> str:
    """How the networks were trained, as their own results say."""
    text = ""
    for key, what, usual in (
        ("optimizer", "optimizer", "sgd"),
        ("clip_norm", "clipped to norm", None),
        ("ema", "averages with ema", None),
        ("precision", "precision", DEFAULT),
        ("storage", "stored as", DEFAULT_STORAGE),
        ("micro_batches", "micro-batches", 1),
    ):
        # Earlier reports may lack an option that there was not.
        values = {row["options"].get(key, usual) for row in networks if "error" not in row}
        if values - {usual}:
            text += f", {what} {' and '.join(sorted(map(str, values)))}"
    return text


def line(row: dict[str, Any]) -> tuple[str, ...]:
    """Of a network, in the order of `COLUMNS`."""
    took = f"{row['seconds']:.0f} s"
    if "error" in row:
        return row["network"], "-", "-", "-", "-", "-", row["error"], took
    calibrated, tau = row["calibrated"], row["kendall_tau"]
    return (
        row["network"],
        f"{row['mean_error']:.1%}",
        f"{row['worst_error']:.1%}",
        "-" if tau is None else f"{tau:.2f}",
        f"{row['pairs_compared']}/{row['pairs']}",
        f"{calibrated['mean_error']:.1%}, {calibrated['worst_error']:.1%}",
        "too restless" if row["rest"]["restless"] else "at rest",
        took,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, and print the tables."""
    args = options().parse_args(arguments)
    try:
        return run(args)
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return e.status


if __name__ == "__main__":
    sys.exit(main())

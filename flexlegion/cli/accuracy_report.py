"""``flexlegion accuracy --all``: many networks, one report, which a later start goes on with.

Each network is a command of its own, so that what one does to the process does not reach the next.
The report is written after each, and says which machine it is of; several make a history.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from flexlegion.base.documents import Section, read_json
from flexlegion.base.errors import UserError
from flexlegion.base.files import check_writable, write_json
from flexlegion.base.quoting import note
from flexlegion.cli.command import answer
from flexlegion.console.text import count, table
from flexlegion.objective.precision import DEFAULT, DEFAULT_STORAGE

SCHEMA_VERSION = 1
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
# Every option of the command is in one of these three. Each network's command is given the first
# ones, and says in its result with what it ran.
HANDED_ON = (
    "strategies",
    "rounds",
    "trial_budget",
    "seed",
    "profile_db",
    "optimizer",
    "clip_norm",
    "precision",
    "storage",
    "micro_batches",
)
OF_ONE_NETWORK = (
    "size",
    "no_verify",
    "ranks",
    "hosts",
    "cpus",
    "threads",
    "gpus",
    "legate",
    "batch_size",
    "loss",
    "report",
)
OF_ALL = ("all", "out", "compare", "model", "json")


def asked(args: argparse.Namespace) -> dict[str, Any]:
    """The values of `HANDED_ON`."""
    return {name: getattr(args, name) for name in HANDED_ON}


def run_all(args: argparse.Namespace) -> None:
    """Compare all networks, and ``--model`` beside them, that the report lacks.

    Parameters
    ----------
    args
        Of the command.

    Raises
    ------
    UserError
        If the report cannot be written, or is of another machine or other options.
    """
    for option in OF_ONE_NETWORK:
        value = getattr(args, option)
        if value is not False and value not in (None, "", []):  # 0 is a value
            name = option.replace("_", "-")
            raise UserError(f"--{name} is of one network; leave it out with --all")
    if args.out is None:
        raise UserError("--all needs the name of a report to write; give --out report.json")
    earlier = [_read(Path(path)) for path in args.compare]
    path = Path(args.out)
    check_writable(path, "report")
    report = _begun(path, args)
    cases = [*CASES, *([Case(args.model, ("--model", args.model))] if args.model else [])]
    missing = [case for case in cases if "facts" not in report["cases"].get(case.name, {})]
    for number, case in enumerate(missing):
        note(f"{case.name} ({count(len(missing) - number, 'network')} to go)")
        report["cases"][case.name] = _compared(case, args)
        write_json(path, report, "report")
    answer(args, report, described([*earlier, report]))
    if any("facts" not in found for found in report["cases"].values()):
        sys.exit(FAILED)


def _begun(path: Path, args: argparse.Namespace) -> dict[str, Any]:
    """The report so far."""
    about = {
        "schema_version": SCHEMA_VERSION,
        "machine": _machine(),
        "options": {name: value for name, value in asked(args).items() if name != "profile_db"},
    }
    if path.is_file() and path.stat().st_size:
        found = _read(path)
        for key, value in about.items():
            if found[key] != value:
                raise UserError(
                    f"{path}: this report has another {key.replace('_', ' ')} "
                    f"({found[key]}, not {value}); name another file, or remove this one"
                )
        return found
    return about | {"begun": time.strftime("%Y-%m-%d %H:%M", time.gmtime()), "cases": {}}


def _machine() -> dict[str, Any]:
    from flexlegion.profiling.local import cpu_model

    return {
        "processor": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "software": f"legate {metadata.version('legate')}",
    }


def _read(path: Path) -> dict[str, Any]:
    """A report that this command wrote."""
    like = "that 'flexlegion accuracy --all --out' wrote"
    value = read_json(path, "accuracy report", "give one " + like, like)
    keys = ("schema_version", "machine", "options", "begun", "cases")
    report = Section.of(value, str(path), keys)
    report.integer("schema_version", SCHEMA_VERSION, SCHEMA_VERSION)
    machine = Section.of(report.values["machine"], f"{path}: machine", tuple(_machine()))
    machine.text("processor")
    if not isinstance(report.values["cases"], dict):
        raise report.fail("cases", "an object")
    for name, case in report.values["cases"].items():
        Section.of(case, f"{path}: {name}", ("command", "seconds"), ("facts", "error"))
    return report.values


def _compared(case: Case, args: argparse.Namespace) -> dict[str, Any]:
    """What the command for one network says, or why it failed."""
    command = ["accuracy", *case.options, "--json"]
    for name, value in asked(args).items():
        if value is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    begin = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "flexlegion", *command], stdout=subprocess.PIPE, text=True
    )
    try:
        output, _ = process.communicate()
    except BaseException:  # a signal, which this process alone may have got
        process.terminate()
        process.wait()
        raise
    result: dict[str, Any] = {
        "command": ["flexlegion", *command],
        "seconds": round(time.monotonic() - begin, 1),
    }
    try:
        facts = json.loads(output)
    except ValueError:
        return result | {"error": f"it ended with status {process.returncode}"}
    difference = _difference(facts, args)
    return result | ({"facts": facts} if difference is None else {"error": difference})


def _difference(facts: dict[str, Any], args: argparse.Namespace) -> str | None:
    """Where a network's command says that it ran otherwise than it was asked to; None: nowhere."""
    ran = facts["options"]
    for name, value in asked(args).items():
        if value is not None and ran[name] != value:
            return f"it ran with {name.replace('_', ' ')} {ran[name]}, but {value} was asked for"
    return None


def described(reports: Sequence[dict[str, Any]]) -> str:
    """For people: a table of each report, the earliest first."""
    return "\n\n".join(_table(report) for report in reports)


_COLUMNS = ("network", "mean", "worst", "tau", "pairs", "calibrated", "the machine", "took")


def _table(report: dict[str, Any]) -> str:
    machine, options = report["machine"], report["options"]
    heading = (
        f"{machine['processor']}, {machine['cores']} cores, {machine['software']}; "
        f"{report['begun']}; {options['strategies']} strategies, seed {options['seed']}"
        f"{_trained(report['cases'].values())}"
    )
    rows = [_row(name, case) for name, case in report["cases"].items()]
    return f"{heading}\n\n{table(_COLUMNS, rows, (0, 6)).rstrip()}"


def _trained(cases: Iterable[dict[str, Any]]) -> str:
    """How the networks were trained, as their own results say."""
    text = ""
    for key, what, usual in (
        ("optimizer", "optimizer", "sgd"),
        ("clip_norm", "clipped to norm", None),
        ("precision", "precision", DEFAULT),
        ("storage", "stored as", DEFAULT_STORAGE),
        ("micro_batches", "micro-batches", 1),
    ):
        ran = [case["facts"].get("options", case["facts"]) for case in cases if "facts" in case]
        values = {options.get(key, usual) for options in ran}
        if values - {usual}:
            text += f", {what} {' and '.join(sorted(map(str, values)))}"
    return text


def _row(name: str, case: dict[str, Any]) -> tuple[str, ...]:
    took = f"{case['seconds']:.0f} s"
    if "facts" not in case:
        return name, "-", "-", "-", "-", "-", case.get("error", "not run"), took
    facts = case["facts"]
    calibrated, rest = facts["calibrated"], facts["rest"]
    number = len(facts["strategies"])
    tau = facts["kendall_tau"]
    return (
        name,
        f"{facts['mean_error']:.1%}",
        f"{facts['worst_error']:.1%}",
        "-" if tau is None else f"{tau:.2f}",
        f"{facts['pairs_compared']}/{number * (number - 1) // 2}",
        f"{calibrated['mean_error']:.1%}, {calibrated['worst_error']:.1%}",
        "too restless" if rest["restless"] else "at rest",
        took,
    )

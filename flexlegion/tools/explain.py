"""``flexlegion explain``: where a strategy leaves data parallelism, and what that saves."""

from __future__ import annotations

import argparse
from typing import Any

from flexlegion.errors import UserError
from flexlegion.report.deviations import Deviation, configuration, deviations
from flexlegion.report.progress import ProgressBar
from flexlegion.report.text import common_name, count, duration, pairs, table, volume
from flexlegion.report.timelines import figures, memory_excess
from flexlegion.simulator import full
from flexlegion.tools.command import Commands, add_command, answer
from flexlegion.tools.network import (
    Setting,
    add_json_option,
    add_machine_options,
    add_network_options,
)
from flexlegion.tools.strategies import STRATEGIES, named, read, samples_only

SHOWN = 20


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "explain",
        "say where a strategy leaves data parallelism, and what each such choice saves",
        "explain expert --model alexnet --machine p100x4",
        _run,
    )
    parser.add_argument(
        "strategy", help=f"a strategy file, or one of {', '.join(STRATEGIES)}, random:SEED"
    )
    add_network_options(parser, from_file=True)
    add_machine_options(parser, from_file=True)
    parser.add_argument(
        "--top", type=int, default=SHOWN, metavar="N", help=f"show N choices; default: {SHOWN}"
    )
    add_json_option(parser)


def _run(args: argparse.Namespace) -> None:
    if args.top < 1:
        raise UserError(f"--top has to be at least 1, but is {args.top}")
    spec = read(args.strategy)
    setting = Setting.of(args, spec)
    problem = setting.problem
    strategy = named(spec, problem)
    usual = samples_only(problem)
    timeline = full(problem, strategy)
    excess = memory_excess(strategy, timeline)
    if excess is not None:
        raise UserError(excess)
    plain = full(problem, usual)
    with ProgressBar("counterfactual simulation") as bar:
        found = deviations(problem, strategy, usual, bar.steps)
    data_fits = memory_excess(usual, plain) is None
    data = plain.iteration_time_ns if data_fits else None
    speedup = data / timeline.iteration_time_ns if data else None
    facts: dict[str, Any] = setting.about() | {"strategy": args.strategy} | figures(timeline)
    facts |= {
        "data_parallel_time_ns": data,
        "speedup": speedup,
        "deviations": [_facts(deviation) for deviation in found],
    }
    number = sum(len(deviation.operators) for deviation in found)
    rows = [
        ("data parallelism", duration(data) if data else "does not fit into memory"),
        ("this strategy", duration(timeline.iteration_time_ns)),
        ("speed-up", f"{speedup:.2f}x" if speedup else "none: nothing to compare with"),
        (
            "deviations",
            f"{number} of {count(len(problem.graph.operators), 'operator')}, in "
            f"{count(len(found), 'group')}",
        ),
    ]
    text = f"{setting}; strategy {args.strategy}\n\n{pairs(rows)}"
    answer(args, facts, f"{text}\n{_table(found, args.top)}" if found else text)


def _facts(deviation: Deviation) -> dict[str, Any]:
    first = deviation.operators[0]
    return {
        "operators": [operator.name for operator in deviation.operators],
        "type": first.kind.type,
        "degrees": list(deviation.config.degrees),
        "devices": list(deviation.config.devices),
        "configuration": configuration(first, deviation.config),
        "data_parallel_configuration": configuration(first, deviation.usual),
        "saved_ns": deviation.saved_ns,
        "saved_bytes": deviation.saved_bytes,
    }


def _table(found: list[Deviation], top: int) -> str:
    rows = [
        (
            common_name([operator.name for operator in deviation.operators]),
            str(len(deviation.operators)),
            configuration(deviation.operators[0], deviation.config),
            "needed to fit" if deviation.saved_ns is None else duration(deviation.saved_ns),
            "" if deviation.saved_bytes is None else volume(deviation.saved_bytes),
        )
        for deviation in found[:top]
    ]
    columns = ("operators", "number", "configuration", "saves", "moves less")
    lines = [table(columns, rows, texts=(0, 2))]
    if len(found) > top:
        lines.append(f"and {count(len(found) - top, 'more group')}; --top {len(found)} shows all")
    lines.append(
        "saves: what the iteration would take longer if these operators alone went back to data "
        "parallelism;\nsavings do not add up, and a negative one pays only together with others"
    )
    return "\n".join(lines)

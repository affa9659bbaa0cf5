"""``flexlegion simulate``: one iteration of a strategy on a machine (FlexFlow, section 5)."""

from __future__ import annotations

import argparse
from typing import Any

from flexlegion.documents import check_writable
from flexlegion.problem import Problem
from flexlegion.report.progress import ProgressBar
from flexlegion.report.text import count
from flexlegion.report.timelines import described, details, memory_excess, save_trace
from flexlegion.simulator import ALGORITHMS, SIMULATED, Simulation, Timeline, full
from flexlegion.soap import ParallelConfig
from flexlegion.strategy import Strategy
from flexlegion.tools.command import Commands, add_command, answer, warn
from flexlegion.tools.network import (
    Setting,
    add_json_option,
    add_machine_options,
    add_network_options,
)
from flexlegion.tools.strategies import STRATEGIES, named, read, samples_only


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "simulate",
        "simulate a training iteration: its time, bytes moved, memory, load",
        "simulate --model lenet --machine p100x4 --strategy data",
        _run,
    )
    add_network_options(parser, from_file=True)
    add_machine_options(parser, from_file=True)
    parser.add_argument(
        "--strategy",
        default="data",
        help=f"a strategy file, or one of {', '.join(STRATEGIES)}, random:SEED (default: data)",
    )
    parser.add_argument(
        "--algorithm",
        choices=ALGORITHMS,
        default="full",
        help="full (default), or delta: goes from data parallelism to the strategy operator by "
        "operator, each time simulating only what changes, and checks that the result is the same",
    )
    parser.add_argument(
        "--trace", metavar="FILE", help="write the timeline, for https://ui.perfetto.dev"
    )
    add_json_option(parser)


def _run(args: argparse.Namespace) -> None:
    if args.trace is not None:
        check_writable(args.trace, "trace")
    spec = read(args.strategy)
    setting = Setting.of(args, spec)
    problem = setting.problem
    strategy = named(spec, problem)
    timeline = full(problem, strategy)
    facts: dict[str, Any] = setting.about() | {"strategy": args.strategy, "algorithm": "full"}
    lines = [f"{setting}; strategy {args.strategy}"]
    excess = memory_excess(strategy, timeline)
    if excess is not None:
        warn(excess)
    elif args.algorithm == "delta":
        simulations = _check_delta(problem, strategy, timeline)
        facts |= {"algorithm": "delta", "simulations": simulations}
        what = count(simulations, "delta simulation")
        lines.append(f"{what} from data parallelism; all figures as in a full simulation")
    priced_by = problem.priced_by(strategy)
    facts |= details(timeline, priced_by)
    if args.trace is not None:
        save_trace(args.trace, timeline, {k: str(v) for k, v in facts.items() if k != "memories"})
        facts["trace"] = args.trace
    answer(args, facts, "\n".join([*lines, "", described(timeline, priced_by)]))


def _check_delta(problem: Problem, strategy: Strategy, expected: Timeline) -> int:
    """Reach a strategy by delta simulations; how many it took.

    Where an intermediate strategy does not fit into memory, the next operator changes with it.
    """
    simulation = Simulation(problem, samples_only(problem))
    pending: dict[str, ParallelConfig] = {}
    simulations = 0
    operators = problem.graph.operators
    with ProgressBar("delta simulation") as bar:
        for done, operator in enumerate(operators):
            pending[operator.name] = strategy[operator.name]
            if simulation.propose(pending, "delta") == SIMULATED:
                simulation.accept()
                pending = {}
                simulations += 1
            else:
                simulation.reject()
            bar.steps(done + 1, len(operators))
    reached = simulation.timeline()
    if pending or not _same(reached, expected):
        raise RuntimeError("the delta simulation differs from the full one; please report this")
    return simulations


def _same(a: Timeline, b: Timeline) -> bool:
    return (
        a.iteration_time_ns == b.iteration_time_ns
        and a.bytes_moved == b.bytes_moved
        and a.computation_time_ns == b.computation_time_ns
        and a.peak_memory_bytes == b.peak_memory_bytes
        and a.load_ns == b.load_ns
        and bool((a.tasks == b.tasks).all())
    )

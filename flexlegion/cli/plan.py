"""``flexlegion plan``, ``flexlegion strategy``: what a strategy executes, and a start for one."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from flexlegion.analysis.setting import Given
from flexlegion.base.errors import UserError
from flexlegion.base.quoting import say
from flexlegion.cli.command import Commands, add_command
from flexlegion.cli.network import (
    add_cost_options,
    add_network_options,
    asked_of_strategy,
    network_of,
    strategy_of,
)
from flexlegion.cli.outputs import output
from flexlegion.known_strategies import resolve
from flexlegion.known_strategies.registry import strategy_names
from flexlegion.machine.devices import MAX_DEVICES, Devices
from flexlegion.networks.network import Network
from flexlegion.plan.plan import Plan
from flexlegion.plan.signatures import described
from flexlegion.strategy.strategy import ResolvedStrategy, Strategy


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the commands."""
    example = "--model lenet --strategy data --cpus 2"
    plan = add_command(
        commands,
        "plan",
        "print what a strategy executes: launches, tiles, devices, privileges, memory",
        f"plan {example}",
        _plan,
    )
    _options(plan)
    instead = plan.add_mutually_exclusive_group()
    instead.add_argument(
        "--sbp",
        action="store_true",
        help="print how every tensor lies, as OneFlow's SBP signatures, and what is moved between",
    )
    instead.add_argument(
        "--check",
        action="store_true",
        help="instead of printing it, check that it computes what one device would",
    )
    strategy = add_command(
        commands,
        "strategy",
        "write a built-in strategy as a file, as a start for editing",
        f"strategy {example} --out s.json",
        _strategy,
    )
    _options(strategy)
    strategy.add_argument("--out", required=True, type=output("strategy"), help="the file to write")


def _options(parser: argparse.ArgumentParser) -> None:
    add_network_options(parser, from_file=True)
    parser.add_argument(
        "--strategy",
        default="data",
        help=f"a strategy file, or one of {strategy_names()} (default: data)",
    )
    parser.add_argument(
        "--machine", metavar="NAME|FILE", help="a machine, as in p100x8, or a machine file; or:"
    )
    parser.add_argument(
        "--cpus", type=int, help="CPU processors (default: those that the file names, or 2)"
    )
    parser.add_argument("--gpus", type=int, help="GPUs (default: those that the file names)")
    add_cost_options(parser)


def _plan(args: argparse.Namespace) -> None:
    network, strategy, memory_of = _resolved(args)
    optimizer = network.training.optimizer
    plan = Plan(strategy, network.outputs, optimizer.states, optimizer.clips)
    if args.sbp:
        say(described(plan, memory_of))
    elif args.check:
        plan.verify()
        launches = len(plan.launches)
        tasks = sum(len(launch.devices) for launch in plan.launches)
        say(f"the plan is in order: {launches:,} launches, {tasks:,} tasks on {plan.devices}")
    else:
        say(plan.describe())


def _strategy(args: argparse.Namespace) -> None:
    network, strategy, _ = _resolved(args)
    machine = {} if args.machine is None else {"machine": args.machine}
    strategy.with_origin(args.out, network.found(machine)).save(args.out)
    say(f"wrote {args.out}: {len(strategy)} operators on {strategy.machine}")


def _resolved(
    args: argparse.Namespace,
) -> tuple[Network, ResolvedStrategy, Mapping[str, str]]:
    """Network, strategy, and each device's memory: its own, if no machine says more."""
    if args.machine is not None:
        if args.cpus is not None or args.gpus is not None:
            raise UserError("--machine brings its devices along; leave out --cpus and --gpus")
        given = Given.of(**asked_of_strategy(args))
        devices = given.setting.problem.topology.devices
        memory_of = {device.name: device.memory for device in devices}
        return given.setting.network, given.strategy, memory_of
    spec, target = strategy_of(args)
    network = network_of(args, spec, target)
    machine = _devices(args, spec)
    memory_of = dict(zip(machine.names, machine.names, strict=True))
    return network, resolve(spec, network.graph, machine), memory_of


def _devices(args: argparse.Namespace, spec: str | Strategy) -> Devices:
    """The processors that were asked for, or the fewest that a strategy file fits on."""
    if args.cpus is None and args.gpus is None:
        if isinstance(spec, str):
            return Devices.of(cpus=2)
        counts = {"cpu": 0, "gpu": 0}
        for name in spec.devices():
            kind, _, number = name.partition(":")
            # What is no such number is left to the strategy's check, which names the operator.
            if kind in counts and number.isdecimal() and len(number) < len(str(MAX_DEVICES // 2)):
                counts[kind] = max(counts[kind], int(number) + 1)
        return Devices.of(max(counts["cpu"], 1), counts["gpu"])
    return Devices.of(args.cpus or 0, args.gpus or 0)

"""The command ``flexlegion`` (also ``python -m flexlegion``): works without Legion."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from flexlegion.commands import run_command
from flexlegion.devices import MAX_DEVICES, Devices
from flexlegion.losses import LOSSES, add_loss
from flexlegion.machine_view import drawing, drawing_json, listing, listing_json
from flexlegion.machines import load_topology, shipped
from flexlegion.optimizers import optimizer_of
from flexlegion.plan import Plan
from flexlegion.strategies import BUILT_IN, resolve
from flexlegion.strategy import Strategy
from flexlegion.zoo import ZOO, build


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="flexlegion", description="Parallelization strategies for deep-learning training."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, help_text in (
        ("plan", "print what a strategy executes: launches, tiles, devices, privileges, memory"),
        ("strategy", "write a built-in strategy as a file, as a start for editing"),
    ):
        command = commands.add_parser(
            name,
            help=help_text,
            description=help_text[0].upper() + help_text[1:] + ".",
            epilog=f"example: flexlegion {name} --model lenet --strategy data --cpus 2"
            + (" --out s.json" if name == "strategy" else ""),
        )
        command.add_argument("--model", required=True, help=f"one of {', '.join(ZOO)}")
        command.add_argument(
            "--strategy",
            default="data",
            help=f"a strategy file, or one of {', '.join(BUILT_IN)}, random:SEED (default: data)",
        )
        command.add_argument("--batch-size", type=int, default=64, help="default: 64")
        command.add_argument(
            "--cpus", type=int, help="CPU processors (default: those that the file names, or 2)"
        )
        command.add_argument("--gpus", type=int, help="GPUs (default: those that the file names)")
        command.add_argument("--optimizer", default="sgd", help="sgd, adam or adamw")
        command.add_argument(
            "--loss", default="sparse_categorical_crossentropy", help=f"one of {', '.join(LOSSES)}"
        )
        if name == "strategy":
            command.add_argument("--out", required=True, help="the file to write")
    _add_machine(commands)
    return parser


def _add_machine(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """``flexlegion machine list|show``."""
    help_text = "list the machines that come with flexlegion, or draw one"
    machine = commands.add_parser(
        "machine",
        help=help_text,
        description=help_text[0].upper() + help_text[1:] + ".",
        epilog="example: flexlegion machine show p100x8",
    )
    actions = machine.add_subparsers(dest="action", required=True)
    for name, help_text in (
        ("list", "list the machines that come with flexlegion"),
        ("show", "draw a machine: nodes, devices, switches, links, and routes from its first GPU"),
    ):
        action = actions.add_parser(
            name,
            help=help_text,
            description=help_text[0].upper() + help_text[1:] + ".",
            epilog=f"example: flexlegion machine {name}" + (" p100x8" if name == "show" else ""),
        )
        if name == "show":
            action.add_argument(
                "machine", metavar="FILE", help="a machine's name, as in p100x8, or a machine file"
            )
        action.add_argument(
            "--json", action="store_true", help="one JSON object: bytes, nanoseconds"
        )


def _machine(args: argparse.Namespace) -> None:
    if args.action == "list":
        machines = shipped()
        text = json.dumps(listing_json(machines)) if args.json else listing(machines)
    else:
        topology = load_topology(args.machine)
        text = json.dumps(drawing_json(topology)) if args.json else drawing(topology)
    print(text.rstrip("\n"))


def _strategy(spec: str) -> str | Strategy:
    """A built-in strategy's name as it is, a file read: once, for it may be a pipe."""
    return spec if spec in BUILT_IN or spec.startswith("random:") else Strategy.load(spec)


def _devices(args: argparse.Namespace, spec: str | Strategy) -> Devices:
    """The machine that was asked for, or the smallest that a strategy file fits on."""
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


def _run(argv: Sequence[str] | None) -> None:
    args = _parser().parse_args(argv)
    if args.command == "machine":
        _machine(args)
        return
    model = build(args.model, args.batch_size)
    output = model.graph.operators[-1].output
    optimizer = optimizer_of(args.optimizer)
    graph = add_loss(model.graph, output, args.loss)
    spec = _strategy(args.strategy)
    devices = _devices(args, spec)
    strategy = resolve(spec, graph, devices)
    if args.command == "strategy":
        strategy.save(args.out)
        print(f"wrote {args.out}: {len(strategy)} operators on {devices}")
    else:
        plan = Plan(graph, strategy, devices, output, optimizer.states)
        print(plan.describe())


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return run_command(_run, argv)


if __name__ == "__main__":
    sys.exit(main())

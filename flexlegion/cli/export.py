"""``flexlegion export``: a strategy as a program for PyTorch's DTensor or for JAX."""

from __future__ import annotations

import argparse

from flexlegion.base.files import write_text
from flexlegion.base.quoting import warn
from flexlegion.cli.command import Commands, add_command, answer
from flexlegion.cli.network import (
    add_json_option,
    add_setting_options,
    asked_of_strategy,
)
from flexlegion.cli.outputs import output
from flexlegion.console.text import count


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "export",
        "write a strategy as a program for PyTorch's DTensor, or for JAX",
        "export data --model lenet --machine p100x4 --to dtensor --out plan.py",
        _run,
    )
    parser.add_argument("strategy", help="a strategy file, or a built-in strategy's name")
    parser.add_argument("--to", required=True, metavar="TARGET", help="dtensor or jax")
    parser.add_argument(
        "--out",
        required=True,
        metavar="FILE",
        type=output("program"),
        help="the Python file to write",
    )
    parser.add_argument(
        "--weights",
        metavar="FILE",
        type=output("weights"),
        help="also write the first values of all weights that are no parameters of a PyTorch "
        "module (.npz or .safetensors)",
    )
    add_setting_options(parser, from_file=True)
    add_json_option(parser)


def _run(args: argparse.Namespace) -> None:
    from flexlegion.analysis.export import export
    from flexlegion.training.checkpoints.weights import save_weights

    done = export(**asked_of_strategy(args), to=args.to)
    write_text(args.out, done.text, "program")
    lines = [str(done), "", f"wrote {args.out}"]
    if args.weights is not None:
        save_weights(args.weights, done.first_values())
        lines.append(f"wrote {args.weights}: {count(len(done.others), 'weight')}")
    elif done.others:
        several = count(len(done.others), "weight")
        lines.append(f"its first values of {several} are written by --weights FILE")
    if not done.memory.fits:
        warn(f"the program does not fit into the devices' memory: {done.memory}")
    answer(args, done.facts() | {"out": args.out, "weights": args.weights}, "\n".join(lines))

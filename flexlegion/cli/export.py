"""``flexlegion export``: a strategy as a program, or as a configuration of another system."""

from __future__ import annotations

import argparse

from flexlegion.base.errors import UserError
from flexlegion.base.files import write_text
from flexlegion.base.quoting import warn
from flexlegion.cli.command import Commands, add_command, answer
from flexlegion.cli.network import (
    add_json_option,
    add_setting_options,
    asked_of_strategy,
    asked_on,
)
from flexlegion.cli.outputs import output
from flexlegion.console.text import count


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "export",
        "write a strategy as a program for PyTorch's DTensor or for JAX, or as what Megatron-LM or "
        "torchtitan reads",
        "export data --model lenet --machine p100x4 --to dtensor --out plan.py",
        _run,
    )
    parser.add_argument(
        "strategy",
        help="a strategy file, a built-in strategy's name, or a division in words, as "
        "'tp=4 pp=2 zero=1'",
    )
    parser.add_argument(
        "--to", required=True, metavar="TARGET", help="dtensor, jax, megatron or torchtitan"
    )
    parser.add_argument(
        "--out",
        required=True,
        metavar="FILE",
        type=output("program"),
        help="the Python file to write; of megatron, a shell script",
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
    from flexlegion.analysis.export import ExportedProgram, export
    from flexlegion.analysis.program import is_ways
    from flexlegion.training.checkpoints.weights import save_weights

    in_words = is_ways(args.strategy)
    asked = asked_on(args) | {"strategy": args.strategy} if in_words else asked_of_strategy(args)
    done = export(**asked, to=args.to)
    if args.weights is not None and not isinstance(done, ExportedProgram):
        raise UserError(f"--weights is about programs, which --to {args.to} writes none of")
    write_text(args.out, done.text, "program")
    lines = [str(done), "", f"wrote {args.out}"]
    if args.weights is not None:
        save_weights(args.weights, done.first_values())
        lines.append(f"wrote {args.weights}: {count(len(done.others), 'weight')}")
    elif done.others:
        several = count(len(done.others), "weight")
        lines.append(f"its first values of {several} are written by --weights FILE")
    if not done.fits:
        warn(f"the {done.kind} does not fit into the devices' memory: {done.memory_said()}")
    answer(args, done.facts() | {"out": args.out, "weights": args.weights}, "\n".join(lines))

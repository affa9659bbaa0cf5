"""``flexlegion divide``: how to divide training by the usual ways, for programs that others run."""

from __future__ import annotations

import argparse

from flexlegion.cli.command import Commands, add_command, answer
from flexlegion.cli.network import asked_on
from flexlegion.cli.programs import add_division_options, asked_of_programs


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "divide",
        "how to divide training over devices as data x tensor x pipeline, with ZeRO and "
        "recomputation, for PyTorch, JAX or Megatron-LM: all such divisions, simulated",
        "divide --model gpt --machine a100x8 --batch-size 64 --storage bf16",
        _run,
    )
    add_division_options(parser)


def _run(args: argparse.Namespace) -> None:
    from flexlegion.analysis.divisions import search_programs

    found = search_programs(**asked_on(args), **asked_of_programs(args))
    answer(args, found.facts(), str(found))

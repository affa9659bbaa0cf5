"""``flexlegion fits``: the fewest GPUs that train a model, and the largest batch that they take."""

from __future__ import annotations

import argparse

from flexlegion.cli.command import Commands, add_command, answer
from flexlegion.cli.network import asked_on
from flexlegion.cli.programs import add_division_options, asked_of_programs


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "fits",
        "on how few GPUs a model trains, and how large a batch all of a machine's take, for "
        "PyTorch, JAX or Megatron-LM",
        "fits --model gpt --machine a100x8 --storage bf16 --optimizer adam",
        _run,
    )
    add_division_options(parser)


def _run(args: argparse.Namespace) -> None:
    from flexlegion.analysis.what_fits import what_fits

    found = what_fits(**asked_on(args), **asked_of_programs(args))
    answer(args, found.facts(), str(found))

"""Options of commands about programs of collectives (NCCL), which others run."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from flexlegion.base.errors import UserError
from flexlegion.cli.network import add_json_option, add_network_options
from flexlegion.objective.training import MOST_TRIED

RUNTIMES = ("legion", "nccl")


def add_runtime_option(parser: argparse.ArgumentParser) -> None:
    """``--runtime``."""
    parser.add_argument(
        "--runtime",
        choices=RUNTIMES,
        default=RUNTIMES[0],
        help="who runs it: legion (default), or nccl: a program of collectives, as 'flexlegion "
        "export' writes it, and as PyTorch, JAX and Megatron-LM run theirs",
    )


def add_system_option(parser: argparse.ArgumentParser) -> None:
    """``--system``."""
    parser.add_argument(
        "--system",
        metavar="NAME",
        help="of programs of collectives, what runs them: compiled (torch.compile or JAX; the "
        "default), pytorch, or megatron",
    )


def add_most_micro_batches(parser: argparse.ArgumentParser, where: str = "") -> None:
    """``--most-micro-batches``, of commands that try all divisions."""
    parser.add_argument(
        "--most-micro-batches",
        metavar="N",
        type=int,
        help=f"{where}1, 2, 4, ... micro-batches up to N are tried, unless --micro-batches says "
        f"how many; default: {MOST_TRIED}",
    )


def add_division_options(parser: argparse.ArgumentParser) -> None:
    """All options of a command that tries all divisions on a machine."""
    add_network_options(parser)
    parser.add_argument(
        "--machine",
        required=True,
        metavar="NAME|FILE",
        help="a machine's name, as in a100x64, or a machine file",
    )
    add_system_option(parser)
    add_most_micro_batches(parser)
    add_json_option(parser)


def asked_of_programs(args: argparse.Namespace) -> dict[str, Any]:
    """What the last two options say."""
    most = args.most_micro_batches
    return {
        "system": args.system or "compiled",
        "most_micro_batches": MOST_TRIED if most is None else most,
    }


def refuse_for_programs(given: Mapping[str, bool]) -> None:
    """Raise `UserError` if an option was given that is not about programs of collectives.

    Parameters
    ----------
    given
        By the option: whether it was given.
    """
    _refuse(given, "is about flexlegion's own runtime, not --runtime nccl")


def refuse_for_legion(given: Mapping[str, bool]) -> None:
    """Raise `UserError` if an option was given that is about programs of collectives alone."""
    _refuse(given, "is about programs of collectives; add --runtime nccl")


def _refuse(given: Mapping[str, bool], why: str) -> None:
    for option, is_given in given.items():
        if is_given:
            raise UserError(f"{option} {why}")

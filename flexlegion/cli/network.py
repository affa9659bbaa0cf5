"""Options of commands that say which network is trained, on which machine, at what costs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flexlegion.base.errors import UserError
from flexlegion.base.phase import phase
from flexlegion.base.quoting import printable, shown
from flexlegion.cli.how_trained import add_training_options, training_from
from flexlegion.cli.sizes import add_size_option, batch_size, found_for, found_sizes, given_sizes
from flexlegion.cost import COSTS
from flexlegion.known_strategies import read_strategy
from flexlegion.networks.references import HELP, Target, is_code, target_of
from flexlegion.strategy.strategy import Strategy

if TYPE_CHECKING:
    from flexlegion.networks.network import Network


def add_network_options(
    parser: argparse.ArgumentParser, *, from_file: bool = False, trains: bool = False
) -> None:
    """``--model``, ``--size``, ``--batch-size``, ``--optimizer``, ``--loss`` and more.

    Parameters
    ----------
    parser
        Of the command.
    from_file
        Whether a strategy's file may say instead what is not given.
    trains
        Whether the command reads the values of weights, which kept imports have not.
    """
    default = "; default: what the strategy file was found for" if from_file else ""
    parser.add_argument("--model", required=not from_file, help=f"{HELP}{default}")
    add_size_option(parser)
    add_verify_option(parser)
    if trains:
        parser.set_defaults(no_kept_import=True)
    else:
        parser.add_argument(
            "--no-kept-import",
            action="store_true",
            help="import a model of PyTorch or ONNX again, although it was imported before",
        )
    parser.add_argument(
        "--batch-size", type=batch_size, help="over all devices; default: the network's own"
    )
    add_training_options(parser)


def add_verify_option(parser: argparse.ArgumentParser) -> None:
    """``--no-verify``."""
    parser.add_argument(
        "--no-verify",
        action="store_true",
        help="do not compare an imported model with what it is imported from",
    )


def add_machine_options(parser: argparse.ArgumentParser, *, from_file: bool = False) -> None:
    """``--machine``, ``--costs``, ``--profile-db``."""
    default = "; default: what the strategy file was found for" if from_file else ""
    parser.add_argument(
        "--machine",
        required=not from_file,
        metavar="NAME|FILE",
        help=f"a machine's name, as in p100x16, or a machine file{default}",
    )
    add_cost_options(parser)


def add_setting_options(parser: argparse.ArgumentParser, *, from_file: bool = False) -> None:
    """What `asked` reads; `from_file`: what a strategy's file may say instead."""
    add_network_options(parser, from_file=from_file)
    add_machine_options(parser, from_file=from_file)


def add_cost_options(parser: argparse.ArgumentParser) -> None:
    """``--costs``, ``--profile-db``."""
    parser.add_argument(
        "--costs",
        choices=COSTS,
        default="auto",
        help="tasks' times: analytic estimates; measured ones of the profile data base, and no "
        "others; auto (default): measured where the data base has them, else analytic",
    )
    parser.add_argument(
        "--profile-db", metavar="FILE", help="the profile data base; default: the user's"
    )


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """``--json``."""
    parser.add_argument("--json", action="store_true", help="one JSON object: nanoseconds, bytes")


def network_of(
    args: argparse.Namespace, strategy: str | Strategy | None = None, target: Target | None = None
) -> Network:
    """The network that the options say; where they do not, what the strategy was found for.

    Parameters
    ----------
    args
        Of `add_network_options`.
    strategy
        If one is given, too.
    target
        What ``--model`` names, if that is known already.

    Raises
    ------
    UserError
        If no model is named, or there is no such model, size, loss, optimizer or precision.
    """
    found: Mapping[str, Any] = strategy.found if isinstance(strategy, Strategy) else {}
    source = strategy.source if isinstance(strategy, Strategy) else ""
    target = target or _target_of(args, _model_name(args, found, source))
    found = found_for(target, strategy)
    sizes = found_sizes(found, target, source) | given_sizes(args.size, target)
    batch_size = found.get("batch_size") if args.batch_size is None else args.batch_size
    from flexlegion.networks.network import Network

    phase(f"building the model {printable(target.name)}")
    model = target.load(batch_size, sizes, None, not args.no_verify)
    return Network.of(model, training_from(args, found, source))


def _model_name(args: argparse.Namespace, found: Mapping[str, Any], source: str) -> str:
    """What names the model; a file never has code run that the user did not name."""
    if args.model is not None:
        return str(args.model)
    name = found.get("model")
    if not isinstance(name, str):
        what = f"{source}: the file does not name its model" if source else "no model named"
        raise UserError(f"{what}; name it by --model: {HELP}")
    if is_code(name):
        raise UserError(
            f"{source}: this strategy was found for {shown(name)}, which no command runs unless "
            "you name it; give --model"
        )
    return name


def asked(args: argparse.Namespace) -> dict[str, Any]:
    """Model, machine and costs for the functions of `flexlegion.analysis`.

    Raises
    ------
    UserError
        If one of them is wrong, or not named.
    """
    return _asked(args, None, None)


def asked_on(args: argparse.Namespace) -> dict[str, Any]:
    """Model and machine alone, where tasks' times are always estimates."""
    return {"model": network_of(args), "machine": args.machine}


def asked_of_strategy(args: argparse.Namespace) -> dict[str, Any]:
    """The same, and the strategy; what the options do not say is what it was found for."""
    strategy, target = strategy_of(args)
    return _asked(args, strategy, target) | {"strategy": strategy}


def _asked(
    args: argparse.Namespace, strategy: str | Strategy | None, target: Target | None
) -> dict[str, Any]:
    network = network_of(args, strategy, target)
    found: Mapping[str, Any] = strategy.found if isinstance(strategy, Strategy) else {}
    machine = args.machine or found.get("machine")
    if not isinstance(machine, str):
        what = "no machine named"
        if isinstance(strategy, Strategy):
            what = f"{strategy.source}: the file does not name its machine"
        raise UserError(f"{what}; choose one by --machine, as in --machine p100x8")
    return {
        "model": network,
        "machine": machine,
        "costs": args.costs,
        "profile_db": args.profile_db,
    }


def strategy_of(args: argparse.Namespace) -> tuple[str | Strategy, Target | None]:
    """``--strategy``, a file read; and the model that ``--model`` names, whose code comes first.

    That code may register the strategy.
    """
    target = None if args.model is None else _target_of(args, args.model)
    return read_strategy(args.strategy), target


def _target_of(args: argparse.Namespace, name: str) -> Target:
    """What ``--model`` names; of an import that is kept, no code of the user's runs."""
    if args.no_kept_import or not is_code(name):
        return target_of(name)
    from flexlegion.networks.kept import kept_target_of

    return kept_target_of(name)

"""Options of commands that say which network is trained, on which machine, at what costs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.cost.measured import MeasuredCosts
from flexlegion.cost.model import Cost, CostModel, Linear, Shapes
from flexlegion.cost.profile_db import ProfileDB, default_path
from flexlegion.documents import shown
from flexlegion.errors import UserError
from flexlegion.graph import Operator
from flexlegion.losses import LOSSES
from flexlegion.machines import load_topology
from flexlegion.network import Network
from flexlegion.precision import DEFAULT, PEAKS, PRECISIONS, check_used
from flexlegion.problem import Problem
from flexlegion.references import HELP, is_code, same_target, target_of
from flexlegion.strategy import Strategy
from flexlegion.tools.sizes import add_size_option, found_sizes, given_sizes
from flexlegion.topology import Device

COSTS = ("auto", "analytic", "measured")


def add_network_options(parser: argparse.ArgumentParser, *, from_file: bool = False) -> None:
    """``--model``, ``--size``, ``--batch-size``, ``--optimizer``, ``--loss``, ``--precision``."""
    default = "; default: what the strategy file was found for" if from_file else ""
    parser.add_argument("--model", required=not from_file, help=f"{HELP}{default}")
    add_size_option(parser)
    parser.add_argument(
        "--batch-size", type=int, help="over all devices; default: the network's own"
    )
    parser.add_argument("--optimizer", help="sgd (default), adam or adamw")
    parser.add_argument("--loss", help=f"one of {', '.join(LOSSES)}; default: the network's own")
    parser.add_argument(
        "--precision",
        help=f"how GPUs compute products: one of {', '.join(PRECISIONS)}; default: {DEFAULT}",
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


def network_of(args: argparse.Namespace, strategy: str | Strategy | None = None) -> Network:
    """The network that the options say; where they do not, what the strategy was found for.

    Raises
    ------
    UserError
        If no model is named, or there is no such model, size, loss, optimizer or precision.
    """
    found: Mapping[str, Any] = strategy.found if isinstance(strategy, Strategy) else {}
    source = strategy.source if isinstance(strategy, Strategy) else ""
    target = target_of(_model_name(args, found, source))
    if not same_target(target.name, str(found.get("model"))):
        found = {}
    sizes = found_sizes(found, target, source) | given_sizes(args.size, target)
    choices: dict[str, Any] = {}
    for key, kind in (("batch_size", int), ("loss", str), ("optimizer", str), ("precision", str)):
        value = getattr(args, key)
        choices[key] = found.get(key) if value is None else value
        if choices[key] is not None and type(choices[key]) is not kind:
            raise UserError(f"{source}: 'found' has the {key} {shown(choices[key])}, which is none")
    model = target.load(choices["batch_size"], sizes, None)
    return Network.of(
        model, choices["loss"], choices["optimizer"] or "sgd", choices["precision"] or DEFAULT
    )


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


@dataclass(frozen=True)
class Setting:
    """A network on a machine, and what its tasks cost there.

    Parameters
    ----------
    network
        What is trained.
    machine
        As it was given: a name or a file.
    costs
        As they were asked for, one of `COSTS`.
    problem
        All of it, for simulations.
    """

    network: Network
    machine: str
    costs: str
    problem: Problem

    @classmethod
    def of(cls, args: argparse.Namespace, strategy: str | Strategy | None = None) -> Setting:
        """What the options say; where they do not, what the strategy was found for.

        Raises
        ------
        UserError
            If network, machine or costs are wrong, or not named.
        """
        found: Mapping[str, Any] = strategy.found if isinstance(strategy, Strategy) else {}
        network = network_of(args, strategy)
        machine = args.machine or found.get("machine")
        if not isinstance(machine, str):
            what = "no machine named"
            if isinstance(strategy, Strategy):
                what = f"{strategy.source}: the file does not name its machine"
            raise UserError(f"{what}; choose one by --machine, as in --machine p100x8")
        topology = load_topology(machine)
        check_used(network.precision, topology.names.names, f"the machine '{machine}'")
        costs = costs_of(args.costs, args.profile_db, network)
        problem = network.problem(topology, costs)
        return cls(network, machine, args.costs, problem)

    def about(self) -> dict[str, Any]:
        """For files and JSON: what it takes to build it again."""
        return self.network.about() | {"machine": self.machine, "costs": self.costs}

    def __str__(self) -> str:
        operators, devices = len(self.problem.graph.operators), len(self.problem.devices)
        return f"{self.network} on {self.machine}: {operators} operators, {devices} devices"


def costs_of(kind: str, path: str | None, network: Network) -> CostModel:
    """The cost model that the options ask for.

    Parameters
    ----------
    kind
        One of `COSTS`.
    path
        The profile data base; None: the user's, if there is one.
    network
        Whose optimizer and precision the costs are about.

    Raises
    ------
    UserError
        If there is no such data base, or it goes with analytic costs.
    """
    analytic = AnalyticCosts(PEAKS[network.precision])
    if kind == "analytic":
        if path is not None:
            raise UserError("--profile-db goes with --costs measured or auto, not with analytic")
        return analytic
    file = default_path() if path is None else path
    try:
        with open(file, "rb"):  # a data base that is not there would be made
            pass
    except FileNotFoundError:
        if kind == "auto" and path is None:
            return analytic
        raise UserError(
            f"{file}: no such profile data base; measure tasks into one, or take --costs analytic"
        ) from None
    except OSError as e:
        raise UserError(f"{file}: the profile data base cannot be read ({e.strerror})") from None
    return MeasuredCosts(
        ProfileDB(file),
        analytic if kind == "auto" else _Unmeasured(),
        optimizer=network.optimizer.type,
        precision=network.precision,
    )


class _Unmeasured(CostModel):
    """Has no answer: for those who want measured times and no others."""

    name = "none"

    def exe_time(self, operator: Operator, stage: str, shapes: Shapes, device: Device) -> Cost:
        extents = " ".join("x".join(map(str, shape)) for shape in shapes)
        raise UserError(
            f"the {stage} task of operator '{operator.name}' with parts {extents[:200]} was not "
            f"measured on {device.model}; measure it, or take --costs auto"
        )

    def linear(self, stage: str, device: Device) -> tuple[Linear, str]:
        raise UserError(
            f"the rate of {stage} tasks was not measured on {device.model}; measure it, or take "
            "--costs auto"
        )

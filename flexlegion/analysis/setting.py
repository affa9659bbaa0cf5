"""A model on a machine, and what its tasks cost there: what every question is about."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from flexlegion.base.errors import UserError
from flexlegion.base.files import check_regular
from flexlegion.base.phase import phase
from flexlegion.base.suggestions import unknown
from flexlegion.cost import COSTS
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.cost.measured import MeasuredCosts
from flexlegion.cost.model import Cost, CostModel, Linear, Shapes
from flexlegion.cost.profile_db import ProfileDB, default_path
from flexlegion.graph.graph import Operator
from flexlegion.graph.operator_type import DimKind
from flexlegion.known_strategies import AnyStrategy, granularity_of, named, read_strategy
from flexlegion.machine.parts import Device
from flexlegion.machine.topology import Topology
from flexlegion.model.model import Model
from flexlegion.networks.network import Network
from flexlegion.networks.references import load_model
from flexlegion.objective.precision import DEFAULT, PEAKS, check_used
from flexlegion.objective.training import TrainingOptions, TrainingSpec
from flexlegion.profiling.machines import load_machine
from flexlegion.sim.problem import Problem
from flexlegion.sim.throughput import Throughput, throughput
from flexlegion.strategy.configuration import SPLIT
from flexlegion.strategy.granularity import DEFAULT_GRANULARITY, Granularity
from flexlegion.strategy.strategy import ResolvedStrategy, Strategy
from flexlegion.strategy.words import in_words
from flexlegion.transforms.batch import of_batch

AnyModel = Model | Network | str | Path
AnyMachine = Topology | str | Path


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
    def of(
        cls,
        model: AnyModel,
        machine: AnyMachine,
        *,
        costs: str = "auto",
        profile_db: str | None = None,
        dimensions: Collection[DimKind] = SPLIT,
        granularity: Granularity = DEFAULT_GRANULARITY,
        **training: Unpack[TrainingOptions],
    ) -> Setting:
        """A model on a machine; for the arguments see `flexlegion.analysis.simulate.simulate`.

        Searches split dimensions of these kinds; plans are cut that finely.

        Raises
        ------
        UserError
            If model, machine or costs are wrong.
        """
        network = network_of(model, **training)
        phase("preparing the simulation")
        if isinstance(machine, Topology):
            topology, name = machine, machine.name
        else:
            topology, name = load_machine(machine), str(machine)
        precision = network.training.precision
        check_used(precision, topology.names.names, f"the machine '{name}'")
        _warn_of_missing_rates(precision, topology, name)
        if costs not in COSTS:
            raise unknown("costs", costs, COSTS)
        its = costs_of(costs, profile_db, network)
        return cls(network, name, costs, network.problem(topology, its, dimensions, granularity))

    def throughput(self, time_ns: int) -> Throughput:
        """What an iteration's time means: samples and tokens a second, share of the peak."""
        precision = PEAKS[self.network.training.precision]
        return throughput(self.problem.graph, self.problem.topology, time_ns, precision)

    def in_words(self, strategy: ResolvedStrategy) -> str:
        """A strategy as those say it who train large models: "TP 4 x DP 2; ZeRO-1"."""
        return in_words(self.problem.graph, strategy)

    def about(self) -> dict[str, Any]:
        """For files and JSON: what it takes to build it again."""
        return self.network.about() | {"machine": self.machine, "costs": self.costs}

    def __str__(self) -> str:
        operators, devices = len(self.problem.graph.operators), len(self.problem.devices)
        what = f"{operators} operators, {devices} devices; {self.network.goal}"
        return f"{self.network} on {self.machine}: {what}"


@dataclass(frozen=True)
class Given:
    """A strategy in its setting, as whoever looks at one is given them.

    Parameters
    ----------
    setting
        Model, machine and costs.
    strategy
        As it fits there.
    name
        The strategy's, as it was given.
    """

    setting: Setting
    strategy: ResolvedStrategy
    name: str

    @classmethod
    def of(
        cls,
        model: AnyModel,
        machine: AnyMachine,
        strategy: AnyStrategy,
        *,
        costs: str = "auto",
        profile_db: str | None = None,
        **training: Unpack[TrainingOptions],
    ) -> Given:
        """For the arguments see `flexlegion.analysis.simulate.simulate`.

        Raises
        ------
        UserError
            If something does not exist or does not fit.
        """
        network = network_of(model, **training)  # whose code may name the strategy
        read = read_strategy(strategy)
        granularity = granularity_of(read)
        setting = Setting.of(
            network, machine, costs=costs, profile_db=profile_db, granularity=granularity
        )
        return cls.inside(setting, read)

    @classmethod
    def inside(cls, setting: Setting, strategy: str | Strategy) -> Given:
        """A known strategy's name, or a strategy, in a setting that is cut as finely."""
        resolved = named(strategy, setting.problem)
        return cls(setting, resolved, strategy if isinstance(strategy, str) else resolved.source)


def _warn_of_missing_rates(precision: str, topology: Topology, machine: str) -> None:
    """Say which GPUs have no rate in a precision, in which their products cost what fp32 does."""
    models = sorted(
        {
            device.model
            for device in topology.devices
            if device.kind == "gpu" and PEAKS[precision] not in device.peak_flops
        }
    )
    if precision != DEFAULT and models:
        warnings.warn(
            f"the machine '{machine}' states no rate in {precision} for {', '.join(models)}, so "
            f"products there are priced as in {DEFAULT}; a machine file with '{PEAKS[precision]}' "
            "among its peak rates would say it",
            stacklevel=4,
        )


def network_of(model: AnyModel, **training: Unpack[TrainingOptions]) -> Network:
    """The network that a function of the API is given.

    Raises
    ------
    UserError
        If it is no model, or the options do not fit it.
    """
    if isinstance(model, Network):
        if given := [name for name, value in training.items() if value is not None]:
            raise UserError(f"a network says how it is trained; leave out {', '.join(given)}")
        return model
    if isinstance(model, str | Path):
        model = load_model(str(model))
    if not isinstance(model, Model):
        raise UserError(
            f"a model is a flexlegion.Model or the name of one, but this is a "
            f"{type(model).__name__}; flexlegion.from_torch converts PyTorch's"
        )
    return Network.of(model, TrainingSpec.of(**training))


def costs_of(kind: str, path: str | None, network: Network) -> CostModel:
    """The cost model that the options ask for.

    Parameters
    ----------
    kind
        One of `COSTS`.
    path
        The profile data base; None: the user's, if there is one.
    network
        Whose training the costs are about.

    Raises
    ------
    UserError
        If there is no such data base, or it does not go with analytic costs.
    """
    analytic = AnalyticCosts(PEAKS[network.training.precision])
    if kind == "analytic":
        if path is not None:
            raise UserError("--profile-db goes with --costs measured or auto, not with analytic")
        return analytic
    file = default_path() if path is None else path
    try:
        check_regular(file)  # a data base that is not there would be made
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
        optimizer=network.training.optimizer.type,
        precision=network.training.precision,
    )


class _Unmeasured(CostModel):
    """Has no answer: for those who want measured times and no others."""

    name = "none"

    def exe_time(self, operator: Operator, pass_: str, shapes: Shapes, device: Device) -> Cost:
        extents = " ".join("x".join(map(str, shape)) for shape in shapes)
        raise UserError(
            f"the {pass_} task of operator '{operator.name}' with parts {extents[:200]} was not "
            f"measured on {device.model}; measure it, or take --costs auto"
        )

    def linear(self, pass_: str, device: Device) -> tuple[Linear, str]:
        raise UserError(
            f"the rate of {pass_} tasks was not measured on {device.model}; measure it, or take "
            "--costs auto"
        )


def with_batch(network: Network, batch_size: int) -> Network:
    """The network with another batch.

    Raises
    ------
    UserError
        If the model cannot be built anew.
    """
    if batch_size == network.batch_size:
        return network
    reference = network.model.reference
    if reference is None:
        raise UserError(
            "the batch varies where a model can be built anew: give how it is named, as in "
            "'lenet' or 'file.py:model'"
        )
    return Network.of(reference.again(batch_size), network.training)


def resized(network: Network, batch_size: int) -> Network:
    """The network with another batch, by its graph: nothing is imported.

    It is what `with_batch` makes unless the model's function chooses something by the batch.

    Raises
    ------
    UserError
        If an operator depends on how many samples there are, or a tensor is too large.
    """
    its = network.model
    model = Model(batch_size, its.seed)
    model.graph, outputs = of_batch(its.graph, its.outputs, its.batch_size, batch_size)
    model.set_outputs(outputs)
    model.loss, model.reference, model.origin = its.loss, its.reference, its.origin
    return Network.of(model, network.training)

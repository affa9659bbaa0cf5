"""A network: a model with how it is trained, which is what searches and simulations are about."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from flexlegion.cost.model import CostModel
from flexlegion.graph.fingerprint import Fingerprint
from flexlegion.graph.graph import Graph
from flexlegion.graph.operator_type import DimKind
from flexlegion.graph.tensor import Tensor
from flexlegion.machine.topology import Topology
from flexlegion.model.model import Model
from flexlegion.networks.references import described_sizes
from flexlegion.objective.losses import Losses, Weights, chosen_loss, is_named
from flexlegion.objective.optimizers import DEFAULT_OPTIMIZER, Optimizer, optimizer_of
from flexlegion.objective.precision import DEFAULT, DEFAULT_STORAGE, check_precision, check_storage
from flexlegion.sim.problem import Problem, Space
from flexlegion.strategy.configuration import SPLIT
from flexlegion.strategy.granularity import DEFAULT_GRANULARITY, Granularity
from flexlegion.strategy.strategy import GRAPH
from flexlegion.transforms.losses import add_losses
from flexlegion.transforms.storage import stored


@dataclass(frozen=True)
class Network:
    """A model with how it is trained.

    Parameters
    ----------
    model
        Its layers; compiled or not.
    graph
        The model's, with the loss.
    outputs
        What prediction returns.
    loss
        As `Model.compile` takes it.
    optimizer
        With its states.
    precision
        In which GPUs compute.
    storage
        What activations are stored as.
    """

    model: Model
    graph: Graph = field(repr=False)
    outputs: tuple[Tensor, ...]
    loss: Losses
    optimizer: Optimizer
    precision: str = DEFAULT
    storage: str = DEFAULT_STORAGE

    @classmethod
    def of(
        cls,
        model: Model,
        loss: Losses | None = None,
        optimizer: str | Optimizer = DEFAULT_OPTIMIZER,
        precision: str = DEFAULT,
        loss_weights: Weights = None,
        storage: str = DEFAULT_STORAGE,
    ) -> Network:
        """A model with its training.

        Parameters
        ----------
        model
            Any; nothing about it changes.
        loss
            As `Model.compile` takes it; None: what the model itself says (`Model.loss`), or
            `losses.DEFAULT_LOSS`, as there.
        optimizer
            An optimizer, or the name of one with its defaults.
        precision
            "fp32", "tf32" or "bf16".
        loss_weights
            Of several losses.
        storage
            What activations are stored as: "fp32", "bf16" or "fp16".

        Raises
        ------
        UserError
            If the model has no layers, or something does not fit.
        """
        check_precision(precision)
        check_storage(storage)
        chosen = optimizer_of(optimizer)
        outputs = tuple(model.outputs)
        loss = chosen_loss(loss, model.loss, outputs)
        graph = add_losses(model.graph, outputs, loss, loss_weights)
        graph, outputs = stored(graph, outputs, storage)
        return cls(model, graph, outputs, loss, chosen, precision, storage)

    @property
    def batch_size(self) -> int:
        """Samples an iteration, over all devices."""
        return self.model.batch_size

    @property
    def reference(self) -> str | None:
        """How the model was named; None: it was made here."""
        return None if self.model.reference is None else self.model.reference.name

    @property
    def sizes(self) -> Mapping[str, Any]:
        """Those sizes of the model that differ from its own because somebody said so."""
        return {} if self.model.reference is None else self.model.reference.sizes

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """Of the graph."""
        return Fingerprint.of(self.graph)

    def problem(
        self,
        topology: Topology,
        costs: CostModel,
        dimensions: Collection[DimKind] = SPLIT,
        granularity: Granularity = DEFAULT_GRANULARITY,
        space: Space | None = None,
    ) -> Problem:
        """The network on a machine, for simulations of plans that are cut that finely.

        Searches split these kinds of dimensions, and choose from a space.
        """
        return Problem(
            self.graph,
            topology,
            costs,
            self.outputs,
            self.optimizer.states,
            self.optimizer.clips,
            granularity,
            dimensions,
            space,
        )

    def about(self) -> dict[str, Any]:
        """For files and JSON: what it takes to build it again.

        A loss that is more than names is the model's own, or has to be said again: None.
        """
        return {
            "model": self.reference,
            "batch_size": self.batch_size,
            "sizes": {k: list(v) if isinstance(v, tuple) else v for k, v in self.sizes.items()},
            "loss": self.loss if is_named(self.loss) else None,
            "optimizer": self.optimizer.type,
            "hyperparameters": asdict(self.optimizer),
            "precision": self.precision,
            "storage": self.storage,
            "fingerprint": self.fingerprint.value,
        }

    def found(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """What a strategy file says of the network, with other facts, and with the graph."""
        return self.about() | dict(facts) | {GRAPH: dict(self.fingerprint.operators)}

    @property
    def goal(self) -> str:
        """Optimizer and loss, for people: ``sgd, mean_squared_error``."""
        if not is_named(self.loss):
            return f"{self.optimizer.type}, a loss of its own"
        several: Any = self.loss.values() if isinstance(self.loss, Mapping) else self.loss
        losses = [several] if isinstance(several, str) else several
        return f"{self.optimizer.type}, {' and '.join(dict.fromkeys(losses))}"

    def __str__(self) -> str:
        sizes = described_sizes(self.sizes)
        precision = "" if self.precision == DEFAULT else f", {self.precision}"
        storage = "" if self.storage == DEFAULT_STORAGE else f", stored as {self.storage}"
        return f"{self.reference or 'model'} (batch {self.batch_size}{sizes}{precision}{storage})"

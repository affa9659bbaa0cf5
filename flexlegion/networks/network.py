"""A network: a model with how it is trained, which is what searches and simulations are about."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
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
from flexlegion.objective.losses import is_named
from flexlegion.objective.precision import DEFAULT, DEFAULT_STORAGE
from flexlegion.objective.training import DEFAULT_TRAINING, TrainingSpec
from flexlegion.sim.problem import Problem, Space
from flexlegion.strategy.configuration import SPLIT
from flexlegion.strategy.granularity import DEFAULT_GRANULARITY, Granularity
from flexlegion.strategy.strategy import GRAPH
from flexlegion.transforms.training import as_trained


@dataclass(frozen=True)
class Network:
    """A model with how it is trained.

    Parameters
    ----------
    model
        Its layers; compiled or not.
    graph
        The model's, as it is trained (`as_trained`).
    outputs
        What prediction returns.
    training
        How it is trained, with the loss that was chosen.
    """

    model: Model
    graph: Graph = field(repr=False)
    outputs: tuple[Tensor, ...]
    training: TrainingSpec

    @classmethod
    def of(cls, model: Model, training: TrainingSpec = DEFAULT_TRAINING) -> Network:
        """A model that is trained like that; nothing about the model itself changes.

        Raises
        ------
        UserError
            If the model has no layers, or something does not fit.
        """
        return cls(model, *as_trained(model.graph, model.outputs, model.loss, training))

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
            self.training.optimizer.states,
            self.training.optimizer.clips,
            granularity,
            dimensions,
            space,
            self.training.optimizer.lazy,
        )

    def about(self) -> dict[str, Any]:
        """For files and JSON: what it takes to build it again."""
        sizes = {k: list(v) if isinstance(v, tuple) else v for k, v in self.sizes.items()}
        its = {"model": self.reference, "batch_size": self.batch_size, "sizes": sizes}
        return its | self.training.facts() | {"fingerprint": self.fingerprint.value}

    def found(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """What a strategy file says of the network, with other facts, and with the graph."""
        return self.about() | dict(facts) | {GRAPH: dict(self.fingerprint.operators)}

    @property
    def goal(self) -> str:
        """Optimizer and loss, for people: ``sgd, mean_squared_error``."""
        loss, optimizer = self.training.loss, self.training.optimizer.type
        if not is_named(loss):
            return f"{optimizer}, a loss of its own"
        several: Any = loss.values() if isinstance(loss, Mapping) else loss
        losses = [several] if isinstance(several, str) else several
        return f"{optimizer}, {' and '.join(dict.fromkeys(losses))}"

    def __str__(self) -> str:
        sizes = described_sizes(self.sizes)
        its = self.training
        precision = "" if its.precision == DEFAULT else f", {its.precision}"
        storage = "" if its.storage == DEFAULT_STORAGE else f", stored as {its.storage}"
        number = its.micro_batches
        parts = "" if number == 1 else f" in {number:,} micro-batches"
        what = f"batch {self.batch_size}{parts}{sizes}{precision}{storage}"
        return f"{self.reference or 'model'} ({what})"

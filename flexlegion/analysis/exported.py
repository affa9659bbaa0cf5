"""What all exports of strategies have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from flexlegion.analysis.setting import Setting
from flexlegion.graph.tensor import Tensor
from flexlegion.strategy.strategy import ResolvedStrategy

if TYPE_CHECKING:
    from flexlegion.graph.initializers import Array

SHOWN = 12  # kinds of replacements in a text
MAX_WIDTH = 80


@dataclass(frozen=True)
class Exported(ABC):
    """What `export` returns.

    Attributes
    ----------
    text : str
        The file.
    strategy : ResolvedStrategy
        What it does: the given one, but for what is replaced.
    iteration_time_ns, given_time_ns : int
        Simulated in flexlegion's runtime, of what the file does and of the strategy as it was
        given.
    setting : Setting
        Model and machine.
    name : str
        The strategy's, as it was given.
    target : str
        "dtensor", "jax", "megatron" or "torchtitan".
    kind : str
        What the file says: a "program", or a "division" of training.
    """

    kind: ClassVar[str]

    text: str
    strategy: ResolvedStrategy
    iteration_time_ns: int
    given_time_ns: int
    setting: Setting
    name: str
    target: str

    @property
    @abstractmethod
    def fits(self) -> bool:
        """Whether what it needs is within each device's memory."""

    @abstractmethod
    def memory_said(self) -> str:
        """What it needs of memory, in words."""

    @property
    def others(self) -> list[Tensor]:
        """The weights that the file has to be given, and that no module holds."""
        return []

    def first_values(self) -> dict[str, Array]:
        """What `others` begin with, by name."""
        seed = self.setting.network.model.seed
        return {
            weight.name: weight.initializer(weight.shape, weight.name, seed, weight.host_dtype)
            for weight in self.others
            if weight.initializer is not None
        }

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return self.setting.about() | {
            "target": self.target,
            "strategy": self.name,
            "iteration_time_ns": self.iteration_time_ns,
            "given_time_ns": self.given_time_ns,
        }

"""What systems that train large models are told: a decoder, how it is trained, and on what."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from flexlegion.base.errors import UserError
from flexlegion.exporters.decoder import Decoder
from flexlegion.exporters.nearest import Nearest
from flexlegion.objective.optimizers import Adam, AdamW, LazyAdam
from flexlegion.objective.training import TrainingSpec
from flexlegion.spmd.ways import Again, Ways


@dataclass(frozen=True)
class Job:
    """A decoder's training.

    Parameters
    ----------
    decoder
        What is trained.
    training
        How.
    batch
        Samples of an iteration.
    nodes
        The number of devices in each.
    """

    decoder: Decoder
    training: TrainingSpec
    batch: int
    nodes: tuple[int, ...]

    def micro_batch(self, ways: Ways) -> int:
        """Samples of a micro-batch that a device has."""
        return self.batch // (self.training.micro_batches * ways.data)


class System(ABC):
    """A system that divides training by the usual ways, and reads a file that says how.

    Attributes
    ----------
    name, version : str
        As `export` is told it; and of which the options are.
    runner : str
        As what it is simulated, one of `flexlegion.spmd.system.RUNNERS`.
    again : sequence
        What it can compute again.
    shards : mapping
        What it has of ZeRO's stages, by those that a strategy may have: 1, 2 and 3.
    """

    name: ClassVar[str]
    version: ClassVar[str]
    runner: ClassVar[str]
    again: ClassVar[Sequence[Again]]
    shards: ClassVar[Mapping[int, int]]

    def check(self, job: Job) -> None:
        """Raise `UserError` if it cannot train in that way, whatever the division."""
        optimizer = job.training.optimizer
        if isinstance(optimizer, LazyAdam):
            raise UserError(f"{self.name} has no {optimizer.type}; give optimizer {Adam.type}")
        for option, value in (("ema", optimizer.ema), ("groups", optimizer.groups)):
            if value:
                raise UserError(
                    f"a file for {self.name} does not say an optimizer's {option}; leave it out, "
                    "and add it there"
                )

    def refusal(self, job: Job, ways: Ways) -> str | None:
        """Why it cannot run these degrees; None: it can."""
        model, block = job.decoder, job.decoder.block
        tensor, rounds = ways.tensor, job.training.micro_batches
        parts = ways.data * rounds
        if job.batch % parts:
            return (
                f"{job.batch} samples are no multiple of {parts}, data parallelism x micro-batches"
            )
        for size, what in (
            (block.heads, "heads"),
            (block.ffn, "units of a block's network"),
            (model.steps if ways.sequence else tensor, "positions"),
        ):
            if size % tensor:
                return f"tensor parallelism of {tensor} does not divide {size:,} {what}"
        if ways.context > 1 and model.steps % (2 * ways.context * tensor):
            return f"{model.steps:,} positions are no multiple of {2 * ways.context * tensor}"
        if block.experts % ways.expert:
            return f"expert parallelism of {ways.expert} does not divide {block.experts} experts"
        if ways.pipeline * ways.runs > model.layers:
            return f"{model.layers} blocks are too few for {ways.pipeline * ways.runs} stages"
        if ways.runs > 1 and rounds % ways.pipeline:
            return f"{rounds} micro-batches do not go round {ways.pipeline} stages in equal groups"
        return None

    @abstractmethod
    def lost(self, job: Job, ways: Ways) -> list[str]:
        """What is otherwise than model and training say, but for the division of operators."""

    @abstractmethod
    def text(self, job: Job, nearest: Nearest, title: Sequence[str]) -> str:
        """The file, under a title of lines."""


def decay_of(job: Job) -> float:
    """The optimizer's weight decay."""
    return float(getattr(job.training.optimizer, "weight_decay", 0.0))


def is_coupled(job: Job) -> bool:
    """Whether weights decay by a penalty's gradient that goes through Adam's moments."""
    optimizer = job.training.optimizer
    return isinstance(optimizer, Adam) and not isinstance(optimizer, AdamW) and decay_of(job) > 0


def layers_of(nearest: Nearest) -> list[int]:
    """How many blocks each run of a pipeline has."""
    return [
        sum(op.kind.type == "multi_head_attention" for op in run.operators)
        for run in nearest.program.runs
    ]

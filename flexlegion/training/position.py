"""Where training is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Position:
    """How far training is, since `Model.compile`.

    Parameters
    ----------
    epoch
        Passes over the samples that are complete.
    batch
        Iterations of the current pass that are complete.
    step
        Iterations of all passes that are complete.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0

    def after(self, batches: int) -> Position:
        """The position so many iterations later, in the same pass."""
        return Position(self.epoch, self.batch + batches, self.step + batches)

    def next_epoch(self) -> Position:
        """The beginning of the next pass."""
        return Position(self.epoch + 1, 0, self.step)

"""Callbacks: what `Model.fit` calls while it trains (``fit(callbacks=[...])``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flexlegion.runtime.position import Position

if TYPE_CHECKING:
    from flexlegion.runtime.training import Training

# Names and values: the loss, metrics; after an epoch also those of the validation data, the time.
Values = Mapping[str, float]


class Callback:
    """Called while a model trains; replace the methods that you need.

    Every rank calls the same methods with the same values in the same order, so a callback may read
    and write weights (``training.model.get_weights()``), which all ranks have to do together. What
    it prints or writes should come from one: ``training.first_rank``.

    Up to four iterations are computed at a time, and of several ranks' losses 0.2 seconds' worth
    are exchanged at a time. So `on_batch_end` hears of an iteration while later ones run; weights
    that it reads are later ones. In `on_epoch_end` nothing runs.
    """

    def on_train_begin(self, training: Training) -> None:
        """Before the first iteration, and before a resumed one."""

    def on_train_end(self, training: Training) -> None:
        """After the last iteration; not after an interruption, or a loss that is not finite."""

    def on_epoch_begin(self, training: Training) -> None:
        """Before the first iteration of an epoch, or the one that it is resumed with."""

    def on_epoch_end(self, training: Training, values: Values) -> None:
        """After an epoch's training and validation.

        Parameters
        ----------
        training
            Its position is already the beginning of the next epoch.
        values
            As in `History`.
        """

    def on_batch_end(self, training: Training, values: Values) -> None:
        """After each iteration.

        Parameters
        ----------
        training
            Its position is the one after this iteration.
        values
            Loss and metrics of its batch.
        """

    def on_interrupt(self, training: Training) -> str | None:
        """SIGINT or SIGTERM has ended training; nothing runs, and `fit` is about to raise.

        Returns
        -------
        str or None
            What was saved and where, for the sentence that tells the user.
        """

    # For callbacks that save what is trained

    def due(self, position: Position) -> bool:  # noqa: ARG002
        """Whether to call `on_due` once training is there.

        Asked on every rank before `position` is reached, and all have to answer alike: by counts of
        iterations, never by a clock.
        """
        return False

    def due_by_clock(self) -> bool:
        """Whether to call `on_due` as soon as all ranks can; the first rank is asked.

        That is after each iteration, on several ranks every 0.2 seconds.
        """
        return False

    def on_due(self, training: Training) -> None:
        """Nothing runs, and all iterations up to ``training.position`` had finite losses."""

    def state(self) -> dict[str, Any]:
        """What this callback has to know to go on in another process; as JSON takes it."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""

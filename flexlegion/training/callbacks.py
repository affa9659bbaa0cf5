"""Callbacks: what `Model.fit` calls while it trains (``fit(callbacks=[...])``)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from flexlegion.base.arguments import typed_methods
from flexlegion.base.errors import UserError
from flexlegion.base.files import check_weights_name, check_writable
from flexlegion.base.quoting import say
from flexlegion.console.text import count
from flexlegion.training.position import Position

if TYPE_CHECKING:
    from flexlegion.training.fit import Training

# Names and values: the loss, metrics; after an epoch also those of the validation data, the time.
Values = Mapping[str, float]


class Callback:
    """Called while a model trains; replace the methods that you need.

    Every rank calls the same methods with the same values in the same order, so a callback may read
    and write weights (``training.model.get_weights()``), which all ranks have to do together. What
    it prints or writes should come from one: ``training.first_rank``.

    Up to four iterations are computed at a time, and of several ranks' losses 0.2 seconds' worth
    are exchanged at a time. So `on_batch_end` hears of an iteration while later ones run; weights
    that it reads are later ones. In `on_epoch_end` nothing runs, so there a callback can also
    predict and evaluate.
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

    def on_divergence(self, training: Training) -> None:
        """A loss is not finite; nothing runs, and `fit` is about to raise."""

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


class _Best(Callback):
    """Follows one value of each epoch.

    Parameters
    ----------
    monitor
        Its name, as in `History`: "val_loss", "accuracy". None: "val_loss" where there are
        validation data, otherwise "loss".
    min_delta
        By how much it has to be better than the best so far; at least 0.
    mode
        "min": less is better, "max": more is. "auto": more, of accuracies.

    Attributes
    ----------
    best
        The best value; nan before the first.
    best_epoch
        The epoch's number, from 1.
    """

    def __init__(self, monitor: str | None, min_delta: float, mode: str) -> None:
        if mode not in ("auto", "min", "max"):
            raise UserError(f"mode has to be auto, min or max, but is {mode!r}")
        if not 0 <= min_delta < math.inf:
            raise UserError(f"min_delta has to be at least 0, but is {min_delta}")
        self.monitor, self.min_delta, self.mode = monitor, min_delta, mode
        self.best, self.best_epoch = math.nan, 0

    def on_train_begin(self, training: Training) -> None:
        """Find out early whether there is such a value."""
        if self.monitor is not None and self.monitor not in training.names:
            raise UserError(
                f"{type(self).__name__}: an epoch has no '{self.monitor}' to watch; it has "
                f"{', '.join(training.names)}"
            )
        if not training.resumed:
            self.best, self.best_epoch = math.nan, 0

    def better(self, training: Training, values: Values) -> bool:
        """Whether an epoch is the best so far, which is then noted."""
        monitor = self.monitor or ("val_loss" if "val_loss" in values else "loss")
        value = values[monitor]
        rises = self.mode == "max" or (self.mode == "auto" and monitor.endswith("accuracy"))
        gain = value - self.best if rises else self.best - value
        if math.isnan(value) or (self.best_epoch and gain <= self.min_delta):
            return False
        self.best, self.best_epoch = value, training.epoch
        return True

    def state(self) -> dict[str, Any]:
        """See `Callback`."""
        return {"best": self.best, "best_epoch": self.best_epoch}

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Callback`."""
        best = state["best"]
        self.best = math.nan if best is None else float(best)
        self.best_epoch = int(state["best_epoch"])


@typed_methods
class EarlyStopping(_Best):
    """Ends training when a value has not become better for some epochs.

    Parameters
    ----------
    monitor
        Which value: "val_loss", "accuracy". None: "val_loss" where there are validation data,
        otherwise "loss".
    patience
        After how many epochs in a row without a better value; at least 1.
    min_delta
        By how much a value has to be better to count.
    mode
        "min": less is better, "max": more is. "auto": more, of accuracies.
    restore_best
        Whether the model gets the best epoch's weights back when training ends this way, or by
        itself. They are kept in memory, so not across `Model.resume_training`.

    Attributes
    ----------
    best, best_epoch
        The best value, and the number of its epoch, from 1.
    """

    def __init__(
        self,
        monitor: str | None = None,
        patience: int = 3,
        min_delta: float = 0.0,
        mode: str = "auto",
        restore_best: bool = False,
    ) -> None:
        super().__init__(monitor, min_delta, mode)
        if patience < 1:
            raise UserError(f"patience has to be at least 1 epoch, but is {patience}")
        self.patience, self.restore_best = patience, restore_best
        # Of the best epoch: the weights, and their averages if there are some.
        self._weights: list[dict[str, npt.NDArray[Any]]] = []

    def on_train_begin(self, training: Training) -> None:
        """See `Callback`."""
        super().on_train_begin(training)
        self._weights = []
        if training.resumed and training.epoch - self.best_epoch >= self.patience:
            training.stop()  # it was in the other process

    def on_epoch_end(self, training: Training, values: Values) -> None:
        """See `Callback`."""
        if self.better(training, values):
            if self.restore_best:
                kinds = (False, True) if training.averages else (False,)
                self._weights = [training.model.get_weights(kind) for kind in kinds]
        elif training.epoch - self.best_epoch >= self.patience:
            if training.prints:
                say(
                    f"stopped early: no better for {count(self.patience, 'epoch')} than "
                    f"{self.best:.4g} after epoch {self.best_epoch}"
                )
            training.stop()

    def on_train_end(self, training: Training) -> None:
        """See `Callback`."""
        if self.restore_best and self._weights:
            for averages, weights in enumerate(self._weights):
                training.model.set_weights(weights, bool(averages))
        elif self.restore_best and self.best_epoch:
            warnings.warn(
                f"the best weights, of epoch {self.best_epoch}, are those of another process; "
                "have BestWeights write them to a file",
                stacklevel=2,
            )


@typed_methods
class BestWeights(_Best):
    """Writes the weights of the best epoch so far to a file, each time when there is a better one.

    They are the moving averages where the optimizer keeps these (`ema`): what is validated.

    Parameters
    ----------
    path
        The file, for `Model.load_weights`.
    monitor, min_delta, mode
        As of `EarlyStopping`.
    """

    def __init__(
        self,
        path: str | Path,
        monitor: str | None = None,
        min_delta: float = 0.0,
        mode: str = "auto",
    ) -> None:
        check_weights_name(path)
        super().__init__(monitor, min_delta, mode)
        self.path = Path(path)

    def on_train_begin(self, training: Training) -> None:
        """Find out early whether the file can be written, too."""
        super().on_train_begin(training)
        if training.first_rank:
            check_writable(self.path, "weights")

    def on_epoch_end(self, training: Training, values: Values) -> None:
        """See `Callback`."""
        if self.better(training, values):
            with training.validated():
                training.model.save_weights(self.path)

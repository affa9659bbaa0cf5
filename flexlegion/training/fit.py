"""A call of `Model.fit`: its epochs, validation and callbacks, and how it ends before its time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from flexlegion.base.errors import DivergenceError, UserError
from flexlegion.console.text import count
from flexlegion.objective.metrics import MetricSums, Totals, check_counted
from flexlegion.process.ending import Request, ended
from flexlegion.sim.throughput import rates, tokens_of_sample
from flexlegion.training.callbacks import Callback
from flexlegion.training.feeds import Feed
from flexlegion.training.loss_scale import LossScale
from flexlegion.training.position import Position
from flexlegion.training.program import EVALUATE, TRAIN
from flexlegion.training.progress import EpochProgress
from flexlegion.training.trainer import Watcher, run_series

if TYPE_CHECKING:
    from flexlegion.training.compiled import Compiled
    from flexlegion.training.trained import TrainedModel


@dataclass
class History:
    """What `Model.fit` measured.

    Parameters
    ----------
    epochs
        For each epoch: loss and metrics over its training data, ``val_``-prefixed ones over the
        validation data if there were any, ``seconds`` and ``samples_per_second`` of training, and
        where samples are rows of tokens ``tokens_per_second``.
    """

    epochs: list[dict[str, float]] = field(default_factory=list)


# What the first rank's watcher tells all: the number of a signal, or 0; whether to stop; and above
# that a bit for each callback that is due.
_STOP = 1 << 8
_FIRST_DUE = 9
_ADVICE = "training has diverged; try a lower learning rate or clip_norm (allow_nan would go on)"


class Training:
    """A running call of `Model.fit`, as callbacks see it.

    Parameters
    ----------
    model, compiled
        What is trained.
    epochs
        How many passes over the samples.
    callbacks
        In the order in which they are called.
    allow_nan
        Whether to go on after a loss that is not finite.
    request
        Of a signal to end.

    Attributes
    ----------
    position
        Where training is: after the iteration, or the epoch, that a callback is told of.
    history
        Of the epochs so far.
    names
        Of the values that each epoch has.
    resumed
        Whether this goes on where another call was; see `Model.resume_training`.
    prints
        Whether this process prints progress.
    """

    def __init__(
        self,
        model: TrainedModel,
        compiled: Compiled,
        epochs: int,
        callbacks: Sequence[Callback] = (),
        allow_nan: bool = False,
        request: Request | None = None,
    ) -> None:
        self.model, self.epochs = model, epochs
        self.position = compiled.position
        self.history = History()
        self._compiled, self._callbacks, self._allow_nan = compiled, list(callbacks), allow_nan
        self._request = Request() if request is None else request
        self._began = self.position.epoch  # epochs that were complete before this call
        self.names: list[str] = []
        self.resumed = self.prints = False
        self._samples = 0  # an epoch
        self._tokens: int | None = None  # a sample
        self._total, self._seconds = Totals(), 0.0  # of the epoch so far
        self._stop_wanted = self._stopped = False

    @property
    def first_rank(self) -> bool:
        """Whether this process is the one that prints and writes."""
        return self._compiled.machine.rank == 0

    @property
    def epoch(self) -> int:
        """How many epochs of this call are complete."""
        return self.position.epoch - self._began

    @property
    def learning_rate(self) -> float:
        """That of the last iteration before the position."""
        return self._compiled.rate_after(self.position.step)

    @property
    def averages(self) -> bool:
        """Whether weights have moving averages, which are what is validated."""
        return self._compiled.training.optimizer.ema is not None

    def validated(self) -> AbstractContextManager[None]:
        """Meanwhile the model's weights are those that are validated: the averages, if it has."""
        return self.model.averaged() if self.averages else nullcontext()

    def about(self) -> dict[str, Any]:
        """What is trained, how, and on what; for JSON."""
        reference = self.model.reference
        its = {"model": None if reference is None else reference.name}
        return its | {"batch_size": self.model.batch_size} | self._compiled.about()

    def stop(self) -> None:
        """End training once the running iterations have ended; `fit` returns as usual.

        On several ranks, what the first one's callbacks say counts.
        """
        self._stop_wanted = True

    def state(self) -> dict[str, Any]:
        """What another process has to know to go on from here, beside the model's tensors.

        It is as JSON takes it, but for values that are not finite; see `Model.resume_training`.
        """
        states = [callback.state() for callback in self._callbacks]
        scale = self._compiled.program.loss_scale
        state = {
            "position": asdict(self.position),
            "began": self._began,
            "samples": self._samples,
            "seconds": self._seconds,
            "total": asdict(self._total),
            "history": self.history.epochs,
            "callbacks": dict(zip(self._names(), states, strict=True)),
        }
        return state if scale is None else state | {"loss_scale": asdict(scale)}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`; values that are None were not finite.

        Raises
        ------
        UserError
            If it is of another training.
        """
        self.resumed = True
        self.position = Position(**state["position"])
        self._began, self._samples = state["began"], state["samples"]
        total, terms = state["total"], len(self._compiled.goal.terms)
        losses = [MetricSums(**_finite_or_nan(sums)) for sums in total["losses"]]
        if len(losses) not in (0, terms):
            raise UserError(
                f"training was interrupted with {len(losses)} losses, but the model has {terms}; "
                "go on with the same"
            )
        self._total = Totals(losses, total["samples"], total["batches"])
        self._seconds = state["seconds"]
        if state.get("loss_scale") is not None and self._compiled.program.loss_scale is not None:
            self._compiled.program.loss_scale = LossScale(**state["loss_scale"])
        self.history.epochs = [_finite_or_nan(values) for values in state["history"]]
        for name, callback in zip(self._names(), self._callbacks, strict=True):
            if name not in state["callbacks"]:
                continue
            try:
                callback.load_state(state["callbacks"][name])
            except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as e:
                raise UserError(
                    f"the callback {name} cannot go on from what was kept of it "
                    f"({type(e).__name__}: {e}); leave it out, or begin anew"
                ) from e

    def run(self, feed: Feed, validation: Feed | None, shuffle: bool, progress: bool) -> History:
        """Train.

        Parameters
        ----------
        feed, validation
            The data.
        shuffle, progress
            As in `Model.fit`.

        Raises
        ------
        DivergenceError
            If a loss is not finite.
        Interrupted
            If a signal has ended it.
        """
        if self._samples not in (0, feed.samples):
            raise UserError(
                f"training was interrupted with {self._samples} samples an epoch, but now there "
                f"are {feed.samples}; go on with the same data"
            )
        self._samples = feed.samples
        self._tokens = tokens_of_sample(self._compiled.graph)
        goal = self._compiled.goal
        values = list(goal.means([MetricSums()] * len(goal.terms)))
        validated = [f"val_{name}" for name in values if validation is not None]
        self.names = [*values, *validated, "seconds", *self._rates(0.0)]
        self.prints = progress and self.first_rank
        try:
            for callback in self._callbacks:
                callback.on_train_begin(self)
            self._agree()
            while not self._stopped and self.epoch < self.epochs:
                self._epoch(feed, validation, shuffle)
            for callback in self._callbacks:
                callback.on_train_end(self)
        except DivergenceError:
            for callback in self._callbacks:
                callback.on_divergence(self)
            raise
        finally:
            # Another call begins with another epoch, and so with another order of the samples.
            part = self.position.batch > 0
            self._compiled.position = self.position.next_epoch() if part else self.position
        return self.history

    # Inside

    def _epoch(self, feed: Feed, validation: Feed | None, shuffle: bool) -> None:
        for callback in self._callbacks:
            callback.on_epoch_begin(self)
        epoch, compiled = self.position.epoch, self._compiled
        rng = np.random.default_rng([self.model.seed, epoch])
        rows = rng.permutation(feed.samples) if shuffle else np.arange(feed.samples)
        label = f"epoch {self.epoch + 1}/{self.epochs}"
        done, started = self._total.samples, perf_counter()
        with EpochProgress(label, feed.samples, compiled.goal, self.prints, done) as bar:
            steps = _Steps(self, bar.update)
            run_series(
                compiled.program,
                TRAIN,
                feed.batches(rows, epoch, self.position.batch),
                first_step=self.position.step,
                lr=compiled.training.optimizer.lr,
                schedule=compiled.schedule,
                watcher=steps,
                total=self._total,
            )
            steps.note_time()
        if steps.failure is not None:
            raise steps.failure
        self._obey(steps)
        if self._stopped:
            return
        check_counted(compiled.goal, self._total.losses, "the training data")
        values = compiled.goal.means(self._total.losses)
        speed = self._total.samples / max(self._seconds, 1e-9)
        if validation is not None:
            values |= {f"val_{name}": value for name, value in self._validate(validation).items()}
        left = (self.epochs - self.epoch - 1) * (perf_counter() - started)
        of_tokens = self._rates(speed).get("tokens_per_second")
        bar.finish(values, rates(speed, of_tokens), left if done == 0 else 0.0)
        values |= {"seconds": self._seconds} | self._rates(speed)
        self.history.epochs.append(values)
        self.position = self.position.next_epoch()
        self._total, self._seconds = Totals(), 0.0
        for callback in self._callbacks:
            callback.on_epoch_end(self, values)
        self._agree()

    def _rates(self, samples: float) -> dict[str, float]:
        """What an epoch's values say of so many samples a second."""
        its = {"samples_per_second": samples}
        return its if self._tokens is None else its | {"tokens_per_second": self._tokens * samples}

    def _validate(self, feed: Feed) -> dict[str, float]:
        wishes = _Wishes(self)
        series = feed.batches(np.arange(feed.samples), 0)
        with self.validated():
            sums = run_series(self._compiled.program, EVALUATE, series, watcher=wishes)
        self._obey(wishes)
        what = f"on the validation data after epoch {self.epoch + 1}"
        failure = self._failure(sums.losses, what)
        if failure is not None:
            raise failure
        check_counted(self._compiled.goal, sums.losses, "the validation data")
        return self._compiled.goal.means(sums.losses)

    def _agree(self) -> None:
        """Do between epochs what the first rank wishes."""
        wishes = _Wishes(self)
        wishes.hear(self._compiled.program.all_metrics([], wishes.wish())[1])
        self._obey(wishes)

    def _obey(self, wishes: _Wishes) -> None:
        """End, if a signal has asked for it."""
        self._stopped = wishes.over
        if not wishes.signal:
            return
        where = f"in epoch {self.epoch + 1}/{self.epochs}"
        if self.position.batch == 0:
            where = f"after epoch {self.epoch}/{self.epochs}"
        texts = [f"interrupted {where}, after {count(self.position.step, 'iteration')}"]
        texts += filter(None, [callback.on_interrupt(self) for callback in self._callbacks])
        raise ended(wishes.signal, "; ".join(texts))

    def _failure(self, losses: Sequence[MetricSums], where: str) -> DivergenceError | None:
        """What to raise if a loss is not finite, or gradients that nothing scales any more."""
        if self._allow_nan:
            return None
        scale = self._compiled.program.loss_scale
        if losses[0].overflows and scale is not None and scale.exhausted:
            return DivergenceError(
                f"gradients are not finite {where}, although they are not scaled any more; "
                f"{_ADVICE}"
            )
        for term, sums in zip(self._compiled.goal.terms, losses, strict=True):
            if not math.isfinite(sums.loss):
                of = f" of '{term.name}'" if term.name else ""
                return DivergenceError(f"the loss{of} is {sums.loss} {where}; {_ADVICE}")
        return None

    def _names(self) -> list[str]:
        """A name for each callback, by which another process finds its state."""
        names = [type(callback).__name__ for callback in self._callbacks]
        return [f"{name} {names[:i].count(name) + 1}" for i, name in enumerate(names)]


class _Wishes(Watcher):
    """Has all ranks end a series because of a signal to the first one, or `Training.stop`."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.signal = 0

    def wish(self) -> int:
        """See `Watcher`."""
        return self.training._request.number | (_STOP if self.training._stop_wanted else 0)

    def hear(self, wish: int) -> None:
        """See `Watcher`."""
        self.signal = wish & (_STOP - 1)
        self.over = self.over or wish & (2 * _STOP - 1) != 0


class _Steps(_Wishes):
    """Has callbacks called in an epoch's training, and ends it where a loss is not finite."""

    def __init__(self, training: Training, show: Callable[[Totals], None]) -> None:
        super().__init__(training)
        self.failure: DivergenceError | None = None
        self._show = show
        self._issued = training.position
        self._due: set[int] = set()  # callbacks that want a rest
        self._started = perf_counter()
        # Most callbacks look at epochs alone, and cost nothing in between.
        callbacks = training._callbacks
        self._of_batches = [c for c in callbacks if _replaces(c, "on_batch_end")]
        self._of_counts = [i for i, c in enumerate(callbacks) if _replaces(c, "due")]
        self._of_clocks = [i for i, c in enumerate(callbacks) if _replaces(c, "due_by_clock")]

    def wish(self) -> int:
        """See `Watcher`."""
        callbacks = self.training._callbacks
        due = sum(1 << _FIRST_DUE + i for i in self._of_clocks if callbacks[i].due_by_clock())
        return super().wish() | due

    def hear(self, wish: int) -> None:
        """See `Watcher`."""
        super().hear(wish)
        self._due.update(i for i in self._of_clocks if wish >> _FIRST_DUE + i & 1)

    def issued(self) -> bool:
        """See `Watcher`."""
        self._issued = self._issued.after(1)
        callbacks = self.training._callbacks
        self._due.update(i for i in self._of_counts if callbacks[i].due(self._issued))
        return bool(self._due)

    def at_rest(self) -> None:
        """See `Watcher`."""
        due, self._due = sorted(self._due), set()
        if self.failure is None:
            self.note_time()
            for i in due:
                self.training._callbacks[i].on_due(self.training)

    def finished(self, losses: Sequence[MetricSums], total: Totals) -> None:
        """See `Watcher`."""
        if self.failure is not None:
            return
        training = self.training
        training.position = position = training.position.after(1)
        if losses[0].overflows or not all(math.isfinite(sums.loss) for sums in losses):
            where = f"in iteration {position.step} (epoch {training.epoch + 1})"
            self.failure = training._failure(losses, where)
            if self.failure is not None:
                self.over = True
                return
        self._show(total)
        if self._of_batches:
            values = training._compiled.goal.means(losses)
            for callback in self._of_batches:
                callback.on_batch_end(training, values)

    def note_time(self) -> None:
        """Add the time since the last call to the epoch's."""
        before, self._started = self._started, perf_counter()
        self.training._seconds += self._started - before


def _replaces(callback: Callback, method: str) -> bool:
    return getattr(type(callback), method) is not getattr(Callback, method)


def _finite_or_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as JSON brings them back, which has no numbers that are not finite."""
    return {name: math.nan if value is None else value for name, value in values.items()}

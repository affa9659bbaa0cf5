"""A model: its layers (layers.py), then compile, fit, evaluate, predict."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion import summary as _summary
from flexlegion.arrays import check_labels, check_numbers, check_rows, check_tokens, rows_for
from flexlegion.errors import UserError
from flexlegion.graph import Graph
from flexlegion.layers import Layers
from flexlegion.losses import LABELS_NAME, add_loss
from flexlegion.metrics import check_metrics
from flexlegion.optimizers import Optimizer, optimizer_of
from flexlegion.plan import Plan
from flexlegion.precision import DEFAULT, check_precision, check_used
from flexlegion.report.measured import MeasuredTimeline, recorded
from flexlegion.runtime.feeds import ArrayFeed, Feed, SourceFeed
from flexlegion.runtime.machine import RunningMachine, running_machine
from flexlegion.runtime.program import EVALUATE, NO_BATCH, PREDICT, TRAIN, Program
from flexlegion.runtime.progress import EpochProgress
from flexlegion.runtime.trainer import run_series
from flexlegion.schedules import Schedule, constant
from flexlegion.sources import BatchSource
from flexlegion.strategies import resolve
from flexlegion.strategy import Strategy
from flexlegion.tensor import Tensor

Array = npt.NDArray[Any]


@dataclass
class History:
    """What `Model.fit` measured.

    Parameters
    ----------
    epochs
        For each epoch: loss and metrics over its training data, ``val_``-prefixed ones over the
        validation data if there were any, ``seconds`` and ``samples_per_second`` of training.
    """

    epochs: list[dict[str, float]] = field(default_factory=list)


class Model(Layers):
    """A neural network and its training.

    Parameters
    ----------
    batch_size
        Samples an iteration, over all devices.
    seed
        Decides initial weights, the order of samples, and dropout; never the strategy.

    Examples
    --------
    >>> model = Model(batch_size=64)
    >>> x = model.input((28, 28, 1))
    >>> x = model.conv2d(x, 8, 3, activation="relu")
    >>> x = model.dense(model.flatten(x), 10)
    >>> x = model.softmax(x)
    """

    def __init__(self, batch_size: int, seed: int = 0) -> None:
        if not 0 <= seed < 2**63:
            raise UserError(f"the seed has to be at least 0 and below 2^63, but is {seed}")
        super().__init__(batch_size)
        self.seed = seed
        self._compiled: _Compiled | None = None

    def compile(
        self,
        optimizer: str | Optimizer = "sgd",
        loss: str = "sparse_categorical_crossentropy",
        metrics: Sequence[str] = (),
        strategy: str | Path | Strategy = "data",
        output: Tensor | None = None,
        schedule: Schedule = constant,
        precision: str = DEFAULT,
    ) -> None:
        """Fix how to train; starts Legion, and sets the initial weights.

        Parameters
        ----------
        optimizer
            An optimizer, or the name of one ("sgd", "adam", "adamw") with its defaults.
        loss
            "sparse_categorical_crossentropy", "categorical_crossentropy" or "mean_squared_error".
            The cross-entropies take an output that is a softmax, or else logits.
        metrics
            "accuracy", "top_5_accuracy", "perplexity" with a cross-entropy; "mean_squared_error",
            "mean_absolute_error" otherwise.
        strategy
            A `Strategy`, a file's path, or a built-in one's name: "single", "data", "model",
            "expert", "one-weird-trick", "gnmt", "random:SEED".
        output
            The model's output; the last layer's unless given.
        schedule
            Given the number of a training step, counted from 0 over all calls of `fit`, what to
            multiply the learning rate with; see `flexlegion.schedules`.
        precision
            How GPUs compute products and convolutions: "fp32", or with factors rounded to "tf32" or
            "bf16". Weights, gradients and sums are single precision, and so is what CPU processors
            compute.

        Raises
        ------
        UserError
            If something does not fit.
        """
        output = self._output(output)
        graph = add_loss(self.graph, output, loss)
        graph.require_kernels()
        checked = check_metrics(metrics, loss)
        chosen = optimizer_of(optimizer)
        check_precision(precision)
        machine = running_machine()
        resolved = resolve(strategy, graph, machine.devices)
        check_used(precision, resolved.devices(), resolved.source or "the strategy")
        self.close()
        plan = Plan(graph, resolved, machine.devices, output, chosen.states)
        program = Program(plan, chosen, self.seed, precision)
        self._compiled = _Compiled(
            graph, output, checked, chosen, schedule, resolved, machine, plan, program
        )
        self.set_weights(initial_weights(graph, self.seed))

    def fit(
        self,
        x: Any,
        y: Any = None,
        epochs: int = 1,
        validation_data: tuple[Any, Any] | BatchSource | None = None,
        shuffle: bool = True,
        progress: bool = True,
    ) -> History:
        """Train.

        Parameters
        ----------
        x
            Samples (n, ...) as a NumPy or cuPyNumeric array; for several inputs a list of them.
            Or a `BatchSource`, which brings samples and labels.
        y
            Labels: int (n) for the sparse loss, or (n, steps) of sequences, otherwise float
            (n, ...) like the output. Of the sparse loss, labels of -1 do not count: neither in the
            loss, which is the mean over all the others of a batch, nor in metrics.
        epochs
            Passes over the samples. A last, short batch counts only its own samples.
        validation_data
            A pair (x, y), or a `BatchSource`, to evaluate after each epoch.
        shuffle
            Whether each epoch draws a new order (a function of seed and epoch).
        progress
            Whether to print progress.

        Returns
        -------
        History
            Loss and metrics of each epoch.
        """
        self._ready()
        if epochs < 0:
            raise UserError(f"the number of epochs has to be at least 0, but is {epochs}")
        with self._feeds() as feed_of:
            feed = feed_of(x, y)
            validation = None
            if isinstance(validation_data, BatchSource):
                validation = feed_of(validation_data)
            elif validation_data is not None:
                validation = feed_of(*validation_data)
            return self._train(feed, validation, epochs, shuffle, progress)

    def _train(
        self, feed: Feed, validation: Feed | None, epochs: int, shuffle: bool, progress: bool
    ) -> History:
        state = self._ready()
        samples = feed.samples
        history = History()
        for epoch in range(epochs):
            rng = np.random.default_rng([self.seed, state.epochs_done])
            rows = rng.permutation(samples) if shuffle else np.arange(samples)
            series = feed.batches(rows, state.epochs_done)
            label = f"epoch {epoch + 1}/{epochs}"
            shown = progress and state.machine.rank == 0
            with EpochProgress(label, samples, state.metrics, shown) as bar:
                started = time.perf_counter()
                sums = run_series(
                    state.program,
                    TRAIN,
                    series,
                    first_step=state.steps_done,
                    lr=state.optimizer.lr,
                    schedule=state.schedule,
                    report=bar.update,
                )
                seconds = time.perf_counter() - started
            values = sums.means(state.metrics)
            if validation is not None:
                values |= {f"val_{k}": v for k, v in self._evaluate(validation).items()}
            speed = samples / seconds
            bar.finish(values, speed)
            history.epochs.append(values | {"seconds": seconds, "samples_per_second": speed})
            state.epochs_done += 1
            state.steps_done += -(-samples // self.batch_size)
        return history

    def evaluate(self, x: Any, y: Any = None) -> dict[str, float]:
        """Loss and metrics over samples, without training; arguments as in `fit`."""
        with self._feeds() as feed_of:
            return self._evaluate(feed_of(x, y))

    def predict(self, x: Any) -> npt.NDArray[np.float32]:
        """The model's output for samples (n, ...): shape (n, ...)."""
        state = self._ready()
        parts = []
        with self._feeds() as feed_of:
            feed = feed_of(x, labelled=False)
            for batch in feed.batches(np.arange(feed.samples), 0):
                state.program.stage(PREDICT, batch)
                state.program.step(PREDICT, len(batch.rows), NO_BATCH)
                parts.append(state.program.read(state.output)[: len(batch.rows)])
        return np.concatenate(parts)

    def timeline(self, x: Any, y: Any = None, iterations: int = 3) -> MeasuredTimeline:
        """Train for a few more iterations and note when each task runs, on which processor.

        Parameters
        ----------
        x, y
            As in `fit`; the first batches are used, again if there are too few.
        iterations
            How many to note; the two before them, in which Legion records its trace, are not.

        Returns
        -------
        MeasuredTimeline
            Of all ranks; `save` writes it for Perfetto.
        """
        state = self._ready()
        if iterations < 1:
            raise UserError(f"a timeline has at least 1 iteration, not {iterations}")
        with self._feeds() as feed_of:
            feed = feed_of(x, y)

            def train(iterations: int) -> None:
                rows = np.arange(self.batch_size * iterations) % feed.samples
                run_series(
                    state.program,
                    TRAIN,
                    feed.batches(rows, state.epochs_done),
                    first_step=state.steps_done,
                    lr=state.optimizer.lr,
                    schedule=state.schedule,
                )
                state.steps_done += iterations

            train(2)
            state.program.record(True)
            train(iterations)
            result = recorded(state.program, state.machine, iterations)
            state.program.record(False)
        return result

    def get_weights(self) -> dict[str, Array]:
        """All weights by name, e.g. ``conv2d.kernel`` (out, kh, kw, in)."""
        state = self._ready()
        return {tensor.name: state.program.read(tensor) for tensor in state.graph.weights}

    def set_weights(self, weights: dict[str, Any]) -> None:
        """Set weights by name; those not named stay."""
        state = self._ready()
        tensors = {tensor.name: tensor for tensor in state.graph.weights}
        for name, value in weights.items():
            if name not in tensors:
                raise UserError(f"no weight '{name}'; the model has {', '.join(tensors)}")
            array = np.asarray(value)
            check_numbers(name, array)
            if array.shape != tensors[name].shape:
                raise UserError(
                    f"weight '{name}' has shape {list(tensors[name].shape)}, "
                    f"but the value's shape is {list(array.shape)}"
                )
        for name, value in weights.items():
            state.program.write(tensors[name], np.asarray(value))

    def bind(self, x: Any, y: Any = None) -> tuple[list[int], int]:
        """Check data and make it available to the running program, for loops of your own.

        Parameters
        ----------
        x, y
            As in `fit`; without labels only prediction can run.

        Returns
        -------
        tuple[list[int], int]
            Numbers of the arrays for `runtime.program.Batch`, and the number of samples.
        """
        program = self._ready().program
        arrays = self._arrays(x, y)
        samples = len(next(iter(arrays.values())))
        return [program.add_data(tensor, array) for tensor, array in arrays.items()], samples

    def summary(self) -> str:
        """A table of the layers: output shapes, parallelizable dimensions, numbers of weights."""
        return _summary.table(self.graph)

    @property
    def plan(self) -> Plan:
        """The plan that training executes."""
        return self._ready().plan

    @property
    def program(self) -> Program:
        """The running program: tensors, gradients and placements can be read from it."""
        return self._ready().program

    @property
    def strategy(self) -> Strategy:
        """The strategy in force."""
        return self._ready().strategy

    @property
    def machine(self) -> RunningMachine:
        """The machine of this run."""
        return self._ready().machine

    def close(self) -> None:
        """Give the runtime's memory back; the model can be compiled again."""
        if self._compiled is not None:
            self._compiled.program.close()
            self._compiled = None

    # Inside

    def _evaluate(self, feed: Feed) -> dict[str, float]:
        state = self._ready()
        series = feed.batches(np.arange(feed.samples), 0)
        return run_series(state.program, EVALUATE, series).means(state.metrics)

    @contextmanager
    def _feeds(self) -> Iterator[Callable[..., Feed]]:
        """What makes feeds (of x, y); at the end they are closed, and their data dropped."""
        program = self._ready().program
        feeds: list[Feed] = []

        def make(x: Any, y: Any = None, labelled: bool = True) -> Feed:
            feeds.append(self._feed(x, y, labelled))
            return feeds[-1]

        try:
            yield make
        finally:
            for feed in feeds:
                feed.close()
        program.drop_data()

    def _feed(self, x: Any, y: Any, labelled: bool) -> Feed:
        if not isinstance(x, BatchSource):
            if labelled and y is None:
                raise UserError("there are no labels; give them as y")
            return ArrayFeed(*self.bind(x, y), self.batch_size)
        if y is not None:
            raise UserError(f"{x.name}: this source brings its own labels; leave out y")
        state = self._ready()
        inputs = state.graph.inputs
        # The labels' is the last of them: the loss was added last.
        classes = self._loss_classes()

        def check(arrays: dict[Tensor, Array]) -> None:
            check_tokens(state.graph, arrays)
            if classes is not None:
                check_labels(x.name, arrays[inputs[-1]], classes)

        return SourceFeed(state.program, inputs, x, self.batch_size, check)

    def _arrays(self, x: Any, y: Any) -> dict[Tensor, Array]:
        """Arrays by input tensor, checked; without labels if `y` is None."""
        inputs = {t.name: t for t in self._ready().graph.inputs}
        labels = inputs.pop(LABELS_NAME)
        # A list of arrays is one array an input; a list of numbers is data itself.
        several = isinstance(x, list | tuple) and all(hasattr(part, "shape") for part in x)
        given = list(x) if several else [x]
        if len(given) != len(inputs):
            raise UserError(f"the model has {len(inputs)} inputs, but {len(given)} were given")
        arrays = {t: rows_for(t, a) for t, a in zip(inputs.values(), given, strict=True)}
        check_tokens(self._ready().graph, arrays)
        if y is not None:
            classes = self._loss_classes()
            arrays[labels] = rows_for(labels, y, classes)
        check_rows(arrays)
        return arrays

    def _loss_classes(self) -> int | None:
        loss = self._ready().graph.operators[-1]
        return loss.inputs[0].shape[-1] if loss.inputs[1].dtype == "int32" else None

    def _ready(self) -> _Compiled:
        if self._compiled is None:
            raise UserError("the model is not compiled; call compile() first")
        return self._compiled

    def _output(self, output: Tensor | None) -> Tensor:
        if not self.graph.operators:
            raise UserError("the model has no layers")
        return self.graph.operators[-1].output if output is None else output


@dataclass
class _Compiled:
    """What `compile` made, and how far training is."""

    graph: Graph
    output: Tensor
    metrics: tuple[str, ...]
    optimizer: Optimizer
    schedule: Schedule
    strategy: Strategy
    machine: RunningMachine
    plan: Plan
    program: Program
    epochs_done: int = 0
    steps_done: int = 0


def initial_weights(graph: Graph, seed: int) -> dict[str, Array]:
    """The first values of every weight: a function of seed and name."""
    return {
        tensor.name: tensor.initializer(tensor.shape, tensor.name, seed, tensor.dtype)
        for tensor in graph.weights
        if tensor.initializer is not None
    }

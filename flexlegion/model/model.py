"""A model: its layers (`flexlegion.layers`), then compile, fit, evaluate, predict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from flexlegion.base.arguments import typed_methods
from flexlegion.base.errors import UserError
from flexlegion.graph.initializers import check_known, initial_weights
from flexlegion.graph.tensor import Tensor
from flexlegion.known_strategies import AnyStrategy, resolve
from flexlegion.layers.arrangement import forms_of
from flexlegion.layers.layers import Layers
from flexlegion.machine.running import RunningMachine, running_machine
from flexlegion.model import summary as _summary
from flexlegion.model.weights import Weights
from flexlegion.objective.losses import Losses, loss_or_default
from flexlegion.objective.metrics import Metrics, check_counted, goal_of
from flexlegion.objective.optimizers import DEFAULT_OPTIMIZER, Optimizer
from flexlegion.objective.precision import check_used
from flexlegion.objective.schedules import Schedule, constant, factor_at
from flexlegion.objective.training import Refinements, TrainingSpec
from flexlegion.plan.plan import Plan
from flexlegion.process.ending import deferred
from flexlegion.profiling.storage import check_stored
from flexlegion.report.measured import MeasuredTimeline, recorded
from flexlegion.strategy.granularity import Granularity
from flexlegion.strategy.strategy import ResolvedStrategy
from flexlegion.training.binding import Binding, is_loader
from flexlegion.training.callbacks import Callback
from flexlegion.training.carried import Carried
from flexlegion.training.checkpoints.callback import Checkpoints, saved
from flexlegion.training.compiled import Compiled, warn_of_idle
from flexlegion.training.feeds import Feed
from flexlegion.training.fit import History, Training
from flexlegion.training.program import EVALUATE, TRAIN, Program
from flexlegion.training.trainer import predicted, run_series
from flexlegion.transforms.training import as_trained

if TYPE_CHECKING:
    from flexlegion.layers.origin import Origin
    from flexlegion.machine.topology import Topology
    from flexlegion.model.reference import Reference
    from flexlegion.report.html.picture import Picture

Array = npt.NDArray[Any]


@typed_methods
class Model(Layers, Weights):
    """A neural network and its training.

    Parameters
    ----------
    batch_size
        Samples an iteration, over all devices.
    seed
        Decides initial weights, the order of samples, and dropout; never the strategy.

    Attributes
    ----------
    loss
        What it is trained with where neither `compile` nor a command is told, as `compile` takes
        it; None: nothing is said.
    reference
        How it was named, if `load_model` made it.
    history
        Of the last call of `fit`, also one that was interrupted.

    Examples
    --------
    >>> model = Model(batch_size=64)
    >>> x = model.input((28, 28, 1))
    >>> x = model.conv2d(x, 8, 3, activation="relu")
    >>> x = model.dense(model.flatten(x), 10)
    >>> x = model.softmax(x)
    """

    def __init__(self, batch_size: int, seed: int = 0) -> None:
        super().__init__(batch_size)
        self.seed = _checked_seed(seed)
        self.loss: Losses | None = None
        self.reference: Reference | None = None
        self.origin: Origin | None = None
        self.history = History()
        self._compiled: Compiled | None = None

    @staticmethod
    def _instead_of(value: object) -> str:
        """What a message says where something else was given for a model."""
        if any(kind.__module__.startswith("torch.") for kind in type(value).__mro__):
            return "flexlegion.from_torch imports it"
        return "call it, and give the model that it returns" if callable(value) else ""

    def compile(
        self,
        optimizer: str | Optimizer = DEFAULT_OPTIMIZER,
        loss: Losses | None = None,
        metrics: Metrics = (),
        strategy: AnyStrategy = "data",
        output: Tensor | Sequence[Tensor] | None = None,
        schedule: Schedule = constant,
        granularity: Granularity | None = None,
        **refinements: Unpack[Refinements],
    ) -> None:
        """Fix how to train; starts Legion, and sets the initial weights.

        Parameters
        ----------
        optimizer
            An optimizer, or the name of one ("sgd", "adam", "adamw", "lazy-adam") with its
            defaults.
        loss
            Of the output, one of `losses.LOSSES` or its name, which options may follow, as in
            "huber:delta=0.5" (`named_loss`). Of several outputs, a list of these,
            or a dict by the outputs' names (their layers'); an output whose loss is None is
            predicted, and not trained. By default the model's own (`Model.loss`), or
            "sparse_categorical_crossentropy".
        metrics
            "accuracy", "top_5_accuracy", "perplexity" with a cross-entropy; "mean_squared_error",
            "mean_absolute_error" otherwise. Of several losses, each metric is taken of those that
            it goes with; or they are given by the outputs' names.
        strategy
            A `Strategy`, what a search returned, a file's path, or a known one's name: "single",
            "data", "model", "expert", "one-weird-trick", "gnmt", "random:SEED".
        output
            The model's output, or several; `outputs` unless given.
        schedule
            Given the number of a training step, counted from 0 over all calls of `fit`, what to
            multiply the learning rate with; see `flexlegion.objective.schedules`.
        granularity
            How finely the plan is cut where the strategy leaves it open, and whether each tensor is
            kept; by default as the strategy states.
        loss_weights
            Of several losses, their weights in the sum that training minimises, as a list or by the
            outputs' names; 1 unless given.
        precision
            How GPUs compute products and convolutions: "fp32" (the default), or with factors
            rounded to "tf32" or "bf16". Weights, gradients and sums are single precision, and so is
            what CPU processors compute.
        storage
            What activations and their gradients are stored as: "fp32" (the default); "bf16", which
            takes half the memory, on devices that have instructions for it; or "fp16", for GPUs
            without them: losses are scaled then. Weights, their gradients and sums are single
            precision in any case.
        micro_batches
            In how many parts a batch goes through the network, 1 by default. Their gradients add
            up, so that training computes the same, and fewer activations are kept at a time.

        Raises
        ------
        UserError
            If something does not fit.
        """
        arguments = {
            "optimizer": optimizer,
            "loss": loss,
            "metrics": metrics,
            "strategy": strategy,
            "output": output,
            "schedule": schedule,
            "granularity": granularity,
            **refinements,
        }
        outputs = self._outputs_of(output)
        factor_at(schedule, 0)
        asked = TrainingSpec.of(optimizer=optimizer, loss=loss, **refinements)
        graph, its_outputs, training = as_trained(self.graph, outputs, self.loss, asked)
        check_known(graph)
        goal = goal_of(graph, metrics)
        machine = running_machine()
        resolved = resolve(strategy, graph, machine.devices)
        check_used(training.precision, resolved.devices(), resolved.source or "the strategy")
        check_stored(training.storage, resolved.devices())
        self.close()
        chosen = training.optimizer
        plan = Plan(resolved, its_outputs, chosen.states, chosen.clips, granularity)
        if machine.rank == 0:
            warn_of_idle(plan)
        program = Program(plan, chosen, self.seed, training.precision)
        its = forms_of(self.origin, graph, its_outputs)
        binding = Binding(program, self.batch_size, self.seed, its)
        self._compiled = Compiled(
            arguments,
            graph,
            training,
            list(its_outputs),
            goal,
            schedule,
            resolved,
            machine,
            plan,
            program,
            binding,
        )
        self._write(initial_weights(graph, self.seed))

    def fit(
        self,
        x: Any,
        y: Any = None,
        epochs: int = 1,
        validation_data: Any = None,
        shuffle: bool = True,
        progress: bool = True,
        callbacks: Sequence[Callback] = (),
        allow_nan: bool = False,
        checkpoint: Checkpoints | None = None,
        accumulate: int | None = None,
    ) -> History:
        """Train.

        Ctrl-C and SIGTERM end it after the running iterations, unless the script has handlers of
        its own; `history` has the epochs until then.

        Parameters
        ----------
        x
            Samples (n, ...) as a NumPy or cuPyNumeric array; for several inputs a list of them, or
            a dict by the inputs' names. Of a `numpy.memmap`, rows are read as they are needed. Or
            what brings samples and labels: a `BatchSource`, a PyTorch DataLoader, or anything else
            with a length and batches (x, y), whose size need not be the model's, and whose order is
            its own.
        y
            Labels: int (n) for the sparse loss, or (n, steps) of sequences, otherwise float
            (n, ...) like the output; extents of 1 may be left out or added. Those of an imported
            model may be arranged as in its module. Of the sparse loss, labels of -1 and of its
            `ignore_index` (-100) do not count: neither in the loss, which is the mean over all the
            others of a batch, nor in metrics. Weights of labels, where the loss asks for them,
            come after them in a list, or by name, ``labels.weights``.
            For several outputs a list of them, or a dict by the outputs' names.
        epochs
            Passes over the samples. A last, short batch counts only its own samples.
        validation_data
            A pair (x, y), or what brings both, to evaluate after each epoch.
        shuffle
            Whether each epoch draws a new order (a function of seed and epoch).
        progress
            Whether to print progress.
        callbacks
            Called while it trains, in this order; see `flexlegion.training.callbacks`.
        allow_nan
            Whether to go on after a loss that is not finite.
        checkpoint
            Where and how often to save all that training needs to be resumed.
        accumulate
            In how many parts each batch goes through the network, from now on: another number of
            micro-batches than `compile` was told. Gradients add up over a batch, which is as large
            as before; so training computes the same, in less memory.

        Returns
        -------
        History
            Loss and metrics of each epoch.

        Raises
        ------
        DivergenceError
            If a loss is not finite: nan, or beyond all numbers.
        KeyboardInterrupt
            After Ctrl-C; after SIGTERM, one that ends a script with status 143.
        UserError
            If something does not fit; or if the last checkpoint could not be written, on a full
            disk: then the model is trained all the same.
        """
        if epochs < 0:
            raise UserError(f"the number of epochs has to be at least 0, but is {epochs}")
        if accumulate is not None:
            self._accumulate(accumulate)
        state = self._ready()
        with state.while_training(), deferred() as request, state.binding.feeds() as feed_of:
            feed = feed_of(x, y)
            validation = None
            if isinstance(validation_data, list | tuple) and not is_loader(validation_data):
                if len(validation_data) not in (1, 2):
                    raise UserError(
                        "validation_data is a pair (x, y), or what brings both, but it is a "
                        f"{type(validation_data).__name__} of {len(validation_data)}"
                    )
                validation = feed_of(*validation_data)
            elif validation_data is not None:
                validation = feed_of(validation_data)
            with saved(checkpoint, self, state) as saving:
                training = Training(self, state, epochs, [*callbacks, *saving], allow_nan, request)
                self.history = training.history
                resumed, state.resumed = state.resumed, None
                if resumed is not None:
                    training.resume(resumed)
                return training.run(feed, validation, shuffle, progress)

    def resume_training(self, state: Mapping[str, Any]) -> None:
        """Have the next call of `fit` go on where another one was, in the middle of an epoch.

        Its arguments have to be those of the other call: `epochs` counts from that one's start.

        Parameters
        ----------
        state
            What `Training.state` returned there; weights and the optimizer's states are not in it.
        """
        self._ready().resumed = state

    def evaluate(self, x: Any, y: Any = None) -> dict[str, float]:
        """Loss and metrics over samples, without training; arguments as in `fit`."""
        with self._ready().binding.feeds() as feed_of:
            return self._evaluate(feed_of(x, y))

    def predict(self, x: Any) -> Any:
        """The model's output for samples (n, ...), float32 (n, ...); of several a list of them."""
        state = self._ready()
        parts: list[list[Array]] = []
        with state.binding.feeds() as feed_of, state.program.series():
            feed = feed_of(x, labelled=False)
            size = self.batch_size // state.program.plan.graph.micro_batches
            for batch in feed.batches(np.arange(feed.samples), 0):
                parts += predicted(state.program, batch, state.outputs, size)
        arrays = [np.concatenate(batches) for batches in zip(*parts, strict=True)]
        return arrays if len(arrays) > 1 else arrays[0]

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
        with state.while_training(), state.binding.feeds() as feed_of:
            feed = feed_of(x, y)

            def train(iterations: int) -> None:
                run_series(
                    state.program,
                    TRAIN,
                    feed.some(iterations),
                    first_step=state.position.step,
                    lr=state.training.optimizer.lr,
                    schedule=state.schedule,
                )
                state.position = replace(state.position, step=state.position.step + iterations)

            train(2)
            state.program.record(True)
            train(iterations)
            return recorded(state.program, state.machine, iterations)

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
        binding = self._ready().binding
        return binding.bind(x, y, labelled=y is not None or not binding.labels)

    def copy(self, seed: int | None = None) -> Model:
        """A model of the same layers, not compiled: several strategies can train side by side.

        Parameters
        ----------
        seed
            Its own seed; by default the same.
        """
        twin = type(self).__new__(type(self))
        vars(twin).update(vars(self))
        twin.graph = self.graph.copy()
        twin.seed = self.seed if seed is None else _checked_seed(seed)
        twin._compiled = None
        return twin

    def __repr__(self) -> str:
        name = "" if self.reference is None else f"{self.reference.name}, "
        loss = repr(loss_or_default(None, self.loss))
        by_default = " by default" if self.loss is None else ""
        return (
            f"Model({name}batch {self.batch_size}, {len(self.graph.operators)} operators, "
            f"loss {loss}{by_default})"
        )

    def __copy__(self) -> Model:
        """As `copy`; a compiled model is one program, which cannot be had twice."""
        if self._compiled is not None:
            raise UserError(
                "a compiled model cannot be copied, as its program runs once; model.copy() makes "
                "one of the same layers, not compiled, and get_weights and set_weights hand its "
                "weights on"
            )
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Model:
        """As `copy`: layers and initial weights are never changed, so both may have them."""
        memo[id(self)] = twin = self.__copy__()
        return twin

    def __getstate__(self) -> None:
        """Refuse pickles, which could run any code when they are read."""
        raise UserError(
            "a model is not pickled; keep the function that builds it, and its weights by "
            "save_weights"
        )

    def summary(self) -> str:
        """A table of the layers: output shapes, parallelizable dimensions, numbers of weights."""
        return _summary.table(self.graph)

    def plot(
        self, strategy: AnyStrategy | None = None, machine: str | Topology | None = None
    ) -> Picture:
        """The layers as a picture, coloured by how a strategy splits them.

        Parameters
        ----------
        strategy
            As `compile` takes it; by default the one in force.
        machine
            For whose devices a known strategy's name is; by default this run's, once compiled.

        Returns
        -------
        Picture
            Notebooks show it; `save` writes it as an SVG file.

        Raises
        ------
        UserError
            If there is no such strategy or machine, or it is not for this model.
        """
        from flexlegion.report.html.picture import picture_of

        self._outputs_of(None)  # there are layers
        spec = self.strategy if strategy is None else strategy
        devices = None if self._compiled is None else self._compiled.machine.devices
        return picture_of(self.graph, spec, machine, devices)

    @property
    def plan(self) -> Plan:
        """The plan that training executes."""
        return self._ready().plan

    @property
    def program(self) -> Program:
        """The running program: tensors, gradients and the devices of tasks can be read from it."""
        return self._ready().program

    def about(self) -> dict[str, Any]:
        """How it is trained, and on what, as it was compiled; for JSON."""
        return {"batch_size": self.batch_size} | self._ready().about()

    @property
    def ema(self) -> float | None:
        """That of the optimizer, if it keeps moving averages of weights; see `averaged`."""
        return self._ready().training.optimizer.ema

    @property
    def strategy(self) -> ResolvedStrategy:
        """The strategy in force."""
        return self._ready().strategy

    @property
    def machine(self) -> RunningMachine:
        """The machine of this run."""
        return self._ready().machine

    def close(self) -> None:
        """Give the runtime's memory back; the model can be compiled again."""
        if self._compiled is not None:
            self._compiled.check_at_rest()
            self._compiled.program.close()
            self._compiled = None

    # Inside

    def _accumulate(self, micro_batches: int) -> None:
        """Go on in a program of so many micro-batches; where there is none, as before."""
        state = self._ready()
        if micro_batches == state.training.micro_batches:
            return
        state.check_at_rest()
        carried = Carried.of(state)
        try:
            self.compile(**{**state.arguments, "micro_batches": micro_batches})
        except UserError:
            if self._compiled is None:
                self.compile(**state.arguments)
                carried.into(self._ready())
            raise
        carried.into(self._ready())

    def _evaluate(self, feed: Feed) -> dict[str, float]:
        state = self._ready()
        series = feed.batches(np.arange(feed.samples), 0)
        losses = run_series(state.program, EVALUATE, series).losses
        check_counted(state.goal, losses, "the samples")
        return state.goal.means(losses)

    def _outputs_of(self, output: Tensor | Sequence[Tensor] | None) -> list[Tensor]:
        if output is None:
            return self.outputs
        return [output] if isinstance(output, Tensor) else list(output)


def _checked_seed(seed: int) -> int:
    if not 0 <= seed < 2**63:
        raise UserError(f"the seed has to be at least 0 and below 2^63, but is {seed}")
    return seed

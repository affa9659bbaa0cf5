"""The layer API: one method a layer, then compile, fit, evaluate, predict."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from flexlegion import summary as _summary
from flexlegion.arrays import check_rows, rows_for
from flexlegion.errors import UserError
from flexlegion.graph import Graph
from flexlegion.initializers import Initializer, initializer
from flexlegion.losses import LABELS_NAME, add_loss
from flexlegion.metrics import check_metrics
from flexlegion.ops.base import OperatorType
from flexlegion.ops.conv2d import Conv2D
from flexlegion.ops.dense import Dense
from flexlegion.ops.elementwise import Dropout, Gelu, Relu, Sigmoid, Tanh
from flexlegion.ops.flatten import Flatten
from flexlegion.ops.pool2d import Pool2D
from flexlegion.ops.softmax import Softmax
from flexlegion.optimizers import Optimizer, optimizer_of
from flexlegion.plan import Plan
from flexlegion.runtime.machine import RunningMachine, running_machine
from flexlegion.runtime.program import EVALUATE, NO_BATCH, PREDICT, TRAIN, Program
from flexlegion.runtime.progress import EpochProgress
from flexlegion.runtime.trainer import batches, run_series
from flexlegion.strategies import resolve
from flexlegion.strategy import Strategy
from flexlegion.tensor import MAX_EXTENT, MAX_RANK, DataType, Tensor

Array = npt.NDArray[Any]
Pair = int | tuple[int, int]
Padding = Pair | Literal["valid", "same"]

# Activations that conv2d and dense fuse: their derivative follows from the output.
_FUSED = ("relu", "sigmoid", "tanh")


def _pair(value: Pair, what: str) -> tuple[int, int]:
    pair = (value, value) if isinstance(value, int) else tuple(value)
    if len(pair) != 2 or any(v < 0 for v in pair):
        raise UserError(f"{what} has to be one or two numbers, but is {value}")
    return pair


def _positive_pair(value: Pair, what: str) -> tuple[int, int]:
    pair = _pair(value, what)
    if min(pair) < 1:
        raise UserError(f"{what} has to be positive, but is {value}")
    return pair


def _padding(value: Padding, kernel: tuple[int, int], stride: tuple[int, int]) -> tuple[int, int]:
    if value == "valid":
        return (0, 0)
    if value == "same":
        if any(k % 2 == 0 for k in kernel) or stride != (1, 1):
            raise UserError(
                f"padding 'same' needs odd kernels and stride 1, but the kernel is {kernel} and "
                f"the stride {stride}; give the padding as numbers"
            )
        return (kernel[0] // 2, kernel[1] // 2)
    if isinstance(value, str):
        raise UserError(f"unknown padding '{value}'; use 'valid', 'same', or numbers")
    return _pair(value, "padding")


@dataclass
class History:
    """What `Model.fit` measured.

    Parameters
    ----------
    epochs
        For each epoch: loss and metrics over its training samples, ``val_``-prefixed ones over the
        validation data if there were any, ``seconds`` and ``samples_per_second`` of training.
    """

    epochs: list[dict[str, float]] = field(default_factory=list)


class Model:
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
        if not 1 <= batch_size <= MAX_EXTENT:
            raise UserError(f"the batch size has to be 1 to {MAX_EXTENT}, but is {batch_size}")
        if not 0 <= seed < 2**63:
            raise UserError(f"the seed has to be at least 0 and below 2^63, but is {seed}")
        self.batch_size = batch_size
        self.seed = seed
        self.graph = Graph()
        self._counts: dict[str, int] = {}
        self._compiled: _Compiled | None = None

    # Layers

    def input(
        self,
        shape: Sequence[int],
        dtype: DataType = "float32",
        name: str | None = None,
        requires_gradient: bool = False,
    ) -> Tensor:
        """An input of the given shape, without the sample dimension; images are (h, w, channel).

        `requires_gradient` has training compute the loss's gradient by this input as well.
        """
        if len(shape) >= MAX_RANK:
            raise UserError(
                f"an input has at most {MAX_RANK} dimensions, the samples' included, but a sample "
                f"of shape {list(shape)} makes {len(shape) + 1}"
            )
        if any(extent < 1 for extent in shape):
            raise UserError(
                f"an input's extents have to be positive, but its shape is {list(shape)}"
            )
        return self.graph.add_input(
            self._name("input", name), (self.batch_size, *shape), dtype, requires_gradient
        )

    def conv2d(
        self,
        x: Tensor,
        filters: int,
        kernel: Pair,
        stride: Pair = 1,
        padding: Padding = "valid",
        activation: str | None = None,
        use_bias: bool = True,
        kernel_initializer: str | Initializer = "glorot_uniform",
        bias_initializer: str | Initializer = "zeros",
        name: str | None = None,
    ) -> Tensor:
        """2D convolution: (n, h, w, i) -> (n, oh, ow, filters)."""
        name = self._name("conv2d", name)
        kernel, stride = _positive_pair(kernel, "kernel"), _positive_pair(stride, "stride")
        fused, separate = self._activation(activation)
        kind = Conv2D(
            self._positive(filters, "filters"),
            *kernel,
            *stride,
            *_padding(padding, kernel, stride),
            use_bias,
            fused,
            initializer(kernel_initializer),
            initializer(bias_initializer),
        )
        return self._activated(self._add(kind, x, name), separate, name)

    def pool2d(
        self,
        x: Tensor,
        kernel: Pair,
        stride: Pair | None = None,
        padding: Padding = "valid",
        kind: Literal["max", "average"] = "max",
        count_include_pad: bool = True,
        name: str | None = None,
    ) -> Tensor:
        """2D pooling; the stride is the kernel's size unless given."""
        if kind not in ("max", "average"):
            raise UserError(f"unknown kind of pooling '{kind}'; use 'max' or 'average'")
        kernel = _positive_pair(kernel, "kernel")
        stride = kernel if stride is None else _positive_pair(stride, "stride")
        padding = _padding(padding, kernel, stride)
        pool = Pool2D(kind, *kernel, *stride, *padding, count_include_pad)
        return self._add(pool, x, self._name("pool2d", name))

    def dense(
        self,
        x: Tensor,
        units: int,
        activation: str | None = None,
        use_bias: bool = True,
        kernel_initializer: str | Initializer = "glorot_uniform",
        bias_initializer: str | Initializer = "zeros",
        name: str | None = None,
    ) -> Tensor:
        """Fully connected: (n, ..., i) -> (n, ..., units)."""
        name = self._name("dense", name)
        fused, separate = self._activation(activation)
        kind = Dense(
            self._positive(units, "units"),
            use_bias,
            fused,
            initializer(kernel_initializer),
            initializer(bias_initializer),
        )
        return self._activated(self._add(kind, x, name), separate, name)

    def flatten(self, x: Tensor, name: str | None = None) -> Tensor:
        """(n, d1, d2, ...) -> (n, d1*d2*...), row-major (height, width, channel)."""
        return self._add(Flatten(), x, self._name("flatten", name))

    def relu(self, x: Tensor, name: str | None = None) -> Tensor:
        """max(x, 0)."""
        return self._add(Relu(), x, self._name("relu", name))

    def sigmoid(self, x: Tensor, name: str | None = None) -> Tensor:
        """1 / (1 + exp(-x))."""
        return self._add(Sigmoid(), x, self._name("sigmoid", name))

    def tanh(self, x: Tensor, name: str | None = None) -> Tensor:
        """Hyperbolic tangent."""
        return self._add(Tanh(), x, self._name("tanh", name))

    def gelu(self, x: Tensor, name: str | None = None) -> Tensor:
        """x * Phi(x), exact."""
        return self._add(Gelu(), x, self._name("gelu", name))

    def softmax(self, x: Tensor, name: str | None = None) -> Tensor:
        """Softmax over the last dimension."""
        return self._add(Softmax(), x, self._name("softmax", name))

    def dropout(self, x: Tensor, rate: float, name: str | None = None) -> Tensor:
        """Zero elements with probability `rate` while training, and scale the others up."""
        if not 0 <= rate < 1:
            raise UserError(f"a dropout rate has to be at least 0 and below 1, but is {rate}")
        kind = Dropout(float(rate), len(self.graph.operators))
        return self._add(kind, x, self._name("dropout", name))

    # Training

    def compile(
        self,
        optimizer: str | Optimizer = "sgd",
        loss: str = "sparse_categorical_crossentropy",
        metrics: Sequence[str] = (),
        strategy: str | Path | Strategy = "data",
        output: Tensor | None = None,
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
            "accuracy" with a cross-entropy; "mean_squared_error", "mean_absolute_error" otherwise.
        strategy
            A `Strategy`, a file's path, or "single", "data", "model", "random:SEED".
        output
            The model's output; the last layer's unless given.

        Raises
        ------
        UserError
            If something does not fit.
        """
        output = self._output(output)
        graph = add_loss(self.graph, output, loss)
        checked = check_metrics(metrics, loss)
        chosen = optimizer_of(optimizer)
        machine = running_machine()
        resolved = resolve(strategy, graph, machine.devices)
        if self._compiled is not None:
            self._compiled.program.close()
        plan = Plan(graph, resolved, machine.devices, output, chosen.states)
        program = Program(plan, chosen, self.seed)
        self._compiled = _Compiled(
            graph, output, checked, chosen, resolved, machine, plan, program, lr=chosen.lr
        )
        self.set_weights(initial_weights(graph, self.seed))

    def fit(
        self,
        x: Any,
        y: Any,
        epochs: int = 1,
        validation_data: tuple[Any, Any] | None = None,
        shuffle: bool = True,
        progress: bool = True,
    ) -> History:
        """Train.

        Parameters
        ----------
        x
            Samples (n, ...) as a NumPy or cuPyNumeric array; for several inputs a list of them.
        y
            Labels: int (n) for the sparse loss, otherwise float (n, ...) like the output.
        epochs
            Passes over the samples. A last, short batch counts only its own samples.
        validation_data
            A pair (x, y) to evaluate after each epoch.
        shuffle
            Whether each epoch draws a new order (a function of seed and epoch).
        progress
            Whether to print progress.

        Returns
        -------
        History
            Loss and metrics of each epoch.
        """
        state = self._ready()
        arrays = self._arrays(x, y)
        validation = self._arrays(*validation_data) if validation_data is not None else None
        data = self._bind(arrays)
        validation_rows = self._bind(validation) if validation is not None else None
        samples = len(next(iter(arrays.values())))
        history = History()
        for epoch in range(epochs):
            rng = np.random.default_rng([self.seed, state.epochs_done])
            rows = rng.permutation(samples) if shuffle else np.arange(samples)
            series = list(batches(rows, self.batch_size, data))
            label = f"epoch {epoch + 1}/{epochs}"
            shown = progress and state.machine.rank == 0
            with EpochProgress(label, samples, state.metrics, shown) as bar:
                started = time.perf_counter()
                sums = run_series(
                    state.program,
                    TRAIN,
                    series,
                    first_step=state.steps_done,
                    lr=state.lr,
                    report=bar.update,
                )
                seconds = time.perf_counter() - started
            values = sums.means(state.metrics)
            if validation is not None and validation_rows is not None:
                values |= {
                    f"val_{k}": v for k, v in self._evaluate(validation, validation_rows).items()
                }
            speed = samples / seconds
            bar.finish(values, speed)
            history.epochs.append(values | {"seconds": seconds, "samples_per_second": speed})
            state.epochs_done += 1
            state.steps_done += len(series)
        state.program.drop_data()
        return history

    def evaluate(self, x: Any, y: Any) -> dict[str, float]:
        """Loss and metrics over samples, without training; arguments as in `fit`."""
        state = self._ready()
        arrays = self._arrays(x, y)
        values = self._evaluate(arrays, self._bind(arrays))
        state.program.drop_data()
        return values

    def predict(self, x: Any) -> npt.NDArray[np.float32]:
        """The model's output for samples (n, ...): shape (n, ...)."""
        state = self._ready()
        arrays = self._arrays(x, None)
        data = self._bind(arrays)
        samples = len(next(iter(arrays.values())))
        parts = []
        for batch in batches(np.arange(samples), self.batch_size, data):
            state.program.stage(PREDICT, batch)
            state.program.step(PREDICT, len(batch.rows), NO_BATCH)
            parts.append(state.program.read(state.output)[: len(batch.rows)])
        state.program.drop_data()
        return np.concatenate(parts)

    def get_weights(self) -> dict[str, npt.NDArray[np.float32]]:
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
            array = np.asarray(value, np.float32)
            if array.shape != tensors[name].shape:
                raise UserError(
                    f"weight '{name}' has shape {list(tensors[name].shape)}, "
                    f"but the value's shape is {list(array.shape)}"
                )
        for name, value in weights.items():
            state.program.write(tensors[name], np.asarray(value, np.float32))

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

    def _evaluate(self, arrays: dict[Tensor, Array], data: list[int]) -> dict[str, float]:
        state = self._ready()
        rows = np.arange(len(next(iter(arrays.values()))))
        series = list(batches(rows, self.batch_size, data))
        return run_series(state.program, EVALUATE, series).means(state.metrics)

    def _arrays(self, x: Any, y: Any) -> dict[Tensor, Array]:
        """Arrays by input tensor, checked; without labels if `y` is None."""
        inputs = {t.name: t for t in self._ready().graph.inputs}
        labels = inputs.pop(LABELS_NAME)
        given = list(x) if isinstance(x, list | tuple) else [x]
        if len(given) != len(inputs):
            raise UserError(f"the model has {len(inputs)} inputs, but {len(given)} were given")
        arrays = {t: rows_for(t, a) for t, a in zip(inputs.values(), given, strict=True)}
        if y is not None:
            classes = self._loss_classes()
            arrays[labels] = rows_for(labels, y, classes)
        check_rows(arrays)
        return arrays

    def _loss_classes(self) -> int | None:
        loss = self._ready().graph.operators[-1]
        return loss.inputs[0].shape[-1] if loss.inputs[1].dtype == "int32" else None

    def _bind(self, arrays: dict[Tensor, Array]) -> list[int]:
        program = self._ready().program
        return [program.add_data(tensor, array) for tensor, array in arrays.items()]

    def _ready(self) -> _Compiled:
        if self._compiled is None:
            raise UserError("the model is not compiled; call compile() first")
        return self._compiled

    def _output(self, output: Tensor | None) -> Tensor:
        if not self.graph.operators:
            raise UserError("the model has no layers")
        return self.graph.operators[-1].output if output is None else output

    def _name(self, kind: str, name: str | None) -> str:
        if name is not None:
            return name
        self._counts[kind] = self._counts.get(kind, 0) + 1
        return f"{kind}_{self._counts[kind]}"

    def _add(self, kind: OperatorType, x: Tensor, name: str) -> Tensor:
        return self.graph.add(kind, [x], name)

    @staticmethod
    def _positive(value: int, what: str) -> int:
        if value < 1:
            raise UserError(f"{what} has to be at least 1, but is {value}")
        return value

    @staticmethod
    def _activation(activation: str | None) -> tuple[str, str | None]:
        """What the kernel fuses, and what becomes a layer of its own."""
        if activation is None:
            return "none", None
        if activation in _FUSED:
            return activation, None
        if activation in ("gelu", "softmax"):
            return "none", activation
        raise UserError(
            f"unknown activation '{activation}'; choose one of {', '.join(_FUSED)}, gelu, softmax"
        )

    def _activated(self, x: Tensor, activation: str | None, name: str) -> Tensor:
        if activation is None:
            return x
        layer = self.gelu if activation == "gelu" else self.softmax
        return layer(x, name=f"{name}.{activation}")


@dataclass
class _Compiled:
    """What `compile` made, and how far training is."""

    graph: Graph
    output: Tensor
    metrics: tuple[str, ...]
    optimizer: Optimizer
    strategy: Strategy
    machine: RunningMachine
    plan: Plan
    program: Program
    lr: float
    epochs_done: int = 0
    steps_done: int = 0


def initial_weights(graph: Graph, seed: int) -> dict[str, npt.NDArray[np.float32]]:
    """The first values of every weight: a function of seed and name."""
    return {
        tensor.name: tensor.initializer(tensor.shape, tensor.name, seed)
        for tensor in graph.weights
        if tensor.initializer is not None
    }

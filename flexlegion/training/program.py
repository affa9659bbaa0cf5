"""A plan made executable (``native/runtime/program.h``): batches in, iterations, tensors out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion.base.errors import UserError
from flexlegion.bindings import native
from flexlegion.graph.tensor import Tensor
from flexlegion.machine.running import running_machine
from flexlegion.objective.losses import losses_of
from flexlegion.objective.metrics import MetricSums
from flexlegion.objective.optimizers import Optimizer
from flexlegion.objective.precision import DEFAULT
from flexlegion.ops.embedding import Embedding
from flexlegion.ops.losses import CrossEntropy, LossOperator
from flexlegion.plan.native_optimizer import to_native
from flexlegion.plan.passes import FIELDS
from flexlegion.plan.plan import Box, Plan
from flexlegion.training.agreement import check_same_text
from flexlegion.training.loss_scale import LossScale

_RUNS = native.enumeration("fl_run")
TRAIN, EVALUATE, PREDICT = _RUNS["trains"], _RUNS["evaluates"], _RUNS["predicts"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Batch:
    """Rows of host arrays: row `rows[i]` of each array becomes sample i.

    Parameters
    ----------
    data
        Numbers that `Program.add_data` gave, at most one an input tensor.
    rows
        At most the batch size; the rest of the batch is padding.
    """

    data: Sequence[int]
    rows: Array


@dataclass(frozen=True)
class HostShard:
    """Host memory for a shard of a weight, or of an optimizer state.

    Parameters
    ----------
    tensor, field, state
        As in `Program.read`.
    number
        Which of `Program.home`.
    to
        An array of the shard's shape, maybe a part of another; None if the shard is another rank's.
    """

    tensor: Tensor
    field: str
    state: int
    number: int
    to: Array | None


_METRICS = [field.name for field in fields(MetricSums) if field.name != "excess"]

NO_BATCH = Batch((), np.zeros(0, np.int64))


class Program:
    """A running plan. Every rank makes the same calls in the same order.

    Parameters
    ----------
    plan
        What to execute.
    optimizer
        Its update.
    seed
        Seed of dropout's masks.
    precision
        In which GPUs compute.

    Attributes
    ----------
    loss_scale
        Of gradients that are stored as float16; None: gradients are not scaled.
    trained
        Whether states of the optimizer have values of iterations, this program's or another's.
    """

    def __init__(
        self, plan: Plan, optimizer: Optimizer, seed: int, precision: str = DEFAULT
    ) -> None:
        self.plan = plan
        self.optimizer = optimizer
        self.seed = seed
        self.precision = precision
        self._rt = native.rt()
        self.ranks = int(native.running().ranks)
        if self.ranks > 1:  # else they would wait for each other's launches for ever
            check_same_text("the strategy's configurations", plan.strategy.text())
        self._data: dict[int, tuple[Tensor, Array]] = {}  # by number
        self._left: set[int] = set()  # of these, what nobody needs any more
        self._in_series = self.trained = False
        self._losses = list(losses_of(plan.graph).values())
        # Of gradients that are stored as float16; with which scale each iteration was issued.
        self.loss_scale = LossScale() if plan.facts.scales else None
        self._scaled: dict[int, float] = {}
        self._last_scale = 1.0
        # Of each loss, of each staged sample: how many of its values count.
        self._weights: dict[int, list[float]] = {}  # by tickets; of each loss, what counts
        self._staged = np.zeros((len(self._losses), 0), np.float64)
        array, facts = native.Arrays(), self._rt.ffi.new("fl_program_facts *")
        self._handle = self._rt.check(
            self._rt.lib.fl_program_create(
                plan.handle,
                to_native(array, optimizer, plan),
                seed,
                optimizer.clip_norm or 0.0,
                native.enumeration("fl_precision")[precision],
                facts,
            )
        )
        owners = running_machine().owners
        self._homes: dict[int, list[tuple[int, Box]]] = {}  # by the weight's number
        for shard in self._rt.items(facts.shards, facts.n_shards):
            rank = len(plan.graph.tensors[shard.weight].shape)
            box = tuple(zip(shard.lo[0:rank], shard.hi[0:rank], strict=True))
            home = self._homes.setdefault(shard.weight, [])
            home.append((owners[shard.device], box))
        self._issued = {
            run: self._rt.items(getattr(facts, kind), len(plan.launches))
            for kind, run in _RUNS.items()
        }

    def close(self) -> None:
        """Wait for running work and give all regions back. The program cannot be used after."""
        if self._handle is not None:
            self._rt.lib.fl_program_destroy(self._handle)
            self._handle = None
            self._data.clear()

    def staged_here(self, tensor: Tensor) -> npt.NDArray[np.bool_]:
        """For each sample of a batch of an input tensor: whether tasks of this rank stage it."""
        here = np.zeros(tensor.shape[0], np.bool_)
        rank, devices, owners = native.running().rank, self.plan.devices, running_machine().owners
        for launch in self.plan.launches:
            if launch.pass_ != "load" or launch.written.tensor is not tensor:
                continue
            for device, box in zip(launch.devices, launch.written.boxes, strict=True):
                if owners[devices.number(device)] == rank:
                    here[slice(*box[0])] = True
        return np.tile(here, self.plan.graph.micro_batches)

    def add_data(
        self, tensor: Tensor, array: Array, byte_values: npt.NDArray[np.float32] | None = None
    ) -> int:
        """Make the rows of an array available to batches of an input tensor.

        Parameters
        ----------
        tensor
            The input.
        array
            Shape (rows, ...) with the tensor's sample shape and element type, or of bytes.
        byte_values
            What bytes 0 to 255 stand for: tasks write these values, from an array of bytes.

        Returns
        -------
        int
            A number to name it by in a `Batch`, until `drop_data`.
        """
        table = self._rt.ffi.NULL
        if byte_values is not None:
            byte_values = np.ascontiguousarray(byte_values, np.float32)
            table = self._rt.ffi.cast("float *", byte_values.ctypes.data)
        array = np.ascontiguousarray(array, tensor.host_dtype if byte_values is None else np.uint8)
        number = int(
            self._rt.check(
                self._rt.lib.fl_program_add_data(
                    self._handle, self._number(tensor), self._pointer(array), len(array), table
                )
            )
        )
        self._data[number] = tensor, array
        return number

    @contextmanager
    def data_of_its_own(self) -> Iterator[None]:
        """Forget the arrays that were added meanwhile, once nothing reads them any more.

        Those of others stay: a callback may predict while the arrays of `fit` are in use.
        """
        before = set(self._data)
        try:
            yield
        finally:
            self._left |= self._data.keys() - before
        # Not after an exception, which may be this rank's alone: the others would not wait with it.
        self.drop_data(sorted(self._left))
        self._left.clear()

    def drop_data(self, numbers: Sequence[int]) -> None:
        """Forget arrays, once nothing reads them any more."""
        self._rt.check(self._rt.lib.fl_program_drop_data(self._handle, len(numbers), numbers))
        for number in numbers:
            del self._data[number]

    @contextmanager
    def series(self) -> Iterator[None]:
        """For iterations that stage each other's batches, among which there can be no others.

        Raises
        ------
        UserError
            If another series runs: the batch that it has staged would be lost.
        """
        if self._in_series:
            raise UserError(
                "another iteration of this model is about to run, whose batch is already staged; "
                "a callback that trains, evaluates or predicts can do so when an epoch begins or "
                "ends (on_epoch_begin, on_epoch_end)"
            )
        self._in_series = True
        try:
            yield
        finally:
            self._in_series = False

    def stage(self, run: int, batch: Batch) -> None:
        """Bring the first batch of a series in."""
        array = native.Arrays()
        self._rt.check(
            self._rt.lib.fl_program_stage(self._handle, run, self._native_batch(array, batch))
        )
        self._staged = self._values_that_count(batch)

    def step(
        self, run: int, valid_samples: int, following: Batch, step: int = 0, lr: float = 0.0
    ) -> int:
        """Issue an iteration over the staged batch, and stage the following one meanwhile.

        Parameters
        ----------
        run
            TRAIN, EVALUATE or PREDICT, which is of the first micro-batch alone.
        valid_samples
            How many samples of the staged batch are not padding.
        following
            The batch of the next call; `NO_BATCH` at the end of a series.
        step, lr
            Number of the iteration, and the learning rate.

        Returns
        -------
        int
            A ticket for `metrics`.
        """
        array = native.Arrays()
        weights = [float(counts[:valid_samples].sum()) for counts in self._staged]
        ticket = int(
            self._rt.check(
                self._rt.lib.fl_program_step(
                    self._handle,
                    run,
                    step,
                    valid_samples,
                    len(self._losses),
                    self._label_shares(weights),
                    lr,
                    0.0 if self.loss_scale is None else self.loss_scale.value,
                    self._native_batch(array, following),
                )
            )
        )
        if run != PREDICT:
            self._weights[ticket] = weights
        self._staged = self._values_that_count(following)
        self.trained = self.trained or run == TRAIN
        if self.loss_scale is not None and run == TRAIN:
            self._scaled[ticket] = self._last_scale = self.loss_scale.value
        return ticket

    def finish(self, ticket: int) -> None:
        """Wait until this rank has read the iteration's batch, and has its part of the losses."""
        self._rt.check(self._rt.lib.fl_program_wait(self._handle, ticket))

    def metrics(self, ticket: int) -> list[MetricSums]:
        """Sums over the iteration's labels, of each loss; waits. A ticket can be used once."""
        return self.all_metrics([ticket])[0][0]

    def all_metrics(
        self, tickets: Sequence[int], say: int = 0
    ) -> tuple[list[list[MetricSums]], int]:
        """Metrics of several iterations, for which ranks tell each other once.

        Parameters
        ----------
        tickets
            The same on every rank.
        say
            A number that every rank is to know if it is the first rank's; not negative.

        Returns
        -------
        list of list of MetricSums
            For each ticket, what `metrics` returns.
        int
            What the first rank says.
        """
        count = len(self._losses)
        out = self._rt.ffi.new("fl_metrics[]", len(tickets) * count)
        heard = self._rt.check(
            self._rt.lib.fl_program_metrics(
                self._handle, len(tickets), list(tickets), count, out, say
            )
        )
        sums = [MetricSums(**{name: getattr(one, name) for name in _METRICS}) for one in out]
        each = [sums[i : i + count] for i in range(0, len(sums), count)]
        for ticket, its in zip(tickets, each, strict=True):
            for loss, one, weight in zip(self._losses, its, self._weights.pop(ticket), strict=True):
                if isinstance(loss.kind, CrossEntropy) and loss.kind.class_weights:
                    one.excess = weight - one.labels
            scale = self._scaled.pop(ticket, None)
            if self.loss_scale is not None and scale is not None:
                self.loss_scale.finished(scale, its[0].overflows > 0)
        return each, int(heard)

    def read(
        self, tensor: Tensor, field: str = "value", state: int = 0, rounds: int | None = None
    ) -> Array:
        """A whole tensor; of a gradient, the sum of its partial values, unscaled. Waits for it.

        Of what each micro-batch has its own, those of the first `rounds`, one after the other; by
        default of all. A prediction is of one.

        A field of the iteration is read as one of the tensors in the plan's `of_iteration`.
        Activations and their gradients that take turns in memory are refused, unless the plan's
        granularity has `keep_tensors`.
        """
        if field == "gradient" and self.plan.lookups(tensor):
            return self._table_gradient(tensor)
        once = tensor.kind == "weight" or field in self.plan.of_iteration
        rounds = 1 if once else rounds or self.plan.graph.micro_batches
        shape = (rounds * tensor.shape[0], *tensor.shape[1:])
        array = np.empty(shape, np.float32 if field != "value" else tensor.host_dtype)
        number = -1 if field in self.plan.of_iteration else self._number(tensor)
        self._rt.check(
            self._rt.lib.fl_program_read(
                self._handle, number, FIELDS.index(field), state, rounds, self._pointer(array)
            )
        )
        if field == "gradient":
            array /= self._last_scale
        return array

    def _table_gradient(self, table: Tensor) -> Array:
        """The sum over what was looked up in it; nothing on the devices holds it as a whole."""
        gradient = np.zeros(table.shape, np.float32)
        for operator in self.plan.lookups(table):
            assert isinstance(operator.kind, Embedding)
            tokens = self.read(operator.inputs[0])[:, operator.kind.window]
            rows = self.read(operator.output, "gradient")
            # Constant tokens are the same in every micro-batch.
            np.add.at(gradient, np.tile(tokens, (len(rows) // len(tokens), 1)), rows)
        return gradient

    def write(self, tensor: Tensor, array: Array, field: str = "value", state: int = 0) -> None:
        """Set a whole weight, or one of its optimizer states."""
        dtype = np.float32 if field != "value" else tensor.host_dtype
        array = np.ascontiguousarray(array, dtype)
        self._rt.check(
            self._rt.lib.fl_program_write(
                self._handle, self._number(tensor), FIELDS.index(field), state, self._pointer(array)
            )
        )

    def home(self, weight: Tensor) -> list[tuple[int, Box]]:
        """Where a weight is kept between iterations: the rank and the bounds of each shard."""
        return self._homes[self._number(weight)]

    def updates(self, weight: Tensor) -> bool:
        """Whether training updates a weight, and so keeps the optimizer's states of it."""
        return weight in self.plan.facts.updated

    def save(self, shards: Sequence[HostShard]) -> None:
        """Copy shards of weights and optimizer states to the host.

        All ranks name the same shards in the same order, and each gets those that it keeps. Waits.
        """
        native = self._rt.ffi.new("fl_host_shard[]", len(shards))
        for entry, shard in zip(native, shards, strict=True):
            entry.tensor, entry.field = self._number(shard.tensor), FIELDS.index(shard.field)
            entry.state, entry.shard = shard.state, shard.number
            if shard.to is not None:
                entry.to = self._pointer(shard.to)
                for d, stride in enumerate(shard.to.strides):
                    entry.stride[d] = stride // shard.to.itemsize
        self._rt.check(self._rt.lib.fl_program_save(self._handle, len(shards), native))

    def wait(self) -> None:
        """Wait until everything issued is done."""
        self._rt.check(self._rt.lib.fl_program_wait(self._handle, -1))

    def issued(self, run: int) -> list[list[int]]:
        """The plan's launches as an iteration issues them; those that run as one are together."""
        together: dict[int, list[int]] = {}
        for launch, number in enumerate(self._issued[run]):
            if number >= 0:
                together.setdefault(number, []).append(launch)
        return [together[number] for number in sorted(together)]

    def record(self, on: bool) -> npt.NDArray[Any]:
        """Whether to note from now on when tasks run; returns what this rank noted before. Waits.

        Returns
        -------
        array
            Rows of the header's ``fl_record``, in the order in which tasks ended: the number of the
            plan's launch (below 0 if it is none of these), of the task in it, of the device; start
            and end in ns of the rank's clock.
        """
        ffi, layout = self._rt.ffi, native.layout("fl_record")
        its = ffi.new("fl_records *")
        self._rt.check(self._rt.lib.fl_program_record(self._handle, on, its))
        return np.frombuffer(ffi.buffer(its.records, its.n * layout.itemsize), layout).copy()

    def _values_that_count(self, batch: Batch) -> npt.NDArray[np.float64]:
        """Of each loss, of each row: how many values count; the goal is the mean over all.

        Where classes have weights, it is the weighted mean, and a value counts as its class's.
        """
        counts = np.zeros((len(self._losses), len(batch.rows)), np.float64)
        given = dict(self._data[number] for number in batch.data)
        for its, loss in zip(counts, self._losses, strict=True):
            steps = prod(loss.output.shape[1:])
            array = given.get(loss.inputs[-1])
            if (
                isinstance(loss.kind, CrossEntropy)
                and array is not None
                and array.dtype == np.int32
            ):
                its[:] = loss.kind.counted(array[batch.rows]).reshape(-1, steps).sum(1)
            elif loss.output.shape[0] > 1:
                its[:] = steps
            else:  # a value of the batch
                its[:1] = steps
        return counts

    def _label_shares(self, weights: Sequence[float]) -> list[float]:
        """Of each loss, what a value that counts adds to the goal: of all, so much counts."""
        shares = []
        for loss, weight in zip(self._losses, weights, strict=True):
            assert isinstance(loss.kind, LossOperator)
            shares.append(loss.kind.weight / weight if weight else 0.0)
        return shares

    def _number(self, tensor: Tensor) -> int:
        return self.plan.tensor_numbers[tensor]

    def _pointer(self, array: Array) -> Any:
        return self._rt.ffi.cast("void *", array.ctypes.data)

    def _native_batch(self, array: native.Arrays, batch: Batch) -> Any:
        """The header's ``fl_batch``."""
        rows = array.of_numpy("int64_t", batch.rows)
        data = array("int32_t", batch.data)
        return array("fl_batch", [(len(batch.data), len(batch.rows), data, rows)])

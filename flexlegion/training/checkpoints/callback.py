"""Checkpoints of a training: ``model.fit(..., checkpoint=Checkpoints("runs/a", every=500))``."""

from __future__ import annotations

import fcntl
import os
import platform
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import flexlegion
from flexlegion.base.arguments import typed_methods
from flexlegion.base.errors import UserError
from flexlegion.base.files import json_text
from flexlegion.base.quoting import note, printable, say, warn
from flexlegion.graph.fingerprint import Fingerprint, difference
from flexlegion.machine.running import all_gather
from flexlegion.objective.groups import ParameterGroup
from flexlegion.objective.optimizers import Optimizer
from flexlegion.strategy.strategy import entry_of
from flexlegion.training.agreement import together
from flexlegion.training.callbacks import Callback
from flexlegion.training.checkpoints.files import (
    TEMPORARY,
    Checkpoint,
    folders,
    newest_whole,
    remove_leftovers,
)
from flexlegion.training.checkpoints.shards import HostCopy, Kept, put, states_of, weights_of
from flexlegion.training.checkpoints.writer import NotFiniteError, Writer
from flexlegion.training.position import Position

if TYPE_CHECKING:
    from flexlegion.training.compiled import Compiled
    from flexlegion.training.fit import Training
    from flexlegion.training.trained import TrainedModel

_SECONDS = {"s": 1, "m": 60, "h": 3600}
_NAME_BYTES = 64  # of a checkpoint's name, as ranks tell it each other


class UnwrittenError(UserError):
    """A checkpoint cannot be written: the disk is full, say. The training itself has gone well."""


@typed_methods
class Checkpoints(Callback):
    """Where, how often, and how many checkpoints are written while a model trains.

    A checkpoint is whatever training needs to go on as if nothing had happened: weights, optimizer
    states, running averages, and the position in the data. It belongs to the model, and can be
    resumed with another strategy and another number of devices or ranks.

    At the end of an iteration the values are copied; a thread writes them while training goes on.
    If the next checkpoint is due before that is done, training waits for it. One more is written
    when training ends, also by SIGINT or SIGTERM.

    Parameters
    ----------
    directory
        A folder for them, one that all ranks share; created if it does not exist.
    every
        Iterations from one to the next, or a time: "90s", "10m", "2h".
    keep
        How many to keep; older ones are removed once a new one is complete.
    resume
        Whether to go on from the newest one; if there is none, training begins. Otherwise the
        directory must not have any.

    Raises
    ------
    UserError
        If a value makes no sense.

    Examples
    --------
    >>> Checkpoints("runs/lenet", every="10m", keep=5).keep
    5
    """

    def __init__(
        self,
        directory: str | Path,
        every: int | str = "10m",
        keep: int = 3,
        resume: bool = False,
    ) -> None:
        self.directory = Path(directory)
        self.steps, self.seconds = interval(every)
        if keep < 1:
            raise UserError(f"at least 1 checkpoint has to be kept, not {keep}")
        self.keep, self.resume = keep, resume
        self.stalls: list[float] = []  # seconds for which training stood still, each time
        self._writer: Writer | None = None  # while `fit` runs
        self._compiled: Compiled
        self._copies: dict[str, HostCopy] = {}
        self._written: int | None = None  # the step of the newest one
        self._last = time.monotonic()
        self._lock: int | None = None
        self._said = False

    def check_directory(self) -> None:
        """Raise `UserError` if nothing can be written there, or the choice to resume is missing."""
        there = self.directory
        while not there.exists() and there != there.parent:
            there = there.parent
        shown = printable(str(self.directory))
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            raise UserError(f"{shown}: checkpoints cannot be written there; name another folder")
        if not self.resume and folders(self.directory):
            raise UserError(
                f"{shown}: there are checkpoints of an earlier training in it; resume that "
                "(--resume, or resume=True), or name another folder"
            )

    # What training calls

    def prepare(self, model: TrainedModel, compiled: Compiled) -> None:
        """Take the directory, and go on from its newest checkpoint if that is asked for.

        Raises
        ------
        UserError
            If the directory cannot be used, is not shared by all ranks, or what is in it does not
            fit.
        """
        rank, ranks = compiled.machine.rank, compiled.machine.ranks
        token = all_gather(secrets.token_bytes(4))[0].hex()
        self._together(lambda: self._open(rank, token))
        self._together(lambda: self._check_shared(token))
        self._together(self.check_directory)
        newest = self._newest(rank)
        self._written = None
        if newest is not None:
            self._together(lambda: restore(model, compiled, newest))
            self._written = newest.step
            if rank == 0:
                say(f"resuming after iteration {newest.step}: {newest.folder}")
                if changed := changed_settings(newest, compiled):
                    note(f"{newest.folder}: training goes on with {changed}")
        self._compiled, program = compiled, compiled.program
        self._copies = {
            "weights": HostCopy(program, rank, weights_of(program)),
            "optimizer": HostCopy(program, rank, states_of(program, compiled.training.optimizer)),
        }
        self._writer = Writer(self.directory, rank, ranks, self.keep, token)
        self._last = time.monotonic()

    def close(self) -> None:
        """Let others use the directory; to be called when `fit` is left, however."""
        if self._writer is not None:
            # What is being written is completed, unless the disk is the problem.
            with suppress(OSError, NotFiniteError):
                self._writer.finish()
        self._writer, self._copies = None, {}
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def due(self, position: Position) -> bool:
        """See `Callback.due`."""
        return self.steps is not None and position.step % self.steps == 0

    def due_by_clock(self) -> bool:
        """See `Callback.due_by_clock`."""
        return self.seconds is not None and time.monotonic() - self._last >= self.seconds

    def on_due(self, training: Training) -> None:
        """Copy what training keeps, and begin to write it; a failure does not end training."""
        try:
            self._write(training)
        except UnwrittenError as e:
            _warn(training, f"{e}; training goes on, and tries again")

    def on_interrupt(self, training: Training) -> str | None:
        """Write a last one, and tell where."""
        try:
            self.on_train_end(training)
        except UnwrittenError as e:
            there = folders(self.directory)
            newest = f"the newest one is {there[-1].name}" if there else "there is none"
            return f"{e}; {newest}"
        return f"a checkpoint is in {self.directory}"

    def on_train_end(self, training: Training) -> None:
        """Write a last one, and wait for it.

        Raises
        ------
        UnwrittenError
            If it cannot be written.
        """
        self._write(training)
        if self._writer is not None:
            self._on_disk(self._writer.finish)

    # Inside

    def _write(self, training: Training) -> None:
        step = training.position.step
        if self._writer is None or self._written == step:
            return
        began = time.perf_counter()
        try:
            self._on_disk(self._writer.finish)
        except UnwrittenError as e:
            _warn(training, f"{e}; training goes on, and tries again")
        if time.perf_counter() - began > 1 and not self._said:
            self._said = True
            _warn(
                training,
                f"{self.directory}: checkpoints are due faster than the disk writes them, and "
                "training waits; let more time pass between them",
            )
        self._last = time.monotonic()
        writer = self._writer
        self._on_disk(lambda: writer.make_folder(step))
        for copy in self._copies.values():
            copy.take()
        tensors = {kind: copy.arrays for kind, copy in self._copies.items()}
        # As a text: training goes on with the lists that it is made from.
        state = json_text(_state(training, self._compiled), indent=1)
        writer.write(step, tensors, state)
        self._written, self._last = step, time.monotonic()
        self.stalls.append(time.perf_counter() - began)

    def _on_disk(self, what: Callable[[], None]) -> None:
        """`_together`, for what fails where there is no room."""
        try:
            self._together(what)
        except UserError as e:
            raise UnwrittenError(str(e)) from None

    def _together(self, what: Callable[[], None]) -> None:
        """Do something on each rank; if one fails, all do."""

        def told() -> None:
            try:
                what()
            except (OSError, NotFiniteError) as e:
                raise UserError(
                    f"{self.directory}: the checkpoint cannot be written there ({_reason(e)})"
                ) from None

        together(told)

    def _open(self, rank: int, token: str) -> None:
        """The first rank takes the directory, and leaves there what the others look for."""
        if rank > 0:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{self.directory}: another training writes its checkpoints there; name another "
                "folder"
            ) from None
        except OSError:
            pass  # a file system without locks
        remove_leftovers(self.directory)
        (self.directory / f"{TEMPORARY}{token}").touch()

    def _check_shared(self, token: str) -> None:
        if not (self.directory / f"{TEMPORARY}{token}").exists():
            raise UserError(
                f"{self.directory}: this folder is not shared by all ranks; checkpoints need one "
                "that is, such as on a network file system"
            )

    def _newest(self, rank: int) -> Checkpoint | None:
        """The newest one that is whole, as the first rank sees it."""
        found: list[Checkpoint] = []

        def look() -> None:
            if rank == 0:
                for path in self.directory.glob(f"{TEMPORARY}*"):
                    path.unlink()
                found.extend(filter(None, [newest_whole(self.directory)]))

        self._together(look)
        name = found[0].folder.name if found else ""
        name = all_gather(name.encode().ljust(_NAME_BYTES, b"\0"))[0].rstrip(b"\0").decode()
        return Checkpoint(self.directory / name) if name else None


@contextmanager
def saved(
    checkpoints: Checkpoints | None, model: TrainedModel, compiled: Compiled
) -> Iterator[Sequence[Callback]]:
    """Meanwhile, have the directory, if there are to be checkpoints; they are a callback."""
    if checkpoints is None:
        yield ()
        return
    try:
        checkpoints.prepare(model, compiled)
        yield (checkpoints,)
    finally:
        checkpoints.close()


def interval(every: int | str) -> tuple[int | None, float | None]:
    """Iterations or seconds from one checkpoint to the next.

    Raises
    ------
    UserError
        If it is neither.
    """
    match = re.fullmatch(r"(\d{1,12})([smh]?)", str(every).strip())
    if match is None or int(match[1]) == 0:
        raise UserError(
            "the interval between checkpoints has to be iterations (500) or a time (90s, 10m, 2h), "
            f"but is {printable(str(every), 60)}"
        )
    if match[2] == "":
        return int(match[1]), None
    return None, int(match[1]) * _SECONDS[match[2]]


def _state(training: Training, compiled: Compiled) -> dict[str, Any]:
    model, optimizer = training.model, compiled.training.optimizer
    return {
        "training": training.state(),
        "seed": model.seed,
        "batch_size": model.batch_size,
        "model": None if model.reference is None else model.reference.name,
        "optimizer": {"type": optimizer.type, **optimizer.facts()},
        "learning_rate": training.learning_rate,
        "fingerprint": Fingerprint.of(compiled.graph).value,
        "operators": dict(Fingerprint.of(compiled.graph).operators),
        "strategy": {name: entry_of(config) for name, config in compiled.strategy.items()},
        "devices": list(compiled.machine.devices.names),
        "ranks": compiled.machine.ranks,
        "versions": {
            "flexlegion": flexlegion.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def restore(model: TrainedModel, compiled: Compiled, checkpoint: Checkpoint) -> None:
    """Bring a compiled model to where a checkpoint was taken.

    Raises
    ------
    UserError
        If the checkpoint is of another network or another training.
    """
    state, where = checkpoint.state, checkpoint.folder
    check_graph(checkpoint, compiled)
    weights = weights_of(compiled.program)
    states = states_of(compiled.program, compiled.training.optimizer)
    _check_optimizer(checkpoint, compiled.training.optimizer, weights, states)
    for key, here in (("seed", model.seed), ("batch_size", model.batch_size)):
        if state[key] != here:
            name = key.replace("_", " ")
            raise UserError(
                f"{where}: its {name} is {state[key]}, but this training's {here}; resume with the "
                "same, or load its weights alone"
            )
    put(compiled.program, [*weights, *states], checkpoint.read)
    compiled.program.trained = checkpoint.step > 0
    model.resume_training(state["training"])


def changed_settings(checkpoint: Checkpoint, compiled: Compiled) -> str:
    """What of the optimizer's settings is another one than it was; empty: nothing is.

    They are the caller's to say, the schedule among them, which is a function of the iteration. So
    a training may well be resumed with a lower learning rate.
    """
    before = checkpoint.state["optimizer"] | {"lr": checkpoint.state["learning_rate"]}
    optimizer = compiled.training.optimizer
    now = optimizer.facts() | {"lr": compiled.rate_after(checkpoint.step)}
    changed = [
        f"{'learning rate' if name == 'lr' else name} {value} instead of {before[name]}"
        for name, value in now.items()
        if name in before and name != "groups" and before[name] != value
    ]
    # A file has lists where the optimizer has tuples.
    groups = [
        ParameterGroup.of_document(entry, str(checkpoint.folder))
        for entry in before.get("groups", ())
    ]
    if groups != list(optimizer.groups):
        changed.append("other parameter groups")
    return ", ".join(changed)


def check_graph(checkpoint: Checkpoint, compiled: Compiled) -> None:
    """Raise `UserError` if a checkpoint is of another network, with what differs."""
    there = Fingerprint(checkpoint.state["operators"])
    here = Fingerprint.of(compiled.graph)
    if there.value != here.value:
        raise UserError(f"{checkpoint.folder}: it is of another network: {difference(there, here)}")


def _check_optimizer(
    checkpoint: Checkpoint, optimizer: Optimizer, weights: Sequence[Kept], states: Sequence[Kept]
) -> None:
    """Raise `UserError` if a checkpoint's optimizer or its states are not this training's."""
    before = checkpoint.state["optimizer"]["type"]
    there = set(checkpoint) - {one.key for one in weights}
    here = {one.key for one in states}
    if before != optimizer.type or there != here:
        raise UserError(
            f"{checkpoint.folder}: it was trained by {_with_states(before, there)}, and this "
            f"training is by {_with_states(optimizer.type, here)}; resume with the same optimizer, "
            "or load its weights alone"
        )


def _with_states(optimizer: str, keys: Set[str]) -> str:
    """An optimizer and the names of its states: "adam (m, v)"."""
    names = sorted({key.rpartition("/")[2] for key in keys})
    return f"{printable(optimizer, 40)} ({', '.join(names) or 'no states'})"


def _warn(training: Training, text: str) -> None:
    if training.first_rank:
        warn(text)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)

"""Logs of training: a CSV file, TensorBoard's, and W&B's; see `flexlegion.training.callbacks`."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from flexlegion.base.arguments import typed_methods
from flexlegion.base.errors import UserError
from flexlegion.base.files import check_writable, open_file, write_text
from flexlegion.training.callbacks import Callback, Values

if TYPE_CHECKING:
    from flexlegion.training.fit import Training


@typed_methods
class CSVLog(Callback):
    """Writes a line an epoch to a CSV file: its number, the step, the learning rate, all values.

    A line is in the file as soon as its epoch is over, whatever happens later. A new training
    begins a new file; a resumed one goes on with it, without the epochs that it trains again.

    Parameters
    ----------
    path
        The file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file: TextIO | None = None

    def on_train_begin(self, training: Training) -> None:
        """Begin the file, or find the place in it."""
        if not training.first_rank:
            return
        check_writable(self.path, "log")
        columns = ["epoch", "step", "learning_rate", *training.names]
        rows = self._kept(training.epoch, columns) if training.resumed else []
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([columns, *rows])
        write_text(self.path, text.getvalue(), "log")
        self._file = self.path.open("a", encoding="utf-8")

    def on_epoch_end(self, training: Training, values: Values) -> None:
        """See `Callback`."""
        if self._file is not None:
            row = [training.epoch, training.position.step, training.learning_rate]
            csv.writer(self._file, lineterminator="\n").writerow([*row, *values.values()])
            self._file.flush()

    def on_train_end(self, training: Training) -> None:  # noqa: ARG002
        """See `Callback`."""
        if self._file is not None:
            self._file.close()

    def _kept(self, epochs: int, columns: list[str]) -> list[list[str]]:
        """Lines of the first epochs; those after the point of resumption are trained again."""
        if not self.path.exists():
            return []
        with open_file(self.path) as binary, io.TextIOWrapper(binary, "utf-8", "replace") as file:
            rows = list(csv.reader(file))
        if rows and rows[0] != columns:
            raise UserError(
                f"{self.path}: this log has other columns than {', '.join(columns)}; name a new "
                "file to go on with"
            )
        return [
            row
            for row in rows[1:]
            if len(row) == len(columns) and row[0].isdecimal() and int(row[0]) <= epochs
        ]


@typed_methods
class TensorBoard(Callback):
    """Writes losses, metrics, rate and speed for TensorBoard: ``tensorboard --logdir FOLDER``.

    The runs "train" and "validation" lie in one chart, by iterations. What is written is in the
    files after each epoch; a resumed training goes on with them. It needs the package tensorboardX.

    Parameters
    ----------
    folder
        Where to.
    every
        Iterations between two points of the loss within an epoch; 0: a point an epoch.
    """

    def __init__(self, folder: str | Path, every: int = 0) -> None:
        if every < 0:
            raise UserError(f"every has to be at least 0 iterations, but is {every}")
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise UserError(
                "logs for TensorBoard need the package tensorboardX: pip install tensorboardX"
            ) from None
        self.folder, self.every = Path(folder), every
        self._open = SummaryWriter
        self._writers: dict[str, Any] = {}

    def on_train_begin(self, training: Training) -> None:
        """Open the files."""
        if not training.first_rank:
            return
        # What a killed process wrote of later iterations is not shown.
        purged = training.position.step + 1 if training.resumed else None
        validated = any(name.startswith("val_") for name in training.names)
        try:
            self._writers = {
                run: self._open(str(self.folder / run), purge_step=purged)
                for run in ("train", "validation")[: 1 + validated]
            }
        except OSError as e:
            raise UserError(
                f"{self.folder}: TensorBoard's logs cannot be written there ({e.strerror})"
            ) from None

    def on_batch_end(self, training: Training, values: Values) -> None:
        """See `Callback`."""
        step = training.position.step
        if self._writers and self.every and step % self.every == 0:
            self._writers["train"].add_scalar("batch_loss", values["loss"], step)

    def on_epoch_end(self, training: Training, values: Values) -> None:
        """See `Callback`."""
        if not self._writers:
            return
        step = training.position.step
        for name, value in [*values.items(), ("learning_rate", training.learning_rate)]:
            run = "validation" if name.startswith("val_") else "train"
            self._writers[run].add_scalar(name.removeprefix("val_"), value, step)
        for writer in self._writers.values():
            writer.flush()

    def on_train_end(self, training: Training) -> None:  # noqa: ARG002
        """See `Callback`."""
        for writer in self._writers.values():
            writer.close()

    def on_interrupt(self, training: Training) -> None:
        """See `Callback`."""
        self.on_train_end(training)


@typed_methods
class WandB(Callback):
    """Writes losses, metrics, rate and speed to Weights & Biases, by iterations.

    The run's configuration is how the model is trained, and on what. A training that is resumed
    from a checkpoint goes on with the run. It needs the package wandb, which goes by its own
    variables: with ``WANDB_MODE=offline`` all stays in the folder, for ``wandb sync``.

    Parameters
    ----------
    project
        Its name.
    name
        Of the run; by default W&B chooses one.
    folder
        In which its folder ``wandb`` is; by default ``WANDB_DIR``, or the working directory.
    every
        Iterations between two points of the loss within an epoch; 0: a point an epoch.
    """

    def __init__(
        self,
        project: str,
        name: str | None = None,
        folder: str | Path | None = None,
        every: int = 0,
    ) -> None:
        if every < 0:
            raise UserError(f"every has to be at least 0 iterations, but is {every}")
        try:
            import wandb
        except ImportError:
            raise UserError(
                "logs for Weights & Biases need the package wandb: pip install wandb"
            ) from None
        self.project, self.name, self.every = project, name, every
        self.folder = None if folder is None else str(folder)
        self._package = wandb
        self._id: str | None = None
        self._run: Any = None

    def on_train_begin(self, training: Training) -> None:
        """Begin the run, or go on with it."""
        if not training.first_rank:
            return
        if not training.resumed:
            self._id = None
        # Its own words go to no output of a command, and it takes no output of it.
        settings = self._package.Settings(silent=True, console="off")
        try:
            self._run = self._package.init(
                project=self.project,
                name=self.name,
                dir=self.folder,
                id=self._id,
                resume=None if self._id is None else "allow",
                config=training.about(),
                settings=settings,
            )
        except (self._package.errors.Error, OSError) as e:
            reason = " ".join(str(e).split()).rstrip(".")
            raise UserError(
                f"Weights & Biases cannot log ({reason}); log in by 'wandb login', or set "
                "WANDB_MODE=offline"
            ) from None
        self._id = self._run.id

    def on_batch_end(self, training: Training, values: Values) -> None:
        """See `Callback`."""
        step = training.position.step
        if self._run is not None and self.every and step % self.every == 0:
            self._run.log({"batch_loss": values["loss"]}, step=step)

    def on_epoch_end(self, training: Training, values: Values) -> None:
        """See `Callback`."""
        if self._run is not None:
            its = {"epoch": training.epoch, "learning_rate": training.learning_rate}
            self._run.log({**values, **its}, step=training.position.step)

    def on_train_end(self, training: Training) -> None:  # noqa: ARG002
        """See `Callback`."""
        self._finish(0)

    def on_interrupt(self, training: Training) -> None:  # noqa: ARG002
        """See `Callback`."""
        self._finish(1)

    def on_divergence(self, training: Training) -> None:  # noqa: ARG002
        """See `Callback`."""
        self._finish(1)

    def state(self) -> dict[str, Any]:
        """See `Callback`."""
        return {"id": self._id}

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Callback`."""
        self._id = None if state["id"] is None else str(state["id"])

    def _finish(self, status: int) -> None:
        if self._run is not None:
            self._run.finish(exit_code=status)
            self._run = None

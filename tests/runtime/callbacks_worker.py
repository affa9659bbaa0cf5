"""Trains with callbacks in many ways, and saves what they saw (JSON); test_callbacks.py reads it.

Usage: legate callbacks_worker.py FOLDER

Every rank writes FOLDER/RANK.json: an entry a scenario; one that raises has the traceback under
"error".
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from training_cases import BATCH, CLASSES, FEATURES, table_data

import flexlegion as fl
from flexlegion.machine.running import running_machine
from flexlegion.process.together import processes

Result = dict[str, Any]
SCENARIOS: dict[str, Callable[[Path], Result]] = {}


def scenario(function: Callable[[Path], Result]) -> Callable[[Path], Result]:
    """Mark a function to be run."""
    SCENARIOS[function.__name__] = function
    return function


def compiled(optimizer: Any = None, units: int = 8) -> fl.Model:
    """Two dense layers with dropout between them, ready to train."""
    model = fl.Model(BATCH, seed=5)
    x = model.dense(model.input((FEATURES,)), units, activation="tanh", name="hidden")
    model.softmax(model.dense(model.dropout(x, 0.3), CLASSES, name="output"))
    optimizer = optimizer or fl.SGD(0.2)
    model.compile(optimizer, "sparse_categorical_crossentropy", ["accuracy"], "data")
    return model


def plain(model: fl.Model) -> Result:
    """The weights, as JSON takes them."""
    return {name: value.tolist() for name, value in model.get_weights().items()}


class Seen(fl.Callback):
    """Notes what it is called with."""

    def __init__(self, every: int = 0) -> None:
        self.every = every
        self.calls: list[Any] = []

    def _note(self, name: str, training: Any, *more: Any) -> None:
        at = training.position
        self.calls.append([name, at.epoch, at.batch, at.step, *more])

    def on_train_begin(self, training: Any) -> None:
        self._note("train_begin", training)

    def on_train_end(self, training: Any) -> None:
        self._note("train_end", training)

    def on_epoch_begin(self, training: Any) -> None:
        self._note("epoch_begin", training)

    def on_epoch_end(self, training: Any, values: Any) -> None:
        self._note("epoch_end", training, values["loss"])

    def on_batch_end(self, training: Any, values: Any) -> None:
        self._note("batch_end", training, values["loss"])

    def due(self, position: Any) -> bool:
        return self.every > 0 and position.step % self.every == 0

    def on_due(self, training: Any) -> None:
        self._note("due", training)

    def on_interrupt(self, training: Any) -> str:
        self._note("interrupt", training)
        return "it was seen"


@scenario
def calls(_: Path) -> Result:
    """Every kind of call, in its order."""
    seen = Seen(every=4)
    model = compiled()
    history = model.fit(*table_data(), epochs=2, progress=False, callbacks=[seen])
    return {"calls": seen.calls, "losses": [epoch["loss"] for epoch in history.epochs]}


class Keeper(fl.Callback):
    """Keeps what a checkpoint would, at one step."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.kept: Any = None

    def due(self, position: Any) -> bool:
        return position.step == self.step

    def on_due(self, training: Any) -> None:
        # As a checkpoint brings it back.
        self.kept = json.loads(json.dumps(training.state())), training.model.get_weights()


@scenario
def resumed(_: Path) -> Result:
    """Training that goes on in the middle of an epoch, at its end, and at the end of all."""
    results: Result = {}
    validation = table_data()
    for step in (0, 8, 12, 18):
        keeper = Keeper(step)
        model = compiled()
        data = table_data()
        whole = model.fit(*data, 3, validation_data=validation, progress=False, callbacks=[keeper])
        results["whole"] = [whole.epochs, plain(model)]
        if keeper.kept is None:
            continue
        state, weights = keeper.kept
        model = compiled()
        model.set_weights(weights)
        model.resume_training(state)
        seen = Seen()
        again = model.fit(*data, 3, validation_data=validation, progress=False, callbacks=[seen])
        results[str(step)] = [again.epochs, plain(model), [call[0] for call in seen.calls]]
    return results


class Stopper(fl.Callback):
    """Stops in the middle of an epoch: the first rank's word counts."""

    def on_batch_end(self, training: Any, _values: Any) -> None:
        if training.position.step == 10 and training.first_rank:
            training.stop()


class Signals(fl.Callback):
    """Sends this rank a signal at a step, if it is the first rank."""

    def __init__(self, number: int) -> None:
        self.number = number

    def on_batch_end(self, training: Any, _values: Any) -> None:
        if training.position.step == 20 and training.first_rank:
            os.kill(os.getpid(), self.number)


@scenario
def stopped(_: Path) -> Result:
    """Ends before its time, by a callback."""
    model, seen = compiled(), Seen()
    history = model.fit(*table_data(), 10**5, progress=False, callbacks=[Stopper(), seen])
    again = Seen()
    model.fit(*table_data(), 1, progress=False, callbacks=[again])
    return {
        "last": seen.calls[-1],
        "epochs": len(history.epochs),
        "again": again.calls[0],
        "weights": plain(model),
    }


@scenario
def interrupted(_: Path) -> Result:
    """Ends because of signals; the second one goes on."""
    results: Result = {}
    model = compiled()
    numbers = {"SIGINT": signal.SIGINT, "SIGTERM": signal.SIGTERM}
    if processes() > 1:
        numbers["SIGTERM"] = signal.SIGUSR2
    before = [signal.getsignal(number) for number in numbers.values()]
    for name, number in numbers.items():
        seen = Seen()
        try:
            model.fit(*table_data(), 10**5, progress=False, callbacks=[Signals(number), seen])
        except KeyboardInterrupt as e:
            results[name] = {
                "kind": type(e).__name__,
                "text": str(e),
                "code": getattr(e, "code", None),
                "last": seen.calls[-2:],
                "epochs": len(model.history.epochs),
            }
        model.compile(fl.SGD(0.2), "sparse_categorical_crossentropy", ["accuracy"], "data")
    results["handlers"] = before == [signal.getsignal(number) for number in numbers.values()]
    results["trains"] = len(model.fit(*table_data(), 2, progress=False).epochs)
    return results


@scenario
def own_handler(_: Path) -> Result:
    """A handler of the user's stays."""
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        model = compiled()
        epochs = model.fit(*table_data(), 6, progress=False, callbacks=[Signals(signal.SIGINT)])
    finally:
        signal.signal(signal.SIGINT, before)
    return {"heard": heard, "epochs": len(epochs.epochs)}


def two_outputs() -> tuple[fl.Model, Any, Any]:
    """A model of two losses, the second of which overflows."""
    model = fl.Model(BATCH, seed=5)
    x = model.input((FEATURES,))
    model.set_outputs([model.dense(x, 2, name="small"), model.dense(x, 2, name="big")])
    rng = np.random.default_rng(0)
    data = rng.normal(size=(24, FEATURES)).astype(np.float32)
    labels = [np.zeros((24, 2), np.float32), np.zeros((24, 2), np.float32)]
    labels[1][17] = 1e38
    return model, data, labels


@scenario
def diverged(_: Path) -> Result:
    """Losses that are not finite."""
    results: Result = {}
    seen = Seen(every=1)
    model, x, y = two_outputs()
    options: Any = {"epochs": 2, "shuffle": False, "progress": False}
    model.compile(fl.SGD(10.0), ["mean_squared_error"] * 2, strategy="data")
    try:
        model.fit(x, y, callbacks=[seen], **options)
    except fl.DivergenceError as e:
        results["text"], results["status"] = str(e), e.status
    results["calls"] = [call[0:4] for call in seen.calls]
    model.compile(fl.SGD(10.0), ["mean_squared_error"] * 2, strategy="data")
    results["allowed"] = len(model.fit(x, y, allow_nan=True, **options).epochs)
    model.compile(fl.SGD(1e-9), ["mean_squared_error"] * 2, strategy="data")
    model.set_weights({"small.kernel": np.full((2, FEATURES), 1e10)})
    good = x[:16], [part[:16] for part in y]
    try:
        model.fit(*good, validation_data=(x * 1e30, y), **options)
    except fl.DivergenceError as e:
        results["validation"] = str(e)
    return results


class Worse(fl.Callback):
    """Makes the validation loss worse after the third epoch."""

    def on_epoch_begin(self, training: Any) -> None:
        if training.epoch == 3:
            training.model.set_weights({"output.bias": np.array([9.0, -9.0, 0.0])})


@scenario
def followed(folder: Path) -> Result:
    """Early stopping, the best weights, and logs; then the logs of resumed training."""
    rank = running_machine().rank
    data = table_data()
    options: Any = {"validation_data": data, "progress": False}
    stopping = fl.EarlyStopping(patience=2, restore_best=True)
    files = folder / "best.npz", folder / "log.csv", folder / "tensorboard"
    logs = [fl.CSVLog(files[1]), fl.TensorBoard(files[2], every=2)]
    model = compiled(fl.SGD(1e-2))
    keeper = Keeper(step=14)  # in the third epoch
    history = model.fit(
        *data, 20, callbacks=[Worse(), keeper, stopping, fl.BestWeights(files[0]), *logs], **options
    )
    result: Result = {
        "val_losses": [epoch["val_loss"] for epoch in history.epochs],
        "best_epoch": stopping.best_epoch,
        "best": stopping.best,
        "evaluated": model.evaluate(*data)["loss"],
    }
    if rank == 0:
        best = dict(np.load(files[0]))
        result["same"] = all(np.array_equal(best[k], v) for k, v in model.get_weights().items())
        result["log"] = files[1].read_text()
        with files[1].open("a") as file:
            file.write("7,4")  # as a kill leaves it
    else:
        model.get_weights()
    state, weights = keeper.kept
    model = compiled(fl.SGD(1e-2))
    model.set_weights(weights)
    model.resume_training(state)
    resumed = fl.EarlyStopping(patience=2)
    log = fl.CSVLog(files[1])
    model.fit(*data, 20, callbacks=[Worse(), Keeper(-1), resumed, log], **options)
    result["resumed"] = [resumed.best_epoch, resumed.best]
    if rank == 0:
        result["resumed_log"] = files[1].read_text()
        result["board"] = sorted(str(file.parent.name) for file in files[2].glob("*/events*"))
    try:
        model.fit(*data, 1, callbacks=[fl.EarlyStopping(monitor="val_acuracy")], **options)
    except fl.UserError as e:
        result["mistake"] = str(e)
    return result


class Calling(fl.Callback):
    """Calls something after each iteration, or each epoch."""

    def __init__(self, iteration: Callable[[], Any] | None, epoch: Callable[[], Any]) -> None:
        self.iteration, self.epoch = iteration, epoch

    def on_batch_end(self, training: Any, values: Any) -> None:  # noqa: ARG002
        if self.iteration is not None:
            self.iteration()

    def on_epoch_end(self, training: Any, values: Any) -> None:  # noqa: ARG002
        self.epoch()


@scenario
def looking(folder: Path) -> Result:  # noqa: ARG001
    """A callback that predicts, evaluates and reads changes nothing; what would is refused."""
    data = table_data()
    options: Any = {"progress": False, "validation_data": data}
    plainly, looked = compiled(), compiled()
    seen: list[Any] = []

    def look() -> None:
        seen.append([looked.predict(data[0]).tolist(), looked.evaluate(*data)["loss"]])

    expected = [epoch["loss"] for epoch in plainly.fit(*data, 3, **options).epochs]
    reading = Calling(looked.get_weights, look)
    found = looked.fit(*data, 3, callbacks=[reading], **options)
    result: Result = {
        "losses": [[epoch["loss"] for epoch in found.epochs], expected],
        "weights": [plain(looked), plain(plainly)],
        "seen": [seen[-1], [plainly.predict(data[0]).tolist(), plainly.evaluate(*data)["loss"]]],
        "refused": [],
    }
    nothing = Calling(None, lambda: None)
    for iteration, epoch in (
        (lambda: looked.predict(data[0]), nothing.epoch),
        (lambda: looked.evaluate(*data), nothing.epoch),
        (None, lambda: looked.fit(*data, **options)),
        (None, lambda: looked.compile("sgd")),
        (None, looked.close),
    ):
        try:
            looked.fit(*data, callbacks=[Calling(iteration, epoch)], **options)
        except fl.UserError as e:
            result["refused"].append(str(e))
    # The model is as good as before.
    looked.set_weights(plainly.get_weights())
    result["after"] = [looked.predict(data[0]).tolist(), plainly.predict(data[0]).tolist()]
    return result


@scenario
def differing(folder: Path) -> Result:
    """What is not the same on all ranks is refused on all, and files are there for all."""
    rank = running_machine().rank
    model = compiled()
    x, y = table_data()
    result: Result = {"refused": []}
    for call in (
        lambda: model.fit(x + rank, y, progress=False),
        lambda: model.predict(x + rank),
        lambda: model.set_weights({"output.bias": np.full(CLASSES, rank, np.float32)}),
        lambda: model.save_weights(folder / "nowhere" / "weights.npz"),
        lambda: model.load_weights(folder / "nothing.npz"),
    ):
        try:
            call()
        except fl.UserError as e:
            result["refused"].append(str(e).replace(str(folder), "FOLDER"))
    for i in range(5):
        path = folder / f"{i}.npz"
        model.set_weights({"output.bias": np.full(CLASSES, i, np.float32)})
        model.save_weights(path)
        model.load_weights(path)
    result["bias"] = model.get_weights()["output.bias"].tolist()
    return result


def main() -> None:
    folder = Path(sys.argv[1])
    results: dict[str, Result] = {}
    for name, function in SCENARIOS.items():
        try:
            results[name] = function(folder)
        except Exception:
            results[name] = {"error": traceback.format_exc()}
    (folder / f"{running_machine().rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()

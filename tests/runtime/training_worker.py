"""Trains on Legion in many ways and saves what came of it (JSON); test_training.py reads it.

Usage: legate training_worker.py FILE

The file has an entry a function that is marked as a scenario, here or in scaling_scenarios.py. One
that raises has the traceback under "error".
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cupynumeric as cnp
import numpy as np
from scaling_scenarios import SCALED
from training_cases import (
    BATCH,
    CLASSES,
    FEATURES,
    SAMPLES,
    STRATEGIES,
    UNITS,
    image_data,
    table_data,
)
from training_scenarios import LOSS, SCENARIOS, Result, message, network, plain, scenario

from flexlegion import SGD, Adam, Model, UserError
from flexlegion.data.sources import BatchSource
from flexlegion.strategy.granularity import Granularity
from flexlegion.training.program import TRAIN, Batch


def compiled(optimizer: Any = None, strategy: str = "single", **options: Any) -> Model:
    """The network, ready to train."""
    model = network(**options)
    model.compile(optimizer or SGD(0.2, momentum=0.9), LOSS, ["accuracy"], strategy)
    return model


def train(model: Model, *epochs: int, **options: Any) -> dict[str, Any]:
    """The weights after calls of fit with so many epochs each."""
    for count in epochs:
        model.fit(*table_data(), epochs=count, progress=False, **options)
    weights = plain(model.get_weights())
    model.close()
    return weights


@scenario
def history() -> Result:
    """Both kinds of fit, and what comes with validation data."""
    model = compiled()
    x, y = table_data()
    without = model.fit(x, y, epochs=1, progress=False)
    with_validation = model.fit(x, y, 2, validation_data=(x[:11], y[:11]), progress=False)
    evaluated = model.evaluate(x[:11], y[:11])
    none = model.fit(x, y, epochs=0, progress=False)
    model.close()
    return {
        "without": without.epochs,
        "with_validation": with_validation.epochs,
        "evaluated": evaluated,
        "none": none.epochs,
    }


@scenario
def learning() -> Result:
    """A convolutional network on images whose class is easy to see."""
    model = Model(BATCH, seed=1)
    x = model.input((8, 8, 1))
    x = model.pool2d(model.conv2d(x, 4, 3, activation="relu"), 2)
    model.softmax(model.dense(model.flatten(x), 3))
    model.compile(Adam(0.01), LOSS, ["accuracy"])
    images, labels = image_data()
    epochs = model.fit(images, labels, epochs=6, progress=False).epochs
    classes = model.predict(images).argmax(-1)
    model.close()
    return {"epochs": epochs, "classes": classes.tolist(), "labels": labels.tolist()}


class Table(BatchSource):
    """The samples of `table_data`, read one by one."""

    name = "table"

    def __init__(self, bad: int = -1) -> None:
        self.x, self.y = table_data()
        self.bad = bad

    def __len__(self) -> int:
        return SAMPLES

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((FEATURES,), ())

    def read(self, row: int, _epoch: int, out: Sequence[Any]) -> None:
        if row == self.bad:
            raise UserError(f"sample {row} cannot be read")
        for to, values in zip(out, (self.x, self.y), strict=True):
            to[...] = values[row]


@scenario
def sources() -> Result:
    """Data that are read ahead, beside the same as arrays; before, some that cannot be read."""
    result: Result = {}
    for strategy in STRATEGIES:
        model = compiled(strategy=strategy)
        start = model.get_weights()
        failed = message(lambda model=model: model.fit(Table(bad=11), progress=False))
        model.compile(SGD(0.2, momentum=0.9), LOSS, ["accuracy"], strategy)
        same_start = plain(model.get_weights()) == plain(start)
        epochs = model.fit(Table(), epochs=3, validation_data=Table(), progress=False).epochs
        evaluated = model.evaluate(Table())
        predicted = model.predict(Table())
        same = np.array_equal(predicted, model.predict(table_data()[0]))
        weights = plain(model.get_weights())
        model.close()
        result[strategy] = {
            "failed": failed,
            "same start": same_start,
            "epochs": epochs,
            "evaluated": evaluated,
            "same predictions": same,
            "weights": weights,
            "of arrays": train(compiled(strategy=strategy), 3),
        }
    return result


@scenario
def schedules() -> Result:
    """A schedule that lets only the first epoch train, and one that halves the rate."""
    steps = -(-SAMPLES // BATCH)
    result: Result = {"one epoch": train(compiled(), 1), "half": train(compiled(SGD(0.1)), 2)}
    for name, optimizer, schedule in (
        ("then none", SGD(0.2, momentum=0.9), lambda step: 1.0 if step < steps else 0.0),
        ("halved", SGD(0.2), lambda _: 0.5),
    ):
        model = network()
        model.compile(optimizer, LOSS, strategy="single", schedule=schedule)
        result[name] = train(model, 1, 1)
    return result


@scenario
def repeats() -> Result:
    """The same training twice, and with other seeds and orders."""
    result = {}
    for strategy in STRATEGIES:
        runs = [train(compiled(strategy=strategy, rate=0.3), 2) for _ in range(2)]
        result[strategy] = runs
    result["other seed"] = [train(compiled(seed=6, rate=0.3), 2)]
    result["not shuffled"] = [train(compiled(rate=0.3), 2, shuffle=False)]
    return result


@scenario
def initial() -> Result:
    """The weights that compile sets, under every strategy."""
    result = {}
    for strategy in STRATEGIES:
        model = compiled(strategy=strategy)
        result[strategy] = plain(model.get_weights())
        model.close()
    return result


@scenario
def sizes() -> Result:
    """Evaluating and predicting numbers of samples that the batch does not divide."""
    model = compiled(strategy="data")
    model.fit(*table_data(), epochs=1, progress=False)
    x, y = table_data()
    result: Result = {"weights": plain(model.get_weights())}
    for n in (1, BATCH - 1, BATCH, BATCH + 1, SAMPLES):
        result[str(n)] = {
            "predicted": model.predict(x[:n]).tolist(),
            "evaluated": model.evaluate(x[:n], y[:n]),
        }
    result["dtype"] = str(model.predict(x).dtype)
    result["weights after"] = plain(model.get_weights())
    model.close()
    return result


@scenario
def regression() -> Result:
    """Three dimensions in, three out, with the metrics of regression."""
    model = Model(BATCH, seed=2)
    model.dense(model.input((3, FEATURES)), 2, name="output")
    metrics = ["mean_absolute_error", "mean_squared_error"]
    model.compile("sgd", "mean_squared_error", metrics)
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(SAMPLES, 3, FEATURES)), rng.normal(size=(SAMPLES, 3, 2))
    result = {
        "x": x.tolist(),
        "y": y.tolist(),
        "weights": plain(model.get_weights()),
        "predicted": model.predict(x).tolist(),
        "evaluated": model.evaluate(x, y),
    }
    model.close()
    return result


@scenario
def sentences() -> Result:
    """Tokens in, a label for each step out; batches differ in how many labels count."""
    model = Model(BATCH, seed=2)
    tokens = model.input((6,), "int32")
    first = model.embedding(tokens, 30, 8, steps=3, name="first")
    second = model.embedding(tokens, 11, 8, start=3, name="second")
    model.dense(model.position_embedding(model.add([first, second])), 9)
    metrics = ["accuracy", "top_5_accuracy", "perplexity"]
    model.compile(SGD(0.5), LOSS, metrics, strategy="random:3")
    rng = np.random.default_rng(4)
    x, y = rng.integers(0, 11, (SAMPLES, 6)), rng.integers(0, 9, (SAMPLES, 3))
    y[np.arange(3) >= rng.integers(0, 4, (SAMPLES, 1))] = -1
    y[:BATCH] = -1
    model.fit(x, y, epochs=2, progress=False)
    before = plain(model.get_weights())
    untrained = message(lambda: model.fit(x[:BATCH], y[:BATCH], progress=False))

    def with_token(step: int, token: int) -> str:
        wrong = x.copy()
        wrong[2, step] = token
        error = message(lambda: model.predict(wrong))
        return "accepted" if error == "no error" else error

    result = {
        "y": y.tolist(),
        "logits": model.predict(x).tolist(),
        "evaluated": model.evaluate(x, y),
        "nothing counts": [untrained, message(lambda: model.evaluate(x[:3], y[:3]))],
        "unchanged": plain(model.get_weights()) == before,
        "errors": {
            "too high": with_token(4, 11),
            "negative": with_token(4, -1),
            "in steps that only the larger table reads": with_token(2, 11),
            "beyond int32": with_token(2, 2**32),
        },
    }
    model.close()
    return result


@scenario
def turns_in_memory() -> Result:
    """Reading an activation and its gradient, where they are kept and where they are not."""
    result: Result = {}
    for keeps in (False, True):
        model = network()
        model.compile(SGD(0.2), LOSS, granularity=Granularity(keep_tensors=keeps))
        model.fit(*table_data(), epochs=1, progress=False)
        hidden = next(op for op in model.plan.graph.operators if op.name == "hidden").output
        reads = {
            field: partial(model.program.read, hidden, field) for field in ("gradient", "value")
        }
        result["kept" if keeps else "shared"] = {
            field: float(np.abs(read()).max()) if keeps else message(read)
            for field, read in reads.items()
        } | {
            "predicted": model.predict(table_data()[0]).tolist(),
        }
        model.close()
    return result


@scenario
def weights() -> Result:
    """Setting weights, all and some."""
    model = compiled(strategy="model")
    rng = np.random.default_rng(9)
    given = {n: rng.normal(size=v.shape) for n, v in model.get_weights().items()}
    model.set_weights(given)
    every = plain(model.get_weights())
    model.set_weights({"output.bias": np.arange(CLASSES)})
    some = plain(model.get_weights())
    model.set_weights({})
    taken = model.get_weights()
    taken["output.bias"][:] = -1  # a copy
    result = {"given": plain(given), "all": every, "some": some}
    result["untouched"] = plain(model.get_weights())
    model.close()
    return result


@scenario
def again() -> Result:
    """Compiling again after close, and without it; with another optimizer and strategy."""
    result = {}
    model = compiled()
    result["first"] = plain(model.get_weights())
    model.fit(*table_data(), progress=False)
    result["trained"] = plain(model.get_weights())
    model.close()
    model.close()  # a second time does nothing
    model.compile(SGD(0.2, momentum=0.9), LOSS, strategy="data")
    result["after close"] = plain(model.get_weights())
    model.compile(Adam(), LOSS, strategy="model")
    result["without close"] = plain(model.get_weights())
    model.compile(SGD(0.2, momentum=0.9), LOSS, ["accuracy"], strategy="single")
    result["trained again"] = train(model, 1)
    result["one"] = train(compiled(), 1)
    return result


@scenario
def continues() -> Result:
    """Two calls of fit are one: the optimizer's state, steps, and orders go on."""
    result = {}
    for name, optimizer in {"momentum": SGD(0.2, momentum=0.9), "adam": Adam(0.01)}.items():
        result[name] = {
            "together": train(compiled(optimizer, rate=0.3), 3),
            "apart": train(compiled(optimizer, rate=0.3), 1, 2),
            "one": train(compiled(optimizer, rate=0.3), 1),
        }
    return result


@scenario
def cupynumeric() -> Result:
    """The same from cuPyNumeric's arrays as from NumPy's."""
    result = {}
    x, y = table_data()
    initial_weights = {"hidden.kernel": np.linspace(-1, 1, UNITS * FEATURES).reshape(UNITS, -1)}
    for name, array in {"numpy": np.array, "cupynumeric": cnp.array}.items():
        model = compiled()
        model.set_weights({k: array(v) for k, v in initial_weights.items()})
        model.fit(array(x), array(y), 1, (array(x[:9]), array(y[:9])), progress=False)
        result[name] = {
            "evaluated": model.evaluate(array(x), array(y)),
            "predicted": model.predict(array(x)).tolist(),
            "weights": plain(model.get_weights()),
        }
        model.close()
    return result


@scenario
def labels() -> Result:
    """Other ways to write the same labels."""
    x, y = table_data()
    forms = {
        "int32": y.astype(np.int32),
        "int64": y.astype(np.int64),
        "uint8": y.astype(np.uint8),
        "float": y.astype(np.float64),
        "column": y.reshape(-1, 1),
        "list": y.tolist(),
    }
    model = compiled()
    result = {name: model.evaluate(x, form) for name, form in forms.items()}
    result["fortran order"] = model.evaluate(np.asfortranarray(x), y)
    result["every second of more"] = model.evaluate(np.repeat(x, 2, axis=0)[::2], y)
    model.close()
    return result


@scenario
def errors() -> Result:
    """Mistakes; and training afterwards."""
    x, y = table_data()
    model = network()
    early: dict[str, Callable[[], Any]] = {
        "fit": lambda: model.fit(x, y),
        "evaluate": lambda: model.evaluate(x, y),
        "predict": lambda: model.predict(x),
        "get_weights": model.get_weights,
        "set_weights": lambda: model.set_weights({}),
        "program": lambda: model.program,
    }
    result: Result = {"before compile": {name: message(call) for name, call in early.items()}}
    model.compile(SGD(0.2), LOSS, strategy="single")
    before = plain(model.get_weights())
    bad = np.where(np.arange(SAMPLES) == 3, CLASSES, y)
    one_wrong = {"output.bias": np.ones(CLASSES), "hidden.kernel": np.ones((FEATURES, UNITS))}
    calls: dict[str, Callable[[], Any]] = {
        "samples' shape": lambda: model.fit(x[:, 1:], y),
        "one sample alone": lambda: model.predict(x[0]),
        "labels' shape": lambda: model.fit(x, np.eye(CLASSES)[y]),
        "label too high": lambda: model.fit(x, bad),
        "label negative": lambda: model.evaluate(x, y - 2),
        "label infinite": lambda: model.evaluate(x, np.where(y == 0, np.inf, y)),
        "label a fraction": lambda: model.evaluate(x, y + 0.5),
        "text": lambda: model.predict(np.full((2, FEATURES), "a")),
        "different numbers": lambda: model.fit(x, y[1:]),
        "different numbers in validation": lambda: model.fit(x, y, 1, (x, y[1:])),
        "no samples": lambda: model.fit(x[:0], y[:0]),
        "no labels": lambda: model.fit(x),
        "labels of a source": lambda: model.fit(Table(), y),
        "two inputs": lambda: model.predict([x, x]),
        "weight's name": lambda: model.set_weights({"output.kernels": 0}),
        "weight's shape": lambda: model.set_weights(one_wrong),
        "strategy": lambda: model.compile("sgd", LOSS, strategy="sideways"),
    }
    result["after compile"] = {name: message(call) for name, call in calls.items()}
    data, samples = model.bind(x, y)
    for name, batch in {
        "row beyond": Batch(data, np.array([0, samples])),
        "row negative": Batch(data, np.array([-1])),
        "data unknown": Batch([10**6], np.array([0])),
    }.items():
        model.program.stage(TRAIN, Batch(data, np.array([0])))
        calls = (
            lambda batch=batch: model.program.stage(TRAIN, batch),
            lambda batch=batch: model.program.step(TRAIN, 1, batch),
        )
        result[name] = [message(call).splitlines()[-1] for call in calls]
    result["unchanged"] = plain(model.get_weights()) == before
    result["trains"] = len(model.fit(x, y, progress=False).epochs)
    model.close()
    result["after close"] = message(lambda: model.fit(x, y))
    return result


class UnknownOptimizer(SGD):
    """Has no kernel, so that compiling fails at the very end."""

    type = "unknown"


@scenario
def failed_compile() -> Result:
    """The model after a compile that failed, and after one more that did not."""
    model = compiled()
    try:
        model.compile(UnknownOptimizer(), LOSS)
    except Exception as e:
        failure = str(e)
    after = message(lambda: model.predict(table_data()[0]))
    model.compile(SGD(0.2, momentum=0.9), LOSS, strategy="single")
    return {
        "failure": failure,
        "after": after,
        "again": train(model, 1),
        "one": train(compiled(), 1),
    }


def main() -> None:
    """All scenarios."""
    results = {}
    for function in SCALED:
        scenario(function)
    for name, function in SCENARIOS.items():
        try:
            results[name] = function()
        except Exception:
            results[name] = {"error": traceback.format_exc()}
    Path(sys.argv[1]).write_text(json.dumps(results))


main()

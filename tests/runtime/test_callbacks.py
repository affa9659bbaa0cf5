"""Callbacks, going on where training was, and how it ends before its time: on one and two ranks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launch import run_legate, run_ranks

pytestmark = pytest.mark.legion

WORKER = Path(__file__).with_name("callbacks_worker.py")
BATCHES = 6  # an epoch's

Result = dict[str, Any]
Results = Callable[[str], Result]


@pytest.fixture(scope="module", params=[1, 2])
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What a scenario came to; on two ranks the same on both."""
    folder = tmp_path_factory.mktemp("callbacks")
    if request.param == 1:
        run_legate(WORKER, folder, cpus=2, timeout=120)
    else:
        run_ranks(WORKER, folder, ranks=2, timeout=120)
    ranks = [json.loads((folder / f"{i}.json").read_text()) for i in range(request.param)]

    def result(name: str) -> Result:
        for scenarios in ranks:
            assert "error" not in scenarios[name], scenarios[name]["error"]
        if name not in TIMED:
            assert all(scenarios[name] == ranks[0][name] for scenarios in ranks)
        chosen: Result = ranks[0][name]
        return chosen

    return result


TIMED = {
    "resumed",
    "own_handler",
    "followed",
}  # whose results have times, or are of one rank's signal


def test_calls_come_in_order_with_each_iterations_loss(results: Results) -> None:
    calls, losses = results("calls")["calls"], results("calls")["losses"]
    expected: list[list[Any]] = [["train_begin", 0, 0, 0]]
    for epoch in range(2):
        expected.append(["epoch_begin", epoch, 0, BATCHES * epoch])
        for batch in range(1, BATCHES + 1):
            step = BATCHES * epoch + batch
            expected.append(["batch_end", epoch, batch, step])
            if step % 4 == 0:
                expected.append(["due", epoch, batch, step])
        expected.append(["epoch_end", epoch + 1, 0, BATCHES * (epoch + 1)])
    expected.append(["train_end", 2, 0, 2 * BATCHES])
    assert [call[:4] for call in calls] == expected
    of_batches = [call[4] for call in calls if call[0] == "batch_end"]
    samples = [8, 8, 8, 8, 8, 3]
    for epoch, loss in enumerate(losses):
        its = of_batches[BATCHES * epoch :][:BATCHES]
        mean = sum(a * b for a, b in zip(its, samples, strict=True)) / sum(samples)
        assert mean == pytest.approx(loss, rel=1e-9)


def _untimed(epochs: list[Result]) -> list[Result]:
    timing = {"seconds", "samples_per_second"}
    return [{name: e[name] for name in e.keys() - timing} for e in epochs]


@pytest.mark.parametrize(("step", "more"), [("8", 10), ("12", 6), ("18", 0)])
def test_resumed_training_is_bit_for_bit_the_same(step: str, more: int, results: Results) -> None:
    """In the middle of an epoch, after its last iteration, and after the last one of all."""
    epochs, weights = results("resumed")["whole"]
    its_epochs, its_weights, calls = results("resumed")[step]
    assert its_weights == weights
    assert _untimed(its_epochs) == _untimed(epochs)
    assert calls.count("batch_end") == more


def test_stopped_by_a_callback_of_the_first_rank(results: Results) -> None:
    found = results("stopped")
    name, _, _, step = found["last"]
    assert name == "train_end"
    # Iterations in flight end, and on two ranks those until the next exchange.
    assert 10 < step < 10**4
    assert found["epochs"] in (step // BATCHES, step // BATCHES - 1)
    # What comes after is another epoch, so another order of the samples.
    assert found["again"] == ["train_begin", -(-step // BATCHES), 0, step]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signals_end_training_after_an_iteration(name: str, results: Results) -> None:
    found = results("interrupted")
    its = found[name]
    assert its["kind"] == {"SIGINT": "Interrupted", "SIGTERM": "Terminated"}[name]
    assert its["code"] == {"SIGINT": None, "SIGTERM": 143}[name]
    called, _, _, step = its["last"][-1]
    assert called == "interrupt"
    assert 20 < step < 10**5
    assert its["text"].startswith("interrupted in epoch ") or its["text"].startswith(
        "interrupted after epoch "
    )
    assert its["text"].endswith(f"after {step} iterations; it was seen")
    assert its["epochs"] in (step // BATCHES, step // BATCHES - 1)
    assert found["handlers"] is True
    assert found["trains"] == 2


def test_handlers_of_the_users_stay(results: Results) -> None:
    assert results("own_handler") == {"heard": [2], "epochs": 6}


def test_a_loss_that_is_not_finite_ends_training(results: Results) -> None:
    found = results("diverged")
    assert found["status"] == 3
    # The first such iteration is named, and nothing is saved after the one before it.
    assert found["text"].startswith("the loss of 'big' is ")
    assert " in iteration 4 (epoch 2); training has diverged" in found["text"]
    assert found["calls"][-2:] == [["epoch_end", 1, 0, 3], ["epoch_begin", 1, 0, 3]]
    assert found["allowed"] == 2
    assert " on the validation data after epoch 1; " in found["validation"]
    assert not math.isfinite(float(found["text"].split(" is ")[1].split()[0]))


def test_early_stopping_and_best_weights(results: Results) -> None:
    found = results("followed")
    losses = found["val_losses"]
    assert len(losses) == 5  # the best, and two that are worse
    assert found["best_epoch"] == 1 + losses.index(min(losses)) == 3
    assert found["evaluated"] == found["best"] == min(losses)
    assert found["same"] is True
    assert found["resumed"] == [3, min(losses)]


def test_logs_go_on_after_a_kill(results: Results) -> None:
    found = results("followed")
    rows = [line.split(",") for line in found["log"].splitlines()]
    assert rows[0][:5] == ["epoch", "step", "learning_rate", "loss", "accuracy"]
    assert [row[:3] for row in rows[1:]] == [[str(i), str(6 * i), "0.01"] for i in range(1, 6)]
    # All epochs once, those that were trained again with the same losses.
    again = [line.split(",") for line in found["resumed_log"].splitlines()]
    assert [row[:-2] for row in again] == [row[:-2] for row in rows]
    assert found["board"] == ["train", "validation"]


def test_a_value_that_no_epoch_has_is_named(results: Results) -> None:
    assert results("followed")["mistake"].startswith(
        "EarlyStopping: an epoch has no 'val_acuracy' to watch; it has loss, accuracy, val_loss"
    )


def test_a_callback_that_looks_changes_nothing(results: Results) -> None:
    found = results("looking")
    for name in ("losses", "weights", "seen", "after"):
        one, other = found[name]
        assert one == other, name
    staged, training = "another iteration of this model is about", "the model is in training"
    starts = [staged, staged, training, training, training]
    assert len(found["refused"]) == len(starts)
    assert all(text.startswith(start) for text, start in zip(found["refused"], starts, strict=True))


def test_ranks_are_given_the_same(request: pytest.FixtureRequest, results: Results) -> None:
    found = results("differing")
    texts = [
        "the samples or labels differ between ranks; ",
        "the samples or labels differ between ranks; ",
        "the weights differ between ranks; ",
        "FOLDER/nowhere/weights.npz: the weights cannot be written there",
        "FOLDER/nothing.npz: the weights cannot be read (No such file or directory)",
    ]
    if request.node.callspec.params["results"] == 1:
        texts = texts[3:]
    assert len(found["refused"]) == len(texts)
    assert all(text.startswith(start) for text, start in zip(found["refused"], texts, strict=True))
    assert found["bias"] == [4.0] * len(found["bias"])

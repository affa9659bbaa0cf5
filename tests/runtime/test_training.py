"""The layer API on the runtime: fit, evaluate, predict, weights, repeatability, mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from launch import run_legate
from training_cases import BATCH, CLASSES, CPUS, FEATURES, SAMPLES, STRATEGIES, UNITS, table_data

from flexlegion.graph.initializers import GlorotUniform

pytestmark = pytest.mark.legion

Result = dict[str, Any]
Results = Callable[[str], Result]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What a scenario of the worker's came to."""
    file = tmp_path_factory.mktemp("training") / "results.json"
    run_legate(Path(__file__).with_name("training_worker.py"), file, cpus=CPUS)
    scenarios = json.loads(file.read_text())

    def result(name: str) -> Result:
        assert "error" not in scenarios[name], scenarios[name]["error"]
        chosen: Result = scenarios[name]
        return chosen

    return result


def _probabilities(weights: Result, x: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The network's output, in double precision."""
    w = {name: np.array(value) for name, value in weights.items()}
    hidden = np.tanh(x @ w["hidden.kernel"].T + w["hidden.bias"])
    powers = np.exp(hidden @ w["output.kernel"].T + w["output.bias"])
    return powers / powers.sum(-1, keepdims=True)


def _evaluated(probabilities: npt.NDArray[np.float64], y: npt.NDArray[np.int32]) -> Result:
    loss = -np.log(probabilities[np.arange(len(y)), y]).mean()
    return {"loss": loss, "accuracy": (probabilities.argmax(-1) == y).mean()}


def test_history_has_what_was_measured(results: Results) -> None:
    history = results("history")
    measured = ["loss", "accuracy"]
    timing = ["seconds", "samples_per_second"]
    assert [list(epoch) for epoch in history["without"]] == [measured + timing]
    validation = ["val_loss", "val_accuracy"]
    assert [list(e) for e in history["with_validation"]] == [measured + validation + timing] * 2
    assert history["none"] == []
    for epoch in history["without"] + history["with_validation"]:
        assert epoch["samples_per_second"] == pytest.approx(SAMPLES / epoch["seconds"])
        assert epoch["accuracy"] * SAMPLES == pytest.approx(round(epoch["accuracy"] * SAMPLES))


def test_validation_is_evaluation_after_the_epoch(results: Results) -> None:
    history = results("history")
    last = history["with_validation"][-1]
    assert {k: last[f"val_{k}"] for k in ("loss", "accuracy")} == history["evaluated"]


def test_loss_falls_until_the_images_are_told_apart(results: Results) -> None:
    learning = results("learning")
    losses = [epoch["loss"] for epoch in learning["epochs"]]
    assert losses[0] < 1.5
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 4
    assert learning["epochs"][-1]["accuracy"] == 1
    assert learning["classes"] == learning["labels"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_sources_train_like_arrays(strategy: str, results: Results) -> None:
    result = results("sources")[strategy]
    assert result["failed"] == "sample 11 cannot be read"
    assert result["same start"]
    assert result["weights"] == result["of arrays"]
    assert result["same predictions"]
    last = result["epochs"][-1]
    assert {k: last[f"val_{k}"] for k in ("loss", "accuracy")} == result["evaluated"]


def test_schedules_scale_the_learning_rate(results: Results) -> None:
    result = results("schedules")
    assert result["then none"] == result["one epoch"]
    assert result["halved"] == result["half"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_same_seed_repeats_every_bit(strategy: str, results: Results) -> None:
    first, second = results("repeats")[strategy]
    assert first == second


def test_seed_and_order_matter(results: Results) -> None:
    repeats = results("repeats")
    assert repeats["other seed"][0] != repeats["single"][0]
    assert repeats["not shuffled"][0] != repeats["single"][0]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_initial_weights_do_not_depend_on_the_strategy(strategy: str, results: Results) -> None:
    draw = GlorotUniform()
    expected = {
        "hidden.kernel": draw((UNITS, FEATURES), "hidden.kernel", 5).tolist(),
        "hidden.bias": [0.0] * UNITS,
        "output.kernel": draw((CLASSES, UNITS), "output.kernel", 5).tolist(),
        "output.bias": [0.0] * CLASSES,
    }
    assert results("initial")[strategy] == expected


@pytest.mark.parametrize("n", [1, BATCH - 1, BATCH, BATCH + 1, SAMPLES])
def test_any_number_of_samples_can_be_predicted_and_evaluated(n: int, results: Results) -> None:
    sizes, (x, y) = results("sizes"), table_data()
    expected = _probabilities(sizes["weights"], x[:n])
    assert sizes["dtype"] == "float32"
    predicted = np.array(sizes[str(n)]["predicted"])
    assert predicted.shape == (n, CLASSES)
    np.testing.assert_allclose(predicted, expected, rtol=1e-5)
    assert sizes[str(n)]["evaluated"] == pytest.approx(_evaluated(expected, y[:n]), rel=1e-5)


def test_evaluation_and_prediction_do_not_train(results: Results) -> None:
    assert results("sizes")["weights after"] == results("sizes")["weights"]


def test_regression_of_rank_3(results: Results) -> None:
    r = results("regression")
    x, y = np.array(r["x"]), np.array(r["y"])
    kernel, bias = np.array(r["weights"]["output.kernel"]), np.array(r["weights"]["output.bias"])
    expected = x @ kernel.T + bias
    np.testing.assert_allclose(np.array(r["predicted"]), expected, rtol=1e-4, atol=1e-6)
    squared, absolute = np.square(expected - y).mean(), np.abs(expected - y).mean()
    metrics = {"mean_squared_error": squared, "mean_absolute_error": absolute}
    assert r["evaluated"] == pytest.approx({"loss": squared} | metrics, rel=1e-5)


def test_sentences(results: Results) -> None:
    """Means are over the labels that count, of all batches alike."""
    r = results("sentences")
    y, logits = np.array(r["y"]), np.array(r["logits"])
    counts = y >= 0
    logits, y = logits[counts], y[counts]
    of_label = logits[np.arange(len(y)), y]
    loss = (np.log(np.exp(logits).sum(-1)) - of_label).mean()
    rank = (logits > of_label[:, None]).sum(-1)
    assert r["evaluated"] == pytest.approx(
        {
            "loss": loss,
            "accuracy": (rank == 0).mean(),
            "top_5_accuracy": (rank < 5).mean(),
            "perplexity": np.exp(loss),
        },
        rel=1e-5,
    )
    assert r["nothing counts"] == [
        f"no label of {data} counts (all are -1 or ignored), so that there is no loss; give "
        "labels, or predict without"
        for data in ("the training data", "the samples")
    ]
    assert r["unchanged"] is True
    out_of_range = "is out of range; the vocabulary of 'second' has 11 tokens, so they are 0 to 10"
    assert r["errors"] == {
        "too high": f"input_1: token 11 {out_of_range}",
        "negative": f"input_1: token -1 {out_of_range}",
        "in steps that only the larger table reads": "accepted",
        "beyond int32": "input_1: got 4294967296, which is no 32-bit integer",
    }


def test_weights_can_be_set_and_read(results: Results) -> None:
    weights = results("weights")
    rounded = {n: np.float32(v).tolist() for n, v in weights["given"].items()}
    assert weights["all"] == rounded
    assert weights["some"] == rounded | {"output.bias": [0.0, 1.0, 2.0]}
    assert weights["untouched"] == weights["some"]


def test_compiling_again_starts_anew(results: Results) -> None:
    again = results("again")
    assert again["trained"] != again["first"]
    assert again["after close"] == again["first"]
    assert again["without close"] == again["first"]
    assert again["trained again"] == again["one"] == again["trained"]


def test_failed_compile_leaves_the_model_to_be_compiled_again(results: Results) -> None:
    failed = results("failed_compile")
    assert failed["failure"] == "no kernel is registered for unknown.update"
    assert failed["after"] == "the model is not compiled; call compile() first"
    assert failed["again"] == failed["one"]


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_fit_goes_on_where_the_last_one_ended(optimizer: str, results: Results) -> None:
    continues = results("continues")[optimizer]
    assert continues["apart"] == continues["together"]
    assert continues["one"] != continues["together"]


def test_cupynumeric_arrays_give_the_same(results: Results) -> None:
    arrays = results("cupynumeric")
    assert arrays["cupynumeric"] == arrays["numpy"]
    evaluated = _evaluated(np.array(arrays["numpy"]["predicted"]), table_data()[1])
    assert arrays["numpy"]["evaluated"] == pytest.approx(evaluated, rel=1e-5)


def test_labels_and_samples_may_come_in_other_types_and_layouts(results: Results) -> None:
    labels = results("labels")
    assert len(labels) == 8
    assert all(values == labels["int32"] for values in labels.values())


def test_use_before_compile_or_after_close_says_what_to_do(results: Results) -> None:
    errors = results("errors")
    expected = "the model is not compiled; call compile() first"
    early = ["fit", "evaluate", "predict", "get_weights", "set_weights", "program"]
    assert errors["before compile"] == dict.fromkeys(early, expected)
    assert errors["after close"] == expected


OUT_OF_RANGE = (
    "is out of range; the model has 3 classes, so labels are 0 to 2, or -1 or -100 for what is not "
    "to count"
)
NUMBERS = "all data need the same number of samples, but input_1 has 43, labels has 42"


MESSAGES = {
    "samples' shape": "input_1: got data of shape [43, 4], expected [n, 5]",
    "one sample alone": "input_1: got data of shape [5], expected [n, 5]",
    "labels' shape": "labels: got data of shape [43, 3], expected [n]; of one-hot labels give the "
    "classes' numbers, y.argmax(-1), or compile with the loss 'categorical_crossentropy'",
    "label too high": f"labels: label 3 {OUT_OF_RANGE}",
    "label negative": f"labels: label -2 {OUT_OF_RANGE}",
    "label a fraction": "labels: got fractions, expected integers",
    "text": "input_1: got data of type <U1, expected numbers",
    "different numbers": NUMBERS,
    "different numbers in validation": NUMBERS,
    "no samples": "input_1: got no samples",
    "no labels": "there are no labels; give them as y",
    "labels of a source": "table: this source brings its own labels; leave out y",
    "two inputs": "the model has 1 input, but 2 were given",
    "weight's name": "no weight 'output.kernels'; "
    "the model has hidden.kernel, hidden.bias, output.kernel, output.bias",
    "weight's shape": "weight 'hidden.kernel' has shape [8, 5], but the value's shape is [5, 8]",
}


@pytest.mark.parametrize("mistake", MESSAGES)
def test_mistakes_are_named(mistake: str, results: Results) -> None:
    assert results("errors")["after compile"][mistake] == MESSAGES[mistake]


@pytest.mark.parametrize(
    ("mistake", "start"), [("label infinite", "labels: "), ("strategy", "sideways: ")]
)
def test_mistakes_are_named_where_they_are(mistake: str, start: str, results: Results) -> None:
    assert results("errors")["after compile"][mistake].startswith(start)


def test_scaled_gradients_that_overflow_change_nothing(results: Results) -> None:
    """The scale is halved until they are finite; then the update is that of single precision."""
    its = results("overflows")
    assert its["overflows"] == [1] * (len(its["overflows"]) - 1) + [0]
    assert its["changed"] == [False] * (len(its["changed"]) - 1) + [True]
    assert its["scales"] == [2.0 ** (16 - i) for i in range(len(its["scales"]))]
    assert len(its["scales"]) > 2
    for name, initial in its["initial"].items():
        narrow, wide = (np.array(its[key][name]) - initial for key in ("narrow", "wide"))
        assert np.linalg.norm(narrow - wide) <= 5e-3 * np.linalg.norm(wide), name
    narrow, wide = (np.array(its[f"{key} gradient"]) for key in ("narrow", "wide"))
    assert np.linalg.norm(narrow - wide) <= 5e-3 * np.linalg.norm(wide)


def test_training_with_float16_goes_as_in_single_precision(results: Results) -> None:
    its = results("stored_as_float16")
    np.testing.assert_allclose(its["losses"]["fp16"], its["losses"]["fp32"], rtol=1e-2)
    assert its["scales"] == [512.0]


def test_gradients_that_overflow_unscaled_end_training(results: Results) -> None:
    failure = results("gradients_without_end")["failure"]
    assert "although they are not scaled any more; training has diverged" in failure


def test_what_is_not_kept_is_not_read(results: Results) -> None:
    """What others overwrote is refused by name. What prediction returns is there."""
    shared, kept = (results("turns_in_memory")[name] for name in ("shared", "kept"))
    for field in ("gradient", "value"):
        assert f"tensor 'hidden.output': its {field} is not kept" in shared[field]
        assert "a Granularity with keep_tensors keeps all of them" in shared[field]
        assert kept[field] > 0
    assert shared["predicted"] == kept["predicted"]


def test_mistakes_change_nothing(results: Results) -> None:
    assert results("errors")["unchanged"] is True
    assert results("errors")["trains"] == 1


def test_rows_that_the_data_lack_are_refused_before_anything_is_issued(results: Results) -> None:
    """By the native code, as leaf tasks read rows unchecked."""
    found = results("errors")
    for name, text in {
        "row beyond": "no row 43 in data of 43 rows",
        "row negative": "no row -1 in data of 43 rows",
        "data unknown": "no data 1000000",
    }.items():
        assert found[name] == [f"flexlegion.base.errors.NativeError: {text}"] * 2

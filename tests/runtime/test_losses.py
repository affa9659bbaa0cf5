"""Models of several outputs and losses train as PyTorch does, under every strategy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from launch import run_legate
from losses_cases import BATCH, CASES, CLASS_WEIGHTS, EPOCHS, OPTIMIZER, SAMPLES, STRATEGIES

pytestmark = pytest.mark.legion

TOLERANCE = 1e-5
WORKER = Path(__file__).with_name("losses_worker.py")

Tensors = dict[str, torch.Tensor]
# From a batch's inputs and labels and the weights to outputs, and to each loss by name, with its
# weight, and other metrics.
Result = tuple[list[torch.Tensor], dict[str, tuple[torch.Tensor, float]], dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """What the worker saved."""
    file = tmp_path_factory.mktemp("losses") / "saved.npz"
    run_legate(WORKER, "--out", file, cpus=3)
    with np.load(file) as arrays:
        return dict(arrays)


def _dense(w: Tensors, name: str, x: torch.Tensor) -> torch.Tensor:
    return x @ w[f"{name}.kernel"].T + w[f"{name}.bias"]


def _trunk(w: Tensors, x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(_dense(w, "trunk", x))


def _two_heads(w: Tensors, x: Tensors, y: Tensors) -> Result:
    h = _trunk(w, x["x"])
    kind, size = _dense(w, "kind", h), _dense(w, "size", h)
    outputs = [F.softmax(kind, -1), size]
    if "kind" not in y:
        return outputs, {"size": (F.huber_loss(size, y["size"]), 2.0)}, {}
    truth = y["kind"]
    right = (kind.argmax(-1) == truth).double().sum() / (truth >= 0).sum()
    losses = {
        "kind": (F.cross_entropy(kind, truth, ignore_index=-1), 1.0),
        "size": (F.mse_loss(size, y["size"]), 0.3),
    }
    metrics = {
        "kind_accuracy": right,
        "size_mean_absolute_error": F.l1_loss(size, y["size"]),
    }
    return outputs, losses, metrics


def _autoencoder(w: Tensors, x: Tensors, y: Tensors) -> Result:
    image = _dense(w, "image", _trunk(w, x["x"].flatten(1))).reshape(x["x"].shape)
    return [image], {"": (F.l1_loss(image, y["labels"]), 1.0)}, {}


def _tags(w: Tensors, x: Tensors, y: Tensors) -> Result:
    h = _trunk(w, x["x"])
    tags, sure = torch.sigmoid(_dense(w, "logits", h)), torch.sigmoid(_dense(w, "sure", h))
    losses = {
        "tags": (F.binary_cross_entropy(tags, y["tags"]), 1.0),
        "sure": (F.binary_cross_entropy(sure, y["sure"]), 1.0),
    }
    right = ((tags > 0.5) == (y["tags"] > 0.5)).double().mean()
    return [tags, sure], losses, {"tags_accuracy": right}


def _smoothed(w: Tensors, x: Tensors, y: Tensors) -> Result:
    h = _trunk(w, x["x"])
    kind, shares = _dense(w, "kind", h), _dense(w, "shares", h)
    of_kind = F.cross_entropy(kind, y["softmax_1"], ignore_index=-1, label_smoothing=0.1)
    of_shares = F.cross_entropy(shares, y["shares"], label_smoothing=0.2)
    losses = {"softmax_1": (of_kind, 1.0), "shares": (of_shares, 1.0)}
    return [F.softmax(kind, -1), shares], losses, {}


def _class_weights(w: Tensors, x: Tensors, y: Tensors) -> Result:
    h = _trunk(w, x["x"])
    kind, size = _dense(w, "kind", h), _dense(w, "size", h)
    weights = torch.tensor(CLASS_WEIGHTS, dtype=torch.float64)
    truth = y["kind"]
    right = (kind.argmax(-1) == truth).double().sum() / (truth >= 0).sum()
    errors = (size - y["size"]).square().mean(1)
    losses = {
        "kind": (F.cross_entropy(kind, truth, weights, label_smoothing=0.1), 0.7),
        "size": ((errors * y["size.weights"]).mean(), 2.0),
    }
    metrics = {"kind_accuracy": right, "size_mean_squared_error": errors.mean()}
    return [F.softmax(kind, -1), size], losses, metrics


def _ignored_class(w: Tensors, x: Tensors, y: Tensors) -> Result:
    h = _trunk(w, x["x"])
    kind, shares = _dense(w, "kind", h), _dense(w, "shares", h)
    truth = y["softmax_1"]
    counts = truth != 2
    of_kind = F.cross_entropy(kind, truth, ignore_index=2, reduction="none")
    of_shares = F.cross_entropy(shares, y["shares"], label_smoothing=0.2, reduction="none")
    losses = {
        "softmax_1": ((of_kind * y["softmax_1.weights"]).sum() / counts.sum(), 1.0),
        "shares": ((of_shares * y["shares.weights"]).mean(), 1.0),
    }
    metrics = {
        "softmax_1_accuracy": ((kind.argmax(-1) == truth) & counts).sum() / counts.sum(),
        "shares_accuracy": (shares.argmax(-1) == y["shares"].argmax(-1)).double().mean(),
    }
    return [F.softmax(kind, -1), shares], losses, metrics


def _steps(w: Tensors, x: Tensors, y: Tensors) -> Result:
    kind = _dense(w, "kind", _trunk(w, x["x"]))
    weights = torch.tensor(CLASS_WEIGHTS, dtype=torch.float64)
    truth = y["labels"].flatten()
    each = F.cross_entropy(
        kind.flatten(0, 1),
        truth,
        weights,
        ignore_index=255,
        label_smoothing=0.2,
        reduction="none",
    )
    of_classes = weights[truth.clamp(max=3)] * (truth != 255)
    return [kind], {"": ((each * y["weights"].flatten()).sum() / of_classes.sum(), 1.0)}, {}


def _rare_tags(w: Tensors, x: Tensors, y: Tensors) -> Result:
    h = _trunk(w, x["x"])
    logits = _dense(w, "logits", h)
    sure = torch.sigmoid(_dense(w, "sure", h))
    truth = y["sure"]
    of_tags = F.binary_cross_entropy_with_logits(
        logits, y["tags"], pos_weight=torch.tensor(3.0, dtype=torch.float64)
    )
    of_sure = -(0.5 * truth * sure.log() + (1 - truth) * (1 - sure).log()).mean(1)
    losses = {"tags": (of_tags, 1.0), "sure": ((of_sure * y["sure.weights"]).mean(), 1.0)}
    return [torch.sigmoid(logits), sure], losses, {}


def _by_layers(w: Tensors, x: Tensors, _: Tensors) -> Result:
    size = _dense(w, "size", _trunk(w, x["x"]))
    return [size], {"": (((size - x["t"]) * x["w"]).square().mean(), 1.0)}, {}


def _penalty(w: Tensors, x: Tensors, y: Tensors) -> Result:
    scaled = _dense(w, "size", x["x"]) * w["scale"]
    penalty = w["scale"].square()
    losses = {
        "scaled": (F.mse_loss(scaled, y["scaled"]), 1.0),
        "penalty": (penalty.mean(), 0.2),
    }
    return [scaled, penalty], losses, {}


def _function(w: Tensors, x: Tensors, y: Tensors) -> Result:
    size = _dense(w, "size", _trunk(w, x["x"]))
    return [size], {"": (((size - y["labels"]).abs() + 0.5 * size).mean(), 1.0)}, {}


REFERENCES: dict[str, Callable[[Tensors, Tensors, Tensors], Result]] = {
    "two_heads": _two_heads,
    "one_of_two_is_trained": _two_heads,
    "autoencoder": _autoencoder,
    "tags": _tags,
    "smoothed": _smoothed,
    "class_weights": _class_weights,
    "ignored_class": _ignored_class,
    "steps": _steps,
    "rare_tags": _rare_tags,
    "by_layers": _by_layers,
    "penalty": _penalty,
    "function": _function,
    "function_of_few_labels": _function,
}
# Where batches differ in how many values count: some labels do not, or a batch has one value.
UNEVEN = ("two_heads", "smoothed", "penalty", "class_weights", "ignored_class", "steps")
FROZEN = {"function": "trunk", "function_of_few_labels": "trunk"}


def _values(results: list[tuple[Result, int]]) -> dict[str, float]:
    """Means over batches of so many samples, by the names of the history."""
    sums: dict[str, float] = {}
    for (_, losses, metrics), count in results:
        total = sum(loss * weight for loss, weight in losses.values())
        named = {f"{name}_loss": loss for name, (loss, _) in losses.items() if name}
        for key, value in ({"loss": total} | named | metrics).items():
            sums[key] = sums.get(key, 0.0) + float(value.detach()) * count
    return {key: value / SAMPLES for key, value in sums.items()}


def _reference(name: str, before: dict[str, np.ndarray]) -> dict[str, Any]:
    """What the worker should have saved."""
    case, model = CASES[name], REFERENCES[name]
    arrays = case.data()
    x, y = (
        {k: torch.tensor(a if a.dtype == np.int64 else a.astype(float)) for k, a in part.items()}
        for part in arrays
    )
    weights = {key: torch.tensor(w, dtype=torch.float64) for key, w in before.items()}
    frozen = FROZEN.get(name, "none")
    trained = {key: w for key, w in weights.items() if not key.startswith(frozen)}
    for weight in trained.values():
        weight.requires_grad_()
    optimizer = torch.optim.SGD(trained.values(), OPTIMIZER.lr, OPTIMIZER.momentum)
    expected: dict[str, Any] = {}
    for epoch in range(EPOCHS):
        results = []
        for at in range(0, SAMPLES, BATCH):
            rows = slice(at, at + BATCH)
            part = {k: v[rows] for k, v in x.items()}, {k: v[rows] for k, v in y.items()}
            result = model(weights, *part)
            optimizer.zero_grad()
            total = sum(loss * weight for loss, weight in result[1].values())
            assert isinstance(total, torch.Tensor)
            total.backward()
            optimizer.step()
            results.append((result, len(part[0]["x"])))
        if name not in UNEVEN:
            expected |= {f"epoch/{epoch}/{k}": v for k, v in _values(results).items()}
    outputs, *_ = whole = model(weights, x, y)
    evaluated = _values([(whole, SAMPLES)])
    expected |= {f"evaluated/{key}": value for key, value in evaluated.items()}
    expected |= {f"epoch/{EPOCHS - 1}/val_{key}": value for key, value in evaluated.items()}
    expected |= {f"weight/{key}": w.detach().numpy() for key, w in weights.items()}
    if name != "penalty":
        expected |= {f"predicted/{i}": out.detach().numpy() for i, out in enumerate(outputs)}
    return expected


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", CASES)
def test_agrees(name: str, strategy: str, saved: dict[str, np.ndarray]) -> None:
    """Weights, losses, metrics and predictions."""
    prefix = f"{name}/{strategy}/"
    ours = {k.removeprefix(prefix): v for k, v in saved.items() if k.startswith(prefix)}
    before = {k.removeprefix("before/"): v for k, v in ours.items() if k.startswith("before/")}
    expected = _reference(name, before)
    shown = {k.split("/")[-1] for k in ours if k.startswith("evaluated/")}
    assert shown == {k.split("/")[-1] for k in expected if k.startswith("evaluated/")}
    for key, reference in expected.items():
        error = np.linalg.norm(ours[key] - reference)
        bound = TOLERANCE * max(float(np.linalg.norm(reference)), 1e-3)
        assert error <= bound, f"{key}: {ours[key]}, {reference}"
    if name in FROZEN:
        for key in (key for key in before if key.startswith(FROZEN[name])):
            assert np.array_equal(before[key], ours[f"weight/{key}"])


SAID = {
    "unknown_input": "the model has no input 'xx'; did you mean x?",
    "missing_input": "there is no input 'x' among the data; the model needs x",
    "too_many_inputs": "the model has 1 input, but 2 were given",
    "one_of_two_labels": "the model needs labels of kind, size, as a list or by these names, but y "
    "is one array",
    "missing_labels": "there are no labels 'size' in y; the model needs kind, size",
    "unknown_labels": "the model has no labels 'sized'; did you mean size?",
    "no_labels": "there are no labels; give them as y",
    "rows": "all data need the same number of samples, but x has 13, labels.kind has 13, "
    "labels.size has 12",
    "class": "labels.kind: label 4 is out of range; the model has 4 classes, so labels are 0 to 3, "
    "or -1 or -100 for what is not to count",
    "loader_without_labels": "there are no labels; give them as y",
    "loader_and_labels": "a loader brings its own labels; leave out y",
    "generator": "batches have to be gone through once an epoch, which a generator or iterator "
    "cannot; give what has a length and can be iterated anew",
    "labels_of_none": "the model's loss takes no labels; leave out y",
    "idle": "layers that lead to no output and no loss are left out: 'other'; outputs that are not "
    "the last layer's have to be set by set_outputs",
}


def test_messages(saved: dict[str, np.ndarray]) -> None:
    prefix = "said/"
    said = {k.removeprefix(prefix): str(v) for k, v in saved.items() if k.startswith(prefix)}
    assert said == SAID

"""The zoo's networks, trained on two processors, agree with PyTorch: losses, gradients, weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from launch import run_legate
from pytorch import zoo as torch_zoo
from zoo_cases import CASES, SMALLEST, Array, ZooCase

from flexlegion import SGD
from flexlegion.zoo import ZOO, build

STRATEGIES = ("data", "random:5")

Arrays = dict[str, Array]


@pytest.mark.parametrize("name", ZOO)
def test_twins_have_the_same_weights(name: str) -> None:
    """At the sizes of the literature; on a device without memory."""
    ours = {tensor.name: tensor.shape for tensor in build(name, 2).graph.trained_weights}
    with torch.device("meta"):
        twin = torch_zoo.build(name, {})
    trained = [link for link in twin.links if link.trained]
    assert {link.name: tuple(link.laid_out(link.parameter).shape) for link in trained} == ours
    parameters = {id(p) for p in twin.parameters() if p.requires_grad}
    assert {id(link.parameter) for link in trained} == parameters


@pytest.mark.parametrize("name", CASES)
def test_twins_take_over_weights(name: str) -> None:
    case = CASES[name]
    rng = np.random.default_rng(0)
    graph = case.model().graph
    weights = {tensor.name: rng.random(tensor.shape) for tensor in graph.weights}
    twin = torch_zoo.build(case.name, case.sizes).double()
    twin.load(weights)
    loaded = twin.weights()
    for key, weight in weights.items():
        np.testing.assert_array_equal(loaded[key], weight, key)
    assert twin(*inputs_of(case, slice(2))).shape == (2, *graph.operators[-1].output.shape[1:])


def inputs_of(case: ZooCase, rows: slice) -> list[torch.Tensor]:
    """Samples as a twin takes them."""
    arrays, _ = case.data(case.iterations * case.batch_size)
    tensors = [as_double(array[rows]) for array in arrays]
    return [x.permute(0, 3, 1, 2) if x.ndim == 4 else x for x in tensors]


def as_double(array: Array) -> torch.Tensor:
    """Numbers in double precision; whole ones as they are indexed with."""
    x = torch.from_numpy(array)
    return x.double() if x.is_floating_point() else x.long()


def reference(case: ZooCase, saved: Arrays) -> Arrays:
    """What PyTorch makes of the same weights, samples and dropout masks, in double precision."""
    ours = case.optimizer
    assert isinstance(ours, SGD)
    twin = torch_zoo.build(case.name, case.sizes).double()
    twin.load(of_kind(saved, "initial"))
    trained = [p for p in twin.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, ours.lr, ours.momentum)
    labels = as_double(case.data(case.iterations * case.batch_size)[1])
    arrays: Arrays = {}
    for step in range(case.iterations):
        for name, dropout in twin.dropouts.items():
            dropout.keep(saved[f"kept/{step}.{name}"])
        rows = slice(step, None, case.iterations)
        logits = twin(*inputs_of(case, rows))
        loss = torch_zoo.loss_of(case.name, logits, labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        arrays[f"value/loss{step}"] = np.array(loss.item())
        if step == 0:
            arrays["value/logits"] = logits.detach().numpy()
            arrays |= {f"gradient/{key}": value for key, value in twin.gradients().items()}
    return arrays | {f"final/{key}": value for key, value in twin.weights().items()}


def of_kind(arrays: Arrays, kind: str) -> Arrays:
    """Those of a kind, by name."""
    prefix = f"{kind}/"
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


# Three updates in single precision leave a weight off by some last places of itself.
ROUNDING = 3 * 2.0**-24


def differences(
    actual: Arrays, expected: Arrays, tolerance: float, share: float, rounded: Arrays
) -> list[str]:
    """Tensors that differ by more than `tolerance` of their norm, or `share` of the largest.

    Changes of weights may differ by what rounding the weights (`rounded`) loses as well.
    """
    largest = max(float(np.linalg.norm(array)) for array in expected.values())
    found = []
    for key, value in expected.items():
        assert actual[key].shape == value.shape, key
        scale = max(float(np.linalg.norm(value)), share * largest)
        lost = ROUNDING * float(np.linalg.norm(rounded[key])) if rounded else 0.0
        error = max(0.0, float(np.linalg.norm(actual[key] - value)) - lost) / scale
        if not error <= tolerance:
            found.append(f"{key}: {error:.1e}")
    return found


@pytest.fixture(scope="module", params=STRATEGIES)
def saved(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Arrays]:
    """What the worker saved, by case."""
    file = tmp_path_factory.mktemp("networks") / "saved.npz"
    run_legate(
        Path(__file__).with_name("zoo_worker.py"), file, request.param, *CASES, cpus=2, timeout=600
    )
    cases: dict[str, Arrays] = {}
    with np.load(file) as arrays:
        for key, value in arrays.items():
            name, rest = key.split("/", 1)
            cases.setdefault(name, {})[rest] = value
    file.unlink()
    return cases


@pytest.mark.legion
@pytest.mark.parametrize("name", CASES)
def test_agrees(name: str, saved: dict[str, Arrays]) -> None:
    """Logits, losses, each weight's gradient, its change in three steps, and running averages."""
    case = CASES[name]
    actual = saved[name]
    assert "error" not in actual, str(actual["error"])
    expected = reference(case, actual)
    initial, final = of_kind(actual, "initial"), of_kind(actual, "final")
    trained = of_kind(expected, "gradient").keys()
    assert trained == of_kind(actual, "gradient").keys()
    changes = [
        {key: values[key] - initial[key] for key in initial}
        for values in (final, of_kind(expected, "final"))
    ]
    for found, wanted, share, rounded in [
        (of_kind(actual, "value"), of_kind(expected, "value"), 0.0, {}),
        (of_kind(actual, "gradient"), of_kind(expected, "gradient"), SMALLEST, {}),
        (changes[0], changes[1], SMALLEST, initial),
    ]:
        assert differences(found, wanted, case.tolerance, share, rounded) == []

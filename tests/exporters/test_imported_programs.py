"""Exported programs of imported modules: data, outputs and losses are arranged as the module's."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from arranged_modules import Written, cases
from arranged_programs import imported, write, wrong
from exported import loaded, result, run
from torch import nn

import flexlegion as fl

CASES = cases()
DEVICES = 2


@pytest.fixture(scope="module", params=["dtensor", "jax"])
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the results of all programs for a target are."""
    folder = tmp_path_factory.mktemp(request.param)
    for number, case in enumerate(CASES.values()):
        write(imported(case), case, folder / f"case_{number}", request.param, DEVICES, number)
    run(request.param, DEVICES, folder, [f"case_{i}" for i in range(len(CASES))])
    return folder


@pytest.mark.parametrize("number", range(len(CASES)), ids=[*CASES])
def test_as_in_the_module(number: int, programs: Path) -> None:
    """The first loss, outputs and gradients in several processes are PyTorch's."""
    case = [*CASES.values()][number]
    assert wrong(imported(case), case, programs / f"case_{number}") == []


def plan_of(
    module: nn.Module, example: torch.Tensor, loss: str, to: str, folder: Path
) -> ModuleType:
    """A program, loaded."""
    model = fl.from_torch(module, example)
    model.loss = loss
    file = folder / f"plan_{to}.py"
    file.write_text(fl.export(model, "p100x2", "data", to).text)
    return loaded(file)


@pytest.mark.parametrize("to", ["dtensor", "jax"])
def test_other_shapes_are_refused(to: str, tmp_path: Path) -> None:
    example = torch.randn(4, 3, 6, 5)
    plan = plan_of(nn.Conv2d(3, 1, 1), example, "binary_crossentropy", to, tmp_path)
    forms = plan.FORMS
    assert forms["input"].taken("input", example).shape == (4, 6, 5, 3)
    for shape in ((4, 1, 6, 5), (4, 6, 5), (4, 6, 5, 1)):
        assert forms["labels"].taken("labels", torch.zeros(shape)).shape == (4, 6, 5, 1)
    for name, shape, wanted in (
        ("input", (4, 6, 5, 3), [4, 3, 6, 5]),
        ("input", (2, 3, 6, 5), [4, 3, 6, 5]),
        ("labels", (4, 5, 6), [4, 1, 6, 5]),
        ("labels", (1, 6, 5), [4, 1, 6, 5]),
        ("labels", (4,), [4, 1, 6, 5]),
    ):
        message = f"{name} has shape {list(shape)}, but the program takes {wanted}"
        with pytest.raises(ValueError, match=re.escape(message)):
            forms[name].taken(name, torch.zeros(shape))


@pytest.mark.parametrize("to", ["dtensor", "jax"])
def test_labels_of_one_number_a_sample(to: str, tmp_path: Path) -> None:
    plan = plan_of(nn.Linear(6, 1), torch.randn(16, 6), "binary_crossentropy", to, tmp_path)
    for shape in ((16,), (16, 1)):
        assert plan.FORMS["labels"].taken("labels", torch.zeros(shape)).shape == (16, 1)
    with pytest.raises(ValueError, match=r"labels has shape \[1, 16\], but .* takes \[16, 1\]"):
        plan.FORMS["labels"].taken("labels", torch.zeros(1, 16))


def test_an_output_that_is_called_as_an_input(tmp_path: Path) -> None:
    module = Written(lambda s, x: {"inputs_0": s.a(x)}, a=nn.Linear(6, 3))
    plan = plan_of(module, torch.randn(4, 6), "mean_squared_error", "dtensor", tmp_path)
    assert plan.OUTPUTS == ("inputs_0_",)


def test_weights_of_a_module_with_channels_last(tmp_path: Path) -> None:
    module = nn.Conv2d(3, 4, 3)
    plan = plan_of(module, torch.randn(4, 3, 6, 5), "mean_squared_error", "dtensor", tmp_path)
    expected = plan.weights_of(module)
    other = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    plan.to_module(expected, other)
    assert torch.equal(other.weight, module.weight)
    assert other.weight.is_contiguous(memory_format=torch.channels_last)
    for name, value in plan.weights_of(other).items():
        assert torch.equal(value, expected[name])


@pytest.mark.parametrize("to", ["dtensor", "jax"])
def test_gradients_are_clipped(to: str, tmp_path: Path) -> None:
    """Three steps of SGD with momentum: as by PyTorch's own clipping."""
    case = CASES["heads"]
    model = imported(case)
    write(model, case, tmp_path / "clipped", to, DEVICES, 1, optimizer=fl.SGD(0.1, clip_norm=0.02))
    assert "Gradients are clipped to the norm 0.02 by clip" in (tmp_path / "clipped.py").read_text()
    run(to, DEVICES, tmp_path, ["clipped"])
    module = copy.deepcopy(case.module).double()
    optimizer = torch.optim.SGD(module.parameters(), 0.1, 0.9)
    for _ in range(3):
        optimizer.zero_grad()
        output = module(case.inputs[0].double())
        case.torch_loss(output, case.labels(tuple(output.shape))).backward()
        assert torch.nn.utils.clip_grad_norm_(module.parameters(), 0.02) > 0.02
        optimizer.step()
    mine = result(tmp_path, "clipped")
    assert model.origin is not None
    for name, parameter in module.named_parameters():
        (place,) = model.origin.places[name]
        expected = place.layout.of(parameter.detach().numpy().reshape(-1))
        np.testing.assert_allclose(mine[place.weight], expected, atol=1e-7)


def test_products_are_computed_as_was_asked_for(tmp_path: Path) -> None:
    """DTensor rounds factors to bfloat16 on processors of any kind; results are float32 again."""
    case = CASES["heads"]
    model = imported(case)
    for name in ("fp32", "bf16"):
        at = tmp_path / name
        write(model, case, at, "dtensor", DEVICES, 1, machine=f"h100x{DEVICES}", precision=name)
        with np.load(at.with_suffix(".npz")) as saved:
            single = {k: np.float32(v) if v.dtype == np.float64 else v for k, v in saved.items()}
        np.savez(at.with_suffix(".npz"), **single)
    assert "Products are computed in bf16." in (tmp_path / "bf16.py").read_text()
    run("dtensor", DEVICES, tmp_path, ["fp32", "bf16"])
    exact, rounded = (result(tmp_path, name)["output"] for name in ("fp32", "bf16"))
    assert rounded.dtype == np.float32
    assert 1e-4 < np.abs(rounded - exact).max() < 5e-2


def test_jax_programs_tell_the_precision(tmp_path: Path) -> None:
    import jax

    model = fl.from_torch(nn.Linear(6, 3), torch.randn(4, 6))
    model.loss = "mean_squared_error"
    done = fl.export(model, "h100x1", "data", "jax", precision="tf32")
    assert "products are computed in tf32" in str(done)
    (tmp_path / "plan.py").write_text(done.text)
    plan = loaded(tmp_path / "plan.py")
    weights = plan.distributed({w.name: np.ones(w.shape, np.float32) for w in model.graph.weights})
    text = str(jax.make_jaxpr(lambda x: plan.forward(weights, x)["output"])(np.ones((4, 6))))
    assert "Precision.HIGH," in text


@pytest.mark.parametrize(
    ("to", "options", "message"),
    [
        ("dtensor", {"storage": "bf16"}, "stores activations in single precision, not in bf16"),
        ("jax", {"storage": "fp16"}, "stores activations in single precision, not in fp16"),
        ("jax", {"precision": "bf16"}, "cannot have products of single precision computed in bf16"),
    ],
)
def test_what_programs_cannot_compute(to: str, options: dict[str, str], message: str) -> None:
    model = fl.from_torch(nn.Linear(6, 3), torch.randn(4, 6))
    model.loss = "mean_squared_error"
    with pytest.raises(fl.UserError, match=message):
        fl.export(model, "h100x2", "data", to, **options)

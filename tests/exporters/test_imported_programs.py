"""Exported programs of imported modules: data, outputs and losses are arranged as the module's."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
import torch
from arranged_modules import Written, cases
from arranged_programs import imported, write, wrong
from exported import loaded, run
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

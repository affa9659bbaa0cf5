"""An imported model beside what it was imported from, without Legion."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import flexlegion as fl
from flexlegion.base.errors import UserError
from flexlegion.exporters import torch_functions, torch_layers
from flexlegion.importers.lower.base import LOWERINGS, Lowerer
from flexlegion.importers.program import Node
from flexlegion.importers.verify import Arrays, check, compared, samples_for, unchecked
from flexlegion.importers.views import Value


def convolutions() -> nn.Sequential:
    """Layers whose arrangement here is not PyTorch's."""
    parts = (nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(192, 5))
    return nn.Sequential(*parts)


@pytest.mark.parametrize("samples", [1, 3, 8])
def test_a_model_is_checked_with_any_number_of_samples(samples: int) -> None:
    module = convolutions()
    model = fl.from_torch(module, torch.randn(4, 3, 6, 8))
    inputs = {"input": torch.randn(samples, 3, 6, 8).numpy()}

    def run(arrays: Arrays) -> Arrays:
        with torch.no_grad():
            return {"output": module.eval()(torch.from_numpy(arrays["input"])).numpy()}

    check(model, run, inputs, source="the module")

    def wrong(arrays: Arrays) -> Arrays:
        result = run(arrays)["output"].copy()
        result[-1, 2] += 0.01
        return {"output": result}

    with pytest.raises(UserError, match=r"'output' is .* where it should be"):
        check(model, wrong, inputs, source="the module")
    with pytest.raises(UserError, match=r"has shape \[., 5\] instead of \[., 4\]"):
        check(model, lambda a: {"output": run(a)["output"][:, 1:]}, inputs, source="the module")


class Net(nn.Module):
    """A softmax, a module of its own or not, behind an activation."""

    def __init__(self, softmax: bool) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
        self.softmax = nn.Softmax(-1) if softmax else None
        self.last = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.first(x)
        y = y.softmax(-1) if self.softmax is None else self.softmax(y)
        result: torch.Tensor = self.last(y)
        return result


def _passes_on(lowerer: Lowerer, node: Node) -> Value:
    return lowerer.value(node["self"])


@pytest.mark.parametrize("given", ["a module", "an exported program"])
@pytest.mark.parametrize(
    ("softmax", "place"),
    [(False, "the module's own code, at .*softmax"), (True, r"module 'softmax' \(Softmax\)")],
)
def test_an_import_that_computes_something_else_is_refused(
    monkeypatch: pytest.MonkeyPatch, softmax: bool, place: str, given: str
) -> None:
    module, x = Net(softmax), torch.randn(8, 4)
    batch = torch.export.Dim("batch")
    exported = torch.export.export(module, (x,), dynamic_shapes=({0: batch},))
    arguments = (module, x) if given == "a module" else (exported,)
    assert fl.from_torch(*arguments).origin.notes == []
    monkeypatch.setitem(LOWERINGS, "softmax", _passes_on)
    with pytest.raises(UserError, match=rf"does not compute .* differs first in .*{place}"):
        fl.from_torch(*arguments)
    assert fl.from_torch(*arguments, verify=False).origin.notes == [
        "the import was not checked: verify=False"
    ]


class Tied(nn.Module):
    """A table that is the last layer's kernel, too."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(7, 3, padding_idx=0), nn.Linear(3, 7, bias=False)
        self.last.weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.table(tokens))
        return result


def test_tied_parameters_have_one_gradient() -> None:
    module, tokens = Tied(), torch.randint(0, 7, (8, 5))
    batch = torch.export.Dim("batch")
    fl.from_torch(module, tokens)
    fl.from_torch(torch.export.export(module, (tokens,), dynamic_shapes=({0: batch},)))


class Branches(nn.Module):
    """Another function in each mode."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.tanh() * 2 if self.training else x.tanh()


def test_code_that_asks_for_the_mode_is_refused() -> None:
    with pytest.raises(UserError, match="otherwise in evaluation mode than in train mode"):
        fl.from_torch(nn.Sequential(nn.Linear(4, 3), Branches()), torch.randn(8, 4))


def test_gradients_and_running_averages_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    fl.from_torch(module, torch.randn(8, 4))
    moments = torch_layers.batch_norm_moments

    def moved(x: torch.Tensor, *averages: torch.Tensor, positions: int) -> torch.Tensor:
        return moments(x, *averages, positions=positions, momentum=0.2)

    with monkeypatch.context() as patched:
        patched.setattr(torch_layers, "batch_norm_moments", moved)
        with pytest.raises(UserError, match=r"'1.running_mean' is .* after a training step"):
            fl.from_torch(module, torch.randn(8, 4))
    softmax = torch_functions.softmax

    def without_gradient(x: torch.Tensor, low: int, shape: tuple[int, ...]) -> torch.Tensor:
        return softmax(x, low, shape).detach()

    monkeypatch.setattr(torch_functions, "softmax", without_gradient)
    with pytest.raises(UserError, match=r"the gradient of 'first.0.weight' is 0 where it should"):
        fl.from_torch(Net(softmax=True), torch.randn(8, 4))


def test_a_check_changes_nothing_of_the_module() -> None:
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))
    module[1].eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    state = torch.get_rng_state()
    fl.from_torch(module, torch.randn(8, 4, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.get_rng_state(), state)
    assert [part.training for part in module] == [True, False, True]
    assert all(torch.equal(before[name], t) for name, t in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())


def test_what_changes_the_function_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    fl.from_torch(nn.Linear(4, 3), torch.randn(8, 4), verify=False)
    assert capsys.readouterr().err == "note: the import was not checked: verify=False\n"


def test_what_is_no_number_has_to_be_at_the_same_places() -> None:
    values = torch.tensor([1.0, np.nan, np.inf, -np.inf])
    assert compared(values, values, 1e-6) is None
    for other in (
        torch.tensor([1.0, 2.0, np.inf, -np.inf]),
        torch.tensor([1.0, np.nan, -np.inf, -np.inf]),
        torch.tensor([1.0, np.nan, np.inf, 0.0]),
        torch.tensor([1.1, np.nan, np.inf, -np.inf]),
    ):
        assert compared(other, values, 1e-6) is not None
        assert compared(values, other, 1e-6) is not None


def test_checks_that_are_dear_take_one_sample_or_none() -> None:
    small = fl.Model(batch_size=3)
    small.set_outputs([small.dense(small.input((8,)), 4)])
    assert samples_for(small) == 2
    for units, samples in ((1 << 10, 2), (1 << 13, 1)):
        large = fl.Model(batch_size=3)
        large.set_outputs([large.dense(large.input((1 << 13,)), units)])
        assert samples_for(large) == samples
        assert unchecked(large) is None
    x = large.input((1 << 17,))
    large.set_outputs([large.dense(x, 1 << 13)])
    assert unchecked(large) == "a forward pass of one sample would take long beside the import"


def test_examples_of_zeros_are_enough() -> None:
    """Normalised, they are zeros but for rounding: behind a ReLU, gradients of it would differ."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 5))
    model = fl.from_torch(module, (torch.zeros(8, 3, 8, 8),))
    assert model.origin is not None
    assert model.origin.notes == []

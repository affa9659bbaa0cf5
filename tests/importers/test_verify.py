"""An imported model beside what it was imported from, without Legion."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import flexlegion as fl
from flexlegion.errors import UserError
from flexlegion.importers.verify import Arrays, affordable, check, compared, samples_for


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
        result[-1, 2] *= 1.01
        return {"output": result}

    with pytest.raises(UserError, match=r"'output' is .* where it should be"):
        check(model, wrong, inputs, source="the module")
    with pytest.raises(UserError, match=r"has shape \[., 5\] instead of \[., 4\]"):
        check(model, lambda a: {"output": run(a)["output"][:, 1:]}, inputs, source="the module")


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
    large = fl.Model(batch_size=64)
    x = large.input((1 << 14,))
    large.set_outputs([large.dense(x, 1 << 13)])
    assert samples_for(large) == 1
    assert affordable(large, 1)
    assert not affordable(large, 8)

"""Users' own operators in programs, as docs/adding-an-operator.md has it; and what is refused."""

from __future__ import annotations

import importlib
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported import differences, loaded, result, run
from launch import ROOT

import flexlegion as fl
from flexlegion.base.errors import UserError
from flexlegion.exporters import own_functions
from flexlegion.ops.dense import Dense

PAGE = (ROOT / "docs" / "adding-an-operator.md").read_text()
OPERATOR, *_, FUNCTIONS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[type[Any], Path]:
    """The page's operator type, without functions."""
    (tmp_path / "cumulative_sum.py").write_text(OPERATOR)
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(own_functions, "_FUNCTIONS", {})
    monkeypatch.delitem(sys.modules, "cumulative_sum", raising=False)
    return importlib.import_module("cumulative_sum").CumulativeSum, tmp_path


def network(kind: type[Any], name: str = "x") -> fl.Model:
    model = fl.Model(8, seed=1)
    x = model.input((6,), name=name)
    hidden = model.dense(x, 4, name="hidden")
    (y,) = model.apply(kind(factor=0.5), [hidden], name="sums")
    model.dense(y, 2, name="out")
    return model


@pytest.mark.parametrize("to", ["dtensor", "jax"])
@pytest.mark.parametrize("name", ["x", "own_cumulative_sum"])
def test_a_program_computes_it(to: str, name: str, operator: tuple[type[Any], Path]) -> None:
    """Loss, output and gradients in two processes are those of PyTorch, of any input's name."""
    kind, folder = operator
    loaded(folder / "functions.py")
    model = network(kind, name)
    done = fl.export(model, "p100x2", "data", to, loss="mean_squared_error")
    assert done.replaced == ()
    (folder / "plan.py").write_text(done.text)
    assert "cumulative_sum import" not in done.text
    rng = np.random.default_rng(0)
    values = {k: v.astype(np.float64) for k, v in done.first_values().items()}
    x, labels = rng.normal(size=(8, 6)), rng.normal(size=(8, 2))
    given = {f"weight/{k}": v for k, v in values.items()}
    np.savez(folder / "plan.npz", **given, **{f"input/{name}": x, "label/labels": labels})
    run(to, 2, folder, ["plan"])

    w = {k: torch.tensor(v, requires_grad=True) for k, v in values.items()}
    hidden = torch.tensor(x) @ w["hidden.kernel"].t() + w["hidden.bias"]
    y = 0.5 * hidden.cumsum(-1) @ w["out.kernel"].t() + w["out.bias"]
    loss = torch.nn.functional.mse_loss(y, torch.tensor(labels))
    loss.backward()
    expected = {"0 loss": np.array(loss.item()), "out.output": y.detach().numpy()}
    expected |= {f"{k} gradient": v.grad.numpy() for k, v in w.items() if v.grad is not None}
    assert differences(result(folder, "plan"), expected, 1e-6) == []


def test_without_a_function_it_is_refused(operator: tuple[type[Any], Path]) -> None:
    kind, _ = operator
    with pytest.raises(UserError, match=r"for operators cumulative_sum; say .* register_functions"):
        fl.export(network(kind), "p100x2", "data", "jax", loss="mean_squared_error")


HELPER = 2.0


def cache_nothing(function: Any) -> Any:
    return function


def of_a_helper(x: Any, factor: float) -> Any:
    return x * factor * HELPER


def of_a_module(x: Any, factor: float) -> Any:
    """Twice."""
    x.HELPER = math.sqrt(4)
    return x * factor


@cache_nothing
def decorated(x: Any) -> Any:
    return x


def closed() -> Any:
    inner = 3

    def of_what_is_around(x: Any) -> Any:
        return x * inner

    return of_what_is_around


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (of_a_helper, "'of_a_helper' of 'cumulative_sum' uses 'HELPER', which a program does not"),
        (closed(), "uses 'inner'"),
        (lambda x: x, "has no text of its own; define it by 'def' in a file"),
        (torch.cumsum, "has no text of its own"),
        (decorated, "'decorated' of 'cumulative_sum' is decorated, which a program is not"),
    ],
)
def test_functions_that_are_refused(
    function: Any, message: str, operator: tuple[type[Any], Path]
) -> None:
    kind, _ = operator
    with pytest.raises(UserError, match=re.escape(message)):
        fl.register_functions(kind, torch=function)


def test_its_text_has_its_imports_and_no_annotations(operator: tuple[type[Any], Path]) -> None:
    kind, _ = operator
    fl.register_functions(kind, torch=of_a_module)
    its = own_functions.own_function(kind(factor=1.0), "dtensor")
    assert its is not None
    assert its.text == (
        "def own_cumulative_sum(x, factor):\n    'Twice.'\n    import math\n"
        "    x.HELPER = math.sqrt(4)\n    return x * factor"
    ).replace("'Twice.'", '"""Twice."""')
    assert own_functions.own_function(kind(factor=1.0), "jax") is None


def test_flexlegions_own_types_have_functions() -> None:
    with pytest.raises(UserError, match="operators 'dense' are flexlegion's own"):
        fl.register_functions(Dense, torch=of_a_module)

"""docs/layers.md: its code runs as it stands, and what it lists is what there is."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from launch import ROOT, legate_environment, run_checked

from flexlegion import Model
from flexlegion.losses import LOSSES
from flexlegion.ops.formula import FUNCTIONS

PAGE = (ROOT / "docs" / "layers.md").read_text()
CODE = "".join(re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))


def test_functions_are_complete() -> None:
    listed = re.search(r"`net\.unary\(x, name\)`, too: (.*?)\.\n", PAGE, re.DOTALL)
    assert listed is not None
    assert listed[1].replace("\n", " ").split(", ") == list(FUNCTIONS)


def test_layers_and_losses_are_listed() -> None:
    layers = {
        name
        for name, method in inspect.getmembers(Model, inspect.isfunction)
        if inspect.signature(method).return_annotation in ("Tensor", "list[Tensor]")
        and not name.startswith("_")
    }
    functions = {*FUNCTIONS, "softmax"}  # which are activations as well
    older = {"input", "multi_head_attention"}  # described elsewhere; `attention` does all of it
    named = set(re.findall(r"`(\w+)`", PAGE))
    assert layers - functions - older <= named
    assert set(LOSSES) <= named


@pytest.mark.legion
def test_its_code_runs(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(CODE)
    command = ["legate", "--cpus", "2", "--gpus", "0", str(tmp_path / "script.py")]
    printed = run_checked(command, environment=legate_environment(), timeout=200).stdout
    assert "['kind_accuracy', 'kind_loss', 'loss', 'samples_per_second'" in printed

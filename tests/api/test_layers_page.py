"""docs/layers.md lists what there is. (tests/docs runs its code.)"""

from __future__ import annotations

import inspect
import re

from launch import ROOT

from flexlegion import Model
from flexlegion.objective.losses import LOSSES
from flexlegion.ops.formula import FUNCTIONS

PAGE = (ROOT / "docs" / "layers.md").read_text()


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

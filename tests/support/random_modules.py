"""Modules drawn at random, each imported and compared with PyTorch in double precision."""

from __future__ import annotations

import copy
import re
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from module_grammar import Source, drawn
from module_programs import OPERATIONS
from torch import nn

import flexlegion as fl
from flexlegion.base.errors import UserError
from flexlegion.importers.export import export
from flexlegion.importers.torch_reference import check_torch

BATCH = 4
# What the check alone refuses: code that asks for self.training.
_MODES = "in evaluation mode than in train mode"


@dataclass(frozen=True)
class Outcome:
    """What became of a module.

    Parameters
    ----------
    kind
        "right", "refused", "wrong" or "crashed"; "unfit" if PyTorch itself does not run it, or what
        it computes is no finite number.
    why
        In words.
    source
        The module.
    """

    kind: str
    why: str
    source: Source


def outcome(seed: int) -> Outcome:
    """Draw a module, import it, and compare outputs, gradients and running averages."""
    source = drawn(seed, OPERATIONS)
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Outcome(*_tried(source), source)


def _tried(source: Source) -> tuple[str, str]:
    try:
        module, example = source.made()
        inputs = example(BATCH)
        for training in (False, True):
            _check_runs(module.train(training), inputs)
    except Exception as e:
        return "unfit", f"{type(e).__name__}: {e}"
    try:
        model = fl.from_torch(module, inputs, verify=False)
    except UserError as e:
        return "refused", str(e)
    except Exception as e:
        return "crashed", f"{type(e).__name__}: {e}"
    try:
        exported = export(module, inputs).program
        # The check takes another number of samples than the model's, and once its own.
        for one in (model, fl.from_torch(module, inputs, batch_size=3, verify=False)):
            if (reason := check_torch(one, module, (inputs, {}), exported)) is not None:
                return "wrong", f"not checked: {reason}"
    except UserError as e:
        return "refused" if _MODES in str(e) else "wrong", str(e)
    except Exception as e:
        return "crashed", f"{type(e).__name__}: {e}"
    return "right", ""


def _check_runs(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    module = copy.deepcopy(module).double()
    given = [x.double() if x.is_floating_point() else x for x in inputs]
    outputs: Any = module(*given)
    flat = outputs.values() if isinstance(outputs, dict) else outputs
    for output in [outputs] if isinstance(outputs, torch.Tensor) else flat:
        if not bool(output.isfinite().all()) or float(output.detach().abs().max()) > 1e6:
            raise ValueError("no small numbers")


def sentence(why: str) -> str:
    """A refusal without names and numbers, to count its like."""
    text = re.sub(r"^\d+ of the network's operations cannot be imported: ", "", why)
    text = text.split("; '")[0]
    text = re.sub(r" at '[^']*'( \(\w+\))?", "", text)
    return re.sub(r"'(m|v|w|x)\d+[\w.]*'|\d+", "_", text)[:160]

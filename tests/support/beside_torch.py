"""An imported module beside itself in PyTorch, in double precision and without Legion."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import flexlegion as fl
from flexlegion.importers.evaluation import evaluate, initial_values
from flexlegion.importers.verify import as_inputs, as_outputs

TOLERANCE = 1e-6  # of the largest element: constants are stored in single precision


def errors(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> dict[str, float]:
    """How far outputs and the gradients of parameters are from PyTorch's, in train mode.

    Relative to each one's largest element. The module has no dropout.
    """
    model = fl.from_torch(module, tuple(inputs))
    assert model.origin is not None
    exact = copy.deepcopy(module).double()
    if not any(part.training for part in exact.modules()):
        exact.train()
    tensors = [x.double() if x.is_floating_point() else x for x in inputs]
    expected = _flat(exact(*(x.clone() for x in tensors)))
    names = list(model.origin.output_names)
    wanted = dict(zip(names, expected, strict=True))
    named = {t.name: x for t, x in zip(model.graph.inputs, tensors, strict=True)}
    arrays = {name: x.numpy() for name, x in named.items()}
    weights = initial_values(model.graph, 0, torch.float64)
    weights = {name: w.clone() for name, w in weights.items()}
    trained = [w.name for w in model.graph.weights if w.requires_gradient]
    for name in trained:
        weights[name].requires_grad_()
    given = as_inputs(model, arrays, torch.float64)
    results = evaluate(model.graph, model.outputs, given, weights, training=True)
    found = as_outputs(model, results)
    errors = {name: _error(found[name], wanted[name]) for name in names}
    torch.manual_seed(0)
    factors = {name: torch.randn(w.shape, dtype=torch.float64) for name, w in wanted.items()}
    _backward(found, factors)
    _backward(wanted, factors)
    gradients = {name: _gradient(w).numpy() for name, w in weights.items()}
    for name, parameter in exact.named_parameters():
        if parameter.requires_grad and name in model.origin.places:
            ours = model.origin.parameter(name, gradients).reshape(parameter.shape)
            errors[f"gradient of {name}"] = _error(torch.from_numpy(ours), _gradient(parameter))
        elif parameter.grad is not None:
            assert not parameter.grad.any(), f"{name} is missing"
    return errors


def assert_same(module: torch.nn.Module, *inputs: torch.Tensor) -> None:
    """Fail unless the import computes and trains as the module does."""
    wrong = {name: e for name, e in errors(module, inputs).items() if not e <= TOLERANCE}
    assert not wrong, wrong


def _backward(results: dict[str, torch.Tensor], factors: dict[str, torch.Tensor]) -> None:
    loss = sum((results[name] * factors[name]).sum() for name in results)
    if isinstance(loss, torch.Tensor) and loss.requires_grad:
        loss.backward()


def _gradient(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def _error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    ours, theirs = ours.detach().double(), theirs.detach().double()
    scale = max(float(theirs.abs().max()), 1e-3) if theirs.numel() else 1.0
    return float(np.abs((ours - theirs).numpy()).max(initial=0.0)) / scale


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value
    return [tensor for part in parts for tensor in _flat(part)]

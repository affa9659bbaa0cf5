"""Exported programs of imported modules beside the modules: what is given, and what is expected."""

from __future__ import annotations

import ast
import copy
from pathlib import Path
from typing import Any

import numpy as np
from arranged_modules import Arranged
from exported import differences, result
from torch.utils import _pytree as pytree

import flexlegion as fl
from flexlegion.analysis.export import program_of
from flexlegion.analysis.setting import Given, Setting
from flexlegion.exporters.space import target_of
from flexlegion.strategy.configuration import ParallelConfig, splits
from flexlegion.strategy.strategy import Strategy

TOLERANCE = 1e-6  # in double precision


def imported(case: Arranged) -> fl.Model:
    """The module as a model, whose first output alone is trained."""
    model = fl.from_torch(case.module, case.inputs)
    several = len(model.outputs)
    model.loss = case.loss if several == 1 else ["mean_squared_error", *[None] * (several - 1)]
    return model


def write(
    model: fl.Model,
    case: Arranged,
    at: Path,
    to: str,
    devices: int,
    seed: int,
    machine: str = "",
    **training: Any,
) -> None:
    """A program `at`.py, under a strategy that the target can express, and its data `at`.npz."""
    setting = Setting.of(model, machine or f"p100x{devices}", costs="analytic", **training)
    rng, target = np.random.default_rng(seed), target_of(to, devices)
    configs = {}
    for op in setting.network.graph.operators:
        allowed = [its for its in splits(op, devices) if target.allows(op, its)]
        degrees = allowed[int(rng.integers(len(allowed)))]
        names = tuple(f"gpu:{i}" for i in range(int(np.prod(degrees))))
        configs[op.name] = ParallelConfig(degrees, names)
    done = program_of(Given.inside(setting, Strategy(configs, f"seed {seed}")), to)
    at.with_suffix(".py").write_text(done.text)
    given = {}
    for weight in model.graph.weights:
        assert weight.initializer is not None
        values = weight.initializer(weight.shape, weight.name, model.seed, weight.dtype)
        given[f"weight/{weight.name}"] = values
    assert model.origin is not None
    for name, leaf in zip(model.origin.input_names, case.leaves(), strict=True):
        given[f"input/{name}"] = leaf
    given["label/labels"] = case.labels(tuple(case.outputs()[0].shape))
    double = {k: v.astype(np.float64) if v.dtype.kind == "f" else v for k, v in given.items()}
    np.savez(at.with_suffix(".npz"), **double)


def wrong(model: fl.Model, case: Arranged, at: Path) -> list[str]:
    """How a program's first loss, outputs and gradients differ from the module's."""
    module = copy.deepcopy(case.module).double()
    inputs = pytree.tree_map(lambda t: t.double() if t.is_floating_point() else t, case.inputs)
    outputs = pytree.tree_flatten(module(*inputs))[0]
    loss = case.torch_loss(outputs[0], case.labels(tuple(outputs[0].shape)))
    loss.backward()
    mine, origin = result(at.parent, at.name), model.origin
    assert origin is not None
    expected = {"0 loss": np.array(loss.item())}
    for name, output in zip(_results(at), outputs, strict=True):
        expected[name] = output.detach().numpy()
    for name, parameter in module.named_parameters():
        for place in origin.places[name]:
            if parameter.grad is not None:
                gradient = place.layout.of(parameter.grad.numpy().reshape(-1))
                expected[f"{place.weight} gradient"] = gradient
    shapes = [
        f"{name} has shape {mine[name].shape}, not {value.shape}"
        for name, value in expected.items()
        if name in mine and mine[name].shape != value.shape
    ]
    return shapes or differences(mine, expected, TOLERANCE)


def _results(at: Path) -> tuple[str, ...]:
    lines = at.with_suffix(".py").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("OUTPUTS = ")]
    names: tuple[str, ...] = ast.literal_eval(line.partition(" = ")[2])
    return names

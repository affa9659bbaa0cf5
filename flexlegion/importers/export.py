"""From a module to torch.export's training IR, with the batch alone dynamic."""

from __future__ import annotations

import contextlib
import inspect
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim, ExportedProgram

from flexlegion.errors import UserError
from flexlegion.importers import pt2


def export(module: Any, example_inputs: Any) -> tuple[ExportedProgram, tuple[str, ...], int | None]:
    """The exported program of whatever names a network.

    Parameters
    ----------
    module
        A module, an `ExportedProgram`, or the path of a ``.pt2``.
    example_inputs
        For a module: a tensor, a tuple of them, or a dict of keyword arguments.

    Returns
    -------
    tuple[ExportedProgram, tuple[str, ...], int | None]
        With notes on how it was exported, and the number of samples of the example.

    Raises
    ------
    UserError
        If it cannot be exported.
    """
    if isinstance(module, ExportedProgram):
        return module, (), _samples_of(module)
    if isinstance(module, str | Path):
        with _quiet():
            program = pt2.load(Path(module))
        return program, (), _samples_of(program)
    if not isinstance(module, torch.nn.Module):
        raise UserError(
            "from_torch takes a torch.nn.Module, an ExportedProgram or the path of a .pt2, not "
            f"{type(module).__name__}"
        )
    if example_inputs is None:
        raise UserError("from_torch needs example inputs to export a module; give a tuple of them")
    args, kwargs = _arguments(example_inputs)
    tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
    if not tensors or any(t.ndim == 0 for t in tensors):
        raise UserError("example inputs have to be tensors whose first dimension are the samples")
    samples = len(tensors[0])
    if any(len(t) != samples for t in tensors):
        raise UserError("example inputs have to be of as many samples each")
    if samples == 1:  # torch.export takes an extent of 1 for a constant
        args = tuple(_doubled(value) for value in args)
        kwargs = {name: _doubled(value) for name, value in kwargs.items()}
    modes = {part: part.training for part in module.modules()}
    notes: tuple[str, ...] = ()
    try:
        try:
            program = _exported(module.train(), args, kwargs)
        except Exception as in_training:
            try:
                program = _exported(module.eval(), args, kwargs)
            except Exception:
                raise UserError(
                    f"torch.export cannot export {type(module).__name__}: {_reason(in_training)}"
                ) from in_training
            notes = (
                f"{type(module).__name__} was exported in eval mode, without dropout and with fixed"
                f" statistics, because it does not export in train mode: {_reason(in_training)}",
            )
    finally:
        for part, training in modes.items():
            part.training = training
    return program, notes, samples


def _arguments(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example_inputs, dict):
        return (), dict(example_inputs)
    if isinstance(example_inputs, list | tuple):
        return tuple(example_inputs), {}
    return (example_inputs,), {}


def _doubled(value: Any) -> Any:
    return torch.cat([value, value]) if isinstance(value, torch.Tensor) else value


def _exported(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> ExportedProgram:
    batch = Dim("batch")
    arguments = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    shapes = _dynamic(dict(arguments), batch)
    with _quiet():
        return torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=False)


def _dynamic(value: Any, batch: Any) -> Any:
    """The samples' dimension of every tensor, in the structure of the arguments."""
    if isinstance(value, torch.Tensor):
        return {0: batch}
    if isinstance(value, dict):
        return {name: _dynamic(part, batch) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_dynamic(part, batch) for part in value)
    return None


def _samples_of(program: ExportedProgram) -> int | None:
    """How many samples the example had with which a program was exported, if it kept it."""
    example = program.example_inputs
    if example is None:
        return None
    for value in (*example[0], *example[1].values()):
        if isinstance(value, torch.Tensor) and value.ndim:
            return len(value)
    return None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's own reports: what matters of them is in the exception."""
    loggers = [logging.getLogger(name) for name in ("torch", "torch.fx", "torch.export")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _reason(error: Exception) -> str:
    """The first sentence of what torch says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")[:300]

"""From a module to torch.export's training IR, with the batch alone dynamic."""

from __future__ import annotations

import contextlib
import inspect
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from flexlegion.base.errors import UserError
from flexlegion.importers import pt2
from flexlegion.importers.tracing import (
    failing_part,
    gradients_as_traced,
    numbers_drawn,
    refuse_what_leaves_no_trace,
    without_checkpoints,
)
from flexlegion.importers.values import all_have_values, on_device_meta, without_devices


@dataclass
class Export:
    """What torch.export made of a module.

    Parameters
    ----------
    program
        The exported program.
    samples
        Of the example; None where a program has kept none.
    notes
        What the user should know of it.
    """

    program: ExportedProgram
    samples: int | None
    notes: list[str] = field(default_factory=list)


def export(module: Any, example_inputs: Any) -> Export:
    """The exported program of whatever names a network.

    Parameters
    ----------
    module
        A module, an `ExportedProgram`, or the path of a ``.pt2``.
    example_inputs
        For a module: a tensor, a tuple of them, or a dict of keyword arguments.

    Returns
    -------
    Export
        A module is exported in train mode; parts of it that alone are in eval mode stay so.

    Raises
    ------
    UserError
        If it cannot be exported, or computes gradients of its own.
    """
    if isinstance(module, ExportedProgram):
        return Export(module, _samples_of(module))
    if isinstance(module, str | Path):
        with _quiet():
            program = pt2.load(Path(module))
        return Export(program, _samples_of(program))
    if not isinstance(module, torch.nn.Module):
        raise UserError(
            "from_torch takes a torch.nn.Module, an ExportedProgram or the path of a .pt2, not "
            f"{type(module).__name__}"
        )
    if example_inputs is None:
        raise UserError("from_torch needs example inputs to export a module; give a tuple of them")
    args, kwargs = _arguments(example_inputs)
    tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    if not tensors or any(t.ndim == 0 for t in tensors):
        raise UserError("example inputs have to be tensors whose first dimension are the samples")
    samples = len(tensors[0])
    if any(len(t) != samples for t in tensors):
        raise UserError("example inputs have to be of as many samples each")
    refuse_what_leaves_no_trace(module)
    with contextlib.ExitStack() as stack:
        if not all_have_values(module, (args, kwargs)):
            args, kwargs = without_devices((args, kwargs))
            names = _named(module)
            stack.enter_context(on_device_meta(module))
        else:
            names = {}
        if samples == 1:  # torch.export takes an extent of 1 for a constant
            args, kwargs = pytree.tree_map(_doubled, (args, kwargs))
        stack.enter_context(in_mode(module, training=True))
        notes: list[str] = []
        try:
            program = _exported(module, args, kwargs, notes)
        except UserError:
            raise
        except Exception as e:
            raise _not_exported(module, args, kwargs, e) from e
    for held in (program.state_dict, program.constants):
        held.update((name, names[name]) for name in held if name in names)
    return Export(program, samples, notes)


def _named(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """All tensors that a module keeps, by their names."""
    return {
        f"{path}.{name}".lstrip("."): tensor
        for path, part in module.named_modules(remove_duplicate=False)
        for held in (part._parameters, part._buffers, vars(part))
        for name, tensor in held.items()
        if isinstance(tensor, torch.Tensor)
    }


@contextlib.contextmanager
def in_mode(module: torch.nn.Module, training: bool) -> Iterator[None]:
    """While this lasts, a module is in eval mode, or in that in which it is exported.

    This is train mode, but for parts that alone are in eval mode.
    """
    modes = {part: part.training for part in module.modules()}
    if not training or not any(modes.values()):
        module.train(training)
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training


def _not_exported(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception
) -> UserError:
    """Why a module does not export in train mode, and which of its parts is to blame."""
    kind = type(module).__name__
    at = failing_part(module, lambda: _exported(module, args, kwargs))
    where = f" (in '{at}', {type(module.get_submodule(at)).__name__})" if at else ""
    try:
        _exported(module.eval(), args, kwargs)
    except Exception:
        return UserError(f"torch.export cannot export {kind}{where}: {_reason(error)}")
    return UserError(
        f"torch.export cannot export {kind} in train mode{where}: {_reason(error)}; in eval mode it"
        " can, so if that part may do in training what it does in eval mode, set its .training to "
        "False and leave the other parts in train mode"
    )


def example_of(
    module: Any, example_inputs: Any, exported: ExportedProgram
) -> tuple[Any, dict[str, Any]] | None:
    """Positional and keyword arguments of the example; None where a program kept none."""
    if isinstance(module, torch.nn.Module):
        return _arguments(example_inputs)
    kept = exported.example_inputs
    return None if kept is None else (kept[0], dict(kept[1]))


def _arguments(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example_inputs, dict):
        return (), dict(example_inputs)
    if isinstance(example_inputs, list | tuple):
        return tuple(example_inputs), {}
    return (example_inputs,), {}


def _doubled(value: Any) -> Any:
    return torch.cat([value, value]) if isinstance(value, torch.Tensor) else value


def _exported(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    notes: list[str] | None = None,
) -> ExportedProgram:
    batch = Dim("batch")
    arguments = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    shapes = _dynamic(dict(arguments), batch)
    with (
        _quiet(),
        gradients_as_traced() as functions,
        numbers_drawn(),
        without_checkpoints() as checkpoints,
    ):
        program = torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=False)
    if checkpoints and notes is not None:
        notes.append(
            f"the module computes {len(checkpoints)} of its parts again in the backward pass "
            "(gradient checkpointing); here it is the strategy that says what is computed again: "
            "name one with +again, as data+again, or let a search find it"
        )
    if functions and notes is not None:
        notes.append(
            f"the backward pass of {', '.join(functions)} gives the gradient of the forward pass, "
            "as random numbers show, so the forward pass is followed"
        )
    return program


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
    if "Constraints violated" in str(error):
        return (
            "the code fixes the number of samples, as by len(x), int(x.shape[0]) or a comparison "
            "with it; x.shape[0] as it is leaves it open"
        )
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")[:300]

"""Networks from elsewhere: PyTorch's modules, through torch.export, and ONNX files.

A pipeline: `export` has torch write the module's training IR down, and `reader` makes it the
internal form of `program`; or `onnx_reader` makes that of a file. The `passes` rewrite it, and
`lower` adds our operators to a model.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from flexlegion.base.arguments import typed
from flexlegion.base.errors import UserError
from flexlegion.base.quoting import note
from flexlegion.importers.weights import to_torch
from flexlegion.layers.base import check_batch_size
from flexlegion.layers.origin import Origin
from flexlegion.model.model import Model
from flexlegion.process.together import rank

__all__ = ["Origin", "from_onnx", "from_torch", "to_torch"]

_VERIFY = ContextVar("verify", default=True)


@typed
def from_torch(
    module: Any,
    example_inputs: Any = None,
    *,
    batch_size: int | None = None,
    seed: int = 0,
    verify: bool = True,
) -> Model:
    """A model that computes what a PyTorch module does, with the module's weights.

    Layers are named by the module's paths ("layer1.0.conv1"); images come with their channels last,
    (n, h, w, c), and tokens as int32. `model.outputs` are the module's outputs, logits first, and
    `model.origin` tells how inputs, outputs and weights are arranged.

    Parameters
    ----------
    module
        A ``torch.nn.Module``; or what ``torch.export.export`` made of one with the first dimension
        of every input dynamic, or the path of a ``.pt2`` with that.
    example_inputs
        For a module: a tensor, a tuple of tensors, or a dict of keyword arguments, with the samples
        in the first dimension of each; they may be nested.
    batch_size
        Samples an iteration; the example's unless given.
    seed
        Of the model: decides the order of samples, and dropout.
    verify
        Whether to compare the model with the module: the outputs in evaluation mode, for the first
        of the example's samples and others, and the gradients of parameters where that is cheap. It
        costs up to about a quarter of the import; a check that would cost more is left out, which
        `model.origin.notes` say.

    Returns
    -------
    Model
        Not compiled yet. What it computes otherwise than the module on purpose is printed on the
        standard error stream; `model.origin.notes` has it, too.

    Raises
    ------
    UserError
        If torch is missing, the module cannot be exported, or it has operations that are not known
        here; these are named, with their modules. If an output or a gradient is not the module's;
        the first operation that differs is named.
    """
    if importlib.util.find_spec("torch") is None:
        raise UserError("from_torch needs PyTorch, which is not installed: pip install torch")
    from flexlegion.importers import passes
    from flexlegion.importers.export import example_of, export
    from flexlegion.importers.lower import lower
    from flexlegion.importers.reader import read

    if batch_size is not None:
        check_batch_size(batch_size)
    exporting = export(module, example_inputs)
    exported = exporting.program
    batch_size = exporting.samples if batch_size is None else batch_size
    if not batch_size:
        raise UserError("the exported program kept no example inputs; give the batch_size")
    program = read(exported)
    program.notes += exporting.notes
    passes.run(program)
    model = Model(batch_size, seed)
    model.origin = lower(program, model)
    if verify and _VERIFY.get():
        from flexlegion.importers.torch_reference import check_torch

        example = example_of(module, example_inputs, exported)
        model.origin.note_unchecked(check_torch(model, module, example, exported))
    else:
        model.origin.note_unchecked("verify=False" if not verify else "--no-verify")
    announce(model)
    return model


@contextmanager
def verifying(verify: bool) -> Iterator[None]:
    """Whether imports meanwhile may be compared with what they import, whoever asks for them."""
    before = _VERIFY.set(verify)
    try:
        yield
    finally:
        _VERIFY.reset(before)


def announce(model: Model) -> None:
    """Print what the user should know of an import, a line each, on the standard error stream.

    Of several ranks, the first one does.
    """
    for text in [] if model.origin is None or rank() > 0 else model.origin.notes:
        note(text)


@typed
def from_onnx(
    source: Any,
    *,
    batch_size: int,
    seed: int = 0,
    train_batch_norm: bool = True,
    trained: Collection[str] | None = None,
    verify: bool = True,
) -> Model:
    """A model that computes what an ONNX file says, with its weights.

    Layers are named by the modules that the exporter noted, or by numbers; images come with their
    channels last, (n, h, w, c), and tokens as int32.

    ONNX does not say which initializers are trained; torch.onnx.export does, of most of them. Of
    the others, those of real numbers are: all that layers read as weights; and of those that are
    added, multiplied and so on, all but single numbers, and masks, which have infinite numbers or
    such below -10,000. `model.origin.notes` names what is not trained by this rule, and has what
    else is worth to be known.

    Parameters
    ----------
    source
        The path of a file of opset 13 or later, with the first dimension of every input dynamic; or
        an ``onnx.ModelProto``, or what ``torch.onnx.export`` returned.
    batch_size
        Samples an iteration.
    seed
        Of the model: decides the order of samples, and dropout.
    train_batch_norm
        Whether batch normalisation takes the batch's statistics while training, as in PyTorch's
        train mode; files rarely say so. If not, it keeps the file's.
    trained
        Names of the initializers that are trained, if you know better.
    verify
        Whether to compare the model's outputs with those that onnxruntime, or ONNX's own evaluator
        where that is not installed, computes of random inputs. What would take long is left out,
        which `model.origin.notes` say.

    Returns
    -------
    Model
        Not compiled yet.

    Raises
    ------
    UserError
        If the package onnx is missing, the file cannot be read, or it has operations that are not
        known here; these are named. If an output is not the file's.
    """
    if importlib.util.find_spec("onnx") is None:
        raise UserError("from_onnx needs the package onnx, which is missing: pip install onnx")
    from flexlegion.importers import passes
    from flexlegion.importers.lower import lower
    from flexlegion.importers.onnx_file import read_file
    from flexlegion.importers.onnx_reader import read

    file = read_file(source)
    program = read(file, train_batch_norm, trained)
    passes.run(program)
    model = Model(batch_size, seed)
    model.origin = lower(program, model)
    if verify and _VERIFY.get():
        from flexlegion.importers.onnx_reference import check_onnx

        model.origin.note_unchecked(check_onnx(model, file))
    else:
        model.origin.note_unchecked("verify=False" if not verify else "--no-verify")
    announce(model)
    return model

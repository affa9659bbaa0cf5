"""Networks from elsewhere: PyTorch's modules, through torch.export, and ONNX files.

A pipeline: `export` has torch write the module's training IR down, and `reader` makes it the
internal form of `program`; or `onnx_reader` makes that of a file. The `passes` rewrite it, and
`lower` adds our operators to a model.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from flexlegion.arguments import typed
from flexlegion.errors import UserError
from flexlegion.importers.weights import Origin, to_torch
from flexlegion.model import Model

__all__ = ["Origin", "from_onnx", "from_torch", "to_torch"]


@typed
def from_torch(
    module: Any, example_inputs: Any = None, *, batch_size: int | None = None, seed: int = 0
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
        in the first dimension of each.
    batch_size
        Samples an iteration; the example's unless given.
    seed
        Of the model: decides the order of samples, and dropout.

    Returns
    -------
    Model
        Not compiled yet.

    Raises
    ------
    UserError
        If torch is missing, the module cannot be exported, or it has operations that are not known
        here; these are named, with their modules.
    """
    if importlib.util.find_spec("torch") is None:
        raise UserError("from_torch needs PyTorch, which is not installed: pip install torch")
    from flexlegion.importers import passes
    from flexlegion.importers.export import export
    from flexlegion.importers.lower import lower
    from flexlegion.importers.reader import read

    exported, samples = export(module, example_inputs)
    batch_size = batch_size or samples
    if batch_size is None:
        raise UserError("the exported program kept no example inputs; give the batch_size")
    program = read(exported)
    passes.run(program)
    model = Model(batch_size, seed)
    model.origin = lower(program, model)
    return model


@typed
def from_onnx(
    source: Any, *, batch_size: int, seed: int = 0, train_batch_norm: bool = True
) -> Model:
    """A model that computes what an ONNX file says, with its weights.

    Layers are named by the modules that the exporter noted, or by numbers; images come with their
    channels last, (n, h, w, c), and tokens as int32. Initializers are trained where layers use them
    as weights, or where real numbers are added or multiplied; masks, and what the exporter computed
    of constants, are not. `model.origin.notes` has what is worth to be known.

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

    Returns
    -------
    Model
        Not compiled yet.

    Raises
    ------
    UserError
        If the package onnx is missing, the file cannot be read, or it has operations that are not
        known here; these are named.
    """
    if importlib.util.find_spec("onnx") is None:
        raise UserError("from_onnx needs the package onnx, which is missing: pip install onnx")
    from flexlegion.importers import passes
    from flexlegion.importers.lower import lower
    from flexlegion.importers.onnx_reader import read

    program = read(source, train_batch_norm)
    passes.run(program)
    model = Model(batch_size, seed)
    model.origin = lower(program, model)
    return model

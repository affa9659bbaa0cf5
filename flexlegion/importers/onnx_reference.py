"""An imported ONNX file beside what ONNX says it computes."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper

from flexlegion.base.quoting import printable
from flexlegion.importers.onnx_file import OnnxFile, plain_name
from flexlegion.importers.program import SAMPLES, Array
from flexlegion.model.model import Model

# ONNX's own evaluator is written in Python: images of more elements take it long.
_SLOW = ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "Resize", "LSTM", "GRU")
_SLOW_ELEMENTS = 200_000


def check_onnx(model: Model, file: OnnxFile) -> str | None:
    """Compare a model with the file that it was imported from.

    By onnxruntime if that is installed, else by ONNX's own evaluator; on random inputs of another
    number of samples than the model has.

    Returns
    -------
    str or None
        Why it was not compared, if so.

    Raises
    ------
    UserError
        If an output differs by more than rounding.
    """
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed"
    from flexlegion.importers import verify

    if reason := verify.unchecked(model):
        return reason
    samples = verify.samples_for(model)
    proto = _evaluated_as(file)
    if importlib.util.find_spec("onnxruntime") is not None:
        run: Any = _Runtime(proto)
    elif reason := _slow(file, samples):
        return reason
    else:
        from onnx.reference import ReferenceEvaluator

        run = ReferenceEvaluator(proto)
    try:
        inputs = {name: _random(file, name, samples) for name in file.inputs}
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            values = run.run(None, inputs)
    except Exception as e:  # whatever a file of this kind may raise there
        return f"ONNX's evaluator cannot compute it ({printable(str(e), 200)})"
    results = {name: np.asarray(v) for name, v in zip(file.outputs, values, strict=True)}
    named = {plain: value for plain, value in _plain(results).items() if value.dtype.kind == "f"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # arrays of files are not to be written to; nobody does
        verify.check(model, lambda _: named, _plain(inputs), source="the ONNX file")
    return None


def _plain(values: Mapping[str, Array]) -> dict[str, Array]:
    return {plain_name(name): value for name, value in values.items()}


def _slow(file: OnnxFile, samples: int) -> str | None:
    """Why ONNX's own evaluator would take long."""
    elements = 0
    for node in file.nodes:
        type_ = file.types.get(node.outputs[0])
        if node.op in _SLOW and type_ is not None:
            shape = (e // SAMPLES * samples if e % SAMPLES == 0 else e for e in type_.shape)
            elements += int(np.prod([*shape], dtype=np.float64))
    if elements > _SLOW_ELEMENTS:
        return "ONNX's own evaluator would take long; with onnxruntime installed it is"
    return None


def _evaluated_as(file: OnnxFile) -> Any:
    """The file's model in evaluation mode, for any number of samples."""
    graph = onnx.GraphProto()
    graph.CopyFrom(file.proto.graph)
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        if dims and dims[0].dim_value == SAMPLES:
            dims[0].dim_param = "samples"
    for node in graph.node:
        if node.op_type == "Dropout" and len(node.input) > 2:
            del node.input[2:]
        for attribute in node.attribute:
            if attribute.name == "training_mode":
                attribute.i = 0
        if node.op_type == "BatchNormalization":
            del node.output[1:]
    return helper.make_model(
        graph, opset_imports=file.proto.opset_import, ir_version=file.proto.ir_version
    )


class _Runtime:
    """onnxruntime, as ONNX's evaluator is called."""

    def __init__(self, proto: Any) -> None:
        onnxruntime: Any = importlib.import_module("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        providers = ["CPUExecutionProvider"]
        self.session = onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=providers
        )

    def run(self, names: Any, inputs: dict[str, Array]) -> list[Any]:
        """The outputs' values."""
        values: list[Any] = self.session.run(names, inputs)
        return values


def _random(file: OnnxFile, name: str, samples: int) -> Array:
    """Values of an input: numbers of rows that any table has, masks, or real numbers."""
    rng = np.random.default_rng(len(name))
    type_ = file.types[name]
    shape = (samples, *type_.shape[1:])
    dtype = np.dtype(type_.dtype)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)

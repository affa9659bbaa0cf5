"""An ONNX file: its nodes with types, in which the samples' extent is `SAMPLES`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, inliner, numpy_helper, shape_inference

from flexlegion.base.errors import UserError
from flexlegion.base.quoting import printable
from flexlegion.importers.program import SAMPLES, Array, Type

OLDEST_OPSET = 13  # from which axes are inputs and softmax is of one dimension
_MAX_BYTES = 2**31 - 1  # of the file itself; weights may lie beside it
_DEEPEST = 50  # functions that call each other
_MAX_NODES = 1_000_000
_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"  # of an initializer, by torch.onnx.export
_FOLDED = "pkg.onnxscript.optimizer.folded_from"  # its constants, which it computed of others
_MARKED = "pkg.torch.onnx."  # metadata of torch.onnx.export


@dataclass
class OnnxNode:
    """A node of the graph.

    Parameters
    ----------
    op
        Its type: "Conv".
    inputs, outputs
        Names of values; an empty one stands for an input that is left out.
    attributes
        As Python has them.
    path, layer
        Module and its class that it comes from, where the exporter says so.
    proto
        The node itself.
    """

    op: str
    inputs: list[str]
    outputs: list[str]
    attributes: Mapping[str, Any]
    path: str
    layer: str
    proto: Any = field(repr=False)

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.attributes.get(name, default)

    def has(self, i: int) -> bool:
        """Whether it has its i-th input."""
        return i < len(self.inputs) and bool(self.inputs[i])


@dataclass
class OnnxFile:
    """What a file says.

    Parameters
    ----------
    nodes
        In the order in which they are computed.
    inputs, outputs
        Names.
    arrays
        Of initializers, by name.
    trained
        Of initializers of which the file says it: whether they are parameters.
    types
        Of all values that are known.
    opset
        Of ONNX's own operators.
    proto
        The model itself, without functions.
    """

    nodes: list[OnnxNode]
    inputs: list[str]
    outputs: list[str]
    arrays: dict[str, Array]
    trained: dict[str, bool]
    types: dict[str, Type]
    opset: int
    proto: Any = field(repr=False)


def read_file(source: Any) -> OnnxFile:
    """Read a file, or take a model that is loaded.

    Raises
    ------
    UserError
        If it is none, too old, or its samples cannot be told.
    """
    model = _loaded(source)
    opset = next((i.version for i in model.opset_import if i.domain in ("", "ai.onnx")), 0)
    if opset < OLDEST_OPSET:
        raise UserError(
            f"the ONNX model is of opset {opset}; export it with opset {OLDEST_OPSET} or later"
        )
    if model.functions:
        _check_functions(model)
        model = inliner.inline_local_functions(model)
    graph = model.graph
    _check_order(graph)
    arrays = {t.name: _array(t) for t in graph.initializer}
    inputs = [value.name for value in graph.input if value.name not in arrays]
    for value in graph.input:
        if value.name in inputs:
            _mark_samples(value)
    _check_names((*inputs, *arrays))
    trained = _recorded(graph)
    del graph.value_info[:]
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    types = _types(model)
    nodes = [_node(proto, number) for number, proto in enumerate(graph.node)]
    outputs = [value.name for value in graph.output]
    return OnnxFile(nodes, inputs, outputs, arrays, trained, types, opset, model)


def plain_name(name: str) -> str:
    """A name without what exporters put around it, and without what cannot be printed."""
    return printable(name.removeprefix("model.") if name.startswith("model.p_") else name)


def _check_names(names: Sequence[str]) -> None:
    """Raise `UserError` if two values would have one name here."""
    taken: dict[str, str] = {}
    for name in names:
        plain = plain_name(name)
        if taken.setdefault(plain, name) != name:
            raise UserError(f"two values of the ONNX model are called '{plain}' here")


def _recorded(graph: Any) -> dict[str, bool]:
    """Of the initializers of which torch.onnx.export says what they were: whether parameters."""
    recorded = {}
    for value in (*graph.value_info, *graph.input):
        notes = {p.key: p.value for p in value.metadata_props}
        if _KIND in notes:
            recorded[value.name] = notes[_KIND] == "PARAMETER"
        elif _FOLDED in notes:
            recorded[value.name] = False
    return recorded


def _loaded(source: Any) -> Any:
    if isinstance(source, onnx.ModelProto):
        model = onnx.ModelProto()
        model.CopyFrom(source)
        return model
    if hasattr(source, "model_proto"):  # what torch.onnx.export returns
        return _loaded(source.model_proto)
    if not isinstance(source, str | Path):
        raise UserError(
            f"from_onnx takes the path of an ONNX file or a model, not {type(source).__name__}"
        )
    path = Path(source)
    if not os.path.isfile(path):
        raise UserError(f"there is no file {path}")
    if os.path.getsize(path) > _MAX_BYTES:
        raise UserError(f"{path} is too large for an ONNX file; keep its weights beside it")
    try:
        return onnx.load(path)
    except Exception as e:
        raise UserError(f"{path} is not an ONNX file: {_reason(e)}") from e


def _check_order(graph: Any) -> None:
    """Raise `UserError` unless every node reads what was computed before it, and nothing twice.

    So there are no cycles, and no values that the file does not have.
    """
    known = {"", *(t.name for t in graph.initializer), *(v.name for v in graph.input)}
    if graph.sparse_initializer:
        raise UserError("the ONNX model has sparse initializers; export it with dense ones")
    for number, node in enumerate(graph.node):
        for name in node.input:
            if name not in known:
                raise UserError(
                    f"the ONNX model's node {number}, '{_short(node.op_type)}', reads "
                    f"'{_short(name)}', which nothing before it computes; a file lists nodes in "
                    "their order, without cycles"
                )
        if twice := [name for name in node.output if name and name in known]:
            raise UserError(f"the ONNX model computes '{_short(twice[0])}' more than once")
        known.update(node.output)
    if missing := [value.name for value in graph.output if value.name not in known]:
        raise UserError(
            f"nothing computes '{_short(missing[0])}', which the ONNX model has as output"
        )


def _array(tensor: Any) -> Array:
    """An initializer's numbers."""
    try:
        return numpy_helper.to_array(tensor)
    except Exception as e:
        raise UserError(
            f"the ONNX model's initializer '{_short(tensor.name)}' of shape "
            f"{list(tensor.dims)[:10]} cannot be read, its data are cut short or of another kind: "
            f"{_reason(e)}"
        ) from e


def _check_functions(model: Any) -> None:
    """Raise `UserError` if functions call themselves, or become too many nodes in their places."""
    functions = {(f.domain, f.name): f for f in model.functions}
    sizes: dict[tuple[str, str], int] = {}

    def size(nodes: Any, within: tuple[tuple[str, str], ...]) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type)
            if key not in functions:
                total += 1
                continue
            if key in within or len(within) > _DEEPEST:
                raise UserError(
                    f"the ONNX model's function '{_short(node.op_type)}' calls itself, or is one "
                    f"of more than {_DEEPEST} that call each other"
                )
            if key not in sizes:
                sizes[key] = size(functions[key].node, (*within, key))
            total += sizes[key]
        return total

    if size(model.graph.node, ()) > _MAX_NODES:
        raise UserError(f"the ONNX model's functions stand for more than {_MAX_NODES:,} nodes")


def _short(name: str) -> str:
    """A name for a message."""
    return printable(name, 100)


def _reason(error: Exception) -> str:
    """The first line of what a library says."""
    lines = str(error).strip().splitlines()
    return printable(lines[0] if lines else type(error).__name__, 300).rstrip(".")


def _mark_samples(value: Any) -> None:
    """Give an input's first dimension, which has to be the one that varies, the samples' extent."""
    dims = value.type.tensor_type.shape.dim
    symbols = [d.dim_param or ("?" if not d.HasField("dim_value") else "") for d in dims]
    if not dims or not symbols[0]:
        raise UserError(
            f"input '{value.name}' has a fixed number of samples; export the model with its first "
            "dimension dynamic"
        )
    if any(symbols[1:]):
        raise UserError(
            f"input '{value.name}' has other dynamic dimensions than its first one; only the batch "
            "can be dynamic"
        )
    dims[0].Clear()
    dims[0].dim_value = SAMPLES


def types_of(
    node: OnnxNode, types: Mapping[str, Type], arrays: Mapping[str, Array], opset: int
) -> dict[str, Type]:
    """Types of a node's outputs, from what is known of its inputs by now."""
    names = [name for name in dict.fromkeys(node.inputs) if name]
    given = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(np.dtype(types[name].dtype)), types[name].shape
        )
        for name in names
        if name not in arrays
    ]
    known = [numpy_helper.from_array(arrays[name], name) for name in names if name in arrays]
    results = [helper.make_empty_tensor_value_info(name) for name in node.outputs if name]
    graph = helper.make_graph([node.proto], "node", given, results, known)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return _types(model)


def _types(model: Any) -> dict[str, Type]:
    """Inferred types of all values, but for those whose extents are computed.

    ONNX could propagate these (data_prop), but takes memory for each element of a vector then, and
    a vector of one number for each sample seems to have `SAMPLES` here.
    """
    try:
        inferred = shape_inference.infer_shapes(model).graph
    except Exception as e:
        raise UserError(f"the ONNX model's shapes do not fit together: {_reason(e)}") from e
    types = {}
    for value in (*inferred.input, *inferred.value_info, *inferred.output):
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type") or not tensor.HasField("shape"):
            continue
        if all(d.HasField("dim_value") for d in tensor.shape.dim):
            shape = tuple(d.dim_value for d in tensor.shape.dim)
            types[value.name] = Type(shape, dtype_of(tensor.elem_type))
    return types


def dtype_of(element: int) -> str:
    """An element type's name, as NumPy has it."""
    return str(np.dtype(helper.tensor_dtype_to_np_dtype(element)))


def _node(proto: Any, number: int) -> OnnxNode:
    try:
        attributes = {a.name: _attribute(a) for a in proto.attribute}
    except Exception as e:
        raise UserError(
            f"the ONNX model's node {number}, '{_short(proto.op_type)}', has an attribute that "
            f"cannot be read: {_reason(e)}"
        ) from e
    path, layer = _module(proto)
    op = proto.op_type if proto.domain in ("", "ai.onnx") else f"{proto.domain}.{proto.op_type}"
    return OnnxNode(
        op, list(proto.input), list(proto.output), attributes, path or f"node{number}", layer, proto
    )


def _attribute(attribute: Any) -> Any:
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _module(proto: Any) -> tuple[str, str]:
    """Path and class of the module that a node comes from, as either of torch's exporters says."""
    notes = {p.key: p.value for p in proto.metadata_props}
    scopes, classes = (notes.get(_MARKED + key) for key in ("name_scopes", "class_hierarchy"))
    if scopes and classes:
        names, layers = (_list(text) for text in (scopes, classes))
        if len(names) >= 2 and len(layers) >= 2:  # the last one is the operation's
            return names[-2], layers[-2]
    parts = proto.name.strip("/").split("/")[:-1]
    path = ""
    for part in parts:  # "/layer1/layer1.0/conv1/Conv"
        path = part if part.startswith(path + ".") else f"{path}.{part}".lstrip(".")
    return path, "torch.nn." if path else ""


def _list(text: str) -> list[str]:
    """A list of texts as Python prints it."""
    import ast

    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return []
    return [str(part) for part in value] if isinstance(value, list) else []


def evaluate(node: OnnxNode, inputs: Sequence[Array], opset: int) -> list[Array]:
    """A node on constants, by ONNX's own reference implementation."""
    from onnx.reference import ReferenceEvaluator

    names = [name for name in node.inputs if name]
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, inputs, strict=True)
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in node.outputs if name]
    graph = helper.make_graph([node.proto], "constant", values, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    found = ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))
    return [np.asarray(value) for value in found]

"""An imported model as JSON, and back: its graph, and how it lies in what was imported.

Values of weights are left out. What a model has beyond that, as operators of the user's own, is
refused by name, so that a document stands for all of its model or is not written.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.initializers import Given, Initializer, Later
from flexlegion.graph.operator_type import OperatorType
from flexlegion.graph.tensor import Tensor
from flexlegion.layers.arrangement import Arrangement
from flexlegion.layers.origin import Layout, Origin, Place
from flexlegion.model.model import Model
from flexlegion.objective.losses import is_named

_PACKAGE = "flexlegion."
_CLASS = re.compile(r"(ops|graph|layers)(\.[a-z0-9_]+)+\.[A-Za-z0-9]+")
_KINDS = (OperatorType, Initializer, Layout, Place, Arrangement)
_PLAIN = (type(None), bool, int, float, str)
_WITHOUT_VALUES = "values of a kept import are read by the weights' names alone"


class NotKeptError(Exception):
    """Why an import is not kept, as what follows "because": what the model has, or what it did."""


def document_of(model: Model) -> dict[str, Any]:
    """A model as values that JSON has.

    Raises
    ------
    NotKeptError
        If the model has what a document cannot say.
    """
    origin = model.origin
    assert origin is not None
    if model.loss is not None and not is_named(model.loss):
        raise NotKeptError("it has a loss of its own")
    number = {tensor: i for i, tensor in enumerate(model.graph.tensors)}
    return {
        "batch_size": model.batch_size,
        "seed": model.seed,
        "loss": _listed(model.loss),
        "outputs": [number[tensor] for tensor in model.outputs],
        **graph_document(model.graph),
        "origin": {
            field.name: _written(getattr(origin, field.name))
            for field in fields(Origin)
            if field.name != "buffers"  # values, which only trained weights are compared with
        },
    }


def graph_document(graph: Graph) -> dict[str, Any]:
    """A graph's tensors and operators, without the values of weights; see `document_of`."""
    number = {tensor: i for i, tensor in enumerate(graph.tensors)}
    return {
        "tensors": [_tensor(tensor) for tensor in graph.tensors],
        "operators": [_operator(operator, number) for operator in graph.operators],
        "micro_batches": graph.micro_batches,
    }


def model_of(document: dict[str, Any], again: Callable[[], Model]) -> Model:
    """The model that a document of `document_of` describes.

    Parameters
    ----------
    document
        What `document_of` returned, maybe through JSON.
    again
        Imports the model, once somebody reads the values of a weight.

    Raises
    ------
    Exception
        Of any kind, if it is no such document.
    """
    model = Model(document["batch_size"], document["seed"])
    model.loss = document["loss"]
    tensors = [_read_tensor(facts, again) for facts in document["tensors"]]
    operators = [_read_operator(facts, tensors) for facts in document["operators"]]
    model.graph = Graph(tensors, operators, document["micro_batches"])
    model.set_outputs([tensors[i] for i in document["outputs"]])
    its = document["origin"]
    model.origin = Origin(
        **{name: _read_map(its[name]) for name in ("places", "shapes", "arrangements")},
        aliases={name: list(names) for name, names in its["aliases"].items()},
        input_names=list(its["input_names"]),
        output_names=dict(its["output_names"]),
        notes=list(its["notes"]),
    )
    return model


# A tensor is the list of its fields but for its producer, which follows from the operators.
_TENSOR = [field.name for field in fields(Tensor) if field.name not in ("producer", "initializer")]


def _tensor(tensor: Tensor) -> list[Any]:
    return [
        *(_written(getattr(tensor, name)) for name in _TENSOR),
        _written(tensor.initializer),
    ]


def _read_tensor(facts: list[Any], again: Callable[[], Model]) -> Tensor:
    *values, first = facts
    its = dict(zip(_TENSOR, map(_read, values), strict=True))
    initializer = _read(first)
    if isinstance(initializer, Given) and initializer.is_known:
        initializer = Given(Later(its["shape"], lambda: _values(again(), its["name"])))
    return Tensor(**its, initializer=initializer)


def _values(model: Model, name: str) -> Any:
    weight = next(weight for weight in model.graph.weights if weight.name == name)
    return weight.initializer(weight.shape, name, model.seed, weight.host_dtype)  # type: ignore[misc]


def _operator(operator: Operator, number: dict[Tensor, int]) -> list[Any]:
    if operator.signatures:
        raise NotKeptError("it has SBP signatures")
    lists = (operator.inputs, operator.weights, operator.outputs)
    return [operator.name, _written(operator.kind), *([number[t] for t in its] for its in lists)]


def _read_operator(facts: list[Any], tensors: list[Tensor]) -> Operator:
    name, kind, *lists = facts
    inputs, weights, outputs = ([tensors[i] for i in its] for its in lists)
    operator = Operator(name, _read(kind), inputs, weights, outputs)
    for tensor in outputs:
        tensor.producer = operator
    return operator


def _written(value: Any) -> Any:
    """A value as JSON has it; an object of a class of flexlegion's as ``{"is": class, ...}``."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, tuple | list):
        return [_written(one) for one in value]
    if isinstance(value, dict):
        return {name: _written(one) for name, one in value.items()}
    if isinstance(value, Given):
        array = value.array
        unknown = array.unknown if isinstance(array, Later) else ""
        return {"is": "given", "shape": list(array.shape), "unknown": unknown}
    name = f"{type(value).__module__}.{type(value).__name__}"
    if not isinstance(value, _KINDS) or not name.startswith(_PACKAGE):
        raise NotKeptError(f"it has a {type(value).__name__} of its own")
    its = {field.name: _written(getattr(value, field.name)) for field in fields(value)}
    return {"is": name.removeprefix(_PACKAGE), **its}


def _read(value: Any) -> Any:
    """The inverse of `_written`, with tuples in place of lists."""
    if isinstance(value, list):
        return tuple(_read(one) for one in value)
    if not isinstance(value, dict):
        return value
    its = dict(value)
    name = its.pop("is")
    if name == "given":
        shape, unknown = tuple(its["shape"]), its["unknown"]
        return Given(Later.never(shape, unknown) if unknown else Later(shape, _no_values))
    return _class(name)(**{key: _read(one) for key, one in its.items()})


def _read_map(value: dict[str, Any]) -> dict[str, Any]:
    return {name: _read(one) for name, one in value.items()}


def _class(name: str) -> type:
    """A class that `_written` names, and no other one."""
    if not _CLASS.fullmatch(name):
        raise ValueError(name)
    module, _, its = name.rpartition(".")
    found = getattr(importlib.import_module(_PACKAGE + module), its)
    if not (isinstance(found, type) and issubclass(found, _KINDS)):
        raise ValueError(name)
    return found


def _no_values() -> Any:
    raise ValueError(_WITHOUT_VALUES)


def _listed(loss: Any) -> Any:
    return list(loss) if isinstance(loss, tuple) else loss

"""From an ONNX file to the importers' internal form.

What depends neither on inputs nor on trained weights is computed here. An initializer is trained if
it is one of a layer's weights, or real numbers that are added or multiplied, unless the exporter
made it by computing with constants (it calls such "val_3"), or it is a mask.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flexlegion.errors import UserError
from flexlegion.importers.onnx_file import OnnxFile, OnnxNode, evaluate, read_file, types_of
from flexlegion.importers.program import SAMPLES, Array, Node, Program, Shape, Type

Conversion = Callable[["Reader", OnnxNode], "Node | Sequence[Node | None]"]
CONVERSIONS: dict[str, Conversion] = {}

_COMPUTED = re.compile(r"(val|scalar|const|_to_copy|clone|arange|full|rsub|sub|where|mul)(_\w*)?$")
_MASKED = -1e4  # what masks add is below
# Operations that only move elements: what they make of a weight is still that.
_MOVES = (
    "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand", "Concat", "Slice", "Split",
    "Identity", "Cast", "Gather", "GatherND",
)  # fmt: skip
_LARGE = 1 << 26  # elements of a constant
# As many samples as constants are computed for: any number above 1 tells whether samples differ.
PROBE = 3
# Operations that make arrays: from which input on they read extents.
_EXTENTS = {"Expand": 1, "ConstantOfShape": 0, "Range": 0, "Tile": 1, "Reshape": 1, "Slice": 1}


class Unreadable(Exception):
    """Why a node cannot be read."""


def converts(*ops: str) -> Callable[[Conversion], Conversion]:
    """Register a function that converts nodes of these operations."""

    def register(function: Conversion) -> Conversion:
        CONVERSIONS.update(dict.fromkeys(ops, function))
        return function

    return register


def read(source: Any, train_batch_norm: bool = True) -> Program:
    """The internal form of an ONNX file, or of a model that is loaded.

    Parameters
    ----------
    source
        The file's path, or a model.
    train_batch_norm
        Whether batch normalisation trains, whatever the file says.

    Raises
    ------
    UserError
        If it cannot be read; all operations that are not known are named.
    """
    # Which register conversions.
    from flexlegion.importers import onnx_layers, onnx_moves, onnx_operations  # noqa: F401

    return Reader(read_file(source), train_batch_norm).program()


class Reader:
    """Reads one file.

    Parameters
    ----------
    file
        What it says.
    train_batch_norm
        As of `read`.
    """

    def __init__(self, file: OnnxFile, train_batch_norm: bool) -> None:
        self.file, self.train_batch_norm = file, train_batch_norm
        self.nodes: list[Node] = []
        self.notes: list[str] = []
        self.types = dict(file.types)
        self._values: dict[str, Node] = {}  # that are nodes
        self._arrays: dict[str, Array] = dict(file.arrays)  # that are known
        self._of_weights: dict[str, OnnxNode] = {}  # computed from weights alone: when asked for
        self.computed_of: list[str] = []  # initializers of which constants were computed
        self.sequences: dict[str, list[Node | None]] = {}  # what a split gives, in one value

    def program(self) -> Program:
        """All of it."""
        for name in self.file.inputs:
            self._values[name] = self._new(Node("input", {}, self.type(name), name=_plain(name)))
        problems: dict[str, None] = {}
        for node in self.file.nodes:
            try:
                self._read(node)
            except _Behind:
                continue  # it stands behind a problem that is known
            except Unreadable as e:
                problems[f"'{node.op}' at '{node.path}': {e}"] = None
        if problems:
            raise UserError(
                f"{len(problems)} of the network's operations cannot be imported: "
                + "; ".join(list(problems)[:20])
                + (f"; and {len(problems) - 20} more" if len(problems) > 20 else "")
            )
        outputs = [(_plain(name), self.operand(name)) for name in self.file.outputs]
        real = [(name, node) for name, node in outputs if node.type.is_float]
        if not real:
            raise UserError("the network has no output of real numbers")
        real.sort(key=lambda item: item[0] != "logits")  # first, whatever else there is
        self._note_folded()
        return Program(self.nodes, real, notes=self.notes)

    # Values

    def type(self, name: str) -> Type:
        """Of a value."""
        if name in self.types:
            return self.types[name]
        if name in self._arrays:
            return _type_of(self._arrays[name])
        raise Unreadable(f"the shape of '{name}' is not known")

    def shape(self, name: str) -> Shape:
        """Of a value."""
        return self.type(name).shape

    def is_known(self, name: str) -> bool:
        """Whether a value is a constant, or computed from weights alone."""
        return name in self._arrays

    def array(self, name: str) -> Array:
        """The numbers of a constant, or of what is computed from weights alone."""
        if name not in self._arrays:
            raise Unreadable("it needs numbers that depend on the data")
        return self._arrays[name]

    def operand(self, name: str) -> Node:
        """A value as a node: what is trained stays so."""
        if name in self._values:
            return self._values[name]
        if name in self._of_weights:
            self._convert(self._of_weights[name])
            return self._values[name]
        if name not in self._arrays:
            raise _Behind
        if name in self.file.arrays and self._is_trained(name):
            return self.parameter(name)
        return self.constant(self._arrays[name], name)

    def parameter(self, name: str) -> Node:
        """An initializer as a trained weight; whatever else is known as one of its name."""
        if name in self._of_weights:
            return self.operand(name)
        key = f"{name} trained"
        if key not in self._values:
            array = self.array(name)
            real = array.dtype.kind == "f"
            node = Node("parameter" if real else "constant", {}, _type_of(array))
            node.name, node.value = _plain(name), array
            self._values[key] = self._new(node)
        return self._values[key]

    def weight(self, name: str, values: Array) -> Node:
        """A trained weight that a layer's conversion arranged.

        It has the name of the initializer that has these very values, if there is one: exporters
        reorder what layers of several gates have.
        """
        taken = {node.name for node in self.nodes if node.op == "parameter"}
        for initializer, array in self.file.arrays.items():
            alike = array.shape == values.shape and _plain(initializer) not in taken
            if alike and np.array_equal(array, values):
                name = initializer
                break
        node = Node("parameter", {}, _type_of(values), name=_plain(name), value=values)
        return self._new(node)

    def buffer(self, name: str) -> Node:
        """A running average."""
        values = self.array(name)
        return self._new(Node("buffer", {}, _type_of(values), name=_plain(name), value=values))

    def constant(self, values: Array, name: str = "", shape: Shape | None = None) -> Node:
        """Numbers; of what is the same for all samples, those of one.

        `shape` is that of the value of that name unless given.
        """
        if shape is None:
            shape = self.types[name].shape if name in self.types else values.shape
        if len(shape) == values.ndim:
            for d, extent in enumerate(shape):
                first = np.take(values, [0], d)
                if extent == SAMPLES and bool((values == first).all()):
                    values = first
        else:
            shape = values.shape
        return self._new(Node("constant", {}, Type(shape, str(values.dtype)), value=values))

    def bias(self, node: OnnxNode, i: int) -> Node | None:
        """A layer's bias, unless it has none; zeros that the exporter made stand for that."""
        if not node.has(i):
            return None
        name = node.inputs[i]
        made = self.is_known(name) and not self._is_of_weights(name)
        return None if made and not self.array(name).any() else self.parameter(name)

    def add(
        self, op: str, args: dict[str, Any], of: OnnxNode, type_: Any, suffix: str = ""
    ) -> Node:
        """A new node."""
        path = f"{of.path}.{suffix}" if suffix else of.path
        return self._new(Node(op, args, type_, path, "" if suffix else of.layer))

    def _new(self, node: Node) -> Node:
        self.nodes.append(node)
        return node

    def _is_trained(self, name: str) -> bool:
        array = self._arrays[name]
        real = array.dtype.kind == "f" and array.size > 1
        return bool(real and not _COMPUTED.match(name) and array.min() > _MASKED)

    # Nodes

    def _read(self, node: OnnxNode) -> None:
        given = [name for name in node.inputs if name]
        if node.op == "Shape":
            shape = self.type(node.inputs[0]).shape
            part = shape[node.get("start", 0) : node.get("end", len(shape))]
            self._arrays[node.outputs[0]] = np.array(part, np.int64)
            return
        if node.op == "CastLike" and self.is_known(node.inputs[0]):  # of the other, the type counts
            array = self._arrays[node.inputs[0]]
            self._arrays[node.outputs[0]] = array.astype(self.type(node.inputs[1]).dtype)
            return
        there = (self._values, self._arrays, self.sequences)
        if any(all(name not in values for values in there) for name in given):
            raise _Behind
        if all(self.is_known(name) for name in given):
            self._fold(node, given)
            return
        self._convert(node)

    def _fold(self, node: OnnxNode, given: list[str]) -> None:
        """Compute what is known; of what weights are part of, remember how it follows from them."""
        if any(name and name not in self.types for name in node.outputs):
            self._infer(node)
        results = self._evaluated(node, given)
        for name, result in zip((n for n in node.outputs if n), results, strict=True):
            self._arrays[name] = result
            weights = [n for n in given if self._is_of_weights(n)]
            if result.dtype.kind != "f" or not weights:
                continue
            if node.op in _MOVES:
                self._of_weights[name] = node
            else:
                self.computed_of += [n for n in weights if n not in self.computed_of]

    def _is_of_weights(self, name: str) -> bool:
        if name in self.file.arrays:
            return self._is_trained(name)
        return name in self._of_weights

    def _evaluated(self, node: OnnxNode, given: list[str]) -> list[Array]:
        arrays = [self._arrays[name] for name in given]
        first = _EXTENTS.get(node.op)
        if first is not None:  # what it makes has PROBE samples
            arrays = [*arrays[:first], *map(_of_probe, arrays[first:])]
        try:
            results = evaluate(node, arrays, self.file.opset)
        except Exception as e:
            raise Unreadable(f"its constants cannot be computed ({type(e).__name__}: {e})") from e
        if any(result.size > _LARGE for result in results):
            raise Unreadable("it makes a constant that is too large")
        return results

    def _infer(self, node: OnnxNode) -> None:
        """The types of a node's outputs, which depend on the constants that it reads."""
        small, known = {}, {}
        for name in filter(None, node.inputs):
            array = self._arrays.get(name)
            if array is not None and (name not in self.types or self.shape(name) == array.shape):
                small[name] = array
            else:
                known[name] = self.type(name)
        self.types |= types_of(node, known, small, self.file.opset)

    def _convert(self, node: OnnxNode) -> None:
        if node.op not in CONVERSIONS:
            raise Unreadable("it is not known")
        untyped = node.op in ("SplitToSequence", "SequenceAt")
        if not untyped and any(name and name not in self.types for name in node.outputs):
            self._infer(node)
        made = CONVERSIONS[node.op](self, node)
        if node.op == "SplitToSequence":
            assert not isinstance(made, Node)
            self.sequences[node.outputs[0]] = list(made)
            return
        results = [made] if isinstance(made, Node) else made
        for name, result in zip(node.outputs, results, strict=False):
            if name and result is not None:
                self._values[name] = result
                self.types.setdefault(name, result.type)

    def _note_folded(self) -> None:
        """Tell of what may have been trained: in constants, or folded into convolutions."""
        if self.computed_of:
            self.notes.append(
                f"{len(self.computed_of)} initializers ('{self.computed_of[0]}' is the first) are "
                "taken for constants, because constants are computed of them"
            )
        readers: dict[str, list[OnnxNode]] = {}
        for node in self.file.nodes:
            for name in node.inputs:
                readers.setdefault(name, []).append(node)
        found = [
            node.path
            for node in self.file.nodes
            if node.op == "Conv"
            and node.has(2)
            and node.inputs[2] in self.file.arrays
            and not any(r.op == "BatchNormalization" for r in readers.get(node.outputs[0], []))
        ]
        if found:
            self.notes.append(
                f"{len(found)} convolutions ('{found[0]}' is the first) have a bias and no "
                "normalisation after them: if the model has batch normalisation there, the "
                "exporter folded it into them; export it in train mode, without optimisation"
            )


def result(reader: Reader, node: OnnxNode, op: str, args: dict[str, Any]) -> Node:
    """A new node with the type of a node's first output."""
    return reader.add(op, args, node, reader.type(node.outputs[0]))


def numbers(reader: Reader, node: OnnxNode, i: int) -> list[int]:
    """An input that has to be constant whole numbers."""
    return [int(n) for n in reader.array(node.inputs[i]).reshape(-1)]


def number(reader: Reader, node: OnnxNode, i: int) -> float | None:
    """An input that has to be a constant number, if it is there."""
    return float(reader.array(node.inputs[i]).reshape(-1)[0]) if node.has(i) else None


class _Behind(Exception):
    """A value that could not be read is needed."""


def _type_of(array: Array) -> Type:
    return Type(tuple(array.shape), str(array.dtype))


def _plain(name: str) -> str:
    """A name without what exporters put around it."""
    return name.removeprefix("model.") if name.startswith("model.p_") else name


def _of_probe(array: Array) -> Array:
    """Extents, with PROBE samples."""
    if array.dtype.kind not in "iu":
        return array
    whole = (array > 0) & (array % SAMPLES == 0)
    return np.where(whole, array // SAMPLES * PROBE, array)

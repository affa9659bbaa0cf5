"""From an ONNX file to the importers' internal form.

What depends neither on inputs nor on trained weights is computed here.

ONNX does not say which initializers are trained; torch.onnx.export does, of most. Of the others,
those of real numbers are: all that layers read as weights; and among what is added, multiplied and
so on, all but single numbers, and masks, which have infinite numbers or such below -10,000. A note
names those that are not trained by this rule.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from flexlegion.base.errors import UserError
from flexlegion.base.quoting import printable
from flexlegion.base.suggestions import did_you_mean
from flexlegion.importers.onnx_conversions import CONVERSIONS, Unreadable
from flexlegion.importers.onnx_file import (
    OnnxFile,
    OnnxNode,
    evaluate,
    plain_name,
    types_of,
)
from flexlegion.importers.program import SAMPLES, Array, Node, Program, Shape, Type

_MASKED = -1e4  # what masks add is below
# Operations that only move elements: what they make of a weight is still that.
_MOVES = (
    "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand", "Concat", "Slice", "Split",
    "Identity", "Cast", "Gather", "GatherND",
)  # fmt: skip
# Elements of a constant, and of all of them, that a small file may have computed; a file of large
# weights may have as many as four times those.
_LARGE, _ROOM = 1 << 24, 1 << 26
# The numbers of samples for which constants are computed that depend on it: two tell what is the
# same for any.
PROBES = (3, 5)
# Operations that make arrays: from which input on they read extents, for which `SAMPLES` would be
# too large.
_UNINFERRED = ("GroupNormalization",)  # of which ONNX infers no type
_EXTENTS = {"Expand": 1, "ConstantOfShape": 0, "Range": 0, "Tile": 1, "Reshape": 1, "Slice": 1}


def read(
    file: OnnxFile, train_batch_norm: bool = True, trained: Collection[str] | None = None
) -> Program:
    """The internal form of an ONNX file.

    Parameters
    ----------
    file
        As `read_file` has it.
    train_batch_norm
        Whether batch normalisation trains, whatever the file says.
    trained
        Names of the initializers that are trained; None: by the rule above.

    Raises
    ------
    UserError
        If it cannot be read; all operations that are not known are named.
    """
    # Which register conversions.
    from flexlegion.importers import (  # noqa: F401
        onnx_layers,
        onnx_moves,
        onnx_operations,
        onnx_resizing,
    )

    return Reader(file, train_batch_norm, trained).program()


class Reader:
    """Reads one file.

    Parameters
    ----------
    file
        What it says.
    train_batch_norm, trained
        As of `read`.

    Raises
    ------
    UserError
        If initializers that are to be trained are none.
    """

    def __init__(
        self, file: OnnxFile, train_batch_norm: bool, trained: Collection[str] | None = None
    ) -> None:
        self.file, self.train_batch_norm = file, train_batch_norm
        self.trained = dict(file.trained)  # where it is known
        if trained is not None:
            reals = [name for name, array in file.arrays.items() if array.dtype.kind == "f"]
            if others := [name for name in trained if name not in reals]:
                raise UserError(
                    f"'{printable(others[0], 100)}' is to be trained, but is no initializer of "
                    f"real numbers{did_you_mean(others[0], reals)}"
                )
            self.trained = {name: name in trained for name in reals}
        self.nodes: list[Node] = []
        self.notes: list[str] = []
        self.types = dict(file.types)
        self._values: dict[str, Node] = {}  # that are nodes
        self._arrays: dict[str, Array] = dict(file.arrays)  # that are known
        self._of_weights: dict[str, OnnxNode] = {}  # computed from weights alone: when asked for
        self.computed_of: list[str] = []  # initializers of which constants were computed
        self.sequences: dict[str, list[Node | None]] = {}  # what a split gives, in one value
        # Constants that depend on the number of samples: their values for each of `PROBES`.
        self._counted: dict[str, tuple[Array, Array]] = {}
        self._untrained: dict[str, None] = {}  # initializers that the rule above leaves out
        self._wanted = {name for node in file.nodes for name in node.inputs} | {*file.outputs}
        weights = 4 * sum(array.size for array in file.arrays.values())
        self._large, self._room = max(_LARGE, weights), max(_ROOM, weights)

    def program(self) -> Program:
        """All of it."""
        for name in self.file.inputs:
            self._values[name] = self._new(
                Node("input", {}, self.type(name), name=plain_name(name))
            )
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
        outputs = [(plain_name(name), self._output(name)) for name in self.file.outputs]
        real = [(name, node) for name, node in outputs if node.type.is_float]
        if not real:
            raise UserError("the network has no output of real numbers")
        if others := [name for name, node in outputs if not node.type.is_float]:
            self.notes.append(
                f"outputs that are no real numbers are left out: {', '.join(others[:5])}"
            )
        real.sort(key=lambda item: item[0] != "logits")  # first, whatever else there is
        self._note_folded()
        self._note_untrained()
        return Program(self.nodes, real, notes=self.notes)

    def _output(self, name: str) -> Node:
        if name in self._arrays and name not in self._of_weights:
            raise UserError(
                f"output '{plain_name(name)}' does not depend on the inputs; leave it out of the "
                "model"
            )
        try:
            return self.operand(name)
        except (_Behind, Unreadable):
            raise UserError(f"output '{plain_name(name)}' is no tensor of samples") from None

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
        """The numbers of a constant, or of what is computed from weights alone.

        Of what is the same for any number of samples, or has a row for each: `PROBES[0]` rows.
        """
        if name not in self._arrays:
            raise Unreadable("it needs numbers that depend on the data")
        if name not in self._counted:
            return self._arrays[name]
        few, more = self._counted[name]
        if few.ndim != more.ndim or not _equal(few, more[tuple(map(slice, few.shape))]):
            raise Unreadable("it computes with the number of samples, which may be any")
        return few

    def sizes(self, name: str) -> Array:
        """Constant whole numbers, in which `SAMPLES` stands for the number of samples."""
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
        self._leave_untrained(name)
        return self.constant(self.array(name), name)

    def parameter(self, name: str) -> Node:
        """What a layer reads as a weight: trained if it is an initializer, unless that is known
        to be none that is trained.
        """
        if name in self._of_weights:
            return self.operand(name)
        key = f"{name} trained"
        if key not in self._values:
            array = self.array(name)
            real = array.dtype.kind == "f" and name in self.file.arrays
            trained = real and self.trained.get(name, True)
            node = Node("parameter" if trained else "constant", {}, _type_of(array))
            node.name, node.value = plain_name(name), array
            self._values[key] = self._new(node)
        return self._values[key]

    def weight(self, name: str, values: Array) -> Node:
        """A trained weight that a layer's conversion arranged.

        It has the name of the initializer that has these very values, if there is one: exporters
        reorder what layers of several gates have.
        """
        taken = {node.name for node in self.nodes if node.op == "parameter"}
        for initializer, array in self.file.arrays.items():
            alike = array.shape == values.shape and plain_name(initializer) not in taken
            if alike and np.array_equal(array, values):
                name = initializer
                break
        node = Node("parameter", {}, _type_of(values), name=plain_name(name), value=values)
        return self._new(node)

    def buffer(self, name: str) -> Node:
        """A running average."""
        values = self.array(name)
        return self._new(Node("buffer", {}, _type_of(values), name=plain_name(name), value=values))

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
        """Whether an initializer is, where no layer reads it as a weight."""
        array = self._arrays[name]
        if array.dtype.kind != "f" or not array.size:
            return False
        if name in self.trained:
            return self.trained[name]
        return bool(array.ndim and array.min() > _MASKED and array.max() < math.inf)

    def _leave_untrained(self, name: str) -> None:
        """Remember an initializer that may be a parameter, and is not trained."""
        real = name in self.file.arrays and self._arrays[name].dtype.kind == "f"
        if real and name not in self.trained:
            self._untrained[name] = None

    # Nodes

    def _read(self, node: OnnxNode) -> None:
        given = [name for name in node.inputs if name]
        if node.op in ("Shape", "Size"):
            shape = self.type(node.inputs[0]).shape
            part = shape[node.get("start", 0) : node.get("end", len(shape))]
            if node.op == "Shape":
                self._keep(node.outputs[0], np.array(part, np.int64), _counts(part))
            else:
                whole, *each = (np.array(math.prod(s)) for s in (part, *_counts(part)))
                self._keep(node.outputs[0], whole, each)
            return
        if node.op == "CastLike" and self.is_known(node.inputs[0]):  # of the other, the type counts
            name, dtype = node.inputs[0], self.type(node.inputs[1]).dtype
            each = [array.astype(dtype) for array in self._counted.get(name, ())]
            self._keep(node.outputs[0], self._arrays[name].astype(dtype), each)
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
        if any(hasattr(value, "node") for value in node.attributes.values()):
            raise Unreadable("it has a graph of its own")
        if any(name and name not in self.types for name in node.outputs):
            self._infer(node)
        self._check_size(node)
        arrays = [self._arrays[name] for name in given]
        each: list[list[Array]] = []
        if any(name in self._counted for name in given):
            probed = [
                [self._counted[n][i] if n in self._counted else self._arrays[n] for n in given]
                for i in range(len(PROBES))
            ]
            each = [self._evaluated(node, its) for its in probed]
            first = _EXTENTS.get(node.op, len(given))
            arrays = [*arrays[:first], *probed[0][first:]]
        types = [self.types[name] for name in node.outputs if name in self.types]
        if each and any(_counts(type_.shape) for type_ in types):
            results = each[0]  # one row for each sample
        else:
            results = self._evaluated(node, arrays)
        for i, name in enumerate(n for n in node.outputs if n):
            result = results[i]
            self._keep(name, result, [its[i] for its in each])
            weights = [n for n in given if self._is_of_weights(n)]
            if result.dtype.kind != "f" or not weights:
                continue
            if node.op in _MOVES:
                self._of_weights[name] = node
            else:
                self.computed_of += [n for n in weights if n not in self.computed_of]

    def _keep(self, name: str, array: Array, each: Sequence[Array]) -> None:
        """Remember a constant, and what it is for each of `PROBES` if that differs."""
        self._arrays[name] = array
        if each and not (_equal(each[0], each[1]) and _equal(each[0], array)):
            self._counted[name] = (each[0], each[1])

    def _check_size(self, node: OnnxNode) -> None:
        """Raise `Unreadable` if a small file has large constants computed."""
        for name in node.outputs:
            if name in self.types:
                shape = self.types[name].shape
                size = math.prod(_counts(shape)[1]) if _counts(shape) else math.prod(shape)
                self._room -= size
                if size > self._large or self._room < 0:
                    raise Unreadable("it makes a constant that is too large for so small a file")

    def _is_of_weights(self, name: str) -> bool:
        if name in self.file.arrays:
            return self._is_trained(name)
        return name in self._of_weights

    def _evaluated(self, node: OnnxNode, arrays: list[Array]) -> list[Array]:
        try:
            results = evaluate(node, arrays, self.file.opset)
        except Exception as e:
            reason = printable(f"{type(e).__name__}: {e}", 200)
            raise Unreadable(f"its constants cannot be computed ({reason})") from e
        if any(result.size > self._large for result in results):
            raise Unreadable("it makes a constant that is too large for so small a file")
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
        known = CONVERSIONS[node.op]
        known.check(node)
        untyped = node.op in ("SplitToSequence", "SequenceAt", *_UNINFERRED)
        if not untyped and any(name and name not in self.types for name in node.outputs):
            self._infer(node)
        made = known.convert(self, node)
        if node.op == "SplitToSequence":
            assert not isinstance(made, Node)
            self.sequences[node.outputs[0]] = list(made)
            return
        results = [made] if isinstance(made, Node) else list(made)
        for i, name in enumerate(node.outputs):
            if name in self._wanted and (i >= len(results) or results[i] is None):
                raise Unreadable(f"its output {i + 1} is read, which is not known")
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

    def _note_untrained(self) -> None:
        """Tell of what is not trained, though the file may mean it to be."""
        if names := [plain_name(name) for name in self._untrained]:
            shown = ", ".join(f"'{name}'" for name in names[:5])
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            self.notes.append(
                f"not trained, because they are single numbers or masks: {shown}{more}; "
                "from_onnx(..., trained=names) decides otherwise"
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


def _equal(a: Array, b: Array) -> bool:
    """Whether two arrays are alike; nan is nan."""
    return np.array_equal(a, b, equal_nan=a.dtype.kind == b.dtype.kind == "f")


def _counts(shape: Sequence[int]) -> tuple[Array, ...]:
    """A shape for each of `PROBES`; nothing if it does not depend on samples."""
    if not any(extent and extent % SAMPLES == 0 for extent in shape):
        return ()
    extents = np.array(shape, np.int64)
    counts = extents % SAMPLES == 0
    return tuple(np.where(counts, extents // SAMPLES * probe, extents) for probe in PROBES)


def _type_of(array: Array) -> Type:
    return Type(tuple(array.shape), str(array.dtype))

"""The importers' internal form: a list of typed nodes, as a network's own code would compute them.

Readers make it, passes rewrite it, and `lower` turns it into our operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion.base.errors import UserError
from flexlegion.graph.initializers import Later

Shape = tuple[int, ...]
Array = npt.NDArray[Any]

# Stands for the number of samples in shapes. A prime beyond all extents: wherever samples are
# merged with positions or cut off from them again, what is divisible by it holds the samples.
SAMPLES = 2**31 - 1


@dataclass(frozen=True)
class Type:
    """Shape and element type of a value: "float32", "int64", "bool" and so on."""

    shape: Shape
    dtype: str

    @property
    def is_float(self) -> bool:
        """Whether elements are real numbers."""
        return self.dtype.startswith(("float", "bfloat"))

    def __str__(self) -> str:
        extents = ", ".join("n" if e == SAMPLES else str(e) for e in self.shape)
        return f"{self.dtype} ({extents})"


@dataclass(eq=False)
class Node:
    """A value, and how it is computed.

    Parameters
    ----------
    op
        Name of the operation: ATen's without overload and without the underscore of operations in
        place ("conv2d", "add"); "input", "parameter", "buffer" and "constant" for sources; or one
        that a pass introduced ("rms_norm", "expression").
    args
        Arguments by the names of the operation's schema, defaults included; other nodes are
        values.
    type
        Of the value; for operations of several results a tuple.
    path
        Where it stands among the modules: "layer1.0.conv1".
    layer
        Class of the module at `path`.
    name
        Of sources: of the input, parameter or buffer.
    value
        Of sources: their numbers, as a NumPy array or what makes one later. A constant that is the
        same for all samples has an extent of 1 there. Of a module without values, those of
        parameters are unknown, and those of constants that are computed from its buffers.
    trainable
        Of parameters.
    rows
        Of a part of a parameter: how many rows all of it has, and the first and last (exclusive) of
        the part's.
    """

    op: str
    args: dict[str, Any]
    type: Any
    path: str = ""
    layer: str = ""
    name: str = ""
    value: Array | Later | None = None
    trainable: bool = True
    rows: tuple[int, int, int] | None = None

    @property
    def shape(self) -> Shape:
        """Extents of the value."""
        shape: Shape = self.type.shape
        return shape

    @property
    def inputs(self) -> list[Node]:
        """The nodes that it reads, as often as it does."""
        return list(_nodes(self.args))

    def replace_inputs(self, mapping: dict[Node, Node]) -> None:
        """Read other nodes instead."""
        self.args = _mapped(self.args, mapping)

    def __getitem__(self, name: str) -> Any:
        return self.args[name]

    def get(self, name: str, default: Any = None) -> Any:
        """An argument, or `default` where the operation has none of that name."""
        return self.args.get(name, default)


@dataclass
class Program:
    """A network: nodes in the order in which they are computed.

    Parameters
    ----------
    nodes
        All of them, sources included.
    outputs
        Names and nodes of the results.
    aliases
        Names that each parameter has, by the name that its node carries.
    buffers
        Values, by name, of buffers that are constants here.
    notes
        What the user should know of the import.
    """

    nodes: list[Node]
    outputs: list[tuple[str, Node]]
    aliases: dict[str, list[str]] = field(default_factory=dict)
    buffers: dict[str, Array] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def users(self) -> dict[Node, list[Node]]:
        """Who reads each node, as often as it does; None stands for the outputs' reader."""
        result: dict[Node, list[Node]] = {node: [] for node in self.nodes}
        for node in self.nodes:
            for source in node.inputs:
                result[source].append(node)
        for _, node in self.outputs:
            result[node].append(OUTPUT)
        return result

    def replace(self, mapping: dict[Node, Node]) -> None:
        """Let every reader of a node read another instead; chains are followed to their end."""
        final = {node: _last(node, mapping) for node in mapping}
        self.nodes = [node for node in self.nodes if node not in final]
        for node in self.nodes:
            node.replace_inputs(final)
        self.outputs = [(name, final.get(node, node)) for name, node in self.outputs]

    def prune(self) -> None:
        """Drop what leads to no output; inputs stay."""
        needed = {node for _, node in self.outputs}
        for node in reversed(self.nodes):
            if node in needed:
                needed.update(node.inputs)
        self.nodes = [node for node in self.nodes if node in needed or node.op == "input"]


OUTPUT = Node("output", {}, None)


def _last(node: Node, mapping: dict[Node, Node]) -> Node:
    while node in mapping:
        node = mapping[node]
    return node


def _nodes(value: Any) -> Iterator[Node]:
    if isinstance(value, Node):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _nodes(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _nodes(part)


def _mapped(value: Any, mapping: dict[Node, Node]) -> Any:
    if isinstance(value, Node):
        return mapping.get(value, value)
    if isinstance(value, dict):
        return {name: _mapped(part, mapping) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_mapped(part, mapping) for part in value)
    return value


def at(path: str) -> str:
    """For messages: where among the modules something is."""
    return f" at '{path}'" if path else ""


Pass = Callable[[Program], None]


def constant_of(node: Any) -> Array | None:
    """The numbers of a constant that are known, or of a number; None for anything else."""
    if isinstance(node, Node):
        known = node.op == "constant" and isinstance(node.value, np.ndarray)
        return node.value if known else None  # type: ignore[return-value]
    return np.asarray(node) if isinstance(node, int | float | bool) else None


def known(node: Node) -> Array:
    """A constant's numbers.

    Raises
    ------
    UserError
        If nobody knows them.
    """
    if isinstance(node.value, Later):
        raise UserError(f"it needs the numbers of a constant: {why_unknown(node.value)}")
    assert node.value is not None
    return node.value


def why_unknown(value: Later) -> str:
    """Which tensor without values a constant is computed of."""
    return value.unknown.partition(";")[0]

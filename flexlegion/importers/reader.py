"""Reads torch.export's training IR into the internal form.

On the way, constants are computed, operations in place become those that return their result, and
subgraphs are read where they are called.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy  # type: ignore[import-untyped]
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from flexlegion.errors import UserError
from flexlegion.importers.constants import (
    PROBE,
    evaluate,
    is_random,
    numbers,
    shared_by_samples,
)
from flexlegion.importers.program import SAMPLES, Array, Node, Program, Shape, Type

# Results that share memory with their first argument.
_VIEWS = frozenset(
    [
        "view",
        "reshape",
        "transpose",
        "permute",
        "select",
        "slice",
        "expand",
        "unsqueeze",
        "squeeze",
        "flatten",
        "unflatten",
        "t",
        "alias",
        "detach",
        "chunk",
        "split",
        "split_with_sizes",
        "getitem",
        "view_as",
        "expand_as",
        "contiguous",
        "to",
        "narrow",
        "unbind",
        "swapaxes",
        "movedim",
        "mT",
    ]
)
# Operations that read no element of what they are given.
_SHAPES_ALONE = frozenset(
    [
        "new_zeros",
        "new_ones",
        "new_full",
        "new_empty",
        "zeros_like",
        "ones_like",
        "full_like",
        "empty_like",
    ]
)
# Checks that the exporter leaves in the graph; no value depends on them.
_CHECKS = ("_assert", "sym_constrain", "_assert_tensor_metadata", "_assert_scalar")


def read(exported: ExportedProgram) -> Program:
    """The program of an exported module.

    Raises
    ------
    UserError
        If anything but the batch is dynamic, or an input or output is of a kind that cannot be.
    """
    return _Reader(exported).read()


@dataclass
class _Folded:
    """A constant: computed for `PROBE` samples, and its shape for any number of them."""

    tensor: torch.Tensor
    shape: Shape


class _Reader:
    def __init__(self, exported: ExportedProgram) -> None:
        self.exported = exported
        self.nodes: list[Node] = []
        self.values: dict[Any, Any] = {}  # of an fx node: Node, tuple of Nodes, tensor, number
        self.roots: dict[Node, Node] = {}  # whose memory a view shows
        self.overwritten: dict[Node, Node] = {}  # what an operation in place made of a value
        self.buffers: dict[str, Array] = {}  # values of those that are constants
        self.batch = self._batch_symbol()

    def read(self) -> Program:
        signature = self.exported.graph_signature
        specs = {spec.arg.name: spec for spec in signature.input_specs if hasattr(spec.arg, "name")}
        state = dict(self.exported.state_dict) | dict(self.exported.constants)
        mutated = set(signature.buffers_to_mutate.values()) | self._mutated_buffers(specs)
        for fx_node in self.exported.graph.nodes:
            if fx_node.op != "placeholder":
                continue
            self.values[fx_node] = self._source(fx_node, specs.get(fx_node.name), state, mutated)
        outputs = self._run(self.exported.graph_module)
        kinds = signature.output_specs
        users = [
            value
            for value, spec in zip(outputs, kinds, strict=True)
            if spec.kind == OutputKind.USER_OUTPUT
        ]
        named = self._outputs(users)
        notes = _of_precision(node.type.dtype for node in self.nodes if node.op == "parameter")
        return Program(self.nodes, named, self._aliases(specs, state), self.buffers, notes)

    # Sources

    def _batch_symbol(self) -> Any:
        """The one symbol that shapes of inputs may have; None for a fixed batch."""
        symbols: set[Any] = set()
        for fx_node in self.exported.graph.nodes:
            value = fx_node.meta.get("val")
            if fx_node.op == "placeholder" and isinstance(value, torch.Tensor):
                for d, extent in enumerate(value.shape):
                    if isinstance(extent, torch.SymInt):
                        symbols |= extent.node.expr.free_symbols
                        if d > 0:
                            raise UserError(
                                f"dimension {d} of input '{fx_node.name}' is dynamic, but only the "
                                "first one, the batch, can be; export it with fixed sizes"
                            )
        if len(symbols) > 1:
            raise UserError(
                "several dimensions of the inputs are dynamic, but only the batch can be; export "
                "with one dynamic dimension, the first one of every input"
            )
        if not symbols:
            raise UserError(
                "the exported program has a fixed batch; export it with the first dimension of "
                'every input dynamic: dynamic_shapes=({0: torch.export.Dim("batch")},)'
            )
        return symbols.pop()

    def _source(self, fx_node: Any, spec: Any, state: dict[str, Any], mutated: set[str]) -> Any:
        value = fx_node.meta.get("val")
        if spec is None or not isinstance(value, torch.Tensor):
            return getattr(getattr(spec, "arg", None), "value", value)
        type_ = self._type(value)
        if spec.kind == InputKind.USER_INPUT:
            if value.dtype.is_complex:
                raise UserError(
                    f"input '{fx_node.name}' is complex; only real ones can be imported"
                )
            return self._new(Node("input", {}, type_, name=fx_node.name))
        tensor = state.get(spec.target)
        if not isinstance(tensor, torch.Tensor):
            raise UserError(f"'{spec.target}' of the exported program is no tensor")
        if spec.kind == InputKind.PARAMETER or (
            spec.kind == InputKind.BUFFER and spec.target in mutated
        ):
            kind = "parameter" if spec.kind == InputKind.PARAMETER else "buffer"
            array = numbers(tensor)
            return self._new(
                Node(kind, {}, type_, name=spec.target, value=array, trainable=tensor.requires_grad)
            )
        tensor = tensor.detach().cpu().clone()  # operations in place may write to it
        if spec.kind == InputKind.BUFFER and fx_node.users:
            self.buffers[spec.target] = numbers(tensor).copy()
        return _Folded(tensor, tuple(tensor.shape))

    def _mutated_buffers(self, specs: dict[str, Any]) -> set[str]:
        """Those that operations in place or batch normalisation write."""
        mutated = set()
        for fx_node in self.exported.graph.nodes:
            if fx_node.op != "call_function":
                continue
            name = _op_name(fx_node.target)
            if name == "batch_norm" and fx_node.args[5]:
                written = list(fx_node.args[3:5])
            elif _in_place(fx_node.target):
                written = [fx_node.args[0]]
            else:
                continue
            for target in written:
                spec = specs.get(getattr(target, "name", ""))
                if spec is not None and spec.kind == InputKind.BUFFER:
                    mutated.add(spec.target)
        return mutated

    def _aliases(self, specs: dict[str, Any], state: dict[str, Any]) -> dict[str, list[str]]:
        """All names of each parameter: those that lie in the same memory are one."""
        places: dict[Any, list[str]] = {}
        for name, tensor in state.items():
            if isinstance(tensor, torch.nn.Parameter):
                key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
                places.setdefault(key if tensor.numel() else name, []).append(name)
        groups = {name: names for names in places.values() for name in names}
        targets = [s.target for s in specs.values() if s.kind == InputKind.PARAMETER]
        return {name: groups.get(name, [name]) for name in targets}

    # Operations

    def _run(self, graph_module: Any) -> list[Any]:
        """Read a graph whose placeholders have values; its results."""
        for fx_node in graph_module.graph.nodes:
            if fx_node.op == "get_attr":
                self.values[fx_node] = getattr(graph_module, fx_node.target)
            elif fx_node.op == "call_function":
                self.values[fx_node] = self._call(fx_node)
            elif fx_node.op == "output":
                return [self._current(self._value(a)) for a in fx_node.args[0]]
        raise AssertionError("a graph ends with its output")

    def _call(self, fx_node: Any) -> Any:
        meta = fx_node.meta.get("val")
        if isinstance(meta, torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool):
            return meta
        name = _op_name(fx_node.target)
        args = [self._value(a) for a in fx_node.args]
        kwargs = {k: self._value(v) for k, v in fx_node.kwargs.items()}
        if name.startswith(_CHECKS):
            return None
        if name.startswith("wrap_with_") or name.endswith("hop_wrap"):
            return self._subgraph(name, args)
        if fx_node.target is operator.getitem:
            return self._item(args[0], args[1])
        args = [self._current(a) for a in args]
        kwargs = {k: self._current(v) for k, v in kwargs.items()}
        if name in _SHAPES_ALONE:
            args = [_empty_like(a) if isinstance(a, Node) else a for a in args]
        if not is_random(name) and not _has_node((args, kwargs)):
            known = [_concrete(a, self.batch) for a in args]
            options = {k: _concrete(v, self.batch) for k, v in kwargs.items()}
            return self._folded(evaluate(fx_node.target, tuple(known), options), meta)
        return self._operation(fx_node, name, args, kwargs)

    def _folded(self, value: Any, meta: Any) -> Any:
        if isinstance(value, list | tuple):
            return [self._folded(part, m) for part, m in zip(value, meta, strict=True)]
        if not isinstance(value, torch.Tensor):
            return value
        shape = meta.shape if isinstance(meta, torch.Tensor) else value.shape
        return _Folded(value, tuple(self._extent(extent) for extent in shape))

    def _subgraph(self, name: str, args: list[Any]) -> Any:
        """What ``wrap_with_set_grad_enabled`` and its like call, read in place."""
        at = next((i for i, a in enumerate(args) if isinstance(a, torch.fx.GraphModule)), None)
        if at is None:
            raise UserError(f"the exported program calls '{name}', which cannot be imported")
        graph_module, given = args[at], args[at + 1 :]
        placeholders = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
        for placeholder, value in zip(placeholders, given, strict=True):
            self.values[placeholder] = value
        return tuple(self._run(graph_module))

    def _operation(self, fx_node: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        in_place = _in_place(fx_node.target)
        if in_place and isinstance(args[0], Node) and args[0].op == "buffer":
            if not args[0].type.is_float:  # num_batches_tracked counts; nothing reads it
                return args[0]
            raise UserError(
                f"buffer '{args[0].name}' is written by {name}; only batch normalisation's can be"
            )
        meta = fx_node.meta.get("val")
        path, layer = _module(fx_node)
        arguments = _by_name(fx_node.target, args, kwargs)
        arguments = {k: self._argument(v, path) for k, v in arguments.items()}
        types = (
            tuple(self._type(t) for t in meta)
            if isinstance(meta, list | tuple)
            else self._type(meta)
        )
        node = self._new(Node(name, arguments, types, path, layer))
        if name in _VIEWS and node.inputs:
            self.roots[node] = self._root(node.inputs[0])
        if in_place and isinstance(args[0], Node):
            self._overwrite(fx_node, args[0], node, name)
        return node

    def _overwrite(self, fx_node: Any, target: Node, result: Node, name: str) -> None:
        """Let later readers of `target` read what an operation in place made of it."""
        root = self._root(target)
        shared = [v for v in (root, *self.roots) if self._root(v) is root and v is not target]
        if any(self._read_later(v, fx_node) for v in shared if v is not result):
            raise UserError(
                f"'{name}' at '{result.path}' writes in place to a tensor that shares its memory "
                f"with others; write it without the underscore"
            )
        self.overwritten[target] = result

    def _read_later(self, node: Node, fx_node: Any) -> bool:
        """Whether anything behind an operation reads a value."""
        behind = set()
        following = fx_node.next
        while following.op != "root":
            behind.add(following)
            following = following.next
        return any(
            value is node and any(user in behind for user in source.users)
            for source, value in self.values.items()
        )

    def _current(self, value: Any) -> Any:
        if isinstance(value, Node):
            while value in self.overwritten:
                value = self.overwritten[value]
            return value
        if isinstance(value, list | tuple):
            return type(value)(self._current(part) for part in value)
        return value

    def _root(self, node: Node) -> Node:
        return self.roots.get(node, node)

    def _item(self, value: Any, index: int) -> Any:
        if not isinstance(value, Node):
            return value[index]
        node = Node("getitem", {"self": value, "index": index}, value.type[index])
        node.path, node.layer = value.path, value.layer
        if value.op in _VIEWS:
            self.roots[node] = self._root(value)
        return self._new(node)

    def _argument(self, value: Any, path: str) -> Any:
        """An argument of a node: constants become nodes, numbers of samples `SAMPLES`."""
        if isinstance(value, _Folded):
            return self._constant(value, path)
        if isinstance(value, torch.SymInt):
            return self._extent(value)
        if isinstance(value, list | tuple):
            return type(value)(self._argument(part, path) for part in value)
        return value

    def _constant(self, constant: _Folded, path: str) -> Node:
        value = shared_by_samples(constant.tensor, constant.shape)
        if value is None:
            value = numbers(constant.tensor)
        type_ = Type(constant.shape, str(constant.tensor.dtype).removeprefix("torch."))
        return self._new(Node("constant", {}, type_, path, value=np.asarray(value)))

    # Types

    def _type(self, value: Any) -> Type | None:
        if not isinstance(value, torch.Tensor):
            return None
        shape = tuple(self._extent(extent) for extent in value.shape)
        return Type(shape, str(value.dtype).removeprefix("torch."))

    def _extent(self, extent: Any) -> int:
        if isinstance(extent, int):
            return extent
        expression = sympy.sympify(extent.node.expr)
        if expression.free_symbols - {self.batch}:
            raise UserError(
                f"an extent depends on the data ({expression}); only the batch can be dynamic"
            )
        factor = expression / self.batch
        if expression.is_Integer:
            return int(expression)
        if not factor.is_Integer:
            raise UserError(
                f"an extent is {expression} where {self.batch} is the number of samples; samples "
                "cannot be joined, cut or divided"
            )
        return int(factor) * SAMPLES

    def _value(self, argument: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            return self.values[argument]
        if isinstance(argument, list | tuple):
            return type(argument)(self._value(part) for part in argument)
        return argument

    def _new(self, node: Node) -> Node:
        self.nodes.append(node)
        return node

    def _outputs(self, values: list[Any]) -> list[tuple[str, Node]]:
        names = self._output_names(len(values))
        result = []
        for name, value in zip(names, values, strict=True):
            if value is None or isinstance(value, int | float | str):
                continue
            if not isinstance(value, Node):
                raise UserError(f"output '{name}' depends neither on inputs nor on weights")
            if value.type.dtype.startswith("complex"):
                raise UserError(f"output '{name}' is complex; only real ones can be imported")
            if not value.type.is_float:
                raise UserError(
                    f"output '{name}' is {value.type.dtype}; outputs have to be real numbers, so "
                    "leave out what picks the largest and the like"
                )
            result.append((name, value))
        if not result:
            raise UserError("the network has no output that is a tensor")
        # Logits first, whatever else a model returns.
        result.sort(key=lambda item: item[0] != "logits")
        return result

    def _output_names(self, count: int) -> list[str]:
        """Names of a dataclass's fields; numbered ones otherwise."""
        spec = self.exported.call_spec.out_spec
        paths: list[str] = []
        try:
            from torch.utils import _pytree as pytree

            tree = pytree.tree_unflatten(list(range(count)), spec)
            flat, _ = pytree.tree_flatten_with_path(tree)
            paths = [_key_name(path) for path, _ in flat]
        except Exception:  # a class that is not known here
            paths = []
        if len(paths) != count or len(set(paths)) != count or not all(paths):
            return [f"output_{i}" if count > 1 else "output" for i in range(count)]
        return paths


def _of_precision(types: Iterable[str]) -> list[str]:
    """What is to be said of parameters that are not in the precision that models compute in."""
    others = sorted({type_ for type_ in types if type_.startswith(("float", "bfloat"))})
    return [
        f"the module's {type_} parameters are float32 here, and it computes in single precision; "
        "compile(storage=...) stores activations narrower"
        for type_ in others
        if type_ != "float32"
    ]


def _key_name(path: Any) -> str:
    parts = [getattr(key, "key", getattr(key, "name", getattr(key, "idx", ""))) for key in path]
    return "_".join(str(part) for part in parts)


def _op_name(target: Any) -> str:
    if target is operator.getitem:
        return "getitem"
    packet = getattr(target, "overloadpacket", None)
    name: str = packet.__name__ if packet is not None else getattr(target, "__name__", str(target))
    namespace = getattr(target, "namespace", "aten")
    if name.endswith("_") and not name.startswith("__"):
        name = name.removesuffix("_")
    return name if namespace == "aten" else f"{namespace}.{name}"


def _in_place(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    if schema is None or not schema.arguments:
        return False
    alias = schema.arguments[0].alias_info
    return alias is not None and alias.is_write


def _by_name(target: Any, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    schema = getattr(target, "_schema", None)
    if schema is None:
        return {f"arg{i}": a for i, a in enumerate(args)} | kwargs
    result = {}
    for i, argument in enumerate(schema.arguments):
        if i < len(args):
            result[argument.name] = args[i]
        elif argument.name in kwargs:
            result[argument.name] = kwargs[argument.name]
        elif argument.has_default_value():
            result[argument.name] = argument.default_value
    return result


def _module(fx_node: Any) -> tuple[str, str]:
    """Path and class of the innermost module that a node belongs to."""
    stack = fx_node.meta.get("nn_module_stack") or {}
    if not stack:
        return "", ""
    path, layer = list(stack.values())[-1]
    layer = layer if isinstance(layer, str) else f"{layer.__module__}.{layer.__qualname__}"
    return path.removeprefix("L['self']").lstrip("."), layer


def _empty_like(node: Node) -> torch.Tensor:
    shape = [e // SAMPLES * PROBE if e % SAMPLES == 0 else e for e in node.shape]
    return torch.empty(shape, dtype=getattr(torch, node.type.dtype))


def _has_node(value: Any) -> bool:
    if isinstance(value, Node):
        return True
    if isinstance(value, dict):
        return any(_has_node(part) for part in value.values())
    return isinstance(value, list | tuple) and any(_has_node(part) for part in value)


def _concrete(value: Any, batch: Any) -> Any:
    """An argument as it is for the number of samples that constants are computed for."""
    if isinstance(value, _Folded):
        return value.tensor
    if isinstance(value, torch.SymInt):
        return int(sympy.sympify(value.node.expr).subs(batch, PROBE))
    if isinstance(value, list | tuple):
        return type(value)(_concrete(part, batch) for part in value)
    return value

"""Runs the exported graph on nodes: operations become nodes, or are computed where constant."""

from __future__ import annotations

import operator
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.utils._pytree import tree_map_only

from flexlegion.base.errors import UserError
from flexlegion.importers.constants import (
    PROBE,
    Folded,
    concrete,
    concrete_shape,
    evaluate,
    is_random,
    on_meta,
    unknown_of,
)
from flexlegion.importers.decomposition import decomposed, is_decomposed
from flexlegion.importers.memory import Content, Seen, Step, Writer
from flexlegion.importers.program import SAMPLES, Node, Shape, Type, at
from flexlegion.importers.schemas import (
    Given,
    by_name,
    is_call,
    may_share,
    module_of,
    op_name,
    written,
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
# Operations in place that change how a value is seen, and no element.
_VIEWS_IN_PLACE = ("squeeze", "unsqueeze", "t", "transpose", "swapaxes", "swapdims")
# Checks that the exporter leaves in the graph; no value depends on them.
_CHECKS = ("_assert", "sym_constrain", "_assert_tensor_metadata", "_assert_scalar")


class Interpreter:
    """Reads graphs whose placeholders have values.

    Parameters
    ----------
    batch
        The symbol of the number of samples.
    writes
        Whether any operation writes in place, so that it matters what shares memory.
    """

    def __init__(self, batch: Any, writes: bool) -> None:
        self.batch, self.writes = batch, writes
        self.nodes: list[Node] = []
        self.values: dict[Any, Any] = {}  # of an fx node: Seen, list of them, number, subgraph
        self.writer = Writer(self.new)
        self.state: dict[str, Seen] = {}  # parameters and buffers, by what messages call them
        self.trained: set[Node] = set()  # what has a gradient that reaches parameters
        self.untracked: set[Node] = set()  # of these, what was computed without gradients
        self.tracks = True
        self._constants: dict[Any, tuple[Folded, Node]] = {}
        self._unknown: dict[Any, tuple[Any, Any]] = {}

    def run(self, graph_module: Any) -> list[Any]:
        """Read a graph whose placeholders have values; its results."""
        for fx_node in graph_module.graph.nodes:
            if fx_node.op == "get_attr":
                value = getattr(graph_module, fx_node.target)
                if isinstance(value, torch.Tensor):
                    value = Seen.computed(Folded.of(value, fx_node.target))
                self.values[fx_node] = value
            elif fx_node.op == "call_function":
                self.values[fx_node] = self._call(fx_node)
            elif fx_node.op == "output":
                return [self._value(a) for a in fx_node.args[0]]
        raise AssertionError("a graph ends with its output")

    def _call(self, fx_node: Any) -> Any:
        meta = fx_node.meta.get("val")
        if isinstance(meta, torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool):
            return meta
        name = op_name(fx_node.target)
        if name == "size":
            return list(meta)
        if name.startswith(_CHECKS):
            return None
        args = [self._value(a) for a in fx_node.args]
        if name.startswith("wrap_with_") or name.endswith("hop_wrap"):
            return self._subgraph(name, args)
        if fx_node.target is operator.getitem:
            return args[0][args[1]]
        kwargs = {k: self._value(v) for k, v in fx_node.kwargs.items()}
        targets = written(fx_node.target)
        if targets:
            return self._write(fx_node, name, targets, args, kwargs)
        if is_decomposed(name, args) and _has_node(self.read((args, kwargs))):
            return self._decomposed(fx_node)
        result = self._computed(fx_node, name, self.read(args), self.read(kwargs))
        if isinstance(result, list | tuple):
            return [self._seen(fx_node, name, part, i, args) for i, part in enumerate(result)]
        return self._seen(fx_node, name, result, None, args)

    def _decomposed(self, fx_node: Any) -> Any:
        """Results of what PyTorch makes of an operation."""
        module, given = decomposed(fx_node)
        self.writes = True  # from here on, whether or not the graph has writes of its own
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        for placeholder, source in zip(placeholders, given, strict=True):
            self.values[placeholder] = self.values[source]
        results = self.run(module)
        several = isinstance(fx_node.meta.get("val"), list | tuple)
        return results if several else results[0]

    def _computed(self, fx_node: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Result of an operation: a node or a constant, or a list of them."""
        shapes_alone = name in _SHAPES_ALONE
        if not is_random(fx_node.target) and (shapes_alone or not _has_node((args, kwargs))):
            meta = fx_node.meta.get("val")

            def shape_of(tensor: torch.Tensor, i: int) -> Shape:
                own = meta[i] if isinstance(meta, list | tuple) else meta
                extents = own.shape if isinstance(own, torch.Tensor) else tensor.shape
                return tuple(self.extent(extent) for extent in extents)

            if shapes_alone or not unknown_of((args, kwargs)):
                return evaluate(fx_node.target, args, kwargs, self.batch, shape_of, shapes_alone)
            # What is computed alike has the same numbers, which cannot be compared.
            key = fx_node.target, _identity((args, kwargs))
            if key not in self._unknown:
                result = evaluate(fx_node.target, args, kwargs, self.batch, shape_of)
                self._unknown[key] = (args, kwargs), result
            return self._unknown[key][1]
        return self._operation(fx_node, name, args, kwargs)

    def _operation(self, fx_node: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        meta = fx_node.meta.get("val")
        if name == "detach" and args[0] not in self.trained:
            return args[0]  # it has no gradient anyway
        path, layer = module_of(fx_node)
        given = by_name(fx_node.target, args, kwargs)
        arguments = {k: self._argument(v, name, path) for k, v in given.items()}
        if not isinstance(meta, list | tuple):
            return self.new(Node(name, arguments, self.type_of_meta(meta), path, layer))
        node = self.new(
            Node(name, arguments, tuple(self.type_of_meta(t) for t in meta), path, layer)
        )
        items = []
        for i, type_ in enumerate(node.type):
            item = Node("getitem", {"self": node, "index": i}, type_, path, layer)
            items.append(item if type_ is None else self.new(item))
        return items

    def _seen(
        self, fx_node: Any, name: str, value: Content, item: int | None, args: list[Any]
    ) -> Seen:
        """A result, in memory of its own or in an argument's."""
        viewed = args[0] if args and isinstance(args[0], Seen) else None
        if viewed is None or not self.writes or not may_share(fx_node.target):
            return Seen.computed(value)
        before = self.writer.read(viewed)
        given = args[1:], {k: self._value(v) for k, v in fx_node.kwargs.items()}
        rest, options = self.read(list(given[0])), self.read(given[1])

        def apply(tensor: torch.Tensor) -> torch.Tensor:
            more, named = concrete((rest, options), self.batch, PROBE)
            if tensor.is_meta:
                more, named = tree_map_only((torch.Tensor, torch.device), on_meta, (more, named))
            result = fx_node.target(tensor, *more, **named)
            return result if item is None else result[item]  # type: ignore[no-any-return]

        own = fx_node.args[0].meta["val"]
        likeness = torch.empty_strided(
            [concrete(e, self.batch, PROBE) for e in own.shape],
            [concrete(e, self.batch, PROBE) for e in own.stride()],
            dtype=own.dtype,
            device="meta",
        )
        shared = apply(likeness).untyped_storage()._cdata == likeness.untyped_storage()._cdata
        if not shared:
            return Seen.computed(value)
        step = Step(apply, name, self._type_of(before), self._type_of(value))
        return Seen(viewed.memory, (*viewed.steps, step), value, viewed.memory.version)

    def _write(
        self,
        fx_node: Any,
        name: str,
        targets: list[str],
        args: list[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        """An operation in place: what it writes to becomes its result."""
        path, _ = module_of(fx_node)
        if len(targets) > 1:
            raise UserError(f"'{name}'{at(path)} writes to several tensors, which is not known")
        if targets[0] == "out":
            target = kwargs.pop("out")
        else:
            target = args[0] if args else kwargs[targets[0]]
        if name in ("set", "resize", "resize_as") or not isinstance(target, Seen):
            raise UserError(f"'{name}'{at(path)} gives a tensor other memory, which is not known")
        if self._is_unread_counter(fx_node, target):
            return target
        before = self.writer.read(target, path)
        read_args, read_kwargs = self.read(args), self.read(kwargs)
        if name in _VIEWS_IN_PLACE:
            raise UserError(
                f"'{name}'{at(path)} changes the shape of a tensor in place; write it without "
                "the underscore"
            )
        kept = any(seen.memory is target.memory for seen in self.state.values())
        drawn = is_random(fx_node.target)
        if isinstance(before, Folded) and not (
            kept or drawn or _has_node((read_args, read_kwargs))
        ):
            self._change_constant(fx_node, before, read_args, read_kwargs, path)
            return target
        value = self._next(fx_node, name, before, read_args, read_kwargs)
        if not self.tracks and self._type_of(before).is_float and {before, value} & self.trained:
            raise UserError(
                f"'{name}'{at(path)} writes without gradients to what is trained; write it "
                "without the underscore"
            )
        memory = target.memory
        if isinstance(memory.content, Folded):
            memory.content = self._constant(memory.content, path)
        self.writer.write(target, value, path)
        return target

    def _change_constant(
        self, fx_node: Any, before: Content, args: list[Any], kwargs: dict[str, Any], path: str
    ) -> None:
        """An operation in place on a constant, whose views lie in the same memory."""
        assert isinstance(before, Folded)
        values = [before, *args, *kwargs.values()]
        if before.second is None and any(
            isinstance(v, Folded) and v.second is not None for v in values
        ):
            raise UserError(
                f"a constant{at(path)} depends on the number of samples, so that a sample's "
                "result would depend on the batch that it is in"
            )
        unknown = unknown_of((args, kwargs))
        if unknown and not before.unknown:
            raise UserError(
                f"the network writes{at(path)} to a constant what is computed of '{unknown}', "
                "which has no values"
            )
        evaluate(fx_node.target, args, kwargs, self.batch, lambda *_: before.shape)

    def _next(
        self, fx_node: Any, name: str, before: Content, args: list[Any], kwargs: dict[str, Any]
    ) -> Node:
        """What an operation in place makes of a value."""
        path, layer = module_of(fx_node)
        type_ = self._type_of(before)
        if name == "copy":
            source = self.node(args[1], path)
            if source.type.dtype != type_.dtype:
                converted = Type(source.shape, type_.dtype)
                to = {"self": source, "dtype": getattr(torch, type_.dtype)}
                source = self.new(Node("to", to, converted, path, layer))
            if source.shape != type_.shape:
                wider = {"self": source, "size": type_.shape}
                source = self.new(Node("expand", wider, type_, path, layer))
            return source
        if name in ("fill", "zero"):
            number = args[1] if name == "fill" else 0
            if not isinstance(number, Folded | int | float | bool) or unknown_of(number):
                number = self._argument(Given(number, False), name, path)
            if isinstance(number, Node):
                return self.new(Node("expand", {"self": number, "size": type_.shape}, type_, path))
            number = number.tensor.item() if isinstance(number, Folded) else number
            extents = [1 if e and e % SAMPLES == 0 else e for e in type_.shape]
            whole = torch.full(extents, number, dtype=getattr(torch, type_.dtype))
            return self.new(Node("constant", {}, type_, path, value=whole.numpy()))
        value = None
        if name == "index_put" and not (args[3] if len(args) > 3 else False):
            value = self._put(before, args[1], args[2], path)
        if value is None:
            value = self._operation(fx_node, name, args, kwargs)
        if not isinstance(value, Node):
            raise UserError(f"'{name}'{at(path)} writes in place, which is not known")
        return value

    def _put(self, before: Content, indices: list[Any], value: Any, path: str) -> Node | None:
        """A tensor with a value where a mask holds, or at constant places; None: neither."""
        target, value = self.node(before, path), self.node(value, path)
        first, *others = indices
        if first is not None and self._type_of(first).dtype == "bool":
            mask = self.node(first, path)
            if any(i is not None for i in others) or any(e != 1 for e in value.shape):
                return None
            ones = (1,) * (len(target.shape) - len(mask.shape))
            if ones:
                type_ = Type((*mask.shape, *ones), "bool")
                mask = self.new(Node("view", {"self": mask, "size": type_.shape}, type_, path))
            if value.shape:
                type_ = Type((), value.type.dtype)
                value = self.new(Node("view", {"self": value, "size": ()}, type_, path))
            args = {"condition": mask, "self": value, "other": target}
            return self.new(Node("where", args, target.type, path))
        if first is not None or not all(i is None or isinstance(i, Folded) for i in others):
            return None
        if unknown := unknown_of(others):
            raise UserError(
                f"the network writes{at(path)} to places that are computed of '{unknown}', which "
                "has no values"
            )
        places = tuple(slice(None) if i is None else i.tensor for i in indices)

        def apply(tensor: torch.Tensor) -> torch.Tensor:
            return tensor[places]

        shape = apply(torch.empty(concrete_shape(target.shape, PROBE))).shape
        type_ = Type((SAMPLES, *shape[1:]), target.type.dtype)
        if value.shape != type_.shape:
            value = self.new(Node("expand", {"self": value, "size": type_.shape}, type_, path))
        step = Step(apply, "index", target.type, type_)
        return self.writer.put(step, target, value, path)

    def _is_unread_counter(self, fx_node: Any, target: Seen) -> bool:
        """Whether a write counts a batch normalisation's batches, which nothing reads."""
        counters = [s for n, s in self.state.items() if n.endswith("num_batches_tracked'")]
        if not any(seen is target for seen in counters):
            return False
        users = [*fx_node.users, *fx_node.args[0].users]
        return all(is_call(user) and written(user.target) for user in users)

    def _subgraph(self, name: str, args: list[Any]) -> Any:
        """What ``wrap_with_set_grad_enabled`` and its like call, read in place."""
        first = next((i for i, a in enumerate(args) if isinstance(a, torch.fx.GraphModule)), None)
        if first is None:
            raise UserError(f"the exported program calls '{name}', which cannot be imported")
        graph_module, given = args[first], args[first + 1 :]
        placeholders = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
        before = self.tracks
        if name == "wrap_with_set_grad_enabled":
            self.tracks = bool(args[0])
        for placeholder, value in zip(placeholders, given, strict=True):
            self.values[placeholder] = self._tracked(value) if self.tracks else value
        results = self.run(graph_module)
        self.tracks = before
        return tuple(self._tracked(r) if self.tracks else r for r in results)

    def _tracked(self, seen: Any) -> Any:
        """A value where gradients are computed: what was computed without them has none."""
        if isinstance(seen, list | tuple):
            return type(seen)(self._tracked(part) for part in seen)
        if not isinstance(seen, Seen):
            return seen
        value = self.writer.read(seen)
        if isinstance(value, Folded) or value not in self.untracked:
            return seen
        args = {"self": value}
        return Seen.computed(self.new(Node("detach", args, value.type, value.path, value.layer)))

    # Values

    def _value(self, argument: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            return self.values[argument]
        if isinstance(argument, list | tuple):
            return type(argument)(self._value(part) for part in argument)
        return argument

    def read(self, value: Any) -> Any:
        """Arguments as they are now."""
        if isinstance(value, Seen):
            return self.writer.read(value)
        if isinstance(value, dict):
            return {name: self.read(part) for name, part in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.read(part) for part in value)
        return value

    def _argument(self, given: Given, name: str, path: str) -> Any:
        """An argument of a node: constants become nodes, numbers of samples `SAMPLES`."""
        value = given.value
        if isinstance(value, Folded):
            return self._constant(value, path)
        if isinstance(value, torch.SymFloat) or (
            isinstance(value, torch.SymInt) and not given.is_extent
        ):
            raise UserError(
                f"'{name}'{at(path)} computes with the number of samples ({value.node.expr}), so "
                "that a sample's result would depend on the batch that it is in"
            )
        if isinstance(value, torch.SymInt):
            return self.extent(value)
        if isinstance(value, list | tuple):
            parts = (self._argument(Given(v, given.is_extent), name, path) for v in value)
            return type(value)(parts)
        return value

    def _for_samples(self, constant: Folded, d: int, one: Folded, path: str) -> Node:
        """A constant whose dimension `d` has samples merged with positions, the same in each."""
        dtype, shape = self._type_of(constant).dtype, constant.shape
        node = self._constant(one, path)
        inner = node.shape[d:]
        for op, size in (
            ("view", (*shape[:d], 1, *inner)),
            ("expand", (*shape[:d], SAMPLES, *inner)),
            ("view", shape),
        ):
            args = {"self": node, "size": size}
            node = self.new(Node(op, args, Type(size, dtype), path))
        return node

    def node(self, value: Any, path: str) -> Node:
        """A value as a node, whatever it is."""
        if isinstance(value, Node):
            return value
        if not isinstance(value, Folded):
            value = Folded(torch.as_tensor(value), ())
        return self._constant(value, path)

    def _constant(self, constant: Folded, path: str) -> Node:
        """A constant as a node; the layers of a deep model that read one share it."""
        key = (id(constant), constant.tensor._version)
        if key not in self._constants:
            merged = constant.of_one_sample()
            if merged is None:
                type_, value = self._type_of(constant), constant.array(path)
                node = self.new(Node("constant", {}, type_, path, value=value))
            else:
                node = self._for_samples(constant, *merged, path)
            self._constants[key] = (constant, node)  # as long as it lives, its id is its own
        return self._constants[key][1]

    def new(self, node: Node) -> Node:
        self.nodes.append(node)
        real = isinstance(node.type, tuple) or node.type is None or node.type.is_float
        if real and node.op != "detach" and not self.trained.isdisjoint(node.inputs):
            self.trained.add(node)
            if not self.tracks:
                self.untracked.add(node)
        return node

    # Types

    @staticmethod
    def _type_of(value: Content) -> Type:
        if isinstance(value, Folded):
            return Type(value.shape, str(value.tensor.dtype).removeprefix("torch."))
        type_: Type = value.type
        return type_

    def type_of_meta(self, value: Any) -> Type | None:
        if not isinstance(value, torch.Tensor):
            return None
        shape = tuple(self.extent(extent) for extent in value.shape)
        return Type(shape, str(value.dtype).removeprefix("torch."))

    def extent(self, extent: Any) -> int:
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


def _identity(value: Any) -> Any:
    """What equal arguments have in common: constants are equal that are the same object."""
    if isinstance(value, dict):
        return tuple((name, _identity(part)) for name, part in value.items())
    if isinstance(value, list | tuple):
        return tuple(_identity(part) for part in value)
    return id(value) if isinstance(value, Folded) else repr(value)


def _has_node(value: Any) -> bool:
    if isinstance(value, Node):
        return True
    if isinstance(value, dict):
        return any(_has_node(part) for part in value.values())
    return isinstance(value, list | tuple) and any(_has_node(part) for part in value)

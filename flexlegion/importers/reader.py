"""Reads torch.export's training IR into the internal form.

On the way, constants are computed, operations in place become those that return their result
(`memory`), and subgraphs are read where they are called.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from flexlegion.base.errors import UserError
from flexlegion.importers.constants import Folded
from flexlegion.importers.interpreter import Interpreter
from flexlegion.importers.memory import Content, Seen
from flexlegion.importers.program import Array, Node, Program, Type, at
from flexlegion.importers.schemas import is_call, op_name, written
from flexlegion.importers.values import has_values, later, memory_of, numbers


def read(exported: ExportedProgram) -> Program:
    """The program of an exported module.

    Raises
    ------
    UserError
        If anything but the batch is dynamic, or an input or output is of a kind that cannot be.
    """
    return _Reader(exported).read()


class _Reader:
    def __init__(self, exported: ExportedProgram) -> None:
        self.exported = exported
        self.buffers: dict[str, Array] = {}  # values of those that are constants
        calls = [n for graph in self._graphs() for n in graph.nodes if is_call(n)]
        writes = any(written(call.target) for call in calls)
        self.interpreter = Interpreter(self._batch_symbol(), writes)

    def read(self) -> Program:
        signature = self.exported.graph_signature
        specs = {spec.arg.name: spec for spec in signature.input_specs if hasattr(spec.arg, "name")}
        state = dict(self.exported.state_dict) | dict(self.exported.constants)
        averages = self._running_averages(specs)
        for fx_node in self.exported.graph.nodes:
            if fx_node.op != "placeholder":
                continue
            self.interpreter.values[fx_node] = self._source(
                fx_node, specs.get(fx_node.name), state, averages
            )
        if signature.buffers_to_mutate:
            name = next(iter(signature.buffers_to_mutate.values()))
            raise UserError(self._changes(f"buffer '{name}'"))
        outputs = self.interpreter.run(self.exported.graph_module)
        for name, seen in self.interpreter.state.items():
            if seen.memory.version:
                raise UserError(self._changes(name))
        _check_types(self.interpreter.nodes)
        kinds = signature.output_specs
        users = [
            value
            for value, spec in zip(outputs, kinds, strict=True)
            if spec.kind == OutputKind.USER_OUTPUT
        ]
        named = self._outputs(users)
        notes = _of_precision(
            node.type.dtype for node in self.interpreter.nodes if node.op == "parameter"
        )
        aliases = self._aliases(specs, state)
        program = Program(self.interpreter.nodes, named, aliases, self.buffers, notes)
        program.prune()
        return program

    @staticmethod
    def _changes(what: str) -> str:
        return (
            f"the forward pass changes {what}; of what a module keeps, only the running averages "
            "of batch normalisation can change, so compute without it, or keep it outside"
        )

    def _graphs(self) -> list[Any]:
        modules = self.exported.graph_module.modules()
        return [m.graph for m in modules if isinstance(m, torch.fx.GraphModule)]

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

    def _source(self, fx_node: Any, spec: Any, state: dict[str, Any], averages: set[str]) -> Any:
        value = fx_node.meta.get("val")
        if spec is None or not isinstance(value, torch.Tensor):
            return getattr(getattr(spec, "arg", None), "value", value)
        type_ = self.interpreter.type_of_meta(value)
        if spec.kind == InputKind.USER_INPUT:
            if value.dtype.is_complex:
                raise UserError(
                    f"input '{fx_node.name}' is complex; only real ones can be imported"
                )
            return Seen.computed(self.interpreter.new(Node("input", {}, type_, name=fx_node.name)))
        tensor = state.get(spec.target)
        if not isinstance(tensor, torch.Tensor):
            raise UserError(f"'{spec.target}' of the exported program is no tensor")
        content: Content
        if spec.kind == InputKind.PARAMETER or spec.target in averages:
            kind = "parameter" if spec.kind == InputKind.PARAMETER else "buffer"
            value = later(spec.target, tensor)
            trains = kind == "parameter" and tensor.requires_grad
            node = Node(kind, {}, type_, name=spec.target, value=value, trainable=trains)
            content = self.interpreter.new(node)
            if trains:
                self.interpreter.trained.add(node)
        else:
            kind = "buffer"
            content = Folded.of(tensor, spec.target)
            read = any(not (is_call(u) and written(u.target)) for u in fx_node.users)
            if spec.kind == InputKind.BUFFER and read and has_values(tensor):
                self.buffers[spec.target] = numbers(tensor).copy()
        seen = Seen.computed(content)
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            self.interpreter.state[f"{kind} '{spec.target}'"] = seen
        return seen

    def _running_averages(self, specs: dict[str, Any]) -> set[str]:
        """Names of the buffers that batch normalisation keeps."""
        kept = set()
        for fx_node in self.exported.graph.nodes:
            if not is_call(fx_node) or op_name(fx_node.target) != "batch_norm":
                continue
            if fx_node.args[5]:
                for target in fx_node.args[3:5]:
                    spec = specs.get(getattr(target, "name", ""))
                    if spec is not None and spec.kind == InputKind.BUFFER:
                        kept.add(spec.target)
        return kept

    def _aliases(self, specs: dict[str, Any], state: dict[str, Any]) -> dict[str, list[str]]:
        """All names of each parameter: those that lie in the same memory are one."""
        places: dict[Any, list[str]] = {}
        for name, tensor in state.items():
            if isinstance(tensor, torch.nn.Parameter):
                key = memory_of(tensor) if tensor.numel() else name
                places.setdefault(key, []).append(name)
        groups = {name: names for names in places.values() for name in names}
        targets = [s.target for s in specs.values() if s.kind == InputKind.PARAMETER]
        return {name: groups.get(name, [name]) for name in targets}

    def _outputs(self, values: list[Any]) -> list[tuple[str, Node]]:
        names = self._output_names(len(values))
        values = [self.interpreter.read(value) for value in values]
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
            paths = [key_name(path) for path, _ in flat]
        except Exception:  # a class that is not known here
            paths = []
        if len(paths) != count or len(set(paths)) != count or not all(paths):
            return [f"output_{i}" if count > 1 else "output" for i in range(count)]
        return paths


# Operations that PyTorch computes of real numbers alone: torch.export lets some of them pass.
_OF_REALS = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "lstm", "gru")


def _check_types(nodes: Iterable[Node]) -> None:
    """Raise `UserError` if a product is of whole numbers and real ones, which cannot run."""
    for node in nodes:
        types = [source.type for source in node.inputs if isinstance(source.type, Type)]
        mixed = any(t.is_float for t in types) and not all(t.is_float for t in types)
        if mixed and any(node.op.startswith(op) for op in _OF_REALS):
            whole = next(t for t in types if not t.is_float)
            raise UserError(
                f"'{node.op}'{at(node.path)} takes real numbers, but gets {whole}, with which the "
                "module does not run in PyTorch either; give an example of real numbers, as "
                "x.float()"
            )


def _of_precision(types: Iterable[str]) -> list[str]:
    """What is to be said of parameters that are not in the precision that models compute in."""
    others = sorted({type_ for type_ in types if type_.startswith(("float", "bfloat"))})
    return [
        f"the module's {type_} parameters are float32 here, and it computes in single precision; "
        "compile(storage=...) stores activations narrower"
        for type_ in others
        if type_ != "float32"
    ]


def key_name(path: Any) -> str:
    parts = [getattr(key, "key", getattr(key, "name", getattr(key, "idx", ""))) for key in path]
    return "_".join(str(part) for part in parts)

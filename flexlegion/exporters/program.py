"""A strategy as a Python file for another framework.

The file has, in this order: how the devices are arranged, a few helpers, the functions of the
operators that occur, where each weight lies, and a function that runs all operators, each line of
which says how its operands lie before it runs. Helpers and functions are the text of modules of
this package, so that they are checked and tested here.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from flexlegion.exporters.arguments import attributes, looked_up_in
from flexlegion.exporters.spelling import comment, docstring, identifiers, literal, sequence
from flexlegion.exporters.targets import Target
from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.operator_type import Access
from flexlegion.graph.tensor import Tensor, TensorRole
from flexlegion.layers.arrangement import Arrangement, Form, forms_of
from flexlegion.objective.losses import losses_of
from flexlegion.objective.precision import DEFAULT
from flexlegion.ops.losses import CrossEntropy, LossOperator
from flexlegion.ops.shape import Rearrange
from flexlegion.spmd.axes import Division
from flexlegion.spmd.layout import entries, first_reader

WIDTH = 100
# The modules whose text programs have.
_MODULES = (
    "dtensor_runtime",
    "torch_functions",
    "torch_layers",
    "jax_runtime",
    "jax_functions",
    "jax_layers",
)


def missing(graph: Graph, target: Target) -> list[str]:
    """The types of operators for which the target has no function."""
    without = (op.kind.type for op in graph.operators if target.function(op) is None)
    return list(dict.fromkeys(without))


def program(
    graph: Graph,
    outputs: Sequence[Tensor],
    divisions: Mapping[str, Division],
    target: Target,
    title: str,
    origin: Any = None,
    precision: str = DEFAULT,
    clip_norm: float | None = None,
) -> str:
    """The file's text.

    Parameters
    ----------
    graph
        With the losses.
    outputs
        What the model's forward pass returns.
    divisions
        For every operator, what each axis of the mesh divides; the target allows it.
        None may be `missing`.
    target
        What the file is for.
    title
        Its docstring.
    origin
        Of an imported model: how module and model are arranged.
    precision
        Of products, one of `flexlegion.objective.precision.PRECISIONS`.
    clip_norm
        To which the program scales gradients down where it is asked to.
    """
    its = _Program(graph, outputs, divisions, target, origin, precision, clip_norm)
    return its.text(title)


@dataclass
class _Program:
    graph: Graph
    outputs: Sequence[Tensor]
    divisions: Mapping[str, Division]
    target: Target
    origin: Any
    precision: str
    clip_norm: float | None

    def text(self, title: str) -> str:
        axes = self.target.axes
        runtime, modules = self._runtime(), self.target.modules
        parts = [
            f"SIZES = {axes.sizes!r}  # of the mesh\nAXES = {sequence(map(literal, axes.names))}",
            f"PRECISION = {literal(self.precision)}  # of products\n"
            f"CLIP_NORM: float | None = {self.clip_norm!r}  # of gradients, all together",
            _body(runtime),
            _used(modules, {op.kind.type for op in self.graph.operators}),
            self._weights(),
            self._sources(),
            self._forms_text(),
            self._forward(),
            self._loss(),
        ]
        body = "\n\n\n".join(part.strip("\n") for part in parts if part)
        head = f"{docstring(title)}\n\nfrom __future__ import annotations"
        return f"{head}\n\n{_imports(body, runtime, *modules)}\n\n{body}\n"

    def _runtime(self) -> ModuleType:
        if self.target.name == "jax":
            from flexlegion.exporters import jax_runtime

            return jax_runtime
        from flexlegion.exporters import dtensor_runtime

        return dtensor_runtime

    # What lies where.

    def _placed(
        self, op: Operator, access: Access, role: TensorRole, gradient: bool = False
    ) -> str:
        placed = entries(self.divisions[op.name], access, role, gradient)
        if self.target.name == "dtensor":
            names = [f"S{e}" if isinstance(e, int) else e for e in placed]
            return sequence(names)
        if role == "output" and "P" in placed and not self.target.runs_tiles(op):
            return "None"  # the compiler sums where the next reader wants it
        split: list[list[str]] = [[] for _ in access.map]
        for name, entry in zip(self.target.axes.names, placed, strict=True):
            if isinstance(entry, int):
                split[entry].append(name)
        specs = [
            "None" if not s else literal(s[0]) if len(s) == 1 else sequence(map(literal, s))
            for s in split
        ]
        while specs and specs[-1] == "None":
            specs.pop()
        return f"Spec({', '.join(specs)})"

    def _operand(self, op: Operator, tensor: Tensor, access: Access, role: TensorRole) -> str:
        holder = "w" if tensor.kind == "weight" else "t"
        placed = self._placed(op, access, role)
        if not self._is_jax:
            placed += f", {self._placed(op, access, role, gradient=True)}"
        once = [
            literal(axis) if self._is_jax else str(number)
            for number, (axis, dim) in enumerate(
                zip(self.target.axes.names, self.divisions[op.name].dims, strict=True)
            )
            if dim is not None and dim in access.once
        ]
        more = f", once={sequence(once)}" if once and self.target.runs_tiles(op) else ""
        return f"read({holder}[{literal(tensor.name)}], {placed}{more})"

    # The file's parts.

    def _weights(self) -> str:
        """Each weight's place: as its first reader has it."""
        lines = []
        for weight in self.graph.weights:
            placed = self._placed(*first_reader(self.graph, weight), "weight")
            lines.append(f"    {literal(weight.name)}: ({placed}, {weight.requires_gradient}),")
        text = "\n".join(lines)
        kind = "Spec" if self._is_jax else "Placements"
        head = "# Each weight's place, and whether it is trained."
        return f"{head}\nWEIGHTS: dict[str, tuple[{kind}, bool]] = {{\n{text}\n}}"

    def _sources(self) -> str:
        if self._is_jax:
            states = sequence(literal(weight.name) for weight in self.graph.weights if weight.state)
            return f"# Weights of which `forward` gives new values.\nSTATES = {states}"
        head = "# Of each weight that holds a parameter of the module, which, and how."
        if self.origin is None:
            return f"{head}\nSOURCES: dict[str, Source] = {{}}"
        its = {
            place.weight: (name, place.layout)
            for name, places in self.origin.places.items()
            for place in places
        }
        lines = [
            f"    {literal(weight)}: Source({literal(name)}, {tuple(at.factors)}, "
            f"{tuple(at.order)}, {tuple(at.shape)}, {at.taken}, {at.rows}),"
            for weight, (name, at) in its.items()
        ]
        return "\n".join([head, "SOURCES: dict[str, Source] = {", *lines, "}"])

    def _forms_text(self) -> str:
        """Of inputs, labels and outputs: how they are given and returned."""
        forms = forms_of(self.origin, self.graph, self.outputs)
        entries = {tensor.name: (tensor, forms[tensor]) for tensor in self.graph.inputs}
        entries |= {name: (tensor, forms[tensor]) for name, tensor in self._results.items()}
        lines = [f"    {literal(key)}: {_form(*entry)}," for key, entry in entries.items()]
        head = "# How inputs, labels and outputs are given and returned."
        return "\n".join([head, "FORMS: dict[str, Form] = {", *lines, "}"])

    @functools.cached_property
    def _results(self) -> dict[str, Tensor]:
        """The outputs by name: the module's names of an imported model, else the tensors'."""
        names = {} if self.origin is None else {t: n for n, t in self.origin.output_names.items()}
        taken = {tensor.name for tensor in self.graph.tensors}
        results: dict[str, Tensor] = {}
        for tensor in self.outputs:
            name = names.get(tensor.name, tensor.name)
            while name != tensor.name and name in taken:
                name += "_"  # an input is called so, too
            results[name] = tensor
        return results

    def _forward(self) -> str:
        given = [tensor for tensor in self.graph.inputs if not self._is_label(tensor)]
        key = ", key: Any = None" if self._is_jax else ""
        lines = [
            f"OUTPUTS = {sequence(map(literal, self._results))}",
            "",
            "",
            f"def forward(w: Weights{self._arguments(given)}{key}) -> dict[str, Any]:",
            '    """Everything that the model computes, by name: OUTPUTS are its results."""',
            "    t: dict[str, Any] = {}",
            *self._take(given),
        ]
        lines += [line for op in self._needed(self.outputs) for line in self._line(op)]
        for name, tensor in self._results.items():
            if name != tensor.name:
                made = f"FORMS[{literal(name)}].made(t[{literal(tensor.name)}])"
                lines.append(f"    t[{literal(name)}] = {made}")
        return "\n".join([*lines, "    return t"])

    def _loss(self) -> str:
        """All operators that the forward pass leaves out, and the mean."""
        labels = [tensor for tensor in self.graph.inputs if self._is_label(tensor)]
        done = set(self._needed(self.outputs))
        lines = [
            f"def loss(w: Weights, t: dict[str, Any]{self._arguments(labels)}) -> Any:",
            '    """The loss of what `forward` computed, a mean over the batch."""',
            *self._take(labels),
        ]
        lines += [line for op in self.graph.operators if op not in done for line in self._line(op)]
        terms = []
        for op in losses_of(self.graph).values():
            kind = op.kind
            assert isinstance(kind, LossOperator)
            is_entropy = isinstance(kind, CrossEntropy)
            its = self._identifiers[op.inputs[-1].name] if is_entropy else "None"
            term = f"mean(t[{literal(op.output.name)}], {its})"
            terms.append(term if kind.weight == 1 else f"{kind.weight!r} * {term}")
        return "\n".join([*lines, f"    return {' + '.join(terms)}"])

    def _take(self, inputs: Sequence[Tensor]) -> list[str]:
        """Lines that take arguments as tensors, checked and arranged."""
        lines = []
        for tensor in inputs:
            name = literal(tensor.name)
            made = f"FORMS[{name}].taken({name}, {self._identifiers[tensor.name]})"
            if not self._is_jax:
                made = f"everywhere({made}, w.mesh)"
            lines.append(f"    t[{name}] = {made}")
        return lines

    @functools.cached_property
    def _identifiers(self) -> dict[str, str]:
        """The argument that each input is."""
        return identifiers((tensor.name for tensor in self.graph.inputs), _taken())

    def _arguments(self, inputs: Sequence[Tensor]) -> str:
        return "".join(f", {self._identifiers[tensor.name]}: Any" for tensor in inputs)

    @property
    def _is_jax(self) -> bool:
        return self.target.name == "jax"

    def _is_label(self, tensor: Tensor) -> bool:
        return tensor.name == "labels" or tensor.name.startswith("labels.")

    def _needed(self, outputs: Sequence[Tensor]) -> list[Operator]:
        """The operators that some tensors need, in order."""
        wanted = set(outputs)
        for op in reversed(self.graph.operators):
            if wanted.intersection(op.outputs):
                wanted.update(op.inputs)
        return [op for op in self.graph.operators if wanted.intersection(op.outputs)]

    def _line(self, op: Operator) -> list[str]:
        """A comment, and the call that runs an operator."""
        division = self.divisions[op.name]
        operands = op.operands
        read = [
            self._operand(op, tensor, access, role)
            for role, tensor, access in operands
            if role != "output"
        ]
        written = [(t, a) for role, t, a in operands if role == "output"][: self._outputs_read(op)]
        placed = [self._placed(op, access, "output") for _, access in written]
        names = [f"t[{literal(tensor.name)}]" for tensor, _ in written]
        if self._is_jax:
            states = [w for w in op.weights if w.state]
            names += [f"t[{literal(weight.name)}]" for weight in states]
            placed += ["None"] * len(states)
        attributes = [f"{key}={value}" for key, value in self._attributes(op, division).items()]
        split = [
            f"{division.parts(d)} by {dim.name}"
            for d, dim in enumerate(op.dims)
            if division.parts(d) > 1
        ]
        lines = [f"    # {comment(op.name)}: {', '.join(split) or 'whole'}"]
        by_tiles = self._is_jax and self.target.runs_tiles(op)
        if by_tiles and (partial := self._partial(op)):
            attributes.insert(0, f"partial={sequence(map(literal, partial))}")
        lines.append(f"    {', '.join(names)} = {'run_tiles' if by_tiles else 'run'}(")
        lines.append(f"        {op.kind.type},")
        if sum(map(len, read)) + 2 * len(read) + 12 <= WIDTH:
            lines.append(f"        [{', '.join(read)}],")
        else:
            lines += ["        [", *(f"            {r}," for r in read), "        ],"]
        lines.append(f"        [{', '.join(placed)}],")
        lines += [f"        {attribute}," for attribute in attributes]
        return [*lines, "    )"]

    def _partial(self, op: Operator) -> list[str]:
        """The axes of the mesh along which an operator's first output is a sum."""
        access = next(access for role, _, access in op.operands if role == "output")
        placed = entries(self.divisions[op.name], access, "output")
        return [a for a, entry in zip(self.target.axes.names, placed, strict=True) if entry == "P"]

    def _outputs_read(self, op: Operator) -> int:
        """How many outputs, from the first one on, somebody reads."""
        read = {t for other in self.graph.operators for t in other.inputs} | set(self.outputs)
        return max([i + 1 for i, t in enumerate(op.outputs) if t in read], default=1)

    def _attributes(self, op: Operator, division: Division) -> dict[str, str]:
        """Arguments by name, those of the function that are not its operands."""
        function = self.target.function(op)
        assert function is not None
        wanted = inspect.signature(function).parameters
        kind: Any = op.kind
        result = {name: literal(value) for name, value in attributes(op, function).items()}
        shape = op.output.shape
        if "shape" in wanted:
            tile = tuple(
                extent if self._is_jax else extent // division.parts(d)
                for d, extent in enumerate(shape)
            )
            result["shape"] = repr(tile)
            if isinstance(kind, Rearrange):
                result["extents"] = repr(kind.extents_of(tile))
        if "low" in wanted:
            d = looked_up_in(op)
            along = division.along(d)
            if self._is_jax or not along:
                result["low"] = "0"
            else:
                each = op.space[d] // division.parts(d)
                result["low"] = f"{each} * part({sequence(map(str, along))}, w.mesh)"
        # Attention that drops nothing draws nothing: programs for JAX then need no key.
        if "key" in wanted and getattr(kind, "dropout", 1) > 0:
            if self._is_jax:
                result["key"] = f"jax.random.fold_in(key, {kind.id})"
            else:
                axes = [a for a, dim in enumerate(division.dims) if dim is not None]
                result["key"] = f"({kind.id}, w.step, part({sequence(map(str, axes))}, w.mesh))"
        return result


@functools.cache
def _taken() -> frozenset[str]:
    """Names that programs of either target use: so an input has one name in both.

    They are read from the modules' sources, because importing JAX's takes seconds.
    """
    taken = {"OUTPUTS", "STATES", "forward", "loss", "w", "t", "key", "dict"}
    for module in _MODULES:
        source = Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")
        for node in ast.parse(source).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                taken.update(_spelt(alias).split()[-1] for alias in node.names)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                taken.add(node.name)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                walked = itertools.chain.from_iterable(map(ast.walk, targets))
                taken.update(name.id for name in walked if isinstance(name, ast.Name))
    return frozenset(taken)


def _form(tensor: Tensor, form: Form) -> str:
    """How a program spells a form."""
    its = form.arrangement or Arrangement.in_order(range(len(form.shape)))
    cut = tuple(form.shape[d] if its.has_samples or d else 1 for d in its.places)
    order = tuple(its.places.index(d) for d in range(len(its.places)))
    given = its.shape(form.shape)
    return f"Form({given}, {cut}, {order}, {tensor.shape}, {form.loose})"


def _imports(text: str, *modules: ModuleType) -> str:
    """The import statements of some modules, with those names alone that a text has."""
    plain: set[str] = set()
    named: dict[str, set[str]] = {}
    for module in modules:
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.Import):
                plain.update(_spelt(alias) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
                assert node.module is not None
                if node.module.startswith("flexlegion"):
                    continue  # the program has all of it
                named.setdefault(node.module, set()).update(map(_spelt, node.names))
    lines = [f"import {name}" for name in sorted(plain) if _occurs(name, text)]
    for source, names in sorted(named.items()):
        if kept := sorted(name for name in names if _occurs(name, text)):
            lines.append(f"from {source} import {', '.join(kept)}")
    return "\n".join(lines)


def _spelt(alias: ast.alias) -> str:
    return alias.name if alias.asname is None else f"{alias.name} as {alias.asname}"


def _occurs(name: str, text: str) -> bool:
    """Whether a text uses what is imported so."""
    return re.search(rf"\b{re.escape(name.split()[-1])}\b", text) is not None


def _body(module: ModuleType) -> str:
    """What a module has between its marks."""
    return inspect.getsource(module).partition("# begin")[2].partition("# end")[0]


def _used(modules: Sequence[ModuleType], names: set[str]) -> str:
    """The functions of those names, and what they use, in the modules' order."""
    body = "\n\n\n".join(inspect.getsource(m).partition("# begin")[2] for m in modules)
    pieces = [piece.strip("\n") for piece in re.split(r"\n\n\n", body) if piece.strip()]
    named = {}
    for piece in pieces:
        found = re.match(r"(?:def |)(\w+)", piece)
        assert found is not None, piece
        named[found.group(1)] = piece
    wanted, left = set(), list(names)
    while left:
        name = left.pop()
        if name in wanted:
            continue
        wanted.add(name)
        left += [other for other in named if re.search(rf"\b{other}\b", named[name])]
    return "\n\n\n".join(text for name, text in named.items() if name in wanted)

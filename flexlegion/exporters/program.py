"""A strategy as a Python file for another framework.

The file has, in this order: how the devices are arranged, a few helpers, the functions of the
operators that occur, where each weight lies, and a function that runs all operators, each line of
which says how its operands lie before it runs. Helpers and functions are the text of modules of
this package, so that they are checked and tested here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from flexlegion.exporters.arguments import attributes, looked_up_in, with_weights
from flexlegion.exporters.given import multiple_of_samples, shared_axes, spelt_form
from flexlegion.exporters.pipelines import Pipeline
from flexlegion.exporters.regions import Region, outside, regions
from flexlegion.exporters.shards import WeightPlace
from flexlegion.exporters.source import body, imports, taken, used, words
from flexlegion.exporters.spelling import comment, docstring, identifiers, literal, sequence
from flexlegion.exporters.targets import Target
from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.operator_type import Access
from flexlegion.graph.tensor import Tensor, TensorRole
from flexlegion.layers.arrangement import forms_of
from flexlegion.objective.losses import class_weights_of, losses_of
from flexlegion.objective.precision import DEFAULT
from flexlegion.ops.given_weights import GivenWeights
from flexlegion.ops.losses import CrossEntropy, LossOperator
from flexlegion.ops.shape import Rearrange
from flexlegion.spmd.axes import Division
from flexlegion.spmd.layout import Entry, entries
from flexlegion.strategy.configuration import ParallelConfig

WIDTH = 100
# What users of a program call, if its helpers have it, and nothing else in it may.
CALLED = {"by_stage", "clipped"}


def missing(graph: Graph, target: Target) -> list[str]:
    """The types of operators for which the target has no function."""
    missing = (op for op in graph.operators if target.function(op) is None)
    without = (with_weights(op).kind.type for op in missing)
    return list(dict.fromkeys(without))


def program(
    graph: Graph,
    outputs: Sequence[Tensor],
    divisions: Mapping[str, Division],
    strategy: Mapping[str, ParallelConfig],
    places: Mapping[Tensor, WeightPlace],
    target: Target,
    title: str,
    origin: Any = None,
    precision: str = DEFAULT,
    clip_norm: float | None = None,
    pipeline: Pipeline | None = None,
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
    strategy
        Which operators the backward pass runs again.
    places
        Where each weight is.
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
    pipeline
        Its stages, if it has several.
    """
    again = frozenset(op for op in graph.operators if strategy[op.name].again)
    kind = Program
    if pipeline is not None:
        from flexlegion.exporters.pipeline_program import PipelineProgram

        kind = PipelineProgram
    its = (graph, outputs, divisions, again, places, target, origin, precision, clip_norm, pipeline)
    return kind(*its).text(title)


@dataclass
class Program:
    """What a program is made of: see `program`."""

    graph: Graph
    outputs: Sequence[Tensor]
    divisions: Mapping[str, Division]
    again: Set[Operator]
    places: Mapping[Tensor, WeightPlace]
    target: Target
    origin: Any
    precision: str
    clip_norm: float | None
    pipeline: Pipeline | None = None
    _functions: int = 0  # so many are computed again

    def text(self, title: str) -> str:
        axes = self.target.axes
        (runtime, *more), modules = self._runtime(), self.target.modules
        model = self._model()
        parts = [
            f"SIZES = {axes.sizes!r}  # of the mesh\nAXES = {sequence(map(literal, axes.names))}",
            f"PRECISION = {literal(self.precision)}  # of products\n"
            f"CLIP_NORM: float | None = {self.clip_norm!r}  # of gradients, all together\n"
            f"MICRO_BATCHES = {self.graph.micro_batches}  # of a batch",
            body(runtime),
            used(more, words(body(runtime) + "".join(model)) | CALLED),
            used(modules, words(" ".join(map(self._function, self.graph.operators)))),
            *self._own.values(),
            *model,
        ]
        text = "\n\n\n".join(part.strip("\n") for part in parts if part)
        head = f"{docstring(title)}\n\nfrom __future__ import annotations"
        return f"{head}\n\n{imports(text, runtime, *more, *modules)}\n\n{text}\n"

    def _model(self) -> list[str]:
        """The parts that are about this model."""
        return [
            self._weights(),
            self._sources(),
            self._forms_text(),
            self._forward(),
            self._loss(),
            self._forward_backward(),
        ]

    def _runtime(self) -> tuple[ModuleType, ...]:
        if self._is_jax:
            from flexlegion.exporters import jax_runtime, jax_training

            return jax_runtime, jax_training
        from flexlegion.exporters import dtensor_runtime, dtensor_training

        return dtensor_runtime, dtensor_training

    def _function(self, op: Operator) -> str:
        """An expression for the function of an operator's operands."""
        own = self.target.own_function(op)
        name = with_weights(op).kind.type if own is None else own.name
        kind = op.kind
        return f"of_weights({name}, {kind.own_inputs})" if isinstance(kind, GivenWeights) else name

    @functools.cached_property
    def _own(self) -> dict[str, str]:
        """The functions of users' own operators, by their names."""
        its = filter(None, map(self.target.own_function, self.graph.operators))
        return {own.name: own.text for own in its}

    # What lies where.

    def _placed(
        self, op: Operator, access: Access, role: TensorRole, gradient: bool = False
    ) -> str:
        placed = entries(self.divisions[op.name], access, role, gradient)
        if self._is_jax and role == "output" and "P" in placed and not self.target.runs_tiles(op):
            return "None"  # the compiler sums where the next reader wants it
        return self._spelt(placed, len(access.map))

    def _spelt(self, placed: Sequence[Entry], rank: int) -> str:
        """How a tensor lies, as the target says it."""
        if not self._is_jax:
            return sequence(f"S{e}" if isinstance(e, int) else str(e) for e in placed)
        split: list[list[str]] = [[] for _ in range(rank)]
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
        if tensor.kind == "weight" and self._is_gathered_again(tensor):
            more += ", gathered=True"
        return f"read({holder}[{literal(tensor.name)}], {placed}{more})"

    def _is_gathered_again(self, weight: Tensor) -> bool:
        """Whether the backward pass gathers a weight for itself."""
        return self.places[weight].is_gathered_again

    def _readers(self, _: Tensor) -> str:
        """An argument that says which of several parts of a program read a weight."""
        return ""

    # The file's parts.

    def _weights(self) -> str:
        """Where each weight is."""
        lines = []
        for weight, place in self.places.items():
            rank = len(weight.shape)
            spelt = [self._spelt(place.used, rank)]
            if not self._is_jax:
                spelt.append(self._spelt(place.gradient, rank))
            spelt.append(repr(weight.requires_gradient))
            if place.is_sharded:
                spelt += [self._spelt(place.kept, rank), literal(place.sharding)]
            spelt += filter(None, [self._readers(weight)])
            lines.append(f"    {literal(weight.name)}: Place({', '.join(spelt)}),")
        text = "\n".join(lines)
        return f"# Where each weight is.\nWEIGHTS: dict[str, Place] = {{\n{text}\n}}"

    def _sources(self) -> str:
        if self._is_jax:
            states = sequence(literal(weight.name) for weight in self.graph.weights if weight.state)
            return f"# Weights of which `forward` gives new values.\nSTATES = {states}"
        head = "# Of each weight that holds a parameter of the module, which, and how."
        if self.origin is None:
            return f"{head}\nSOURCES: dict[str, Source] = {{}}"
        held = {weight.name for weight in self.places}
        its = {
            place.weight: (name, place.layout)
            for name, places in self.origin.places.items()
            for place in places
            if place.weight in held
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
        lines = [f"    {literal(key)}: {spelt_form(*entry)}," for key, entry in entries.items()]
        head = "# How inputs, labels and outputs are given and returned."
        text = "\n".join([head, "FORMS: dict[str, Form] = {", *lines, "}"])
        if self._is_jax:
            return text
        shared = shared_axes(self.graph, self.divisions)
        head = "# Along these axes of the mesh, devices may be given samples of their own."
        multiple = self._multiple
        many = f"a multiple of {multiple}" if multiple else f"{self.graph.inputs[0].shape[0]}"
        return (
            f"{text}\n{head}\nSHARED: tuple[int, ...] = {shared!r}\n"
            f"MULTIPLE = {multiple}  # samples of a micro-batch are {many}"
        )

    @functools.cached_property
    def _multiple(self) -> int:
        """See `multiple_of_samples`."""
        fixed = self._is_jax or self.pipeline is not None
        return 0 if fixed else multiple_of_samples(self.graph, self.divisions)

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
            *self._lines(self._rows[0]),
        ]
        for name, tensor in self._results.items():
            if name != tensor.name:
                made = f"FORMS[{literal(name)}].made(t[{literal(tensor.name)}])"
                lines.append(f"    t[{literal(name)}] = {made}")
        return "\n".join([*lines, "    return t"])

    def _loss(self) -> str:
        """All operators that the forward pass leaves out, and the mean."""
        labels = [tensor for tensor in self.graph.inputs if self._is_label(tensor)]
        several = self._has_several
        doc = '    """The loss of what `forward` computed, a mean over the batch."""'
        if several:
            doc = (
                '    """The loss of what `forward` computed, a mean over the batch.\n\n'
                "    Of a micro-batch, its share in the loss of the batch with the labels `whole`."
                '\n    """'
            )
        whole = ", whole: Any = None" if several else ""
        lines = [
            f"def loss(w: Weights, t: dict[str, Any]{self._arguments(labels)}{whole}) -> Any:",
            doc,
            *self._take(labels),
            *self._lines(self._rows[1]),
        ]
        if several:
            lines.append("    parts = 1 if whole is None else MICRO_BATCHES")
        return "\n".join([*lines, f"    return {self._mean()}"])

    @property
    def _has_several(self) -> bool:
        """Whether `loss` is that of one of several micro-batches."""
        return self.graph.micro_batches > 1

    def _mean(self) -> str:
        """The weighted sum of the losses' means."""
        several = self._has_several
        terms = []
        for op in losses_of(self.graph).values():
            kind = op.kind
            assert isinstance(kind, LossOperator)
            its = self._counts(op, kind) if isinstance(kind, CrossEntropy) else "None"
            term = f"mean(t[{literal(op.output.name)}], {its}{', parts' * several})"
            terms.append(term if kind.weight == 1 else f"{kind.weight!r} * {term}")
        return " + ".join(terms)

    def _counts(self, op: Operator, kind: CrossEntropy) -> str:
        """What each label adds to the number by which the sum of its losses is divided."""
        name = op.inputs[-1].name
        arguments = [self._all_labels(name) if self._has_several else self._identifiers[name]]
        if kind.ignored >= 0:
            arguments.append(f"ignored={kind.ignored}")
        if kind.class_weights:
            whole = "" if self._is_jax else ".full_tensor()"
            arguments.append(f"weights=w[{literal(class_weights_of(op.name))}]{whole}")
        its = f"counting({', '.join(arguments)})"
        return its if self._is_jax else f"counted(w, {its})"

    def _all_labels(self, name: str) -> str:
        """The labels of which a loss is the mean, those of a whole batch if they are given."""
        return f"{self._identifiers[name]} if whole is None else whole[{literal(name)}]"

    def _forward_backward(self) -> str:
        """What trains on a whole batch, in micro-batches if there are several."""
        wanted: dict[bool, list[Tensor]] = {False: [], True: []}
        for tensor in self.graph.inputs:
            wanted[self._is_label(tensor)].append(tensor)
        given = [*wanted[False], *wanted[True]]
        dicts = [
            f"{{{', '.join(f'{literal(x.name)}: {self._identifiers[x.name]}' for x in its)}}}"
            for its in wanted.values()
        ]
        key = ", key: Any = None" if self._is_jax else ""
        name, result = ("value_and_grad", "Any") if self._is_jax else ("forward_backward", "Any")
        doc = {
            False: "The loss of a batch; its gradients are added to the parameters' `grad`.",
            True: "Loss of a batch, gradients by weight, and new values of STATES.",
        }[self._is_jax]
        several = f"\n\n    It goes through in {self.graph.micro_batches} micro-batches.\n    "
        return "\n".join(
            [
                f"def {name}(w: Weights{self._arguments(given)}{key}) -> {result}:",
                f'    """{doc}{several if self.graph.micro_batches > 1 else ""}"""',
                f"    return in_micro_batches(w, {', '.join(dicts)}{', key' * self._is_jax})",
            ]
        )

    @functools.cached_property
    def _rows(self) -> tuple[list[Region], list[Region]]:
        """Operators of the forward pass, and of the loss, in regions."""
        forward = self._needed(self.outputs)
        done = set(forward)
        rest = [op for op in self.graph.operators if op not in done]
        return regions(forward, self.again), regions(rest, self.again)

    def _kept(self) -> list[Region]:
        """All regions: what passes between them is kept."""
        return [*self._rows[0], *self._rows[1]]

    def _lines(self, rows: Sequence[Region]) -> list[str]:
        """Lines that run operators of `forward`, or of `loss`."""
        lines = []
        its = [line for region in rows for op in region.operators for line in self._line(op)]
        if not self._is_jax and any("*now" in line for line in its):
            lines.append("    now = w.now")
        finals = [op.output for op in losses_of(self.graph).values()]
        later = outside(self._kept(), [*self.outputs, *finals])
        for region in rows:
            its = [line for op in region.operators for line in self._line(op)]
            if region.again:
                self._functions += 1
                name = f"again_{self._functions}"
                given, made = (
                    sequence(literal(tensor.name) for tensor in tensors)
                    for tensors in (region.given, region.results(later))
                )
                call = f"    again({name}, t, {given}, {made})"
                if len(call) > WIDTH:
                    each = "".join(f"        {its},\n" for its in (name, "t", given, made))
                    call = f"    again(\n{each}    )"
                head = f"    def {name}(t: dict[str, Any]) -> None:"
                its = ["", head, *(f"    {line}" for line in its), "", *call.split("\n")]
            lines += its
        return lines

    def _take(self, inputs: Sequence[Tensor]) -> list[str]:
        """Lines that take arguments as tensors, checked and arranged."""
        lines = []
        for tensor in inputs:
            name, value = literal(tensor.name), self._identifiers[tensor.name]
            made = f"FORMS[{name}].taken({name}, {value})"
            if not self._is_jax:
                made = f"given(w, {name}, {value})"
            lines.append(f"    t[{name}] = {made}")
        return lines

    @functools.cached_property
    def _identifiers(self) -> dict[str, str]:
        """The argument that each input is."""
        return identifiers((tensor.name for tensor in self.graph.inputs), taken() | {*self._own})

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
        lines.append(f"        {self._function(op)},")
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
        kind: Any = with_weights(op).kind
        result = {name: literal(value) for name, value in attributes(op, function).items()}
        shape = op.output.shape
        if "shape" in wanted:
            tile = tuple(
                extent if self._is_jax else extent // division.parts(d)
                for d, extent in enumerate(shape)
            )
            any_number = self._multiple and shape[0] == self.graph.inputs[0].shape[0]
            result["shape"] = repr((-1, *tile[1:]) if any_number else tile)
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
                result["key"] = f"({kind.id}, *now, part({sequence(map(str, axes))}, w.mesh))"
        return result

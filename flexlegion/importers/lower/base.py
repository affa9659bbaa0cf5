"""What lowerings stand on: our graph under construction, the values so far, weights, names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from flexlegion.base.quoting import printable
from flexlegion.graph.graph import Operator
from flexlegion.graph.initializers import Given, Later
from flexlegion.graph.operator_type import OperatorType
from flexlegion.graph.tensor import MAX_RANK, DataType, Tensor
from flexlegion.importers.program import SAMPLES, Array, Node, known
from flexlegion.importers.views import (
    Axis,
    Run,
    Value,
    blocks_of,
    explicit,
    extent_of,
    joined,
    neighbours,
    plain,
    replaced,
    reshaped,
    runs_of,
    without,
)
from flexlegion.layers.arrays import MOST_EXACT
from flexlegion.layers.origin import Layout, Origin, Place
from flexlegion.model.model import Model
from flexlegion.objective.losses import is_reserved
from flexlegion.ops.given_weights import GivenWeights
from flexlegion.ops.shape import Rearrange, Reshape, Transpose


@dataclass(frozen=True)
class Absent:
    """What a node has in place of a value that the graph could hold, and why.

    Some readers need no value: indices are constants, and concatenation leaves out what is empty.
    """

    why: str


Result = Value | tuple[Value, ...] | Absent
Lowering = Callable[["Lowerer", Node], Result]
Its = TypeVar("Its", bound=Lowering)
LOWERINGS: dict[str, Lowering] = {}

# What is added to a parameter's name where its elements are stored in another order.
_REORDERED = "reordered"


class Unsupported(Exception):
    """Why a node cannot be lowered."""


def lowers(*ops: str) -> Callable[[Its], Its]:
    """Register a function that lowers nodes of these operations."""

    def register(function: Its) -> Its:
        LOWERINGS.update(dict.fromkeys(ops, function))
        return function

    return register


class Lowerer:
    """Lowers nodes to operators of a model, one after the other.

    Parameters
    ----------
    model
        Gets the operators.
    users
        Who reads each node.
    """

    def __init__(self, model: Model, users: dict[Node, list[Node]]) -> None:
        self.model, self.users = model, users
        self.origin = Origin()
        self.results: dict[Node, Result] = {}
        self._weights: dict[tuple[str, Layout], Tensor] = {}  # trained already by an operator
        self._arranged: dict[Any, Tensor] = {}
        self._sources: dict[Node, Tensor] = {}  # parameters that the graph has as they are

    # Values

    def value(self, node: Any) -> Value:
        """What a node was lowered to."""
        result = self.results[node]
        if isinstance(result, Absent):
            raise Unsupported(result.why)
        assert isinstance(result, Value)
        return result

    # Names

    def name(self, node: Node, *, suffix: str = "") -> str:
        """A new name for an operator: the path of the module that it comes from."""
        whole = node.layer.startswith("torch.nn.") or node.op in _WHOLE_MODULES
        own_layer = whole and not suffix
        kind = suffix or _KINDS.get(node.op, node.op)
        base = node.path if own_layer and node.path else f"{node.path}.{kind}".lstrip(".")
        return self.unique(base)

    def unique(self, base: str) -> str:
        """`base` without what cannot be printed, numbered if it is taken."""
        base = printable(base)
        name, number = base, 2
        while self.model.graph.has(name) or is_reserved(name):
            name, number = f"{base}_{number}", number + 1
        return name

    # Weights

    def weight(self, node: Node, runs: Sequence[Run], value: Value) -> tuple[Given, Layout]:
        """The values of a parameter, buffer or constant, with its axes in the order of `runs`."""
        axes = value.axes
        order = tuple(axes.index(axis) for run in runs for axis in run)
        shape = tuple(extent_of(run) for run in runs)
        layout = Layout(tuple(axis.extent for axis in axes), order, shape)
        return first_values(node, layout), layout

    def apply(
        self,
        kind: OperatorType,
        inputs: Sequence[Tensor],
        name: str,
        weights: Sequence[tuple[Node, Layout] | None] = (),
    ) -> Operator:
        """Add an operator whose weights hold these parameters; who has one already shares it."""
        weights = [w and (w[0], replace(w[1], rows=w[0].rows)) for w in weights]
        owned = [w and self._weights.get((w[0].name, w[1])) for w in weights]
        trainable = [w is not None and w[0].trainable and w[0].op == "parameter" for w in weights]
        operator = self.model.graph.apply(
            kind, inputs, name, owned if weights else None, trainable if weights else True
        )
        for weight, tensor in zip(weights, operator.weights, strict=False):
            if weight is not None:
                self.own(*weight, tensor)
        return operator

    def apply_given(
        self, kind: OperatorType, inputs: Sequence[Tensor], name: str, weights: Sequence[Tensor]
    ) -> Operator:
        """Add an operator whose weights are computed: tensors (1, ...), or parameters as such."""
        given = GivenWeights(kind, len(inputs))
        return self.model.graph.apply(given, [*inputs, *map(self.real, weights)], name)

    def as_weight(self, value: Value, runs: Sequence[Run]) -> Tensor:
        """A tensor (1, ...) of what is computed of parameters, with its axes in the order of runs.

        Raises
        ------
        Unsupported
            If each sample has its own.
        """
        if any(axis.extent % SAMPLES == 0 for axis in value.axes):
            raise Unsupported("each sample has a weight of its own")
        return self.arranged(value, ((), *runs))

    def own(self, node: Node, layout: Layout, tensor: Tensor) -> None:
        """Remember which weight holds a parameter or buffer."""
        if node.op == "constant":
            return
        layout = replace(layout, rows=node.rows)
        count = node.shape[:1] if node.rows is None else node.rows[:1]
        self.origin.shapes[node.name] = (*count, *node.shape[1:])
        self._weights.setdefault((node.name, layout), tensor)
        places = self.origin.places.get(node.name, ())
        part = [p for p in places if p.layout.overlaps(layout)]
        if not part:
            self.origin.places[node.name] = (*places, Place(tensor.name, layout))
        elif part[0].weight != tensor.name:
            raise Unsupported(
                f"parameter '{node.name}' is used in two ways ({part[0].weight} and "
                f"{tensor.name}), whose weights would be trained apart"
            )

    # Arrangement

    def tensor(self, value: Value) -> Tensor:
        """The value's tensor in our graph, however it is arranged."""
        return self.in_graph(value).source  # type: ignore[no-any-return]

    def in_graph(self, value: Value) -> Value:
        """A value that a tensor of our graph stores: sources come into it here."""
        if isinstance(value.source, Tensor):
            return value
        runs = ((), *((axis,) for axis in value.axes))
        runs = self._short(runs)
        return Value(self.arranged(value, runs), runs, value.seen)

    def arranged(self, value: Value, runs: Sequence[Run], whole: bool = False) -> Tensor:
        """A tensor with one dimension for each run of axes; the first one is the samples'.

        Together the runs have all stored axes; repeated ones among them are expanded. Whole numbers
        become real ones, which most operators take alone; with `whole`, they stay as they are if
        they are arranged so already.
        """
        tensor = self._arranged_as(value, tuple(runs))
        return tensor if whole else self.real(tensor)

    def real(self, tensor: Tensor) -> Tensor:
        """A tensor's whole numbers as real ones."""
        if tensor.dtype != "int32":
            return tensor
        if tensor not in self._arranged:
            name = self._derived(tensor, "real")
            self._arranged[tensor] = self.model.elementwise("(x0 * 1.0)", [tensor], name=name)
        return self._arranged[tensor]

    def _arranged_as(self, value: Value, runs: tuple[Run, ...]) -> Tensor:
        if not isinstance(value.source, Tensor):
            return self._brought_in(value, runs)
        stored = tuple(tuple(a for a in run if not a.repeated) for run in runs)
        tensor = self._moved(value, stored)
        if stored == runs:
            return tensor
        return self._expanded(tensor, runs)

    def _moved(self, value: Value, runs: tuple[Run, ...]) -> Tensor:
        tensor: Tensor = value.source
        axes = value.axes
        wanted = [axis for run in runs for axis in run]
        if set(wanted) != set(axes):
            raise Unsupported("it reads elements that its input does not have")
        if not set(runs[0]) <= set(value.stored[0]):
            raise Unsupported(
                "it takes samples that are merged with another dimension (the frames of videos, "
                "say); only layers that work at each position do"
            )
        shape = (tensor.shape[0], *(extent_of(run) for run in runs[1:]))
        order = [axes.index(axis) for axis in wanted]
        key = (tensor, tuple(axis.extent for axis in axes), tuple(order), shape)
        if key not in self._arranged:
            self._arranged[key] = self._move(value, runs, shape[1:])
        return self._arranged[key]

    def _move(self, value: Value, runs: tuple[Run, ...], shape: tuple[int, ...]) -> Tensor:
        tensor: Tensor = value.source
        wanted = [axis for run in runs for axis in run]
        if wanted == value.axes:
            return self.reshape(tensor, shape)
        tensor = self.real(tensor)
        before, after = value.stored[1:], runs[1:]
        blocks = blocks_of(before, after)
        numbers = {block[0]: i for i, block in enumerate(blocks)}
        order = tuple(numbers[axis] for run in after for axis in run if axis in numbers)
        one_each = all(before) and all(after) and len(before) == len(after) == len(blocks)
        kind: OperatorType
        if one_each:
            kind = Transpose((0, *(i + 1 for i in order)))
        else:
            kind = Rearrange(tuple(map(extent_of, blocks)), order, shape or (1,))
        name = self._derived(tensor, kind.type)
        return self.model.graph.add(kind, [tensor], name)

    def reshape(self, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
        """A tensor whose samples have another shape; itself if they have it."""
        shape = shape or (1,)
        if tensor.shape[1:] == shape:
            return tensor
        tensor = self.real(tensor)
        kind = Reshape(shape)
        return self.model.graph.add(kind, [tensor], self._derived(tensor, "reshape"))

    def _expanded(self, tensor: Tensor, runs: tuple[Run, ...]) -> Tensor:
        """With the elements that repeated axes show again and again."""
        cut: list[list[Axis]] = []
        for run in runs[1:]:
            for i, axis in enumerate(run):
                if i and axis.repeated == run[i - 1].repeated:
                    cut[-1].append(axis)
                else:
                    cut.append([axis])
            if not run:
                cut.append([])
        if len(cut) >= MAX_RANK:
            cut = [c for c in cut if c]
        whole = tuple(extent_of(c) for c in cut)
        ones = tuple(1 if c and c[0].repeated else extent_of(c) for c in cut)
        if len(whole) >= MAX_RANK:
            raise Unsupported(f"it repeats elements along {len(whole) + 1} dimensions")
        tensor = self.reshape(self.real(tensor), ones)
        tensor = self.model.expand(tensor, whole, name=self._derived(tensor, "expand"))
        return self.reshape(tensor, tuple(extent_of(run) for run in runs[1:]))

    def with_samples(self, value: Value, shape: tuple[int, ...]) -> Value:
        """Stored for every sample, also where all of them have the same, as expanded parameters."""
        value = self.in_graph(explicit(value, shape))
        shared = [a for run in value.seen for a in run if a.extent == SAMPLES and a.repeated]
        if len(shared) != 1 or value.stored[0]:
            return value
        own = Axis(SAMPLES)
        seen = (tuple(own if a is shared[0] else a for a in run) for run in value.seen)
        tensor = self.over_samples(value.source)
        return Value(tensor, ((own,), *value.stored[1:]), tuple(seen))

    def over_samples(self, tensor: Tensor) -> Tensor:
        """A tensor with as many samples as the batch."""
        if tensor.shape[0] == self.model.batch_size:
            return tensor
        tensor = self.real(tensor)
        name = self._derived(tensor, "expand")
        return self.model.expand(tensor, tensor.shape[1:], name=name)

    def _derived(self, tensor: Tensor, what: str) -> str:
        base = tensor.producer.name if tensor.producer is not None else tensor.name
        return self.unique(f"{base}.{what}")

    # Sources

    def _brought_in(self, value: Value, runs: tuple[Run, ...]) -> Tensor:
        node: Node = value.source
        stored = tuple(tuple(a for a in run if not a.repeated) for run in runs)
        if node.op == "constant" and isinstance(node.value, Later):
            tensor = self._unknown(value, stored)
        elif node.op == "constant":
            array = self.constant(value, stored)
            key = (array.tobytes(), array.dtype.str, array.shape)
            if key not in self._arranged:
                name = self.unique(f"{node.path}.constant".lstrip("."))
                self._arranged[key] = self.model.constant(array, name=name)
            tensor = self._arranged[key]
        elif len(self.users[node]) > 1 or node in self._sources:
            tensor = self._moved(self._parameter(value), stored)
        else:
            tensor = self._trained(value, stored)
        return tensor if stored == runs else self._expanded(tensor, runs)

    def _unknown(self, value: Value, runs: tuple[Run, ...]) -> Tensor:
        """A constant without values, in an order of its axes."""
        node: Node = value.source
        values, layout = self.weight(node, runs[1:] or ((),), value)
        key = (node, layout)
        if key not in self._arranged:
            name = self.unique(f"{node.path}.constant".lstrip("."))
            dtype: DataType = "int32" if node.type.dtype.startswith(("int", "uint")) else "float32"
            first = values.for_one_sample()
            self._arranged[key] = self.model.graph.add_weight(
                name, (1, *layout.shape), first, dtype, trainable=False
            )
        return self._arranged[key]

    def _trained(self, value: Value, runs: tuple[Run, ...]) -> Tensor:
        """A parameter as a tensor, in an order of its axes."""
        node: Node = value.source
        given, layout = self.weight(node, runs[1:] or ((),), value)
        trainable = node.trainable and node.op == "parameter"
        # Called as in the module only where its elements lie as there, so that a file by names is
        # never read in another order than it was written in.
        in_order = layout.order == tuple(sorted(layout.order)) and node.rows is None
        name = self.unique(node.name if in_order else f"{node.name}.{_REORDERED}")
        tensor = self.model.parameter(layout.shape, given, name, trainable)
        if in_order:  # who reads another view of the parameter begins with the same tensor
            self._sources[node] = tensor
        self.own(node, replace(layout, shape=tensor.shape), tensor)  # which begins with 1
        return tensor

    def _parameter(self, value: Value) -> Value:
        """A parameter that is read several times: brought in once, as it is."""
        node: Node = value.source
        if node not in self._sources:
            whole = plain(node, node.shape)
            runs = self._short(((), *((axis,) for axis in whole.axes)))
            self._sources[node] = self._trained(whole, runs)
        # Cut as the caller has it.
        runs = self._short(((), *((axis,) for axis in value.axes)))
        tensor = self.reshape(self._sources[node], tuple(extent_of(run) for run in runs[1:]))
        return Value(tensor, runs, value.seen)

    @staticmethod
    def _short(runs: Sequence[Run]) -> tuple[Run, ...]:
        """At most as many runs as dimensions are possible."""
        short = list(runs)
        while len(short) > MAX_RANK:
            last = short.pop()
            short[-1] = (*short[-1], *last)
        return tuple(short)

    def constant(self, value: Value, runs: Sequence[Run]) -> Array:
        """A constant's numbers, one dimension for each run but the first, in our element types."""
        node: Node = value.source
        axes = value.axes
        order = [axes.index(axis) for run in runs for axis in run]
        array = known(node).reshape([axis.extent for axis in axes]).transpose(order)
        array = np.ascontiguousarray(array.reshape([extent_of(run) for run in runs[1:]] or [1]))
        kind = np.float32 if array.dtype.kind in "fb" else np.int32
        if kind is np.int32 and array.size and np.abs(array.astype(np.float64)).max() > MOST_EXACT:
            raise Unsupported(f"it reads whole numbers beyond {MOST_EXACT}")
        limit = np.finfo(np.float32).max
        if kind is np.float32:  # numbers that are too large for it stay finite
            array = np.where(np.isinf(array), array, np.clip(array, -limit, limit))
        return array.astype(kind)

    # Views

    def reshaped(self, value: Value, shape: tuple[int, ...]) -> Value:
        """Seen in another shape; elements are moved where axes alone cannot say it."""
        result = reshaped(value, shape)
        if result is not None:
            return result
        value = self.in_order(value)
        return Value(value.source, *self._regrouped(shape))

    def in_order(self, value: Value) -> Value:
        """Stored as it is seen, the samples first."""
        seen = [axis for run in value.seen for axis in run]
        samples = tuple(a for a in seen if a.extent == SAMPLES)
        if seen[: len(samples)] != list(samples):
            raise Unsupported("it joins samples with what stands before them")
        others = [tuple(a for a in run if a.extent != SAMPLES) for run in value.seen]
        runs = self._short((samples, *(run for run in others if run)))
        return self.stored_as(value, runs)

    def stored_as(self, value: Value, runs: Sequence[Run]) -> Value:
        """The same elements, stored in an arrangement; repeated ones are there, then."""
        tensor = self.arranged(value, runs)
        new = {a: Axis(a.extent) if a.repeated else a for run in runs for a in run}
        stored = tuple(tuple(new[a] for a in run) for run in runs)
        seen = tuple(tuple(new.get(a, a) for a in run) for run in value.seen)
        return Value(tensor, stored, seen)

    def fused(self, value: Value, d: int) -> Value:
        """With a single axis, stored as one, for a dimension that is seen."""
        run = value.seen[d]
        if len(run) < 2 and not any(axis.repeated for axis in run):
            return value
        if any(axis.extent == SAMPLES for axis in run):
            raise Unsupported("samples are merged with positions where they cannot be")
        if not neighbours(value, run):
            first = next((a for a in value.axes if a in run), None)
            others = [r for old in value.stored[1:] if (r := without(old, run, first))]
            place = next((i for i, r in enumerate(others) if first in r), len(others))
            if first is not None:
                at = others[place].index(first)
                before, after = others[place][:at], others[place][at + 1 :]
                others[place : place + 1] = [r for r in (before, run, after) if r]
            else:
                others.append(run)
            samples = value.stored[0] if isinstance(value.source, Tensor) else ()
            others = joined(others, value.seen)  # as they are moved anyway
            value = self.stored_as(value, self._short((samples, *others)))
            run = value.seen[d]
        new = (Axis(extent_of(run)),)
        stored = tuple(replaced(old, run, new) for old in value.stored)
        return Value(value.source, stored, (*value.seen[:d], new, *value.seen[d + 1 :]))

    @staticmethod
    def _regrouped(shape: tuple[int, ...]) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
        """How what is stored in order is stored and seen in another shape."""
        if shape[0] % SAMPLES:
            raise Unsupported("it cuts or joins samples")
        leading = shape[0] // SAMPLES
        if leading != 1:
            raise Unsupported("it joins samples with positions that cannot be told apart again")
        seen = runs_of(shape)
        flat = tuple(axis for run in seen[1:] for axis in run)
        return (seen[0], flat), seen


def first_values(node: Node, layout: Layout) -> Given:
    """What a weight begins with that holds a parameter, buffer or constant: read when needed."""

    def arranged(array: Array) -> Array:
        return layout.of(np.asarray(array, np.float32))

    if isinstance(node.value, Later):
        return Given(node.value.then(layout.shape, arranged))
    assert node.value is not None
    return Given(arranged(node.value))


_KINDS = {"scaled_dot_product_attention": "attention"}
_WHOLE_MODULES = ("rms_norm",)  # patterns that are all that a module of any class computes

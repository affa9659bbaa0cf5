"""The operator graph G (FlexFlow, section 3.1): operators, joined by tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING

from flexlegion.base.errors import UserError
from flexlegion.base.quoting import printable
from flexlegion.graph.initializers import Given, Initializer
from flexlegion.graph.operator_type import (
    MAX_SPACE,
    PARTS,
    Access,
    Dim,
    DimKind,
    OperatorType,
    WeightSpec,
)
from flexlegion.graph.tensor import (
    INPUT_TYPES,
    MAX_ELEMENTS,
    MAX_ELEMENTS_OF_ALL,
    DataType,
    GlobalTensor,
    Shape,
    Tensor,
    TensorRole,
)

if TYPE_CHECKING:
    from flexlegion.graph.signatures import Placed

# Far more than networks have that are drawn layer by layer; unrolled ones have a few thousand.
MAX_OPERATORS = 50_000


@dataclass(eq=False)
class Operator:
    """A node of the graph: an operator type applied to tensors.

    Parameters
    ----------
    name
        Unique in its graph.
    kind
        Type and attributes.
    inputs, weights, outputs
        Its tensors. The first output is the primary one: its dimensions are the parallelizable
        ones. Weights may be another operator's, too.
    signatures
        Of those inputs, by number, of which `Tensor.to_global` said how they are to be read.
    """

    name: str
    kind: OperatorType
    inputs: list[Tensor]
    weights: list[Tensor]
    outputs: list[Tensor]
    signatures: dict[int, Placed] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Once, as an operator has parts because one before it may have partial values, and so on.
        self._parts = self._has_parts()
        self._dims: dict[bool, tuple[Dim, ...]] = {}  # by whether it looks rows up

    @property
    def output(self) -> Tensor:
        """The primary output."""
        return self.outputs[0]

    @property
    def trained_weights(self) -> list[Tensor]:
        """Those that training updates."""
        return [weight for weight in self.weights if weight.requires_gradient]

    @property
    def input_shapes(self) -> list[Shape]:
        """Shapes of the inputs."""
        return [tensor.shape for tensor in self.inputs]

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The parallelizable dimensions, one entry a dimension of its space.

        What looks rows up runs where the table's columns and rows live, so that what moves is the
        rows that were looked up, and their gradients: it can be split by these alone.
        """
        # Asked for all the time, and nothing but the use of a table can change them.
        looks_up = self.looks_up
        if looks_up not in self._dims:
            self._dims[looks_up] = self._find_dims(looks_up)
        return self._dims[looks_up]

    def _find_dims(self, looks_up: bool) -> tuple[Dim, ...]:
        dims = self.kind.dims(self.input_shapes)
        if self._parts:
            return (*dims, PARTS)
        if not looks_up:
            return dims
        accesses = self.kind.weight_access(self.input_shapes)
        its = {axis.out_dim for access in accesses if access.looks_up for axis in access.map}
        return tuple(
            dim if d in its else Dim(dim.name, DimKind.NONE, dim.extent)
            for d, dim in enumerate(dims)
        )

    @property
    def space(self) -> tuple[int, ...]:
        """Extents of the dimensions of which its tasks are tiles.

        Those of the primary output, then those that it reduces.
        """
        shape = self.output.shape
        return (*shape, *(dim.extent for dim in self.dims[len(shape) :]))

    @property
    def looks_up(self) -> bool:
        """Whether it reads rows of a table that is used in no other way."""
        return any(weight.table for weight in self.weights)

    @property
    def operands(self) -> list[tuple[TensorRole, Tensor, Access]]:
        """Role, tensor and access of every operand: inputs, weights, outputs."""
        shapes = self.input_shapes
        inputs = self.kind.input_access(shapes)
        weights = self.kind.weight_access(shapes)
        outputs = self.kind.output_access(shapes)
        operands: list[tuple[TensorRole, Tensor, Access]] = [
            *(("input", t, a) for t, a in zip(self.inputs, inputs, strict=True)),
            *(("weight", t, a) for t, a in zip(self.weights, weights, strict=True)),
            *(("output", t, a) for t, a in zip(self.outputs, outputs, strict=True)),
        ]
        if not self._parts:
            return operands
        return [(role, t, self._in_parts(t, access)) for role, t, access in operands]

    def without_parts(self, degrees: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """Degrees of its tiles alone, and how many parts each has that share out partial values.

        A part computes as much as the whole tile, from some of the partial values.
        """
        return (degrees[:-1], degrees[-1]) if self._parts else (degrees, 1)

    def may_be_partial(self, tensor: Tensor) -> bool:
        """Whether it may compute partial values of an output, of which that is the sum."""
        splits = (DimKind.REDUCTION, DimKind.PART)
        accesses = self.kind.output_access(self.input_shapes)
        return any(dim.kind in splits for dim in self.dims) and any(
            access.combine == "sum"
            for its, access in zip(self.outputs, accesses, strict=True)
            if its is tensor
        )

    def _has_parts(self) -> bool:
        shapes = self.input_shapes
        return len(self.kind.dims(shapes)) < MAX_SPACE and any(
            access.linear and tensor.producer is not None and tensor.producer.may_be_partial(tensor)
            for tensor, access in zip(self.inputs, self.kind.input_access(shapes), strict=True)
        )

    def _in_parts(self, tensor: Tensor, access: Access) -> Access:
        """How an operand is used where partial values of inputs can be shared out."""
        part = len(self.dims) - 1
        if access.linear and tensor.kind != "weight":
            return replace(access, part=part)
        if access.once or access.linear:  # a term, of which there is one
            return replace(access, once=(*access.once, part), linear=False)
        return access


@dataclass
class Graph:
    """Operators in topological order (the order in which they were added), and their tensors.

    If it is the graph of one of several micro-batches, an iteration plays it so many times.
    """

    tensors: list[Tensor] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    micro_batches: int = 1

    def __post_init__(self) -> None:
        # What the lists hold, for look-ups in unrolled networks of many hundred operators.
        self._members = set(self.tensors)
        self._used = {tensor for op in self.operators for tensor in (*op.inputs, *op.weights)}
        self._elements = 0
        for tensor in self.tensors:
            self._count(tensor)
        self._names = {op.name for op in self.operators} | {tensor.name for tensor in self.sources}

    def add_input(
        self, name: str, shape: Shape, dtype: DataType, requires_gradient: bool = False
    ) -> Tensor:
        """Add a tensor that the user's data fill."""
        self._check_new(name)
        if dtype not in INPUT_TYPES:
            choices = " or ".join(INPUT_TYPES)
            raise UserError(f"input '{name}' has type {dtype}, but only {choices} are possible")
        tensor = Tensor(name, shape, dtype, "input", requires_gradient=requires_gradient)
        self._include(name, [tensor])
        return tensor

    def add(
        self,
        kind: OperatorType,
        inputs: Sequence[Tensor],
        name: str,
        share: Operator | Tensor | Sequence[Tensor | None] | None = None,
        trainable: bool = True,
    ) -> Tensor:
        """`apply`, for operators of one output.

        Returns
        -------
        Tensor
            Its primary output.
        """
        return self.apply(kind, inputs, name, share, trainable).output

    def apply(
        self,
        kind: OperatorType,
        inputs: Sequence[Tensor],
        name: str,
        share: Operator | Tensor | Sequence[Tensor | None] | None = None,
        trainable: bool | Sequence[bool] = True,
    ) -> Operator:
        """Apply an operator to tensors of this graph.

        Parameters
        ----------
        kind
            Type and attributes.
        inputs
            In the type's order.
        name
            Not taken by an operator or an input.
        share
            An operator of this graph, or an output of one, whose weights this one uses as well,
            instead of having its own: of the same shapes, in the same order. Or, for each weight,
            one of this graph; None where the operator has its own.
        trainable
            False freezes the operator's own weights: they become constants. Or one for each weight.

        Returns
        -------
        Operator
            The new node, with its outputs.

        Raises
        ------
        UserError
            If the inputs or the shared weights do not fit the operator, or the name is taken.
        """
        self._check_new(name)
        signatures = {i: x.placed for i, x in enumerate(inputs) if isinstance(x, GlobalTensor)}
        inputs = [tensor.plain for tensor in inputs]
        for tensor in inputs:
            if tensor not in self._members:
                raise UserError(f"operator '{name}': input {tensor!r} belongs to another model")
        shapes = [tensor.shape for tensor in inputs]
        for tensor, expected in zip(inputs, kind.input_dtypes(shapes), strict=True):
            if tensor.dtype != expected:
                raise UserError(
                    f"operator '{name}' takes {expected} values, but {tensor.name} has "
                    f"{tensor.dtype}"
                )
        try:
            output_shapes = kind.output_shapes(shapes)
        except UserError as e:
            raise UserError(f"operator '{name}': {e}") from None
        weights = self._weights(kind.weights(shapes), name, share, trainable)
        accesses = (*kind.input_access(shapes), *kind.weight_access(shapes))
        for tensor, access in zip((*inputs, *weights), accesses, strict=True):
            tensor.table = access.looks_up and (tensor.table or tensor not in self._used)
            self._used.add(tensor)
        # Layers and cost models ask before there is a whole graph that native code could be asked
        # about. That finds the same, or no plan is made (`flexlegion.plan.native_graph.facts_of`).
        gradient = any(tensor.requires_gradient for tensor in (*inputs, *weights))
        outputs = [
            Tensor(
                f"{name}.{output}",
                shape,
                kind.output_dtype(),
                requires_gradient=gradient and output not in kind.detached_outputs,
                detached=output in kind.detached_outputs,
            )
            for output, shape in zip(kind.output_names, output_shapes, strict=True)
        ]
        operator = Operator(name, kind, inputs, weights, outputs, signatures)
        for tensor in outputs:
            tensor.producer = operator
        self._include(name, [*(w for w in weights if w not in self._members), *outputs])
        if len(self.operators) == MAX_OPERATORS:
            # Before hours and all memory went into a model that was not meant.
            raise UserError(
                f"the model has more than {MAX_OPERATORS:,} operators, the most that there may be; "
                "choose smaller sizes, as of steps or layers"
            )
        self.operators.append(operator)
        return operator

    def add_weight(
        self,
        name: str,
        shape: Shape,
        initializer: Initializer,
        dtype: DataType = "float32",
        trainable: bool = True,
    ) -> Tensor:
        """Add a weight that is no operator's own: operators read it among their inputs.

        Parameters
        ----------
        name
            Not taken by an operator, an input or such a weight.
        shape
            With a first extent of 1, where operators have samples.
        initializer
            Its first values.
        dtype
            Of one that is trained, float32.
        trainable
            False makes it a constant.

        Returns
        -------
        Tensor
            The weight.

        Raises
        ------
        UserError
            If the name is taken, or the initial values do not fit.
        """
        self._check_new(name)
        if isinstance(initializer, Given):
            initializer.check(shape, name)
        weight = Tensor(name, shape, dtype, "weight", None, trainable, initializer)
        self._include(name, [weight])
        return weight

    def copy(self) -> Graph:
        """A graph of the same nodes that can be extended without changing this one."""
        return replace(self, tensors=list(self.tensors), operators=list(self.operators))

    @property
    def inputs(self) -> list[Tensor]:
        """Tensors that the user's data fill."""
        return [tensor for tensor in self.tensors if tensor.kind == "input"]

    @property
    def sources(self) -> list[Tensor]:
        """Tensors that no operator has or computes: inputs, and weights that operators share."""
        own = {weight for op in self.operators for weight in op.weights}
        return [t for t in self.tensors if t.producer is None and t not in own]

    @property
    def weights(self) -> list[Tensor]:
        """Weights, each once: trained ones, operators' states, and constants."""
        return [tensor for tensor in self.tensors if tensor.kind == "weight"]

    @property
    def trained_weights(self) -> list[Tensor]:
        """Those that training updates."""
        return [tensor for tensor in self.weights if tensor.requires_gradient]

    def __contains__(self, tensor: Tensor) -> bool:
        """Whether it is a tensor of this graph."""
        return tensor in self._members

    def has(self, name: str) -> bool:
        """Whether an operator or an input has that name."""
        return name in self._names

    def _weights(
        self,
        specs: Sequence[WeightSpec],
        name: str,
        share: Operator | Tensor | Sequence[Tensor | None] | None,
        trainable: bool | Sequence[bool],
    ) -> list[Tensor]:
        if isinstance(trainable, bool):
            trainable = [trainable] * len(specs)
        if share is None:
            share = [None] * len(specs)
        shared = share if isinstance(share, Sequence) else self._weights_of(share, name)
        wanted = [w.shape for w in specs]
        there = [wanted[i] if w is None else w.shape for i, w in enumerate(shared)]
        if wanted != there:
            of = f" of '{owner.name}'" if (owner := _owner(share)) is not None else ""
            raise UserError(
                f"operator '{name}' cannot share the weights{of}: it needs shapes "
                f"{_shapes(wanted)}, but they are {_shapes(there)}"
            )
        for own, trained in zip(shared, trainable, strict=True):
            if own is None:
                continue
            if not trained and own.requires_gradient:
                of = f" of '{owner.name}'" if (owner := _owner(share)) is not None else ""
                raise UserError(
                    f"operator '{name}' cannot freeze the weights{of}, which that one trains"
                )
        return [
            own if own is not None else _weight(spec, name, trained)
            for spec, own, trained in zip(specs, shared, trainable, strict=True)
        ]

    def _weights_of(self, share: Operator | Tensor, name: str) -> Sequence[Tensor]:
        owner = _owner(share)
        if owner is None:
            raise UserError(
                f"operator '{name}' can share the weights of an operator, but {share!r} is no "
                "operator's output"
            )
        if owner.output not in self._members:
            raise UserError(f"operator '{name}': operator '{owner.name}' belongs to another model")
        return owner.weights

    def _include(self, name: str, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            self._count(tensor)
        self.tensors += tensors
        self._members.update(tensors)
        self._names.add(name)

    def _count(self, tensor: Tensor) -> None:
        """Raise `UserError` if a tensor, or all together, are larger than can be counted."""
        elements = prod(tensor.shape)
        self._elements += elements
        right = "choose a smaller batch, or smaller sizes"
        if elements > MAX_ELEMENTS:
            shape = "x".join(map(str, tensor.shape))
            raise UserError(
                f"tensor '{tensor.name}' of {shape} has more than {MAX_ELEMENTS:,} elements, the "
                f"most that a tensor may have; {right}"
            )
        if self._elements > MAX_ELEMENTS_OF_ALL:
            raise UserError(
                f"the model's tensors have more than {MAX_ELEMENTS_OF_ALL:,} elements, the most "
                f"that they may have together; {right}"
            )

    def _check_new(self, name: str) -> None:
        if not name.isprintable():
            raise UserError(
                f"the name '{printable(name)}' has characters that cannot be printed, such as line "
                "ends; choose another"
            )
        if self.has(name):
            raise UserError(f"the name '{name}' is taken; names have to be unique in a model")


def layer_of(tensor: Tensor) -> Operator | None:
    """The operator that computes a tensor; of an activation that a layer brings along, that layer.

    Such an activation is called after the layer, as ``scores.softmax`` is, and reads its first
    output: what else a layer computes, as an LSTM's last state, has none.
    """
    producer = tensor.producer
    if producer is None or producer.weights or not producer.inputs:
        return producer
    before = producer.inputs[0].producer
    if before is None or producer.inputs[0] is not before.output:
        return producer
    layer, _, activation = producer.name.rpartition(".")
    return before if activation and before.name == layer else producer


def _owner(share: Operator | Tensor | Sequence[Tensor | None] | None) -> Operator | None:
    if isinstance(share, Tensor):
        return layer_of(share)
    return share if isinstance(share, Operator) else None


def _weight(spec: WeightSpec, name: str, trainable: bool) -> Tensor:
    """An operator's own weight."""
    if isinstance(spec.initializer, Given):
        spec.initializer.check(spec.shape, f"{name}.{spec.name}")
    return Tensor(
        f"{name}.{spec.name}",
        spec.shape,
        "float32",
        "weight",
        None,
        spec.use == "trained" and trainable,
        spec.initializer,
        state=spec.use == "state",
    )


def _shapes(shapes: Sequence[Shape]) -> str:
    return ", ".join(str(list(shape)) for shape in shapes) or "none"

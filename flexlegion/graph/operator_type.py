"""What an operator type states, once: shapes, SOAP dimensions, and access maps.

Everything else is derived from these statements: the tasks, what they read and write, transfers,
partitions, and which gradients are partial sums (``native/plan``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import ClassVar, Literal

from flexlegion.base.errors import UserError
from flexlegion.graph.initializers import Initializer
from flexlegion.graph.tensor import DataType, Shape


class DimKind(Enum):
    """The SOAP kind of a dimension of an operator's space (FlexFlow, section 4).

    Splitting a parameter dimension splits a weight; splitting an attribute dimension does not.
    A dimension of kind `NONE` cannot be split: the paper's "divisible dimensions" leave it out.
    (Operator parallelism, the O, is the freedom to place different operators on different devices.)

    A `REDUCTION` is a dimension that the outputs do not have, as the inner one of a matrix product:
    its parts compute partial values of the outputs (OneFlow's P, section 3.1), which are combined.
    A `PART` is one that no operand has. Its parts share out the partial values of the inputs in
    which the operator is linear, and compute partial values of the outputs from them: P -> P.
    """

    SAMPLE = "sample"
    ATTRIBUTE = "attribute"
    PARAMETER = "parameter"
    REDUCTION = "reduction"
    PART = "part"
    NONE = "none"


@dataclass(frozen=True)
class Dim:
    """A parallelizable dimension of an operator's space: of its output, or one that it reduces.

    Parameters
    ----------
    name
        For people, and for strategies in files; unique in its operator.
    kind
        What splitting it splits.
    extent
        Of a dimension that the output does not have, its extent in elements.
    """

    name: str
    kind: DimKind
    extent: int = 0


SAMPLE = Dim("sample", DimKind.SAMPLE)
MAX_PARTS = 1 << 16  # as many as an operator may have tasks, kMaxTasks in native/plan/graph.h
PARTS = Dim("part", DimKind.PART, MAX_PARTS)
MAX_SPACE = 6  # dimensions of an operator's space, as in native/support/rect.h

# What a cost model may assume of an operator type: operators of a family are limited by the same
# resource of a device.
Family = Literal[
    "convolution",
    "matmul",
    "normalization",
    "pooling",
    "elementwise",
    "embedding",
    "copy",
    "loss",
]


# What an operator makes of an input's values: of a number, whole numbers from 0 that stay below it.
Values = int | Literal["any", "one-hot"]


@dataclass(frozen=True)
class DimMap:
    """Which range of one operand dimension a tile of the operator's space needs.

    The range ``[lo, hi)`` of the space's dimension `out_dim` needs
    ``[floor(lo*num/den) + lo_offset, ceil(hi*num/den) + hi_offset)``, clamped to the operand;
    `out_dim` -1 needs it whole. Of that range, the values of input `named_by` name the elements
    that a task touches; if that is -1, it touches all of them. A `prefix` begins at 0, wherever the
    tile does.
    """

    out_dim: int = -1
    num: int = 1
    den: int = 1
    lo_offset: int = 0
    hi_offset: int = 0
    named_by: int = -1
    prefix: bool = False

    @property
    def is_along(self) -> bool:
        """Whether the range is the tile's."""
        return self.out_dim >= 0 and replace(self, named_by=-1) == DimMap(self.out_dim)


WHOLE = DimMap()


def along(out_dim: int) -> DimMap:
    """The same range as the tile's."""
    return DimMap(out_dim)


def window(out_dim: int, kernel: int, stride: int, padding: int) -> DimMap:
    """The range that sliding windows cover; neighbouring tiles overlap in a halo."""
    return DimMap(out_dim, stride, 1, -padding, kernel - stride - padding)


def spread(out_dim: int, kernel: int, stride: int, padding: int) -> DimMap:
    """What a transposed convolution reads: the elements whose `kernel` outputs meet the range.

    Element i writes ``[i*stride - padding, i*stride - padding + kernel)``. Where `padding` is no
    multiple of `stride`, the range may have an element too many at either end.
    """
    return DimMap(out_dim, 1, stride, (padding - kernel) // stride + 1, -(-padding // stride))


def shifted(out_dim: int, by: int) -> DimMap:
    """The output's range, moved up by `by`."""
    return DimMap(out_dim, lo_offset=by, hi_offset=by)


def divided(out_dim: int, by: int) -> DimMap:
    """The range of blocks of `by` output elements that a range of elements touches."""
    return DimMap(out_dim, 1, by)


def prefix(out_dim: int) -> DimMap:
    """All that stands before the tile's end: ``[0, hi)``, as causal attention reads keys."""
    return DimMap(out_dim, prefix=True)


def rows_named_by(index: int, out_dim: int = -1) -> DimMap:
    """Of a weight (row, column), the rows that the whole numbers in an input name.

    Parameters
    ----------
    index
        Which input.
    out_dim
        A dimension that is reduced: of all rows, each of its parts has a range. -1: none.
    """
    return DimMap(out_dim, named_by=index)


WeightUse = Literal["trained", "state", "constant"]

# How the partial values of an output become its value.
Combine = Literal["sum", "max", "log_sum_exp"]

AccessMap = tuple[DimMap, ...]


def identity(rank: int) -> AccessMap:
    """Element-wise access."""
    return tuple(along(d) for d in range(rank))


@dataclass(frozen=True)
class Access:
    """How an operator uses one operand.

    Parameters
    ----------
    map
        One entry a dimension of the operand.
    saved
        Whether the backward pass reads the operand's value.
    once
        Dimensions of the space: of the parts in these, the first alone touches the operand. So a
        bias is added to one of the partial values.
    combine
        Of an output: how its partial values become its value.
    linear
        Of an input that is computed: whether the outputs are linear in it. So of a sum, they can be
        computed term by term, and the results added. Operands that are not linear multiply it, or
        if they are touched `once`, are terms of their own. One factor of a product can be linear.
    part
        Of a linear input: the dimension of the space whose parts share out its partial values. The
        graph says it, where the operator that computes the input may have some.
    """

    map: AccessMap
    saved: bool = False
    once: tuple[int, ...] = ()
    combine: Combine = "sum"
    linear: bool = False
    part: int = -1

    @property
    def looks_up(self) -> bool:
        """Whether the values of an input name the rows that are read."""
        return any(axis.named_by >= 0 for axis in self.map)


@dataclass(frozen=True)
class WeightSpec:
    """A weight that an operator asks for.

    What becomes of it is its `use`. One that is "trained" has a gradient, by which it is updated.
    The "state" of an operator is read and written by its forward pass: it is its own, and no two
    tasks may touch the same part of it. A "constant" is read by whoever wants to, and nothing
    changes it.
    """

    name: str
    shape: Shape
    initializer: Initializer
    use: WeightUse = "trained"


@dataclass(frozen=True)
class OperatorType(ABC):
    """The attributes of an operator and what follows from them.

    Subclasses are frozen dataclasses; their fields are the attributes that the kernel of the same
    `type` receives. All shapes include the sample dimension, which comes first; in an output that
    sums up the batch its extent is 1 and its kind `NONE`.

    Most types have one output and state it by `output_shape` and `output_saved`. A type of several
    outputs names them in `output_names`, and overrides `output_shapes` and `output_access`. The
    first output is the primary one: its dimensions are the parallelizable ones, its tiles the
    tasks.
    """

    type: ClassVar[str]
    family: ClassVar[Family]
    is_loss: ClassVar[bool] = False
    part_of_loss: ClassVar[bool] = False  # a loss, or what one is made of; no layer is
    output_names: ClassVar[tuple[str, ...]] = ("output",)
    detached_outputs: ClassVar[tuple[str, ...]] = ()  # through which no gradient passes
    # Statistics and counts, which stay single precision whatever activations are stored as.
    float32_outputs: ClassVar[tuple[str, ...]] = ()
    # Whether its weights that are matrices are stored as activations are, beside their masters.
    rounds_weights: ClassVar[bool] = False
    assumption: ClassVar[str] = ""  # what simulated costs take for granted of the data

    @abstractmethod
    def output_shape(self, inputs: Sequence[Shape]) -> Shape:
        """Shape of the primary output; raises `UserError` for inputs that do not fit."""

    def output_shapes(self, inputs: Sequence[Shape]) -> Sequence[Shape]:
        """Shape of every output, the primary one first."""
        return (self.output_shape(inputs),)

    def input_dtypes(self, inputs: Sequence[Shape]) -> Sequence[DataType]:
        """Element type of each input."""
        return ["float32"] * len(inputs)

    def input_values(self, inputs: Sequence[Shape]) -> Sequence[Values]:
        """Which values each input may have, for data that are made up."""
        return ["any"] * len(inputs)

    def output_dtype(self) -> DataType:
        """Element type of the outputs."""
        return "float32"

    def weights(self, inputs: Sequence[Shape]) -> Sequence[WeightSpec]:
        """Weights that the operator trains."""
        return ()

    @abstractmethod
    def dims(self, inputs: Sequence[Shape]) -> tuple[Dim, ...]:
        """One entry a dimension of the space: of the primary output, then what is reduced."""

    @abstractmethod
    def input_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        """One entry an input."""

    def weight_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        """One entry a weight."""
        return ()

    def output_access(self, inputs: Sequence[Shape]) -> Sequence[Access]:
        """One entry an output, in terms of the primary output's dimensions.

        The primary output's is the identity. Together, the tasks write each element of every output
        once: a map that leaves out a dimension goes with a primary dimension that cannot be split.
        """
        return (Access(identity(len(self.output_shape(inputs))), saved=self.output_saved()),)

    def output_saved(self) -> bool:
        """Whether the backward pass reads the primary output's value."""
        return False

    @abstractmethod
    def flops(self, inputs: Sequence[Shape]) -> int:
        """Floating-point operations of a forward pass over the whole output.

        A multiply-add counts two; exponentials and the like count one.
        """

    def backward_flops(self, inputs: Sequence[Shape]) -> int:
        """Floating-point operations of a backward pass over the whole output.

        Convolutions and matrix products have two products for the forward pass's one: for the
        gradient of the input, and of the weight (or of the other factor). Others do about the same
        work again.
        """
        products = self.family in ("convolution", "matmul")
        return (2 if products else 1) * self.flops(inputs)

    def measured_share(self, inputs: Sequence[Shape]) -> float:
        """Of a time measured with made-up inputs, the part that real ones are taken to need."""
        return 1.0

    def draws(self) -> bool:
        """Whether it draws random numbers in training."""
        return False

    def of_samples(self, samples: int) -> OperatorType:
        """The same for a batch of so many samples, where an attribute says how many there are."""
        del samples
        return self

    def attributes(self) -> dict[str, str]:
        """Attributes as the kernel receives them: texts, flags as 0 and 1, lists with commas."""
        result = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Initializer):
                continue
            if isinstance(value, tuple):
                result[field.name] = ",".join(map(str, value))
            else:
                result[field.name] = str(int(value)) if isinstance(value, bool) else str(value)
        return result


def require_rank(name: str, shape: Shape, rank: int, layout: str) -> None:
    """Raise `UserError` unless `shape` has `rank` dimensions."""
    if len(shape) != rank:
        raise UserError(
            f"{name} takes an input of {rank} dimensions {layout}, but got shape {list(shape)}"
        )


def reduced_dim(name: str, extent: int, split: bool = True) -> Dim:
    """A dimension that the outputs do not have; one that cannot be split unless `split`."""
    return Dim(name, DimKind.REDUCTION if split else DimKind.NONE, extent)


def outer_dims(rank: int) -> tuple[Dim, ...]:
    """Sample, then attribute dimensions, as element-wise operators split."""
    names = {2: ["channel"], 3: ["length", "channel"], 4: ["height", "width", "channel"]}
    rest = names.get(rank) or [f"dim{d}" for d in range(1, rank)]
    return (SAMPLE, *(Dim(name, DimKind.ATTRIBUTE) for name in rest))

"""Tensors: the edges of the operator graph."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, NoReturn

from flexlegion.base.errors import CallError
from flexlegion.graph.signatures import AnySignature, Mesh, Placed, signature

if TYPE_CHECKING:
    from flexlegion.graph.graph import Operator
    from flexlegion.graph.initializers import Initializer

Shape = tuple[int, ...]
DataType = Literal["float32", "int32", "bfloat16", "float16"]
INPUT_TYPES: tuple[DataType, ...] = ("float32", "int32")  # of what users' data fill
ELEMENT_BYTES: dict[DataType, int] = {"float32": 4, "int32": 4, "bfloat16": 2, "float16": 2}
NARROW: tuple[DataType, ...] = ("bfloat16", "float16")  # real numbers of two bytes
STATE_BYTES = 4  # of an element of an optimizer's state
TensorKind = Literal["input", "weight", "activation"]
TensorRole = Literal["input", "weight", "output"]  # for an operator

MAX_RANK = 5  # as in native/support/rect.h
MAX_EXTENT = 2**31 - 1
MAX_ELEMENTS = 2**40  # 4 TiB; as in native/plan/api.cc
# Of all tensors of a model together, a PiB: for thousands of devices, bytes are counted in 64 bits.
MAX_ELEMENTS_OF_ALL = 2**48


@dataclass(eq=False)
class Tensor:
    """A tensor of the operator graph.

    Parameters
    ----------
    name
        Unique in its graph.
    shape
        All extents. The first dimension of inputs and activations is the sample, its extent the
        global batch size; it is 1 where an operator sums up the batch.
    dtype
        Element type.
    kind
        Whether it comes from the user's data, is kept from iteration to iteration, or is computed.
    producer
        The operator that computes it; none for inputs and weights.
    requires_gradient
        Whether training computes its gradient. Weights do if they are trained; for inputs, whether
        the user asked for it; what an operator computes, if one of its inputs or weights does.
    initializer
        For weights, how their first values are drawn.
    table
        Whether it is a weight of which operators look rows up, by the numbers in an input, and
        which nothing uses otherwise. Such an operator has no backward pass: the update of the table
        reads these numbers and the gradients of what was looked up itself.
    summed
        Whether it is a weight that would be a table, but has a gradient like any weight, which is
        summed up over the batch (`flexlegion.transforms.tables`).
    state
        Whether it is a weight that its operator's forward pass reads and writes: a running average.
    detached
        Whether it is computed, but no gradient passes through it.
    """

    name: str
    shape: Shape
    dtype: DataType = "float32"
    kind: TensorKind = "activation"
    producer: Operator | None = None
    requires_gradient: bool = False
    initializer: Initializer | None = None
    table: bool = False
    summed: bool = False
    state: bool = False
    detached: bool = False

    @property
    def element_bytes(self) -> int:
        """What an element of its value takes."""
        return ELEMENT_BYTES[self.dtype]

    @property
    def gradient_bytes(self) -> int:
        """What an element of its gradient takes: those of weights are summed up, and stay wide."""
        return STATE_BYTES if self.kind == "weight" else self.element_bytes

    @property
    def has_master(self) -> bool:
        """Whether it is a trained weight that is stored narrow.

        Then its value in single precision is kept like a state of the optimizer.
        """
        return self.kind == "weight" and self.requires_gradient and self.dtype in NARROW

    @property
    def host_dtype(self) -> DataType:
        """Its type in arrays of the host, which NumPy knows."""
        return "float32" if self.dtype in NARROW else self.dtype

    @property
    def constant(self) -> bool:
        """Whether it is a weight that nothing changes: frozen, or an array that was given."""
        return self.kind == "weight" and not self.requires_gradient and not self.state

    def to_global(self, placement: Mesh, sbp: AnySignature) -> Tensor:
        """The same tensor, for layers that are to read it on a mesh with an SBP signature.

        It is OneFlow's word (section 3.4) and computes nothing: it is kept with the layers that
        read what is returned, and the strategy "sbp" places and splits these accordingly.

        Parameters
        ----------
        placement
            The devices of the layers that read it.
        sbp
            How it lies on them: `S(dimension)`, `B`, or `P`, one for each axis of the mesh; None
            along an axis of which nothing is said.

        Returns
        -------
        Tensor
            To be given to layers in its place.

        Raises
        ------
        UserError
            If the signature does not fit the mesh or the tensor.

        Examples
        --------
        >>> y = y.to_global(Mesh(["gpu:2", "gpu:3"]), B)
        """
        its = signature(sbp, placement, self.name, self.shape)
        return GlobalTensor(self.plain, Placed(placement, its))

    @property
    def plain(self) -> Tensor:
        """The tensor of the graph, without what `to_global` said of it."""
        return self

    @staticmethod
    def _instead_of(value: object) -> str:
        """What a message says where something else was given for a tensor."""
        if hasattr(value, "__array__") or isinstance(value, int | float):
            return "arrays come with fit(), and model.input() makes the Tensor that stands for them"
        return ""

    def _has_no_values(self, *_: object, **__: object) -> NoReturn:
        raise CallError(
            f"the Tensor '{self.name}' stands for values that are computed later, and only layers "
            "take it: model.add([a, b]), model.multiply([a, 2]), model.take(a, [0], axis=1), ..."
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = _has_no_values
    __truediv__ = __rtruediv__ = __pow__ = __matmul__ = __rmatmul__ = __getitem__ = _has_no_values
    __lt__ = __le__ = __gt__ = __ge__ = _has_no_values
    __float__ = __int__ = __array__ = _has_no_values

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {list(self.shape)}, {self.dtype})"


class GlobalTensor(Tensor):
    """What `Tensor.to_global` returns: a tensor as some of its readers want it, equal to it.

    Parameters
    ----------
    tensor
        Of the graph.
    placed
        The signature that these readers want, and where.
    """

    def __init__(self, tensor: Tensor, placed: Placed) -> None:
        super().__init__(*(getattr(tensor, field.name) for field in fields(Tensor)))
        self._tensor = tensor
        self.placed = placed

    @property
    def plain(self) -> Tensor:
        return self._tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tensor) and other.plain is self._tensor

    def __hash__(self) -> int:
        return hash(self._tensor)

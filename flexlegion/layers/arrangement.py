"""How a tensor of a model has the dimensions of a module's value: the one statement of it.

An imported model's inputs and outputs have the module's own dimensions in the module's order, but
for images, whose channels come last. What takes users' data, what exports programs and what brings
outputs back into the module's order all ask an `Arrangement`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from flexlegion.base.errors import UserError
from flexlegion.graph.tensor import Shape, Tensor
from flexlegion.objective.losses import (
    LABELS_NAME,
    labels_of,
    losses_of,
    output_name,
    weights_of,
)
from flexlegion.ops.losses import CrossEntropy, SoftmaxCrossEntropy

if TYPE_CHECKING:
    from flexlegion.graph.graph import Graph
    from flexlegion.layers.origin import Origin

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Arrangement:
    """Of each dimension of a module's value, which of a tensor's dimensions it is made of.

    Parameters
    ----------
    dims
        One entry for each of the module's dimensions: numbers of the tensor's dimensions, the major
        one first. Images (n, c, h, w), stored as (n, h, w, c), have ((0,), (3,), (1,), (2,)).
        Samples that the module merges with positions, (n t, c), stand apart in the tensor: ((0, 1),
        (2,)). An empty entry is an extent of 1 that the tensor lacks. Dimension 0 of the tensor are
        the samples; it occurs in no entry if the module's value is the same for all samples.
    """

    dims: tuple[tuple[int, ...], ...]

    @classmethod
    def in_order(cls, order: Sequence[int]) -> Arrangement:
        """That of a tensor whose dimension d is the module's dimension order[d]."""
        return cls(tuple((order.index(d),) for d in range(len(order))))

    @property
    def order(self) -> tuple[int, ...]:
        """The module's dimension that each of the tensor's dimensions is.

        Where dimensions are merged or left out, no such order exists: then the tensor's own.
        """
        placed = self._placed
        if any(len(run) != 1 for run in self.dims) or not self.has_samples:
            return tuple(range(max(placed, default=0) + 1))
        return tuple(placed.index(d) for d in range(len(placed)))

    @property
    def has_samples(self) -> bool:
        """Whether the module's value has samples: it is not the same for all of them."""
        return 0 in self._placed

    @property
    def places(self) -> list[int]:
        """The tensor's dimensions in the module's order; one sample's first if it has none."""
        return self._placed if self.has_samples else [0, *self._placed]

    @property
    def is_plain(self) -> bool:
        """Whether tensor and module have the same dimensions in the same order."""
        return self.dims == tuple((d,) for d in range(len(self.dims)))

    def shape(self, tensor: Sequence[int]) -> Shape:
        """The module's shape of what is a tensor of that shape here."""
        return tuple(prod(tensor[d] for d in run) for run in self.dims)

    def without(self, dim: int) -> Arrangement | None:
        """That of a tensor without its last dimension, number `dim`; None if it has none."""
        if (dim,) not in self.dims:
            return None
        return Arrangement(tuple(run for run in self.dims if run != (dim,)))

    def to_module(self, array: Array) -> Array:
        """A tensor's elements as the module has them."""
        if not self.has_samples:
            array = array[:1]
        return array.transpose(self.places).reshape(self.shape(array.shape)).copy()

    def from_module(self, array: Array, tensor: Sequence[int]) -> Array:
        """A module's value of any number of samples as the tensor has it; see `fits`."""
        placed = self._placed
        cut = array.reshape([tensor[d] if d else -1 for d in placed])
        return cut.transpose([placed.index(d) for d in range(len(placed))])

    def fits(self, shape: Sequence[int], tensor: Sequence[int]) -> bool:
        """Whether a value has the module's shape, of any number of samples."""
        if not self.has_samples or len(shape) != len(self.dims):
            return False
        for extent, run in zip(shape, self.dims, strict=True):
            each = prod(tensor[d] for d in run if d)
            if extent % each if 0 in run else extent != each:
                return False
        return True

    def moves(self, tensor: Sequence[int]) -> bool:
        """Whether elements lie in another order than the module's."""
        placed = [d for d in self._placed if d == 0 or tensor[d] > 1]
        return placed != sorted(placed)

    def described(self, tensor: Sequence[int]) -> str:
        """The module's shape for messages: ``[n, 3, 32, 32]``."""
        texts = []
        for run in self.dims:
            each = prod(tensor[d] for d in run if d)
            texts.append(str(each) if 0 not in run else "n" if each == 1 else f"n * {each}")
        return f"[{', '.join(texts)}]"

    @property
    def _placed(self) -> list[int]:
        return [d for run in self.dims for d in run]


@dataclass(frozen=True)
class Form:
    """In which shapes users may give a tensor's data, or get it.

    Parameters
    ----------
    shape
        Of the data, (n, ...). Labels of images are stored as rows, (n, h * w), and given as (n, h,
        w).
    arrangement
        Of what a module has, too: how it is arranged there.
    loose
        Whether data may differ in extents of 1, as labels may. One number a sample always may: (n,)
        or (n, 1).
    """

    shape: Shape
    arrangement: Arrangement | None = None
    loose: bool = False

    def arranged(self, name: str, array: Array) -> Array:
        """Data of any number of samples, of this form's shape.

        They may have that shape, or the module's, or one that differs from these as allowed. Data
        of the form's shape are taken as they are, also where the module's is the same.

        Parameters
        ----------
        name
            Of the input, for messages.
        array
            Of shape (n, ...).

        Raises
        ------
        UserError
            If the shape is another one, or fits in two ways.
        """
        expected, its = self.shape[1:], self.arrangement
        if array.ndim and array.shape[1:] == expected:
            return array
        if its is not None and its.fits(array.shape, self.shape):
            return its.from_module(array, self.shape)
        if array.ndim and (self.loose or not _tight(expected)):
            ours = _tight(array.shape[1:]) == _tight(expected)
            theirs: Array | None = None
            if its is not None and its.dims[:1] == ((0,),) and its.moves(self.shape):
                inner = its.shape(self.shape)[1:]
                if _tight(array.shape[1:]) == _tight(inner):
                    theirs = its.from_module(array.reshape(len(array), *inner), self.shape)
            if ours and theirs is not None:
                raise UserError(
                    f"{name}: data of shape {list(array.shape)} can be read as {self} in two ways; "
                    "give one of these shapes"
                )
            if ours:
                return array.reshape(len(array), *expected)
            if theirs is not None:
                return theirs
        remedy = self._remedy(array.shape)
        raise UserError(f"{name}: got data of shape {list(array.shape)}, expected {self}{remedy}")

    def _remedy(self, shape: Sequence[int]) -> str:
        """What makes data of another shape fit, where that is plain."""
        given, expected = tuple(shape[1:]), self.shape[1:]
        if not given:
            return ""
        if len(expected) == 3 and given == (expected[2], *expected[:2]):
            return "; the channels of images come last, so give x.transpose(0, 2, 3, 1)"
        if self.loose and given[:-1] == expected and given[-1] > 1:
            return (
                "; of one-hot labels give the classes' numbers, y.argmax(-1), or compile with the "
                "loss 'categorical_crossentropy'"
            )
        if shape[0] and given != expected and prod(given) == prod(expected):
            text = ", ".join(map(str, expected))
            return f"; if its elements are in that order, give x.reshape(-1, {text})"
        return ""

    def __str__(self) -> str:
        own = f"[{', '.join(['n', *map(str, self.shape[1:])])}]"
        its = self.arrangement
        if its is None or its.described(self.shape) == own:
            return own
        return f"{own}, or as the module has it, {its.described(self.shape)}"


def _tight(shape: Sequence[int]) -> list[int]:
    return [extent for extent in shape if extent != 1]


def forms_of(origin: Origin | None, graph: Graph, outputs: Sequence[Tensor]) -> dict[Tensor, Form]:
    """The forms of a graph's inputs, its labels, and its outputs.

    Parameters
    ----------
    origin
        Of an imported model; None: it is no module's.
    graph
        With the losses. Labels are arranged as their outputs are; those of classes, as these
        without the last dimension.
    outputs
        Of its tensors, those that prediction returns.
    """
    arrangements = {} if origin is None else origin.arrangements
    forms = {t: Form(t.shape, arrangements.get(t.name)) for t in (*graph.inputs, *outputs)}
    labels, losses = labels_of(graph), losses_of(graph)
    for output in outputs:
        name = output_name(output) if len(outputs) > 1 else LABELS_NAME
        label, its = labels.get(name), arrangements.get(output.name)
        if label is None:
            continue
        loss = losses[name if len(outputs) > 1 else ""]
        rows = output.shape[:-1]
        of_rows = Form(rows, None if its is None else its.without(len(rows)), loose=True)
        form = of_rows if isinstance(loss.kind, CrossEntropy) else Form(output.shape, its, True)
        if prod(form.shape) != prod(label.shape):
            continue  # labels of a loss of the user's own
        forms[label] = form
        for weights in graph.inputs:
            if weights.name == weights_of(label.name):
                each = isinstance(loss.kind, CrossEntropy | SoftmaxCrossEntropy)
                forms[weights] = of_rows if each else Form(weights.shape, loose=True)
    return forms

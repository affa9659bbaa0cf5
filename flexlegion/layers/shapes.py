"""Layers that move elements: they compute nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flexlegion.base.arguments import typed_methods
from flexlegion.base.errors import UserError
from flexlegion.graph.tensor import MAX_RANK, Tensor
from flexlegion.layers.arrays import array_of
from flexlegion.layers.elementwise import ElementwiseLayers
from flexlegion.ops.flatten import Flatten
from flexlegion.ops.merge import Concat
from flexlegion.ops.shape import Pad, Rearrange, Reshape, Roll, Slice, Take, Transpose


@typed_methods
class ShapeLayers(ElementwiseLayers):
    """The layers that move elements."""

    def flatten(self, x: Tensor, name: str | None = None) -> Tensor:
        """(n, d1, d2, ...) -> (n, d1*d2*...), row-major (height, width, channel)."""
        return self._add(Flatten(), x, self._name("flatten", name))

    def reshape(self, x: Tensor, shape: Sequence[int], name: str | None = None) -> Tensor:
        """Samples of another shape with as many elements, row-major.

        ``(n, ...)`` becomes ``(n, *shape)``.
        """
        if not 1 <= len(shape) < MAX_RANK or any(extent < 1 for extent in shape):
            raise UserError(
                f"reshape takes a sample's shape of 1 to {MAX_RANK - 1} positive extents, "
                f"but got {list(shape)}"
            )
        return self._add(Reshape(tuple(shape)), x, self._name("reshape", name))

    def transpose(self, x: Tensor, permutation: Sequence[int], name: str | None = None) -> Tensor:
        """Dimensions in another order; the sample (0) stays first.

        Dimension d of the output is dimension ``permutation[d]`` of `x`: with (0, 2, 1),
        (n, i, j) -> (n, j, i).
        """
        return self._add(Transpose(tuple(permutation)), x, self._name("transpose", name))

    def rearrange(
        self,
        x: Tensor,
        extents: Sequence[int],
        order: Sequence[int],
        shape: Sequence[int],
        name: str | None = None,
    ) -> Tensor:
        """A reshape, a transpose and a reshape of samples, in one copy.

        Windows of 7 x 7 positions of images (n, 56, 56, 96) become rows (n, 64, 49, 96) by extents
        (8, 7, 8, 7, 96), order (0, 2, 1, 3, 4) and shape (64, 49, 96).

        Parameters
        ----------
        x
            What to rearrange, ``(n, ...)``.
        extents
            Of the axes that its other dimensions are cut into, the major one first.
        order
            Axis i of the output is axis ``order[i]`` of the input.
        shape
            Of the output's samples: of axes that follow each other.
        name
            Of the operator.

        Raises
        ------
        UserError
            If the axes do not make up the dimensions of both sides.
        """
        if not 1 <= len(shape) < MAX_RANK:
            raise UserError(
                f"rearrange takes a sample's shape of 1 to {MAX_RANK - 1} extents, but got "
                f"{list(shape)}"
            )
        kind = Rearrange(tuple(extents), tuple(order), tuple(shape))
        return self._add(kind, x, self._name("rearrange", name))

    def split(
        self, x: Tensor, sizes: Sequence[int], axis: int = -1, name: str | None = None
    ) -> list[Tensor]:
        """Parts of a dimension other than the samples', one after the other.

        Parameters
        ----------
        x
            What to split.
        sizes
            Extent of each part; together the dimension's.
        axis
            The dimension.
        name
            The parts, an operator of type slice each, are called ``NAME.0``, ``NAME.1``, ...

        Returns
        -------
        list[Tensor]
            The parts.

        Raises
        ------
        UserError
            If the sizes do not add up, or there is no such dimension.
        """
        axis = self._axis("split", x, axis)
        if not sizes or min(sizes) < 1 or sum(sizes) != x.shape[axis]:
            raise UserError(
                f"split takes positive sizes that add up to {x.shape[axis]}, the extent of "
                f"dimension {axis}, but got {list(sizes)}"
            )
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return [
            self._add(
                Slice(axis, start, size), x, self._name("slice", f"{name}.{i}" if name else None)
            )
            for i, (start, size) in enumerate(zip(starts, sizes, strict=True))
        ]

    def concat(self, inputs: Sequence[Tensor], axis: int = -1, name: str | None = None) -> Tensor:
        """Tensors one after the other along a dimension other than the samples'."""
        rank = len(inputs[0].shape) if inputs else 0
        kind = Concat(axis + rank if axis < 0 else axis)
        return self.graph.add(kind, inputs, self._name("concat", name))

    def pad(self, x: Tensor, amounts: Sequence[tuple[int, int]], name: str | None = None) -> Tensor:
        """Zeros around each sample: `amounts` are (before, after) for each of its dimensions.

        Images (n, h, w, c) get a row above and two columns on the right by
        ``[(1, 0), (0, 2), (0, 0)]``.
        """
        pairs = [(0, 0), *(tuple(pair) for pair in amounts)]
        if len(pairs) != len(x.shape) or any(len(pair) != 2 for pair in pairs):
            raise UserError(
                f"pad takes (before, after) for each of {len(x.shape) - 1} dimensions, but got "
                f"{list(amounts)}"
            )
        kind = Pad(tuple(before for before, _ in pairs), tuple(after for _, after in pairs))
        return self._add(kind, x, self._name("pad", name))

    def roll(self, x: Tensor, shift: int, axis: int, name: str | None = None) -> Tensor:
        """Turn a dimension round: element i goes to (i + shift) modulo its extent."""
        axis = self._axis("roll", x, axis)
        return self._add(Roll(axis, shift % x.shape[axis]), x, self._name("roll", name))

    def take(self, x: Tensor, numbers: Sequence[int], axis: int, name: str | None = None) -> Tensor:
        """Elements of one dimension by their numbers, which are constants.

        Parameters
        ----------
        x
            What to pick from.
        numbers
            Any, in any order, from 0 to the dimension's extent; from the end if negative.
        axis
            The dimension, not the samples'.
        name
            Of the operator.

        Returns
        -------
        Tensor
            With as many elements in that dimension as there are numbers.

        Raises
        ------
        UserError
            If there is no such element or dimension.
        """
        axis = self._axis("take", x, axis)
        extent = x.shape[axis]
        wanted = array_of("take's numbers", numbers)
        fits = wanted.ndim == 1 and wanted.size and wanted.dtype.kind in "iu"
        if not fits or wanted.min() < -extent or wanted.max() >= extent:
            raise UserError(
                f"take picks elements {-extent} to {extent - 1} of dimension {axis}, by a list of "
                f"their numbers, but got {list(numbers)[:10]}"
            )
        wanted = np.where(wanted < 0, wanted + extent, wanted)
        order = np.argsort(wanted, kind="stable")
        starts = np.searchsorted(wanted[order], np.arange(extent + 1))
        name = self._name("take", name)
        lists = [
            self.constant(values.astype(np.int32), name=f"{name}.{what}")
            for what, values in (("numbers", wanted), ("order", order), ("starts", starts))
        ]
        return self.graph.add(Take(axis), [x, *lists], name)

    @staticmethod
    def _axis(what: str, x: Tensor, axis: int) -> int:
        rank = len(x.shape)
        positive = axis + rank if axis < 0 else axis
        if not 1 <= positive < rank:
            raise UserError(f"{what} takes an axis 1 to {rank - 1} of its input, but got {axis}")
        return positive

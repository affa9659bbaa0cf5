"""Arrays in files (`numpy.memmap`), of which a rank reads the rows that it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion.base.errors import UserError
from flexlegion.data.sources import BatchSource
from flexlegion.graph.tensor import Shape, Tensor
from flexlegion.layers.arrays import check_rows

Array = npt.NDArray[Any]

_BYTES = np.arange(256, dtype=np.float32)


class MappedArrays(BatchSource):
    """Samples whose arrays, or some of them, are mapped from files.

    Parameters
    ----------
    inputs, labels
        An array (samples, ...) for each tensor, whose values are still unchecked.

    Raises
    ------
    UserError
        If they differ in their numbers of samples, or fractions are given for whole numbers.
    """

    def __init__(self, inputs: Mapping[Tensor, Array], labels: Mapping[Tensor, Array]) -> None:
        self._arrays = {**inputs, **labels}
        self._labels = len(labels)
        self.name = ", ".join(tensor.name for tensor in self._arrays)
        check_rows(self._arrays)
        for tensor, array in self._arrays.items():
            if tensor.dtype == "int32" and array.dtype.kind == "f":
                raise UserError(
                    f"{tensor.name}: a memory-mapped array of whole numbers has to have an integer "
                    f"type, not {array.dtype}"
                )

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(next(iter(self._arrays.values())))

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """See `BatchSource`."""
        return tuple(tensor.shape[1:] for tensor in self._arrays)

    @property
    def byte_values(self) -> tuple[npt.NDArray[np.float32] | None, ...]:
        """Bytes stay bytes."""
        return tuple(
            _BYTES if array.dtype == np.uint8 and tensor.host_dtype == "float32" else None
            for tensor, array in self._arrays.items()
        )

    def read(self, row: int, _epoch: int, out: Sequence[Array]) -> None:
        """Copy a row of each array."""
        self._copy(row, out, 0)

    def read_labels(self, row: int, _epoch: int, out: Sequence[Array]) -> None:
        """Copy a row of each array of labels."""
        self._copy(row, out, len(out) - self._labels)

    def _copy(self, row: int, out: Sequence[Array], first: int) -> None:
        for (tensor, array), to in list(zip(self._arrays.items(), out, strict=True))[first:]:
            values = array[row]
            to[...] = values
            if tensor.dtype == "int32" and not np.array_equal(to, values):
                raise UserError(f"{tensor.name}: sample {row} has numbers beyond 32 bits")

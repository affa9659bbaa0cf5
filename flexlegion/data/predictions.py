"""What a model predicts, as a file: NumPy's formats, or Parquet for tools that work with tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flexlegion.base.errors import UserError
from flexlegion.base.files import replacing, write_arrays
from flexlegion.data.packages import required

if TYPE_CHECKING:
    import pyarrow

Array = npt.NDArray[Any]

_KIND = "predictions"
_FORMATS = (".npy", ".npz", ".parquet")


def check_format(path: str | Path, outputs: int = 1) -> None:
    """Raise `UserError` unless the file's ending names a format that can hold so many outputs."""
    ending = Path(path).suffix
    if ending not in _FORMATS:
        raise UserError(f"{path}: predictions are written as {', '.join(_FORMATS)}; end it so")
    if ending == ".npy" and outputs > 1:
        raise UserError(
            f"{path}: an .npy file has one array, but the model has {outputs} outputs; write .npz "
            "or .parquet"
        )
    if ending == ".parquet":
        required("pyarrow", f"{path}: writing Parquet")


def save_predictions(path: str | Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays (samples, ...), each by its output's name.

    As Parquet, an output of one value a sample is a column of numbers, one of several a column of
    lists of that length, and of further dimensions a column of Arrow's fixed-shape tensors.

    Raises
    ------
    UserError
        If the file cannot be written.
    """
    check_format(path, len(arrays))
    ending = Path(path).suffix
    if ending == ".npz":
        write_arrays(path, arrays, _KIND)
        return
    with replacing(path, _KIND) as file:
        if ending == ".npy":
            np.save(file, next(iter(arrays.values())), allow_pickle=False)
            return
        import pyarrow
        from pyarrow import parquet

        table = pyarrow.table({name: _column(array) for name, array in arrays.items()})
        parquet.write_table(table, file)


def _column(array: Array) -> pyarrow.Array:
    import pyarrow

    array = np.ascontiguousarray(array)
    if array.ndim == 1:
        return pyarrow.array(array)
    if array.ndim == 2:
        return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(array.ravel()), array.shape[1])
    return pyarrow.FixedShapeTensorArray.from_numpy_ndarray(array)

"""Columns of Arrow tables, as Parquet files and Hugging Face's data sets have them, as arrays."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flexlegion.base.errors import UserError
from flexlegion.data.images import decoded
from flexlegion.graph.tensor import Tensor

if TYPE_CHECKING:
    import pyarrow

Array = npt.NDArray[Any]


def array_of_column(column: pyarrow.ChunkedArray, tensor: Tensor, where: str) -> Array:
    """A column as an array (rows, ...).

    Numbers and truth values are as they are; lists, of lists maybe, become further dimensions, for
    which all rows need the same lengths; images, of which a row has the bytes of a file, are cut
    and scaled to the input as those of folders are.

    Parameters
    ----------
    column
        Of a table.
    tensor
        The input that it is for.
    where
        Beginning of messages: the file, and the column.

    Raises
    ------
    UserError
        If rows have different lengths, values are missing, or they are no numbers.
    """
    import pyarrow

    array: Any = column.combine_chunks()
    if isinstance(array, pyarrow.ChunkedArray):  # of no rows
        array = pyarrow.concat_arrays(array.chunks)
    if isinstance(array.type, pyarrow.FixedShapeTensorType):
        return np.asarray(array.to_numpy_ndarray())
    if isinstance(array, pyarrow.ExtensionArray):
        array = array.storage
    types = pyarrow.types
    shape = [len(array)]
    if types.is_struct(array.type) and {"bytes", "path"} <= {field.name for field in array.type}:
        array = array.field("bytes")  # an image of Hugging Face's
        if array.null_count:
            raise UserError(
                f"{where}: some images are in files of their own, to which it has the paths; keep "
                "them in the data set (datasets.Dataset.save_to_disk does)"
            )
    if types.is_binary(array.type) or types.is_large_binary(array.type):
        _check_complete(array, where)
        return images([its.as_buffer() for its in array], tensor, where)
    while types.is_nested(array.type):
        _check_complete(array, where)
        array = _flattened(array, shape, where)
    _check_complete(array, where)
    kind = array.type
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise UserError(f"{where} is of the type {kind}, and has to be numbers, lists of them")
    return np.asarray(array.to_numpy(zero_copy_only=False)).reshape(shape)


def images(files: list[Any], tensor: Tensor, where: str) -> Array:
    """Files of images, by their bytes, as an input (rows, height, width, channels) of one."""
    shape = tensor.shape[1:]
    if len(shape) != 3 or shape[2] not in (1, 3) or tensor.host_dtype != "float32":
        raise UserError(
            f"{where} has images, but '{tensor.name}' takes {list(shape)}, and not height, width, "
            "and 1 or 3 channels"
        )
    result = np.empty((len(files), *shape), np.float32)
    for number, content in enumerate(files):
        what = f"{where}, row {number}"
        result[number] = decoded(io.BytesIO(content), what, (shape[0], shape[1], shape[2]))
    return result


def _flattened(array: Any, shape: list[int], where: str) -> Any:
    """What lists of one length hold, one after the other; the length becomes a dimension."""
    import pyarrow
    from pyarrow import compute

    types = pyarrow.types
    if types.is_fixed_size_list(array.type):
        shape.append(array.type.list_size)
        return array.flatten()
    if not (types.is_list(array.type) or types.is_large_list(array.type)):
        raise UserError(
            f"{where} is of the type {array.type}, and has to be numbers, lists of them"
        )
    lengths = compute.min_max(compute.list_value_length(array)).as_py()
    least, most = lengths["min"] or 0, lengths["max"] or 0
    if least != most:
        raise UserError(
            f"{where}: its rows have from {least} to {most} values, but an input takes one length; "
            "cut or pad them"
        )
    shape.append(most)
    return array.flatten()


def _check_complete(array: Any, where: str) -> None:
    if array.null_count:
        raise UserError(f"{where}: {array.null_count:,} of its values are missing; fill them in")

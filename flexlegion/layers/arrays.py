"""Users' arrays: converted, and checked before anything is launched."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion.base.errors import UserError
from flexlegion.graph.graph import Graph
from flexlegion.graph.tensor import Tensor
from flexlegion.layers.arrangement import Form
from flexlegion.ops.embedding import Embedding

Array = npt.NDArray[Any]

MOST_EXACT = 2**24  # single precision holds all whole numbers up to here


def rows_for(
    tensor: Tensor,
    value: Any,
    classes: int | None = None,
    form: Form | None = None,
    ignored: int = -1,
) -> Array:
    """`value` as rows for batches of `tensor`.

    Parameters
    ----------
    tensor
        The input to fill.
    value
        A NumPy or cuPyNumeric array (or what NumPy makes one of), shape (rows, ...).
    classes
        For class labels, the number of classes. A label of -1 does not count.
    form
        In which shapes the data may be given; only in the tensor's own unless said.
    ignored
        Another class label that does not count.

    Raises
    ------
    UserError
        If shape, type or values do not fit.
    """
    array = shaped(tensor, array_of(tensor.name, value), form)
    if classes is not None:
        _check_whole(tensor.name, array)
        check_labels(tensor.name, array, classes, ignored)
    elif tensor.dtype == "int32":
        check_integers(tensor.name, array)
    return np.ascontiguousarray(array, tensor.host_dtype)


def array_of(name: str, value: Any) -> Array:
    """What NumPy makes of a user's value: an array, a tensor, a frame, nested lists.

    A tensor of PyTorch's gives its values alone, also where gradients are asked of it, and
    bfloat16, which NumPy lacks, as float32. A frame of columns of several types, all numbers, gives
    real numbers.

    Parameters
    ----------
    name
        Of the input or weight, for messages.
    value
        Anything.

    Raises
    ------
    UserError
        If it is no array: its rows have different lengths, say.
    """
    torch = sys.modules.get("torch")  # a tensor's owner has imported it
    try:
        if torch is not None and isinstance(value, torch.Tensor):
            value = value.detach().cpu()
            return np.asarray(value.float() if value.dtype == torch.bfloat16 else value)
        return np.asarray(value)
    except Exception as e:  # whatever an object of the user's raises
        reason = " ".join(str(e).split())[:200] or type(e).__name__
        if "inhomogeneous" in reason:
            reason = "its rows have different lengths"
        what = type(value).__name__
        raise UserError(f"{name}: no array can be made of the {what} ({reason})") from None


def check_integers(name: str, array: Array) -> None:
    """Raise `UserError` unless all numbers are integers of 32 bits."""
    _check_whole(name, array)
    if array.size and not np.can_cast(array.dtype, np.int32):
        limits = np.iinfo(np.int32)
        for extreme in (int(array.min()), int(array.max())):
            if not limits.min <= extreme <= limits.max:
                raise UserError(f"{name}: got {extreme}, which is no 32-bit integer")


def shaped(tensor: Tensor, array: Array, form: Form | None = None) -> Array:
    """Data for batches of `tensor`, in its shape; see `flexlegion.layers.arrangement.Form`.

    Raises
    ------
    UserError
        If their shape does not fit, or they are no numbers.
    """
    check_numbers(tensor.name, array)
    if array.ndim == 0 or array.shape[1:] != tensor.shape[1:]:
        array = (form or Form(tensor.shape)).arranged(tensor.name, array)
        array = array.reshape(len(array), *tensor.shape[1:])
    if len(array) == 0:
        raise UserError(f"{tensor.name}: got no samples")
    return array


def _check_whole(name: str, array: Array) -> None:
    if array.dtype.kind == "f":
        # NaN is unequal to itself; infinity is not a fraction.
        if np.any(array != np.trunc(array)):
            raise UserError(f"{name}: got fractions, expected integers")
        if np.any(np.isinf(array)):
            raise UserError(f"{name}: got infinities, expected integers")


def check_labels(name: str, array: Array, classes: int, ignored: int = -1) -> None:
    """Raise `UserError` unless all labels are class numbers, -1, or what else is ignored."""
    if not array.size or (array.min() >= -1 and array.max() < classes):
        return
    others = array[((array < -1) | (array >= classes)) & (array != ignored)]
    if others.size:
        low = int(others.min())
        wrong = low if low < -1 else int(others.max())
        uncounted = "-1" if ignored == -1 else f"-1 or {ignored}"
        raise UserError(
            f"{name}: label {wrong} is out of range; the model has {classes} classes, "
            f"so labels are 0 to {classes - 1}, or {uncounted} for what is not to count"
        )


def check_numbers(name: str, array: Array) -> None:
    """Raise `UserError` unless the array holds real numbers."""
    if array.dtype.kind not in "fiub":
        raise UserError(f"{name}: got data of type {array.dtype}, expected numbers")


def check_tokens(graph: Graph, arrays: dict[Tensor, Array]) -> None:
    """Raise `UserError` if whole numbers are none that their readers can take.

    Embeddings have a row for each of some numbers. Formulas tell numbers up to `MOST_EXACT` apart.
    """
    _check_exact(graph, arrays)
    for tensor, array in arrays.items():
        readers = [
            op
            for op in graph.operators
            if isinstance(op.kind, Embedding) and op.inputs[0] is tensor
        ]
        if not readers:
            continue
        lowest, highest = array.min(0, keepdims=True), array.max(0, keepdims=True)  # of each step
        for op in readers:
            assert isinstance(op.kind, Embedding)
            read = (slice(None), op.kind.window)
            low, high = int(lowest[read].min()), int(highest[read].max())
            if low < 0 or high >= op.kind.vocabulary:
                raise UserError(
                    f"{tensor.name}: token {low if low < 0 else high} is out of range; the "
                    f"vocabulary of '{op.name}' has {op.kind.vocabulary} tokens, so they are 0 to "
                    f"{op.kind.vocabulary - 1}"
                )


def _check_exact(graph: Graph, arrays: dict[Tensor, Array]) -> None:
    for tensor, array in arrays.items():
        if tensor.dtype != "int32":
            continue
        reader = next(
            (op for op in graph.operators if op.kind.type == "expression" and tensor in op.inputs),
            None,
        )
        if reader is None or array.size == 0:
            continue
        highest = max(int(array.max()), -int(array.min()))
        if highest > MOST_EXACT:
            raise UserError(
                f"{tensor.name}: {highest} is beyond {MOST_EXACT}, up to which '{reader.name}', "
                "which computes in single precision, tells all whole numbers apart"
            )


def check_rows(arrays: dict[Tensor, Array]) -> None:
    """Raise `UserError` unless all arrays have the same number of rows."""
    counts = {tensor.name: len(array) for tensor, array in arrays.items()}
    if len(set(counts.values())) > 1:
        text = ", ".join(f"{name} has {n}" for name, n in counts.items())
        raise UserError(f"all data need the same number of samples, but {text}")

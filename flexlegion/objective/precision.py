"""How GPUs compute products and convolutions, and what activations are stored as.

Both are properties of a compiled model. With precision ``tf32`` or ``bf16``, GPUs round the factors
of products to 10 and 7 bits of mantissa first, which is what tensor cores take; CPU processors
compute in single precision.

With storage ``bf16``, activations and their gradients take half the memory, and what moves between
devices half the time; products take them as they are. Weights and their gradients, the optimizer's
states, statistics and losses stay single precision, and sums are formed in it: so a model learns as
it does in single precision. ``fp16`` is for GPUs that lack bfloat16 (V100, P100): the same, but
gradients are scaled, as float16 holds a smaller range of numbers (``runtime/loss_scale.py``). CPU
processors compute with it in single precision.
"""

from __future__ import annotations

from collections.abc import Iterable

from flexlegion.base.errors import UserError
from flexlegion.base.suggestions import unknown

PRECISIONS = ("fp32", "tf32", "bf16")
DEFAULT = PRECISIONS[0]
STORAGES = ("fp32", "bf16", "fp16")
DEFAULT_STORAGE = STORAGES[0]
STORAGE_HELP = (
    f"what activations are stored as: one of {', '.join(STORAGES)}; default: {DEFAULT_STORAGE}"
)
# What topologies call them, in a device's peak rates.
PEAKS = {"fp32": "float32", "tf32": "tfloat32", "bf16": "bfloat16"}


def check_precision(precision: str) -> str:
    """`precision`, if there is such a one.

    Raises
    ------
    UserError
        If there is not.
    """
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    return precision


def check_storage(storage: str) -> str:
    """`storage`, if there is such a one.

    Raises
    ------
    UserError
        If there is not.
    """
    if storage not in STORAGES:
        raise unknown("storage", storage, STORAGES)
    return storage


def check_used(precision: str, devices: Iterable[str], what: str) -> None:
    """Raise `UserError` if no GPU among these devices would compute in that precision.

    Parameters
    ----------
    precision
        One of `PRECISIONS`.
    devices
        By name, as ``gpu:0``.
    what
        Whose devices they are, for the message.
    """
    if precision != DEFAULT and not any(name.startswith("gpu:") for name in devices):
        raise UserError(
            f"precision {precision} is for GPUs, but {what} uses none; CPU processors compute in "
            f"{DEFAULT}"
        )


def in_library(library: str, precision: str) -> str:
    """The profile data base's key of a kernel library that computes in that precision."""
    return library if precision == DEFAULT else f"{library}, {precision}"


def of_library(key: str) -> tuple[str, str]:
    """The opposite of `in_library`: the library, and its precision."""
    library, _, precision = key.rpartition(", ")
    return (library, precision) if precision in PRECISIONS else (key, DEFAULT)

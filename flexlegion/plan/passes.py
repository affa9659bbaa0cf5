"""The passes of an iteration, as the native code's table states them (``native/plan/passes.h``)."""

from __future__ import annotations

from dataclasses import dataclass

from flexlegion.bindings.native import core, names


@dataclass(frozen=True)
class Pass:
    """One of the passes that an iteration is made of.

    Parameters
    ----------
    name
        As plans, timelines and traces show it.
    of
        What it has launches of: "input" tensors, "operator", or the whole "iteration".
    price
        What a task is charged: "of_task", a time of its own, or "of_bytes", a time that grows with
        the bytes that it touches.
    priced_as
        The name of the pass whose price it has.
    closing
        Whether it ends an iteration: once, after all micro-batches.
    """

    name: str
    of: str
    price: str
    priced_as: str
    closing: bool


def _texts(pointer: object, count: int) -> list[str]:
    native = core()
    return [native.ffi.string(text).decode() for text in native.items(pointer, count)]


def _vocabulary() -> tuple[tuple[Pass, ...], tuple[str, ...], tuple[str, ...]]:
    native = core()
    its = native.ffi.new("fl_vocabulary *")
    native.lib.fl_vocabulary_of(its)
    rows = native.items(its.passes, its.n_passes)
    called = [native.ffi.string(row.name).decode() for row in rows]
    of, price = names("fl_of"), names("fl_price")
    passes = (
        Pass(name, of[row.of], price[row.price], called[row.priced_as], bool(row.closing))
        for name, row in zip(called, rows, strict=True)
    )
    return (
        tuple(passes),
        tuple(_texts(its.fields, its.n_fields)),
        tuple(_texts(its.roles, its.n_roles)),
    )


# By number: the passes; the fields of tensors, and of the iteration; why a launch touches one.
ROWS, FIELDS, ROLES = _vocabulary()
PASSES = tuple(row.name for row in ROWS)
CLOSING = tuple(row.name for row in ROWS if row.closing)
# Whose tasks are operators' own; of these, which have times in the cost table; and which prices
# grow with the bytes.
OPERATOR_PASSES = tuple(row.name for row in ROWS if row.price == "of_task")
TASK_PASSES = tuple(
    row.name for row in ROWS if row.price == "of_task" and row.priced_as == row.name
)
LINEAR_PASSES = tuple(
    row.name for row in ROWS if row.price == "of_bytes" and row.priced_as == row.name
)
# Those that compute again what the backward pass needs, and those that gather sharded weights.
RECOMPUTING = ("again", "again_sum")
GATHERING = ("gather", "gather_spread", "again_gather", "again_spread")

"""Which of ONNX's operations are known, and what of them is followed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from flexlegion.base.quoting import printable
from flexlegion.importers.onnx_file import OnnxNode
from flexlegion.importers.program import Node

if TYPE_CHECKING:
    from flexlegion.importers.onnx_reader import Reader

Conversion = Callable[["Reader", OnnxNode], "Node | Sequence[Node | None]"]
_Function = TypeVar("_Function", bound=Conversion)


class Unreadable(Exception):
    """Why a node cannot be read."""


@dataclass(frozen=True)
class Known:
    """An operation that is known.

    Parameters
    ----------
    convert
        What converts it.
    inputs
        How many it may have; None: any number.
    attributes
        Names of those that are followed, or change nothing here.
    """

    convert: Conversion
    inputs: int | None
    attributes: frozenset[str]

    def check(self, node: OnnxNode) -> None:
        """Raise `Unreadable` if a node has something that is not followed."""
        if other := sorted(set(node.attributes) - self.attributes):
            raise Unreadable(f"its attribute '{printable(other[0], 60)}' is not known")
        if self.inputs is not None and any(node.inputs[self.inputs :]):
            raise Unreadable(f"it has more than {self.inputs} inputs")


CONVERSIONS: dict[str, Known] = {}


def converts(
    *ops: str, inputs: int | None = 1, attributes: str = ""
) -> Callable[[_Function], _Function]:
    """Register a function that converts nodes of these operations; see `Known`."""

    def register(function: _Function) -> _Function:
        known = Known(function, inputs, frozenset(attributes.split()))
        CONVERSIONS.update(dict.fromkeys(ops, known))
        return function

    return register

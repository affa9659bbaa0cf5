"""What patterns ask of nodes."""

from __future__ import annotations

from typing import Any

from flexlegion.importers.program import Node, constant_of


def only(users: list[Node]) -> Node | None:
    """The single reader, if there is one."""
    return users[0] if len(users) == 1 else None


def operands(node: Node) -> list[Node]:
    """The nodes among the two operands of an operation."""
    return [a for a in (node.get("self"), node.get("other")) if isinstance(a, Node)]


def scalar(value: Any) -> float | None:
    """A number, or a constant of one element."""
    array = constant_of(value)
    return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None

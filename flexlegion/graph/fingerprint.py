"""Fingerprints: whether two graphs have the same operators, and where they differ if not.

The batch size does not count, and neither do the loss and what activations are stored as: a
strategy serves all of them, as far as its degrees fit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property

from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.tensor import Tensor

DIGITS = 16  # of the fingerprint, and half as many of an operator's
SHOWN = 3  # differences in a message


@dataclass(frozen=True)
class Fingerprint:
    """What a graph is.

    Parameters
    ----------
    operators
        For each operator a text: its type, the extents of a sample of its output, and a hash of
        what else matters: attributes, shapes, weights, and what it reads.
    """

    operators: Mapping[str, str]

    @classmethod
    def of(cls, graph: Graph) -> Fingerprint:
        """A graph's; the loss, if there is one, does not count."""
        after_loss: set[Operator] = set()
        operators = {}
        for operator in graph.operators:
            if operator.kind.part_of_loss or any(t.producer in after_loss for t in operator.inputs):
                after_loss.add(operator)
            else:
                operators[operator.name] = _text(operator)
        return cls(operators)

    @cached_property
    def value(self) -> str:
        """All of it as hexadecimal digits."""
        return _hash(sorted(self.operators.items()))[:DIGITS]

    def differences(self, other: Fingerprint) -> list[str]:
        """Sentences' parts: what is there (in this one), and not here (in the other one)."""
        there, here = self.operators, other.operators
        missing = [
            f"'{name}' ({_shown(there[name])}) is not here" for name in there if name not in here
        ]
        extra = [
            f"'{name}' ({_shown(here[name])}) is only here" for name in here if name not in there
        ]
        changed = [
            f"'{name}' is {_shown(there[name])} there, but {_shown(here[name])} here"
            if _shown(there[name]) != _shown(here[name])
            else f"'{name}' ({_shown(here[name])}) has other attributes or inputs here"
            for name in there
            if name in here and there[name] != here[name]
        ]
        return changed + missing + extra


def difference(there: Fingerprint, here: Fingerprint) -> str:
    """The first differences, for a message."""
    parts = there.differences(here)
    more = f", and {len(parts) - SHOWN} more differ" if len(parts) > SHOWN else ""
    return f"operator {', '.join(parts[:SHOWN])}{more}"


def _text(operator: Operator) -> str:
    extents = "x".join(map(str, operator.output.shape[1:])) or "1"
    digest = _hash(
        (
            _attributes(operator),
            [(_source(t), t.shape[1:], t.host_dtype) for t in operator.inputs],
            [(weight.name, weight.shape) for weight in operator.weights],
            [tensor.shape[1:] for tensor in operator.outputs],
        )
    )
    return f"{operator.kind.type} {extents} {digest[: DIGITS // 2]}"


def _attributes(operator: Operator) -> list[tuple[str, str]]:
    """Names and values but for defaults, so that a type can gain an attribute, and files stay."""
    kind = operator.kind
    defaults = {field.name for field in fields(kind) if getattr(kind, field.name) == field.default}
    return sorted(item for item in kind.attributes().items() if item[0] not in defaults)


def _source(tensor: Tensor) -> str:
    return tensor.name


def _shown(text: str) -> str:
    """Without the hash."""
    return text.rpartition(" ")[0]


def _hash(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()

"""A strategy in SBP signatures, for people: how every tensor lies, and what is moved between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property

from flexlegion.console.text import names, table, volume
from flexlegion.graph.graph import Operator
from flexlegion.graph.signatures import text
from flexlegion.graph.tensor import Tensor, TensorRole
from flexlegion.plan.coherence import moves
from flexlegion.plan.plan import Plan
from flexlegion.strategy.configuration import ParallelConfig
from flexlegion.strategy.sbp.operands import signature_of

MAX_WIDTH = 80  # columns


def described(plan: Plan, memory_of: Mapping[str, str]) -> str:
    """A table with a row for each tensor, and below it one for each operator that reads it.

    The axes of a signature are those dimensions of the operator's space that are split, in their
    order, so that every strategy has signatures, whether or not its devices make a mesh.

    Parameters
    ----------
    plan
        What is described.
    memory_of
        Each device's memory.
    """
    return _Description(plan, memory_of).text()


class _Description:
    def __init__(self, plan: Plan, memory_of: Mapping[str, str]) -> None:
        self.plan = plan
        self.memory_of = memory_of
        self.gradients: Counter[Tensor] = Counter()
        self.values: Counter[tuple[Tensor, str, Operator | None]] = Counter()

    def text(self) -> str:
        self._count()
        rows = [row for tensor in self.plan.graph.tensors for row in self._rows(tensor)]
        total = sum(self.values.values()) + sum(self.gradients.values())
        columns: tuple[str, ...]
        columns = ("tensor", "signature", "parts", "devices", "moved", "gradient")
        end = f"{volume(total)} are moved in an iteration"
        everywhere = {row[3] for row in rows if row[3]}
        if len(everywhere) == 1:
            columns, rows = _without(columns, 3), [_without(row, 3) for row in rows]
            end += f"; all operators are on {everywhere.pop()}"
        texts = range(columns.index("moved"))
        return f"{table(columns, rows, texts, MAX_WIDTH)}\n{end}"

    def _count(self) -> None:
        """Bytes that are moved for each reader of a value, and for each gradient."""
        for move in moves(self.plan, self.memory_of):
            tensor = move.requirement.tensor
            if move.requirement.field in ("value", "partial"):
                self.values[tensor, move.launch.pass_, move.launch.operator] += move.bytes
            else:
                self.gradients[tensor] += move.bytes

    @cached_property
    def _readers(self) -> dict[Tensor, list[Operator]]:
        readers: dict[Tensor, list[Operator]] = {}
        for op in self.plan.graph.operators:
            for tensor in dict.fromkeys((*op.inputs, *op.weights)):
                readers.setdefault(tensor, []).append(op)
        return readers

    def _rows(self, tensor: Tensor) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]]
        gradient = self.gradients[tensor]
        moved = volume(gradient) if gradient else ""
        if tensor.producer is None:
            rows = [(tensor.name, f"({tensor.kind})", "", "", "", moved)]
        else:
            rows = [(tensor.name, *self._lies(tensor.producer, "output", tensor), "", moved)]
            if summed := self.values[tensor, "sum", tensor.producer]:
                rows.append(("  summed by shards", "S", "", "", volume(summed), ""))
        for op in self._readers.get(tensor, []):
            read = sum(self.values[tensor, pass_, op] for pass_ in ("forward", "backward"))
            role: TensorRole = "weight" if tensor in op.weights else "input"
            lies = self._lies(op, role, tensor)
            rows.append((f"  {op.name}", *lies, volume(read), ""))
        return rows

    def _lies(self, op: Operator, role: TensorRole, tensor: Tensor) -> tuple[str, str, str]:
        """Signature, parts along each of its axes, and devices."""
        config = self.plan.strategy[op.name]
        access = next(a for r, t, a in op.operands if r == role and t is tensor)
        dims = split_dims(config)
        its = [signature_of(access, role, d) for d in dims]
        parts = " x ".join(str(config.degrees[d]) for d in dims)
        return text(its) if its else "whole", parts, names(tuple(dict.fromkeys(config.devices)))


def _without(row: tuple[str, ...], column: int) -> tuple[str, ...]:
    return row[:column] + row[column + 1 :]


def split_dims(config: ParallelConfig) -> list[int]:
    """The dimensions that a configuration divides."""
    return [d for d, degree in enumerate(config.degrees) if degree > 1]

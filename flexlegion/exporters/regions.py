"""Rows of operators that a program computes once more for the backward pass.

A strategy says it of single operators: their outputs are not kept. Frameworks say it of functions:
nothing that is computed inside one is kept, and all of it is computed again from what it is given.
So operators that are run again become functions, as few as keep what the strategy keeps.

An operator that is kept, but reads what is not, stands in the function, too: outside of it, its
inputs would be results of the function, and so be kept. Its own outputs are results. The frameworks
compute it again no further than the backward pass needs (PyTorch stops early, JAX's compiler leaves
out what nobody reads).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass

from flexlegion.graph.graph import Operator
from flexlegion.graph.tensor import Tensor


@dataclass(frozen=True)
class Region:
    """Operators, in order.

    Parameters
    ----------
    operators
        At least one.
    again
        Whether they are computed again.
    """

    operators: tuple[Operator, ...]
    again: bool

    @property
    def given(self) -> list[Tensor]:
        """What they read and do not compute, but for weights."""
        made = {tensor for op in self.operators for tensor in op.outputs}
        read = dict.fromkeys(tensor for op in self.operators for tensor in op.inputs)
        return [tensor for tensor in read if tensor not in made and tensor.kind != "weight"]

    def results(self, later: Collection[Tensor]) -> list[Tensor]:
        """What they compute and others read, who read the tensors `later`."""
        return [tensor for op in self.operators for tensor in op.outputs if tensor in later]


def regions(operators: Iterable[Operator], again: Set[Operator]) -> list[Region]:
    """Rows of operators, in an order in which each stands behind those that it reads.

    Parameters
    ----------
    operators
        Of one function of a program, in their order.
    again
        Those whose outputs are not kept. None of them has a state.
    """
    found: list[Region] = []
    row: list[Operator] = []  # of the region that is open
    apart: list[Operator] = []  # met since it was opened; these read nothing of it

    def close() -> None:
        if row:
            found.append(Region(tuple(row), again=True))
        found.extend(Region((op,), again=False) for op in apart)
        row.clear()
        apart.clear()

    for op in operators:
        if not row:
            if op in again:
                row.append(op)
            else:
                found.append(Region((op,), again=False))
            continue
        dropped = {tensor for other in row if other in again for tensor in other.outputs}
        made = {tensor for other in (*row, *apart) for tensor in other.outputs}
        reads_dropped = not dropped.isdisjoint(op.inputs)
        has_state = any(weight.state for weight in op.weights)
        goes_on = op in again and all(other in again for other in row)
        if goes_on or (reads_dropped and not has_state):
            _ahead(found, apart, op)
            row.append(op)
        elif op in again:  # behind an operator that is kept, the next function begins
            close()
            row.append(op)
        elif made.isdisjoint(op.inputs) and not has_state:
            apart.append(op)
        else:
            close()
            found.append(Region((op,), again=False))
    close()
    return found


def _ahead(found: list[Region], apart: list[Operator], reader: Operator) -> None:
    """Let what an open region's next operator reads, and all met before that, stand before it."""
    read = [at for at, op in enumerate(apart) if not set(op.outputs).isdisjoint(reader.inputs)]
    if read:
        found.extend(Region((op,), again=False) for op in apart[: read[-1] + 1])
        del apart[: read[-1] + 1]


def weights_of(op: Operator) -> set[Tensor]:
    """The weights that an operator reads, be it as inputs."""
    return {tensor for _, tensor, _ in op.operands if tensor.kind == "weight"}


def outside(rows: Sequence[Region], results: Iterable[Tensor]) -> set[Tensor]:
    """The tensors that are read across regions, or are results: those that are kept."""
    later = set(results)
    for region in rows:
        later.update(region.given)
    return later

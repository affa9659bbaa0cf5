"""From SBP signatures of some tensors to a strategy for all operators.

Along each axis of its mesh, an operator's tasks divide one dimension of its space, and which one
decides how all its operands lie (`signature_of`). So a signature that somebody gave a tensor leaves
those dimensions of the operators that use it that agree. All other operators follow their
neighbours, along each axis by itself:

1. An operator of which one dimension alone agrees takes it.
2. Outwards from these, an operator takes the dimension by which the least is moved between it and
   those neighbours that have theirs (OneFlow's Table 2). Of equal ones it takes the length, then
   the samples, then what splits no weight, no sum.
3. If nothing is said along an axis, samples are divided along it.

Partial values stay apart, P -> P, where a signature says so: of an output that is P and an input
that is, too.

What SOAP cannot say is a *computed* tensor that is B, because no two tasks compute the same. Where
all that an operator reads is to be B, it takes a dimension all the same, by the same order: its
devices read less than they might, and whoever reads its output as B has it gathered.
"""

from __future__ import annotations

import fnmatch
from collections import deque
from collections.abc import Mapping, Sequence
from math import prod

from flexlegion.base.errors import UserError
from flexlegion.base.suggestions import did_you_mean
from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.operator_type import Access, DimKind
from flexlegion.graph.signatures import (
    AnySignature,
    B,
    Mesh,
    P,
    Sbp,
    Signature,
    signature,
)
from flexlegion.graph.tensor import Tensor, TensorRole
from flexlegion.strategy.configuration import ParallelConfig, Sums
from flexlegion.strategy.sbp.moves import moved
from flexlegion.strategy.sbp.operands import signature_of
from flexlegion.strategy.strategy import Strategy

# Of the kinds of dimensions, which is split first where nothing else decides.
_ORDER = (
    DimKind.SAMPLE,
    DimKind.ATTRIBUTE,
    DimKind.PARAMETER,
    DimKind.REDUCTION,
    DimKind.PART,
)
_SHOWN = 3  # operators in a message


def deduced(
    graph: Graph, mesh: Mesh, signatures: Mapping[str, AnySignature], source: str
) -> tuple[Strategy, list[str]]:
    """The strategy that signatures imply.

    Parameters
    ----------
    graph
        Operators in topological order, the loss included. What `Tensor.to_global` said of their
        inputs holds, too.
    mesh
        Where operators are that read nothing from another mesh.
    signatures
        By a tensor's name, or for what an operator computes, by the operator's. A ``*`` stands for
        any letters of it.
    source
        Of the strategy, for messages.

    Returns
    -------
    strategy
        A configuration for every operator.
    messages
        What SOAP says otherwise than the signatures do: a sentence each.

    Raises
    ------
    UserError
        If there is no such tensor, a signature does not fit it, or no way of splitting the
        operators agrees.
    """
    deduction = _Deduction(graph, mesh, signatures)
    for axis in range(max(len(its.shape) for its in deduction.meshes.values())):
        deduction.decide(axis)
    configs = {op.name: deduction.config(op) for op in graph.operators}
    return Strategy(configs, source), deduction.messages()


class _Deduction:
    """What is known so far: for each operator and axis, the dimension that is divided."""

    def __init__(self, graph: Graph, mesh: Mesh, signatures: Mapping[str, AnySignature]) -> None:
        self.graph = graph
        self.operands = {op: op.operands for op in graph.operators}
        self.space = {op: list(zip(op.dims, op.space, strict=True)) for op in graph.operators}
        self.readers: dict[Tensor, list[tuple[Operator, Access]]] = {}
        for op, operands in self.operands.items():
            for role, tensor, access in operands:
                if role == "input":
                    self.readers.setdefault(tensor, []).append((op, access))
        self.meshes = self._meshes(mesh)
        self.given = self._given(signatures)
        self.dims: dict[Operator, dict[int, int | None]] = {op: {} for op in graph.operators}
        self.repeated: dict[Operator, set[int]] = {}

    def _meshes(self, mesh: Mesh) -> dict[Operator, Mesh]:
        """Where each operator is: as its inputs' signatures say, or with its last input."""
        meshes: dict[Operator, Mesh] = {}
        numbers = {op: i for i, op in enumerate(self.graph.operators)}
        for op in self.graph.operators:
            said = {its.mesh: op.inputs[i].name for i, its in op.signatures.items()}
            if len(said) > 1:
                (one, a), (other, b) = list(said.items())[:2]
                raise UserError(
                    f"operator '{op.name}' reads '{a}' on {one} and '{b}' on {other}; give both "
                    "the same mesh by to_global"
                )
            before = [t.producer for t in op.inputs if t.producer is not None]
            if said:
                meshes[op] = next(iter(said))
            else:
                last = max(before, key=numbers.__getitem__, default=None)
                meshes[op] = mesh if last is None else meshes[last]
        return meshes

    def _given(
        self, signatures: Mapping[str, AnySignature]
    ) -> dict[Operator, list[tuple[TensorRole, Tensor, Access, Signature]]]:
        """The operands of each operator of which a signature is given."""
        names = {tensor.name: tensor for tensor in self.graph.tensors}
        names |= {op.name: op.output for op in self.graph.operators if op.name not in names}
        said: dict[Tensor, AnySignature] = {}
        for name, its in signatures.items():
            found = fnmatch.filter(names, name) if "*" in name else [name] * (name in names)
            if not found:
                raise UserError(
                    f"the model has no tensor '{name}'{did_you_mean(name, names)}; a signature is "
                    "of an input, a weight (LAYER.kernel), or what a layer computes (LAYER)"
                )
            said |= {names[one]: its for one in found}
        given: dict[Operator, list[tuple[TensorRole, Tensor, Access, Signature]]] = {}
        for op, operands in self.operands.items():
            mesh = self.meshes[op]
            for number, (role, tensor, access) in enumerate(operands):
                if role == "input" and number in op.signatures:
                    signed = op.signatures[number].signature
                elif tensor in said and (role == "output" or tensor.producer is None):
                    signed = signature(said[tensor], mesh, tensor.name, tensor.shape)
                else:
                    continue
                given.setdefault(op, []).append((role, tensor, access, signed))
        return given

    def decide(self, axis: int) -> None:
        """Find each operator's dimension along an axis."""
        choices = {
            op: self._agreeing(op, axis)
            for op in self.graph.operators
            if axis < len(self.meshes[op].shape)
        }
        named = [op for op in choices if self._said(op, axis)]
        # Outwards from what is decided; each operator is queued once.
        queue = deque(op for op in named if len(choices[op]) <= 1)
        queue.extend(named if not queue else ())
        queued = set(queue)
        while queue or len(queued) < len(choices):
            if not queue:
                queue.append(next(op for op in choices if op not in queued))
                queued.add(queue[0])
            op = queue.popleft()
            self.dims[op][axis] = self._best(op, axis, choices[op])
            for near in self._neighbours(op):
                if near in choices and near not in queued:
                    queued.add(near)
                    queue.append(near)

    def _said(self, op: Operator, axis: int) -> list[tuple[TensorRole, Tensor, Access, Sbp]]:
        """The operands of which a signature along an axis is given, and that signature."""
        return [
            (role, tensor, access, sbp)
            for role, tensor, access, signed in self.given.get(op, [])
            if (sbp := signed[axis]) is not None
        ]

    def _free(self, op: Operator, axis: int) -> list[int]:
        """The dimensions that can be divided along an axis, besides what others divide."""
        degrees = self._degrees(op)
        return [
            d
            for d, (dim, extent) in enumerate(self.space[op])
            if dim.kind is not DimKind.NONE and degrees[d] * self.meshes[op].shape[axis] <= extent
        ]

    def _agreeing(self, op: Operator, axis: int) -> list[int]:
        """Those of the free dimensions that agree with all that was said of its operands."""
        said = self._said(op, axis)
        free = [
            d
            for d in self._free(op, axis)
            if self.space[op][d][0].kind is not DimKind.PART or any(sbp == P for *_, sbp in said)
        ]
        agreeing = [
            d
            for d in free
            if all(signature_of(access, role, d) == sbp for role, _, access, sbp in said)
        ]
        if agreeing or not said:
            return agreeing
        if all(sbp == B for *_, sbp in said):
            self.repeated.setdefault(op, set()).add(axis)
            return free
        raise UserError(self._disagreement(op, axis, said, free))

    def _best(self, op: Operator, axis: int, choices: Sequence[int]) -> int | None:
        """The dimension that moves least to and from the neighbours that have one."""
        parts = self.meshes[op].shape[axis]
        near = self._decided(op, axis)
        free = bool(near) or axis in self.repeated.get(op, ())

        def rank(d: int) -> tuple[float, bool, int, int]:
            bytes_moved = sum(
                moved(theirs, signature_of(access, role, d), parts) * prod(tensor.shape)
                if role == "input"
                else moved(signature_of(access, role, d), theirs, parts) * prod(tensor.shape)
                for role, tensor, access, theirs in near
            )
            dim, _ = self.space[op][d]
            length = dim.name == "length" and dim.kind is DimKind.ATTRIBUTE
            return bytes_moved, free and not length, _ORDER.index(dim.kind), d

        return min(choices, key=rank, default=None)

    def _decided(self, op: Operator, axis: int) -> list[tuple[TensorRole, Tensor, Access, Sbp]]:
        """Activations at the operator, how it uses them, and how decided neighbours do."""
        found: list[tuple[TensorRole, Tensor, Access, Sbp]] = []
        for role, tensor, access in self.operands[op]:
            before = tensor.producer
            if role == "input" and before is not None and self.dims[before].get(axis) is not None:
                found.append((role, tensor, access, self._lies(before, axis, "output", tensor)))
            elif role == "output":
                found += [
                    (role, tensor, access, signature_of(its, "input", d))
                    for reader, its in self.readers.get(tensor, [])
                    if (d := self.dims[reader].get(axis)) is not None
                ]
        return found

    def _lies(self, op: Operator, axis: int, role: TensorRole, tensor: Tensor) -> Sbp:
        """How an operator that is decided uses a tensor along an axis."""
        d = self.dims[op][axis]
        access = next(a for r, t, a in self.operands[op] if r == role and t is tensor)
        return B if d is None else signature_of(access, role, d)

    def _neighbours(self, op: Operator) -> list[Operator]:
        before = [tensor.producer for tensor in op.inputs if tensor.producer is not None]
        return before + [op for t in op.outputs for op, _ in self.readers.get(t, [])]

    def _degrees(self, op: Operator) -> list[int]:
        degrees = [1] * len(self.space[op])
        for axis, d in self.dims[op].items():
            if d is not None:
                degrees[d] *= self.meshes[op].shape[axis]
        return degrees

    def config(self, op: Operator) -> ParallelConfig:
        """The configuration of an operator that is decided along all axes.

        Where several axes divide one dimension, the first is the major one. Along an axis that
        divides none, the tasks are on the first devices.
        """
        import numpy as np

        mesh, dims, degrees = self.meshes[op], self.dims[op], self._degrees(op)
        devices = []
        for task in np.ndindex(*degrees):
            place = [0] * len(mesh.shape)
            for d, part in enumerate(task):
                axes = [axis for axis, its in dims.items() if its == d]
                parts = np.unravel_index(part, [mesh.shape[axis] for axis in axes]) if axes else ()
                for axis, its in zip(axes, parts, strict=True):
                    place[axis] = int(its)
            devices.append(mesh.device(place))
        sums: Sums = "shards" if self._read_whole(op) else "readers"
        return ParallelConfig(tuple(degrees), tuple(devices), sums)

    def _read_whole(self, op: Operator) -> bool:
        """Whether it writes partial values along an axis along which somebody reads them all.

        Then a sum made shard by shard moves less than one made by each reader.
        """
        for axis in self.dims[op]:
            for tensor in op.outputs:
                if self._lies(op, axis, "output", tensor).kind != "P":
                    continue
                for reader, _ in self.readers.get(tensor, []):
                    if axis in self.dims[reader] and self._lies(reader, axis, "input", tensor) == B:
                        return True
        return False

    def messages(self) -> list[str]:
        """What SOAP says otherwise than the signatures do."""
        found = []
        for axis in sorted({axis for axes in self.repeated.values() for axis in axes}):
            ops = [op for op, axes in self.repeated.items() if axis in axes]
            words = []
            for op in ops[:_SHOWN]:
                d = self.dims[op][axis]
                words.append(f"'{op.name}' " + ("whole" if d is None else f"by {op.dims[d].name}"))
            more = f" and {len(ops) - _SHOWN} more" if len(ops) > _SHOWN else ""
            found.append(
                f"along axis {axis} of the mesh, what reads B alone would be computed by every "
                f"device; it is split instead: {', '.join(words)}{more}"
            )
        return found

    def _disagreement(
        self,
        op: Operator,
        axis: int,
        said: Sequence[tuple[TensorRole, Tensor, Access, Sbp]],
        free: Sequence[int],
    ) -> str:
        """That no dimension agrees, and what there is."""
        asked = ", ".join(f"{tensor.name} {sbp}" for _, tensor, _, sbp in said)
        rows = [
            ", ".join(
                f"{tensor.name} {signature_of(access, role, d)}"
                for role, tensor, access in self.operands[op]
            )
            for d in free
        ]
        parts = self.meshes[op].shape[axis]
        there = "; or ".join(rows) or f"no dimension that can be cut into {parts} parts"
        return (
            f"operator '{op.name}' cannot be split with {asked} along axis {axis} of its mesh; "
            f"there is {there}"
        )

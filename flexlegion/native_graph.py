"""The operator graph as the native libraries hold it: operators with their access maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

from flexlegion import _native
from flexlegion._native import enumeration
from flexlegion.granularity import Granularity
from flexlegion.graph import Graph, Operator
from flexlegion.tensor import Tensor

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True)
class GraphFacts:
    """What follows from a graph, as plan and simulator take it (``native/plan``).

    Parameters
    ----------
    trained
        The operators that training executes: the losses, and what they depend on.
    idle
        The operators that lead to no output and no loss: nothing executes them.
    backward
        The operators that training runs backward.
    differentiable
        The tensors of which training wants the gradient; `Tensor.requires_gradient` says the same.
    updated
        The weights that training updates.
    lookups
        Of each trained table that is used in no other way: the operators that look rows up in it
        while training.
    """

    trained: list[Operator]
    idle: list[Operator]
    backward: set[Operator]
    differentiable: set[Tensor]
    updated: set[Tensor]
    lookups: dict[Tensor, list[Operator]]


class NativeGraph:
    """A copy of a graph in the native library.

    Parameters
    ----------
    graph
        Operators in topological order; not to be extended afterwards.
    outputs
        The tensor, or tensors, that prediction returns.
    granularity
        How finely its plans are cut.
    """

    def __init__(
        self, graph: Graph, outputs: Tensor | Sequence[Tensor], granularity: Granularity
    ) -> None:
        self.graph = graph
        self.core = _native.core()
        self.tensor_numbers = {tensor: i for i, tensor in enumerate(graph.tensors)}
        lib, ffi = self.core.lib, self.core.ffi
        bounds = granularity.shard_bytes, granularity.fused_launches or 0
        self.handle = ffi.gc(self.core.check(lib.fl_graph_create(*bounds)), lib.fl_graph_destroy)
        self._add_tensors()
        self._operands = [self._add(operator) for operator in graph.operators]
        self.facts = self._finish([outputs] if isinstance(outputs, Tensor) else outputs)

    def parts(self, operator: int, degrees: tuple[int, ...]) -> npt.NDArray[np.int64]:
        """Extents of what each task touches of each operand, if an operator is split that way.

        Parameters
        ----------
        operator
            Its number.
        degrees
            One a dimension of its space.

        Returns
        -------
        array
            (task, operand, dimension); what is beyond an operand's rank is 0.
        """
        import numpy as np

        lib, ffi = self.core.lib, self.core.ffi
        tasks = int(np.prod(degrees))
        shape = (tasks, self._operands[operator], int(lib.FL_MAX_RANK))
        extents = np.zeros(shape, np.int64)
        self.core.check(
            lib.fl_graph_parts(
                self.handle,
                operator,
                len(degrees),
                list(degrees),
                extents.size,
                ffi.cast("int64_t *", extents.ctypes.data),
            )
        )
        return extents

    def _finish(self, outputs: Sequence[Tensor]) -> GraphFacts:
        core, graph = self.core, self.graph
        numbers = [self.tensor_numbers[tensor] for tensor in outputs]
        its = core.ffi.new("fl_graph_facts *")
        core.check(core.lib.fl_graph_finish(self.handle, len(numbers), numbers, its))
        operators, tensors = len(graph.operators), len(graph.tensors)
        trains = enumeration("fl_run")["trains"]
        runs = core.items(its.runs, operators)
        lookups: dict[Tensor, list[Operator]] = {}
        for operator, table in zip(graph.operators, core.items(its.table, operators), strict=True):
            if table >= 0:
                lookups.setdefault(graph.tensors[table], []).append(operator)
        backward = core.items(its.backward, operators)
        gradient = core.items(its.gradient, tensors)
        owners = core.items(its.owner, tensors)
        return GraphFacts(
            [op for op, run in zip(graph.operators, runs, strict=True) if run & trains],
            [op for op, run in zip(graph.operators, runs, strict=True) if not run],
            {op for op, runs_it in zip(graph.operators, backward, strict=True) if runs_it},
            {tensor for tensor, wanted in zip(graph.tensors, gradient, strict=True) if wanted},
            {tensor for tensor, owner in zip(graph.tensors, owners, strict=True) if owner >= 0},
            lookups,
        )

    def _add_tensors(self) -> None:
        lib = self.core.lib
        dtypes, kinds = enumeration("fl_data_type"), enumeration("fl_tensor_kind")
        for tensor in self.graph.tensors:
            self.core.check(
                lib.fl_graph_add_tensor(
                    self.handle,
                    tensor.name.encode(),
                    len(tensor.shape),
                    list(tensor.shape),
                    dtypes[tensor.dtype],
                    kinds[_kind_of(tensor)],
                    tensor.requires_gradient,
                )
            )

    def _add(self, operator: Operator) -> int:
        """Add an operator; returns how many operands it has."""
        lib, check = self.core.lib, self.core.check
        roles, dim_kinds = enumeration("fl_role"), enumeration("fl_dim_kind")
        attributes = operator.kind.attributes()
        names, keep_names = self.core.texts(list(attributes))
        values, keep_values = self.core.texts(list(attributes.values()))
        dims = [dim_kinds[dim.kind.name.lower()] for dim in operator.dims]
        reductions = operator.space[len(operator.output.shape) :]
        number = check(
            lib.fl_graph_add_operator(
                self.handle,
                operator.name.encode(),
                operator.kind.type.encode(),
                operator.kind.is_loss,
                len(dims),
                dims,
                len(reductions),
                reductions,
                len(attributes),
                names,
                values,
            )
        )
        del keep_names, keep_values
        operands = operator.operands
        combine = enumeration("fl_combine")
        for role, tensor, access in operands:
            check(
                lib.fl_graph_add_operand(
                    self.handle,
                    number,
                    self.tensor_numbers[tensor],
                    roles[role],
                    access.saved,
                    [astuple(axis) for axis in access.map],
                    sum(1 << dim for dim in access.once),
                    combine[access.combine],
                )
            )
        return len(operands)


def _kind_of(tensor: Tensor) -> str:
    """What the native library calls it."""
    special = {"operator_state": tensor.state, "detached": tensor.detached}
    return next((kind for kind, given in special.items() if given), tensor.kind)

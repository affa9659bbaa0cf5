"""The operator graph as the native libraries hold it: operators with their access maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from flexlegion.bindings import native
from flexlegion.bindings.native import Arrays, enumeration
from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.operator_type import DimMap
from flexlegion.graph.tensor import Tensor
from flexlegion.machine.devices import Devices
from flexlegion.strategy.granularity import Granularity, longest_run

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# The header's ``fl_dim_map``; `dataclasses.astuple`, which copies deeply, takes 45 times as long.
_numbers_of = attrgetter(*(field.name for field in fields(DimMap)))


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
    scales
        Whether gradients are scaled, for float16 to hold them.
    """

    trained: list[Operator]
    idle: list[Operator]
    backward: set[Operator]
    differentiable: set[Tensor]
    updated: set[Tensor]
    lookups: dict[Tensor, list[Operator]]
    scales: bool


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
    devices
        Where they run.
    """

    def __init__(
        self,
        graph: Graph,
        outputs: Tensor | Sequence[Tensor],
        granularity: Granularity,
        devices: Devices,
    ) -> None:
        self.graph = graph
        self.core = native.core()
        self.tensor_numbers = {tensor: i for i, tensor in enumerate(graph.tensors)}
        outputs = [outputs] if isinstance(outputs, Tensor) else outputs
        lib, ffi = self.core.lib, self.core.ffi
        array = Arrays()
        operators = [self._operator(array, operator) for operator in graph.operators]
        contents = {
            "shard_bytes": granularity.shard_bytes,
            "fused_launches": longest_run(granularity, devices),
            "n_tensors": len(graph.tensors),
            "n_operators": len(graph.operators),
            "n_outputs": len(outputs),
            "n_devices": len(devices),
            "node_of": array("int32_t", devices.nodes),
            "tensors": array("fl_tensor", [_tensor(array, tensor) for tensor in graph.tensors]),
            "operators": array("fl_operator", operators),
            "outputs": array("int32_t", [self.tensor_numbers[tensor] for tensor in outputs]),
        }
        facts = ffi.new("fl_graph_facts *")
        self.handle = ffi.gc(
            self.core.check(lib.fl_graph_create(array("fl_graph_contents", [contents]), facts)),
            lib.fl_graph_destroy,
        )
        self.facts = self._read(facts)

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
        its = self.graph.operators[operator]
        operands = len(its.inputs) + len(its.weights) + len(its.outputs)
        shape = (tasks, operands, int(lib.FL_MAX_RANK))
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

    def _read(self, its: Any) -> GraphFacts:
        core, graph = self.core, self.graph
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
            bool(its.scales),
        )

    def _operator(self, array: Arrays, operator: Operator) -> dict[str, Any]:
        """The header's ``fl_operator``."""
        roles, kinds = enumeration("fl_role"), enumeration("fl_dim_kind")
        combine = enumeration("fl_combine")
        attributes = operator.kind.attributes()
        reductions = operator.space[len(operator.output.shape) :]
        operands = [
            {
                "tensor": self.tensor_numbers[tensor],
                "role": roles[role],
                "saved_for_backward": access.saved,
                "combine": combine[access.combine],
                "linear": access.part >= 0,
                "once": sum(1 << dim for dim in access.once),
                "map": array("fl_dim_map", [_numbers_of(axis) for axis in access.map]),
            }
            for role, tensor, access in operator.operands
        ]
        return {
            "name": array.text(operator.name),
            "type": array.text(operator.kind.type),
            "is_loss": operator.kind.is_loss,
            "n_dims": len(operator.dims),
            "n_reductions": len(reductions),
            "n_attributes": len(attributes),
            "n_operands": len(operands),
            "dim_kinds": array("int32_t", [kinds[dim.kind.name.lower()] for dim in operator.dims]),
            "reductions": array("int64_t", reductions),
            "attribute_names": array.texts(attributes),
            "attribute_values": array.texts(attributes.values()),
            "operands": array("fl_operand", operands),
        }


def _tensor(array: Arrays, tensor: Tensor) -> dict[str, Any]:
    """The header's ``fl_tensor``."""
    return {
        "name": array.text(tensor.name),
        "data_type": enumeration("fl_data_type")[tensor.dtype],
        "kind": enumeration("fl_tensor_kind")[_kind_of(tensor)],
        "needs_gradient": tensor.requires_gradient,
        "rank": len(tensor.shape),
        "shape": array("int64_t", tensor.shape),
    }


def _kind_of(tensor: Tensor) -> str:
    """What the native library calls it."""
    special = {"operator_state": tensor.state, "detached": tensor.detached}
    return next((kind for kind, given in special.items() if given), tensor.kind)

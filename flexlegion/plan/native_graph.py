"""The operator graph as the native libraries take it: operators with their access maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from flexlegion.bindings.native import Arrays, core, enumeration
from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.operator_type import DimMap
from flexlegion.graph.tensor import Tensor
from flexlegion.machine.devices import Devices
from flexlegion.strategy.granularity import Granularity, longest_run

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
    updated: set[Tensor]
    lookups: dict[Tensor, list[Operator]]
    scales: bool


def to_native(
    array: Arrays,
    graph: Graph,
    outputs: Tensor | Sequence[Tensor],
    granularity: Granularity,
    devices: Devices,
) -> Any:
    """The header's ``fl_graph``.

    Parameters
    ----------
    array
        Keeps it.
    graph
        Operators in topological order.
    outputs
        The tensor, or tensors, that prediction returns.
    granularity
        How finely its plans are cut.
    devices
        Where they run.
    """
    numbers = {tensor: i for i, tensor in enumerate(graph.tensors)}
    outputs = [outputs] if isinstance(outputs, Tensor) else outputs
    operators = [_operator(array, operator, numbers) for operator in graph.operators]
    contents = {
        "shard_bytes": granularity.shard_bytes,
        "fused_launches": longest_run(granularity, devices),
        "keeps_tensors": granularity.keep_tensors,
        "micro_batches": graph.micro_batches,
        "n_tensors": len(graph.tensors),
        "n_operators": len(graph.operators),
        "n_outputs": len(outputs),
        "n_devices": len(devices),
        "node_of": array("int32_t", devices.nodes),
        "tensors": array("fl_tensor", [_tensor(array, tensor) for tensor in graph.tensors]),
        "operators": array("fl_operator", operators),
        "outputs": array("int32_t", [numbers[tensor] for tensor in outputs]),
    }
    return array("fl_graph", [contents])


def facts_of(graph: Graph, its: Any) -> GraphFacts:
    """What the header's ``fl_graph_facts`` tell of a graph."""
    items = core().items
    operators, tensors = graph.operators, graph.tensors
    trains = enumeration("fl_run")["trains"]
    runs = items(its.runs, len(operators))
    lookups: dict[Tensor, list[Operator]] = {}
    for operator, table in zip(operators, items(its.table, len(operators)), strict=True):
        if table >= 0:
            lookups.setdefault(tensors[table], []).append(operator)
    backward = items(its.backward, len(operators))
    # Python's tensors have said it before there was a whole graph: layers and cost models ask.
    gradients = [bool(wanted) for wanted in items(its.gradient, len(tensors))]
    assert gradients == [tensor.requires_gradient for tensor in tensors]
    owners = items(its.owner, len(tensors))
    return GraphFacts(
        [op for op, run in zip(operators, runs, strict=True) if run & trains],
        [op for op, run in zip(operators, runs, strict=True) if not run],
        {op for op, runs_it in zip(operators, backward, strict=True) if runs_it},
        {tensor for tensor, owner in zip(tensors, owners, strict=True) if owner >= 0},
        lookups,
        bool(its.scales),
    )


def _operator(array: Arrays, operator: Operator, numbers: Mapping[Tensor, int]) -> dict[str, Any]:
    """The header's ``fl_operator``."""
    roles, kinds = enumeration("fl_role"), enumeration("fl_dim_kind")
    combine = enumeration("fl_combine")
    reductions = operator.space[len(operator.output.shape) :]
    operands = [
        {
            "tensor": numbers[tensor],
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
        "n_operands": len(operands),
        "dim_kinds": array("int32_t", [kinds[dim.kind.name.lower()] for dim in operator.dims]),
        "reductions": array("int64_t", reductions),
        "operands": array("fl_operand", operands),
        "attributes": array.attributes(operator.kind.attributes()),
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
    special = {
        "operator_state": tensor.state,
        "detached": tensor.detached,
        "summed_weight": tensor.summed,
    }
    return next((kind for kind, given in special.items() if given), tensor.kind)

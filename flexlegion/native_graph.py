"""The operator graph as the native libraries hold it: operators with their access maps."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from flexlegion import _native
from flexlegion.errors import UserError
from flexlegion.graph import Graph, Operator
from flexlegion.ops.base import DimKind
from flexlegion.tensor import Tensor

# Weights are not cut into smaller shards, however many devices replicate them: below, a message's
# latency outweighs what parallel links and updates gain. FLEXLEGION_SHARD_BYTES overrides it.
SHARD_BYTES = 64 * 1024


def shard_bytes() -> int:
    """The least size of a weight's shard, in bytes."""
    text = os.environ.get("FLEXLEGION_SHARD_BYTES", str(SHARD_BYTES))
    if not text.isdecimal() or len(text) > 15:
        raise UserError(f"FLEXLEGION_SHARD_BYTES has to be a number of bytes, but is '{text[:40]}'")
    return int(text)


class NativeGraph:
    """A copy of a graph in the native library.

    Parameters
    ----------
    graph
        Operators in topological order; not to be extended afterwards.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.core = _native.core()
        self.tensor_numbers = {tensor: i for i, tensor in enumerate(graph.tensors)}
        lib, ffi = self.core.lib, self.core.ffi
        self.handle = ffi.gc(self.core.check(lib.fl_graph_create()), lib.fl_graph_destroy)
        self.core.check(lib.fl_graph_set_shard_bytes(self.handle, shard_bytes()))
        self._add_tensors()
        self._operands = [self._add(operator) for operator in graph.operators]

    def numbers(self, tensors: Tensor | Sequence[Tensor]) -> list[int]:
        """The numbers of a tensor, or of several."""
        several = [tensors] if isinstance(tensors, Tensor) else tensors
        return [self.tensor_numbers[tensor] for tensor in several]

    def parts(self, operator: int, degrees: tuple[int, ...]) -> npt.NDArray[np.int64]:
        """Extents of what each task touches of each operand, if an operator is split that way.

        Parameters
        ----------
        operator
            Its number.
        degrees
            One a dimension of its output.

        Returns
        -------
        array
            (task, operand, dimension); what is beyond an operand's rank is 0.
        """
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

    def _add_tensors(self) -> None:
        lib = self.core.lib
        dtypes = {"float32": lib.FL_FLOAT32, "int32": lib.FL_INT32}
        kinds = {"input": lib.FL_INPUT, "weight": lib.FL_WEIGHT, "activation": lib.FL_ACTIVATION}
        for tensor in self.graph.tensors:
            kind = lib.FL_TABLE if tensor.table else kinds[tensor.kind]
            if tensor.state:
                kind = lib.FL_OPERATOR_STATE
            self.core.check(
                lib.fl_graph_add_tensor(
                    self.handle,
                    tensor.name.encode(),
                    len(tensor.shape),
                    list(tensor.shape),
                    dtypes[tensor.dtype],
                    kind,
                    tensor.requires_gradient,
                )
            )

    def _add(self, operator: Operator) -> int:
        """Add an operator; returns how many operands it has."""
        lib, check = self.core.lib, self.core.check
        roles = {
            "input": lib.FL_ROLE_INPUT,
            "weight": lib.FL_ROLE_WEIGHT,
            "output": lib.FL_ROLE_OUTPUT,
        }
        dim_kinds = {
            DimKind.SAMPLE: lib.FL_SAMPLE,
            DimKind.ATTRIBUTE: lib.FL_ATTRIBUTE,
            DimKind.PARAMETER: lib.FL_PARAMETER,
            DimKind.NONE: lib.FL_NONE,
        }
        attributes = operator.kind.attributes()
        names, keep_names = self.core.texts(list(attributes))
        values, keep_values = self.core.texts(list(attributes.values()))
        dims = [dim_kinds[dim.kind] for dim in operator.dims]
        number = check(
            lib.fl_graph_add_operator(
                self.handle,
                operator.name.encode(),
                operator.kind.type.encode(),
                operator.kind.is_loss,
                len(dims),
                dims,
                len(attributes),
                names,
                values,
            )
        )
        del keep_names, keep_values
        operands = operator.operands
        for role, tensor, access in operands:
            flat = [
                x for m in access.map for x in (m.out_dim, m.num, m.den, m.lo_offset, m.hi_offset)
            ]
            check(
                lib.fl_graph_add_operand(
                    self.handle,
                    number,
                    self.tensor_numbers[tensor],
                    roles[role],
                    access.saved,
                    flat,
                )
            )
        return len(operands)

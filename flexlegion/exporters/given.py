"""What a program is given: in which shapes, and which devices may have samples of their own."""

from __future__ import annotations

from collections.abc import Mapping
from math import lcm

from flexlegion.base.errors import UserError
from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.tensor import Tensor
from flexlegion.layers.arrangement import Arrangement, Form
from flexlegion.objective.losses import losses_of
from flexlegion.spmd.axes import Division
from flexlegion.transforms.micro_batches import micro_batched


def spelt_form(tensor: Tensor, form: Form) -> str:
    """How a program spells a form."""
    its = form.arrangement or Arrangement.in_order(range(len(form.shape)))
    cut = tuple(form.shape[d] if its.has_samples or d else 1 for d in its.places)
    order = tuple(its.places.index(d) for d in range(len(its.places)))
    given = its.shape(form.shape)
    return f"Form({given}, {cut}, {order}, {tensor.shape}, {form.loose})"


def shared_axes(graph: Graph, divisions: Mapping[str, Division]) -> tuple[int, ...]:
    """The axes of a mesh along which devices may be given samples of their own.

    They are those along which all losses divide samples. What reads an input otherwise, as look-ups
    in a table do that is divided by columns, gets it moved.
    """
    found: list[set[int]] = []
    for op in losses_of(graph).values():
        its = divisions[op.name].dims
        found.append({axis for axis, dim in enumerate(its) if dim == 0})
    return tuple(sorted(set.intersection(*found))) if found else ()


def multiple_of_samples(graph: Graph, divisions: Mapping[str, Division]) -> int:
    """Of how many samples a micro-batch may have any multiple; 0: it has as many as it has.

    Operators that compute each sample by itself compute any number of them. Where one needs all
    samples of a batch together, or makes samples of what has none, their number is the graph's.
    """
    samples = graph.inputs[0].shape[0]
    if samples == 1 or any(makes_samples(op, samples) for op in graph.operators):
        return 0
    if graph.micro_batches == 1:
        try:
            micro_batched(graph, (), samples)
        except UserError:
            return 0
    return lcm(*(divisions[op.name].parts(0) for op in graph.operators))


def makes_samples(op: Operator, samples: int) -> bool:
    """Whether an operator has samples of what is the same for all of them."""
    has = op.output.shape[0] == samples
    return has and not any(x.kind != "weight" and x.shape[0] == samples for x in op.inputs)

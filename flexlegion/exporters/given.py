"""What a program is given: in which shapes, and which devices may have samples of their own."""

from __future__ import annotations

from collections.abc import Mapping

from flexlegion.graph.graph import Graph
from flexlegion.graph.tensor import Tensor
from flexlegion.layers.arrangement import Arrangement, Form
from flexlegion.objective.losses import losses_of
from flexlegion.spmd.axes import Division


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

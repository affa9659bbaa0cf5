"""Mixtures of experts: gates, and the networks that they choose."""

from __future__ import annotations

from flexlegion.importers.lower.base import Lowerer, Unsupported, first_values, lowers
from flexlegion.importers.lower.normalization import channels_last
from flexlegion.importers.program import Node
from flexlegion.importers.views import Value, extent_of
from flexlegion.layers.origin import Layout
from flexlegion.ops.experts import Experts


@lowers("top_k")
def top_k(lowerer: Lowerer, node: Node) -> Value:
    x = lowerer.value(node["self"])
    tensor, outer, channels = channels_last(lowerer, x, -1)
    output = lowerer.model.top_k(tensor, node["k"], name=lowerer.name(node))
    return Value(output, (*outer, channels), x.seen)


@lowers("experts")
def experts(lowerer: Lowerer, node: Node) -> Value:
    """Of weights (experts, units, d), or of two such, one below the other; (experts, d, units)."""
    x, outer, channels = channels_last(lowerer, lowerer.value(node["input"]), -1)
    gates, places, _ = channels_last(lowerer, lowerer.value(node["gates"]), -1)
    if [extent_of(run) for run in places] != [extent_of(run) for run in outer]:
        raise Unsupported("its gates are arranged otherwise than its rows")
    up, down = (lowerer.value(node[name]).source for name in ("up", "down"))
    for weight in (up, down):
        if not isinstance(weight, Node) or weight.op not in ("parameter", "constant"):
            raise Unsupported("its weights are computed, not parameters")
    count, d, units = down.shape
    whole = (0, 1, 2)
    narrow = Layout((count, d, units), whole, (count, d, units))
    wide = (count, units, d)
    if node["gated"]:
        stacked = (count, 2, units, d)
        layouts = [(up, Layout(stacked, whole, wide, (1, 0))), (down, narrow)]
        layouts.append((up, Layout(stacked, whole, wide, (1, 1))))
    else:
        layouts = [(up, Layout(wide, whole, wide)), (down, narrow)]
    given = [first_values(weight, layout) for weight, layout in layouts]
    kind = Experts(
        units,
        node["activation"],
        node["gated"],
        float(node["load"]),
        (*given, *given[:1])[:3],
    )
    output = lowerer.apply(kind, [x, gates], lowerer.name(node), layouts).output
    return Value(output, (*outer, channels), lowerer.value(node["input"]).seen)

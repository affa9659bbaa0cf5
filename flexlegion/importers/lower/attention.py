"""Attention, and the rotation of queries and keys by their positions."""

from __future__ import annotations

import math

from flexlegion.importers.lower.base import Lowerer, Unsupported, lowers
from flexlegion.importers.program import SAMPLES, Node
from flexlegion.importers.views import Run, Value, extent_of
from flexlegion.tensor import Tensor


@lowers("scaled_dot_product_attention")
def attention(lowerer: Lowerer, node: Node) -> Value:
    """Queries, keys and values are seen as (n, heads, positions, channels)."""
    query, key, value = (lowerer.value(node[name]) for name in ("query", "key", "value"))
    if any(len(v.seen) != 4 for v in (query, key, value)):
        raise Unsupported("its queries, keys and values do not have four dimensions")
    scale = node.get("scale")
    width = node["query"].shape[-1]
    heads, bias = node["query"].shape[1], node["attn_mask"]
    scores = (*node["query"].shape[:3], node["key"].shape[2])
    output = lowerer.model.attention(
        _by_positions(lowerer, query),
        _by_positions(lowerer, _groups(key, heads)),
        _by_positions(lowerer, _groups(value, heads)),
        bias=None if bias is None else _bias(lowerer, lowerer.value(bias), scores),
        causal=bool(node["is_causal"]),
        scale=None if scale is None or _usual(scale, width) else float(scale),
        dropout=float(node["dropout_p"]),
        name=lowerer.name(node),
    )
    samples, _, positions, _ = query.seen
    channels = value.seen[3]
    stored = (samples, positions, query.seen[1], channels)
    return Value(output, stored, (samples, query.seen[1], positions, channels))


@lowers("rotary")
def rotary(lowerer: Lowerer, node: Node) -> Value:
    """x is seen as (n, heads, positions, channels); the tables broadcast to it."""
    x = lowerer.value(node["x"])
    samples, heads, positions, channels = x.seen
    tensor = _by_positions(lowerer, x)
    tables = []
    for name in ("cos", "sin"):
        table = lowerer.value(node[name])
        seen = ((),) * (4 - len(table.seen)) + table.seen
        if seen[1] or extent_of(seen[2]) != extent_of(positions):
            raise Unsupported("its tables are not of positions and channels")
        tables.append(lowerer.arranged(table, [seen[0], seen[2], seen[3]]))
    output = lowerer.model.rotary(tensor, tables[0], tables[1], name=lowerer.name(node))
    return Value(output, (samples, positions, heads, channels), x.seen)


def _usual(scale: float, width: int) -> bool:
    return math.isclose(scale, 1 / math.sqrt(width), rel_tol=1e-6)


def _by_positions(lowerer: Lowerer, value: Value) -> Tensor:
    """A tensor (n, positions, heads, channels)."""
    samples, heads, positions, channels = value.seen
    if len(samples) != 1 or samples[0].extent != SAMPLES:
        raise Unsupported("its samples are merged with positions, as those of windows are")
    return lowerer.arranged(lowerer.in_graph(value), [samples, positions, heads, channels])


def _groups(value: Value, heads: int) -> Value:
    """Keys or values whose heads are shared by neighbouring queries, each once."""
    run = value.seen[1]
    own = tuple(axis for axis in run if not axis.repeated)
    if extent_of(run) != heads and run:
        raise Unsupported("its queries have other heads than its keys")
    if any(axis.repeated for axis in run[: len(own)]):
        raise Unsupported("its queries share keys that are not their neighbours'")
    return value.with_seen((value.seen[0], own, *value.seen[2:]))


def _bias(lowerer: Lowerer, value: Value, shape: tuple[int, ...]) -> Tensor:
    """What is added to scores, each extent that of (n, heads, queries, keys) or 1."""
    seen = ((),) * (4 - len(value.seen)) + value.seen
    stored: list[Run] = [tuple(a for a in run if not a.repeated) for run in seen]
    for run, extent in zip(stored, shape, strict=True):
        if extent_of(run) not in (1, extent):
            raise Unsupported("its mask does not fit its queries and keys")
    return lowerer.arranged(value, stored)

"""Attention, and the rotation of queries and keys by their positions."""

from __future__ import annotations

import math

from flexlegion.graph.tensor import Tensor
from flexlegion.importers.lower.base import Lowerer, Unsupported, lowers
from flexlegion.importers.program import SAMPLES, Node
from flexlegion.importers.views import Axis, Run, Value, extent_of


@lowers("scaled_dot_product_attention")
def attention(lowerer: Lowerer, node: Node) -> Value:
    """Queries, keys and values are seen as (n, heads, positions, channels).

    Where samples are merged with windows, as Swin's are, each window's heads are heads by
    themselves.
    """
    query, key, value = (
        lowerer.with_samples(lowerer.value(node[name]), node[name].shape)
        for name in ("query", "key", "value")
    )
    if any(len(v.seen) != 4 for v in (query, key, value)):
        raise Unsupported("its queries, keys and values do not have four dimensions")
    scale = node.get("scale")
    width = node["query"].shape[-1]
    heads, bias = node["query"].shape[1], node["attn_mask"]
    windows = tuple(axis for axis in query.seen[0] if axis.extent != SAMPLES)
    scores = (SAMPLES, extent_of(windows) * heads, node["query"].shape[2], node["key"].shape[2])
    added = None if bias is None else lowerer.value(bias)
    if added is not None and windows:
        added = _of_windows(added, extent_of(windows), heads)
    output = lowerer.model.attention(
        _by_positions(lowerer, query),
        _by_positions(lowerer, _groups(key, heads)),
        _by_positions(lowerer, _groups(value, heads)),
        bias=None if added is None else _bias(lowerer, added, scores),
        causal=bool(node["is_causal"]),
        scale=None if scale is None or _usual(scale, width) else float(scale),
        dropout=float(node["dropout_p"]),
        name=lowerer.name(node),
    )
    merged, own, positions, _ = query.seen
    channels = value.seen[3]
    samples = tuple(axis for axis in merged if axis not in windows)
    stored = (samples, positions, (*windows, *own), channels)
    return Value(output, stored, (merged, own, positions, channels))


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
    """A tensor (n, positions, heads, channels), of windows with the heads of all of them."""
    (*samples,), heads, positions, channels = value.seen
    if not samples or samples[0].extent != SAMPLES:
        raise Unsupported("its samples are merged with positions that stand before them")
    runs = [(samples[0],), positions, (*samples[1:], *heads), channels]
    return lowerer.arranged(lowerer.in_graph(value), runs)


def _of_windows(bias: Value, windows: int, heads: int) -> Value:
    """A bias that is seen as (windows, heads, queries, keys), as one of all windows' heads."""
    seen = ((),) * (4 - len(bias.seen)) + bias.seen
    alike = tuple(axis for axis in seen[0] if not (axis.extent == SAMPLES and axis.repeated))
    seen = (alike, *seen[1:])
    if any(axis.extent == SAMPLES for axis in seen[0]):
        raise Unsupported("its mask differs from sample to sample and from window to window")
    if not seen[0] and not seen[1]:
        return bias.with_seen(seen)  # the same for all of them
    own = seen[0] or (Axis(windows, repeated=True),)
    of_each = seen[1] or (Axis(heads, repeated=True),)
    return bias.with_seen(((), (*own, *of_each), *seen[2:]))


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
    stored: list[Run] = [() if all(axis.repeated for axis in run) else run for run in seen]
    for run, extent in zip(stored, shape, strict=True):
        if extent_of(run) not in (1, extent):
            raise Unsupported("its mask does not fit its queries and keys")
    return lowerer.arranged(value, stored)

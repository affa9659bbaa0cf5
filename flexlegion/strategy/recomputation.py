"""Which operators are run again for the backward pass, so that fewer activations are kept.

If a network is cut into segments, what crosses the cuts has to be kept; everything else can be
computed again from that, a segment at a time, when the backward pass comes to it. So memory holds
what crosses the cuts, and what one segment computes. The backward pass begins with the last
segment, whose values are there anyway. Many short segments have much that crosses, few long ones
compute much. Of a chain of n equal layers, the best have the square root of n layers (Chen et al.,
2016, "Training Deep Nets with Sublinear Memory Cost").

Several lengths of segments are tried. For each, the network is cut where little crosses, such as
behind the sum that ends each block of a transformer.

That costs a third of an iteration. Selective recomputation (Korthikanti et al., 2022, "Reducing
Activation Recomputation in Large Transformer Models") costs a few percent: it keeps what takes long
to compute, products above all, and runs the cheap operators between them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from math import prod

from flexlegion.graph.graph import Graph, Operator
from flexlegion.strategy.configuration import ParallelConfig, cannot_run_again

LENGTHS = 40  # of segments, that are tried
# An operator is cheap if it takes so many floating-point operations for each number that it
# computes at most. A GPU's memory is busy for longer with such a number than its arithmetic units.
CHEAP = 64


def recomputing(configs: Mapping[str, ParallelConfig], graph: Graph) -> dict[str, ParallelConfig]:
    """The same configurations, with operators run again so that little has to be kept.

    What other devices read is kept in any case: otherwise one device would wait for another one's
    recomputation.

    Parameters
    ----------
    configs
        By operator name.
    graph
        What they are for.
    """
    kept = {op for op in graph.operators if _stays(op)} | _read_elsewhere(graph, configs)
    behind = crossing(graph)
    sizes = {op: _bytes(op) for op in graph.operators}
    tried = [_kept(graph, behind, kept, sizes, length) for length in _lengths(sizes)]
    _, best = min(tried, key=lambda its: its[0], default=(0, kept))
    return _run_again(configs, set(graph.operators) - best)


def selective(configs: Mapping[str, ParallelConfig], graph: Graph) -> dict[str, ParallelConfig]:
    """The same configurations, with those operators run again that are cheap (`CHEAP`).

    What another stage reads is kept, and what would have to be fetched to be computed again: from
    partial values, from other devices, or from a table. Its readers may be split in another way;
    then they gather it once more, as in sequence parallelism.

    Parameters
    ----------
    configs
        By operator name.
    graph
        What they are for.
    """
    elsewhere = _read_elsewhere(graph, configs)
    again = {
        op
        for op in graph.operators
        if flops_of_a_number(op) <= CHEAP
        and not (_stays(op) or op.looks_up or op in elsewhere)
        and all(_is_at_hand(tensor.producer, configs[op.name], configs) for tensor in op.inputs)
    }
    return _run_again(configs, again)


def flops_of_a_number(op: Operator) -> float:
    """Floating-point operations of its forward pass for each number that it computes."""
    numbers = sum(prod(tensor.shape) for tensor in op.outputs)
    return op.kind.flops(op.input_shapes) / max(1, numbers)


def _is_at_hand(
    producer: Operator | None, reader: ParallelConfig, configs: Mapping[str, ParallelConfig]
) -> bool:
    """Whether a reader's devices computed what it reads, and have whole values of it."""
    if producer is None:  # a batch, or weights, which the backward pass has anyway
        return True
    config = configs[producer.name]
    partial = prod(config.degrees[len(producer.output.shape) :]) > 1 and config.sums == "readers"
    return config.devices == reader.devices and not partial


def _run_again(
    configs: Mapping[str, ParallelConfig], again: Set[Operator]
) -> dict[str, ParallelConfig]:
    """The configurations, where these operators are run again."""
    return {**configs, **{op.name: replace(configs[op.name], again=True) for op in again}}


def _stays(op: Operator) -> bool:
    """Whether an operator is not run again: it cannot be, or nothing runs backward there."""
    trained = any(tensor.requires_gradient for tensor in op.outputs)
    return cannot_run_again(op) is not None or not trained


def _read_elsewhere(graph: Graph, configs: Mapping[str, ParallelConfig]) -> set[Operator]:
    """Operators whose outputs other devices read than those that computed them."""
    return {
        tensor.producer
        for reader in graph.operators
        for tensor in reader.inputs
        if tensor.producer is not None
        and set(configs[reader.name].devices) != set(configs[tensor.producer.name].devices)
    }


def _lengths(sizes: Mapping[Operator, int]) -> list[int]:
    """Bounds on what a segment computes, in bytes: from the largest operator to the network."""
    least, all_ = max(sizes.values(), default=0), sum(sizes.values())
    return [least + (all_ - least) * i**2 // LENGTHS**2 for i in range(LENGTHS + 1)]


def _kept(
    graph: Graph,
    behind: Sequence[Set[Operator]],
    kept: Set[Operator],
    sizes: Mapping[Operator, int],
    length: int,
) -> tuple[int, set[Operator]]:
    """What is kept if segments compute no more bytes than that, and the bytes that are held.

    `behind` is of `crossing`; `kept` are those that are kept in any case; `sizes` are in bytes.
    As soon as a segment is too long, it ends where the least crosses of its second half; so each
    operator is looked at about twice.
    """
    all_kept = set(kept)
    longest = first = 0
    segment: list[Operator] = []
    while first < len(graph.operators):
        inner: list[int] = []  # bytes, from the segment's first operator to each of it
        for op in graph.operators[first:]:
            inner.append((inner or [0])[-1] + (op not in all_kept) * sizes[op])
            if inner[-1] > length and len(inner) > 1:
                break
        last = first + len(inner)
        if last < len(graph.operators) or inner[-1] > length:
            half = inner[-2] // 2 if len(inner) > 1 else 0
            places = [at for at, size in enumerate(inner[:-1] or inner) if size >= half]
            new = [sum(sizes[op] for op in behind[first + at] - all_kept) for at in places]
            least = min(new)
            at = max(at for at, size in zip(places, new, strict=True) if size == least)
            all_kept |= behind[first + at]
            last = first + at + 1
        segment = graph.operators[first:last]
        first = last
        if first < len(graph.operators):
            longest = max(longest, sum(sizes[op] for op in segment if op not in all_kept))
    all_kept.update(segment)
    held = sum(sizes[op] for op in all_kept) + longest
    return held, all_kept


def crossing(graph: Graph) -> list[set[Operator]]:
    """Behind each operator: those so far whose outputs are read later."""
    last_read = {tensor: at for at, op in enumerate(graph.operators) for tensor in op.inputs}
    until = {
        op: max((last_read.get(tensor, -1) for tensor in op.outputs), default=-1)
        for op in graph.operators
    }
    behind: list[set[Operator]] = []
    open_: set[Operator] = set()
    for at, op in enumerate(graph.operators):
        open_ = {before for before in (*open_, op) if until[before] > at}
        behind.append(open_)
    return behind


def _bytes(op: Operator) -> int:
    return sum(prod(tensor.shape) * tensor.element_bytes for tensor in op.outputs)

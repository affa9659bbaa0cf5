"""A strategy in the words of those who train large models: "TP 4 x DP 2, pipeline of 2; ZeRO-1".

Operators are grouped by how they are split. Splits by samples are data parallelism (DP). Splits of
weights and of what is summed over are tensor parallelism (TP), and so are those of what lies in
between, by channels or heads; splits by experts are expert parallelism (EP). Others have the
dimension's name. Where what lies between layers that share their weights is split by the length of
the sequences, the strategy is sequence-parallel.
A group's share is that of the model's operations, forward and backward. If the groups' devices are
apart from each other, each set of devices is a stage of a pipeline (PP).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from math import prod

from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.operator_type import Dim, DimKind
from flexlegion.strategy.configuration import ParallelConfig
from flexlegion.strategy.pairs import trained
from flexlegion.strategy.strategy import ResolvedStrategy

SHOWN = 3  # groups, those that do most
LEAST = 0.005  # the share of a group that is worth a word
_TENSOR = (DimKind.PARAMETER, DimKind.REDUCTION, DimKind.PART)
_BETWEEN = ("channel", "head")
_ORDER = ("EP", "TP", "DP")
_SEQUENCE = "sequence"
_SHARDED = {"gradients": "ZeRO-2", "weights": "ZeRO-3"}


def in_words(graph: Graph, strategy: ResolvedStrategy) -> str:
    """One line on a strategy.

    Parameters
    ----------
    graph
        Of one micro-batch, as it is trained.
    strategy
        For it.

    Returns
    -------
    str
        For example ``"TP 4 x DP 2 (96% of the work), DP 8 (4%); ZeRO-1; 4 micro-batches"``.
    """
    operators = trained(graph)
    work = {op: work_of(op) for op in operators}
    placed = [frozenset(strategy[op.name].devices) for op in operators if work[op]]
    stages = _stages(placed)
    groups: dict[str, float] = defaultdict(float)
    total = sum(work.values()) or 1
    sequence = _is_sequence_parallel(operators, strategy)
    for op in operators:
        groups[_split(op, strategy[op.name], sequence)] += work[op] / total
    largest = sorted(groups.items(), key=lambda item: -item[1])
    shown = [its for its in largest[:SHOWN] if its[1] >= LEAST] or largest[:1]
    said = [
        f"{words} ({share:.0%}{' of the work' if not number else ''})"
        for number, (words, share) in enumerate(shown)
    ]
    if len(shown) == 1 and shown[0][1] > 1 - LEAST:
        said = [shown[0][0]]
    elif (left := 1 - sum(share for _, share in shown)) >= LEAST:
        said.append(f"otherwise ({left:.0%})")
    if stages > 1:
        visits = 1 + sum(a != b for a, b in pairwise(placed))
        rounds = graph.micro_batches > 1 and visits > stages and visits % stages == 0
        runs = f" with {visits // stages} runs of layers each" if rounds else ""
        said[0] = f"PP {stages}{runs}, stages of {said[0]}"
    said = [", ".join(said), *(["sequence-parallel"] if sequence else [])]
    return "; ".join([*said, *_memory(graph, strategy, operators)])


def work_of(op: Operator) -> int:
    """An operator's operations, forward and backward."""
    return op.kind.flops(op.input_shapes) + op.kind.backward_flops(op.input_shapes)


def _split(op: Operator, config: ParallelConfig, sequence: bool) -> str:
    """How an operator is divided: ``TP 2 x DP 4``. `sequence`: lengths belong to TP."""
    ways = _ways(op, config)
    if sequence and _SEQUENCE in ways:
        ways["TP"] = ways.get("TP", 1) * ways.pop(_SEQUENCE)
    known = [name for name in _ORDER if name in ways]
    order = [*known, *(name for name in ways if name not in known)]
    words = " x ".join(f"{name} {ways[name]}" for name in order) or "one device"
    devices = len(set(config.devices))
    if devices < prod(ways.values()):
        words += f" on {devices} device{'s' * (devices > 1)}"
    return words


def _ways(op: Operator, config: ParallelConfig) -> dict[str, int]:
    """Degrees by what people call a split."""
    ways: dict[str, int] = {}
    for dim, degree in zip(op.dims, config.degrees, strict=False):
        if degree > 1:
            ways[_way(dim)] = ways.get(_way(dim), 1) * degree
    return ways


def _is_sequence_parallel(operators: Sequence[Operator], strategy: ResolvedStrategy) -> bool:
    """Whether of what is computed beside tensor parallelism, most is split by length."""
    computed: dict[bool, int] = defaultdict(int)  # numbers, by whether they are
    tensor = False
    for op in operators:
        ways = _ways(op, strategy[op.name])
        tensor = tensor or "TP" in ways
        if "TP" not in ways and any(_way(dim) == _SEQUENCE for dim in op.dims):
            computed[_SEQUENCE in ways] += prod(op.output.shape)
    return tensor and computed[True] > computed[False]


def by_dimension(op: Operator, config: ParallelConfig) -> str:
    """How an operator is divided, exactly: ``2 by sample, 4 by channel``, or whole."""
    split = [
        f"{degree} by {dim.name}"
        for degree, dim in zip(config.degrees, op.dims, strict=True)
        if degree > 1
    ]
    return ", ".join(split) or "whole"


def _way(dim: Dim) -> str:
    """What people call a split along a dimension."""
    if dim.kind is DimKind.SAMPLE:
        return "DP"
    if dim.name == "expert":
        return "EP"
    if dim.kind in _TENSOR or dim.name in _BETWEEN:
        return "TP"
    return _SEQUENCE if dim.name == "length" else dim.name


def _stages(placed: Sequence[frozenset[str]]) -> int:
    """Into how many sets of devices, apart from each other, a network's work is placed."""
    sets = set(placed)
    apart = sum(map(len, sets)) == len(frozenset().union(*sets))
    return len(sets) if apart else 1


def _memory(graph: Graph, strategy: ResolvedStrategy, operators: Sequence[Operator]) -> list[str]:
    """What is sharded, repeated, and cut into micro-batches."""
    said = []
    elements: dict[str, int] = defaultdict(int)  # of weights, by what of them is sharded
    repeated = 0  # of those, what several devices use
    for op in operators:
        config = strategy[op.name]
        size = sum(prod(tensor.shape) for tensor in op.trained_weights)
        elements[config.sharding] += size
        if any(
            degree > 1 and dim.kind not in (DimKind.PARAMETER, DimKind.REDUCTION)
            for dim, degree in zip(op.dims, config.degrees, strict=False)
        ):
            repeated += size
    total = sum(elements.values()) or 1
    for sharding, words in _SHARDED.items():
        if share := elements[sharding] / total:
            said.append(words if share > 1 - LEAST else f"{words} of {share:.0%} of the weights")
    if not said and repeated / total >= LEAST:
        said.append("ZeRO-1")
    again = sum(strategy[op.name].again for op in operators)
    if again:
        said.append(f"recomputes {again} of {len(operators)} operators")
    if graph.micro_batches > 1:
        said.append(f"{graph.micro_batches} micro-batches")
    return said

"""What Galvatron found, as a strategy of ours.

Layers are split as Megatron-LM does it where devices share them by tensor parallelism; where they
do by Ulysses (Jacobs et al., 2023), each has some positions of all sequences, and in attention some
heads of all positions. Devices of a stage are neighbours, and so are those that share a layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from flexlegion.base.errors import UserError
from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.operator_type import DimKind
from flexlegion.known_strategies.basic import data_parallel
from flexlegion.known_strategies.megatron import megatron
from flexlegion.known_strategies.pipeline import registers
from flexlegion.machine.devices import Devices
from flexlegion.ops.attention import MultiHeadAttention
from flexlegion.spmd.ways import block_numbers, blocks_of, run_again
from flexlegion.strategy.configuration import ParallelConfig
from flexlegion.strategy.hierarchy import hierarchical
from flexlegion.strategy.pairs import with_sums
from flexlegion.strategy.sharding import sharded
from flexlegion.strategy.strategy import Strategy

Configs = Mapping[str, ParallelConfig]


@dataclass(frozen=True)
class Layer:
    """How a layer is divided over the devices of its stage.

    Parameters
    ----------
    shared
        By how many devices; what is left splits samples.
    ulysses
        Whether these split sequences, and in attention heads; if not, weights.
    sharded
        Whether its weights are, as in ZeRO-3.
    again
        Whether the backward pass runs it forward once more.
    """

    shared: int = 1
    ulysses: bool = False
    sharded: bool = False
    again: bool = False


@dataclass(frozen=True)
class Plan:
    """How training is divided.

    Parameters
    ----------
    stages
        How many layers each has.
    layers
        In their order.
    vocabulary
        Of embeddings and of the last layer.
    micro_batches
        In how many parts a batch is trained.
    """

    stages: tuple[int, ...]
    layers: tuple[Layer, ...]
    vocabulary: Layer
    micro_batches: int


def plan_of(config: Mapping[str, Any]) -> Plan:
    """The plan that Galvatron's JSON says."""

    def row(name: str) -> list[int]:
        return [int(its) for its in str(config[name]).split(",")]

    rows = (row(name) for name in ("tp_sizes_enc", "use_sp", "dp_types_enc", "checkpoint"))
    layers = tuple(Layer(shared, *map(bool, rest)) for shared, *rest in zip(*rows, strict=True))
    vocabulary = Layer(int(config["vtp"]), bool(config["vsp"]), bool(config["embed_sdp"]))
    return Plan(tuple(row("pp_division")), layers, vocabulary, int(config["chunks"]))


def strategy_of(graph: Graph, devices: Devices, plan: Plan) -> Strategy:
    """The strategy that does what a plan says.

    Parameters
    ----------
    graph, devices
        What it is for; a micro-batch's graph.
    plan
        The plan.

    Raises
    ------
    UserError
        If it is for another model, or its stages do not have as many devices each.
    """
    blocks = block_numbers(graph.operators)
    names, count = devices.preferred, len(plan.stages)
    if len(plan.layers) != blocks[-1] + 1 or sum(plan.stages) != len(plan.layers):
        raise UserError(f"a plan of {len(plan.layers)} layers, for a model of {blocks[-1] + 1}")
    if plan.micro_batches != graph.micro_batches or len(names) % count:
        raise UserError(
            f"a plan of {plan.micro_batches} micro-batches and {count} stages, for "
            f"{graph.micro_batches} micro-batches and {len(names)} devices"
        )
    ends = list(accumulate(plan.stages))
    stage_of = [next(s for s, end in enumerate(ends) if block < end) for block in blocks]
    its_layer = [
        plan.vocabulary if its is None else plan.layers[block]
        for its, block in zip(blocks_of(graph.operators), blocks, strict=True)
    ]
    size = len(names) // count
    made: dict[tuple[int, int, bool], Configs] = {}
    configs: dict[str, ParallelConfig] = {}
    for op, stage, layer in zip(graph.operators, stage_of, its_layer, strict=True):
        key = (stage, layer.shared, layer.ulysses)
        if key not in made:
            made[key] = _shared(graph, names[stage * size : (stage + 1) * size], layer)
        buffers = registers(count, 1, stage, graph.micro_batches)
        configs[op.name] = replace(made[key][op.name], buffers=buffers)
    computed = run_again(graph.operators, "full", blocks)
    for op, layer in zip(graph.operators, its_layer, strict=True):
        if layer.again and op in computed:
            configs[op.name] = replace(configs[op.name], again=True, buffers=1)
    zero3 = {op.name for op, layer in zip(graph.operators, its_layer, strict=True) if layer.sharded}
    mine = {name: config for name, config in configs.items() if name in zero3}
    configs |= sharded(mine, graph, "weights")
    if graph.micro_batches == 1:
        # It shards gradients, too, but adds up those of several micro-batches before.
        rest = {name: config for name, config in configs.items() if name not in zero3}
        configs |= sharded(rest, graph, "gradients")
    return Strategy(hierarchical(with_sums(configs, graph), graph, devices), "Galvatron's choice")


def _shared(graph: Graph, names: Sequence[str], layer: Layer) -> Configs:
    """Everything on these devices, as a layer is divided."""
    group = Devices(names, [number // layer.shared for number in range(len(names))])
    if layer.shared == 1:
        return data_parallel(graph, group)
    if not layer.ulysses:
        return megatron(graph, group)
    whole = data_parallel(graph, group)
    return {
        op.name: _by_positions(op, names, layer.shared) or whole[op.name] for op in graph.operators
    }


def _by_positions(op: Operator, names: Sequence[str], parts: int) -> ParallelConfig | None:
    """Samples, and positions or in attention heads, on so many devices each; None: it has none."""
    # Behind a reshape to heads, positions are what images call their height.
    wanted = ("head",) if isinstance(op.kind, MultiHeadAttention) else ("length", "height")
    dims = {dim.name: extent for dim, extent in zip(op.dims, op.space, strict=True)}
    split = next(
        (dim for dim in op.dims if dim.name in wanted and dim.kind is not DimKind.NONE), None
    )
    if split is None or dims[split.name] < parts or op.dims[0].kind is not DimKind.SAMPLE:
        return None
    samples = min(op.space[0], len(names) // parts)
    used = tuple(names[: samples * parts])
    return ParallelConfig((samples, parts), used, dims=("sample", split.name)).filled(op, "Ulysses")

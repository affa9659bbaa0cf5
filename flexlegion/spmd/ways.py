"""Programs by the usual ways: data, tensor, pipeline, context and expert parallelism, ZeRO.

A mesh has an axis for each; devices that share a layer are neighbours. How an operator goes along
an axis is the way's: data parallelism divides samples; tensor parallelism pairs of layers by
columns and rows (`flexlegion.strategy.pairs`), a table by its rows, and with `sequence` the length
of what lies between; context parallelism the length everywhere; expert parallelism, which has its
devices from data parallelism, the experts. Where an operator has no such dimension, all devices
along the axis repeat it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from flexlegion.base.errors import UserError
from flexlegion.base.suggestions import unknown
from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.operator_type import DimKind
from flexlegion.known_strategies.pipeline import runs_of_layers
from flexlegion.ops.experts import Experts
from flexlegion.spmd.axes import Axes, Division
from flexlegion.spmd.program import Program, Stage, runs_of
from flexlegion.strategy.pairs import find_pairs, trained

Again = Literal["none", "full", "attention", "half", "blocks"]
AGAIN: tuple[Again, ...] = get_args(Again)
_SAID_AGAIN = {
    "none": "",
    "full": "full recomputation",
    "attention": "attention recomputed",
    "half": "half of the products recomputed",
    "blocks": "every second block recomputed",
}
# What users call the ways.
WORDS = {
    "dp": "data",
    "tp": "tensor",
    "pp": "pipeline",
    "cp": "context",
    "ep": "expert",
    "vpp": "runs",
    "sp": "sequence",
    "zero": "shards",
}
REPLICA, DATA, EXPERT, CONTEXT, TENSOR = range(5)  # axes of a stage's mesh


@dataclass(frozen=True)
class Ways:
    """How training is divided.

    Parameters
    ----------
    data, tensor, pipeline, context
        Devices along each; their product is all. `expert` is a part of `data`.
    runs
        Of layers, on each stage of a pipeline.
    sequence
        Whether what lies between tensor parallelism's pairs is split by length (Korthikanti et al.
        2022).
    shards
        ZeRO's stage: 0 to 3.
    again
        What the backward pass runs forward once more: "none"; "full", each block from its input;
        "attention" alone, which Megatron calls selective; "half": every second product, and all
        that is no product, as torchtitan's selective checkpoints; "blocks": every second one.
    tables
        Whether tables that are looked up are "copied" by data parallelism, or their "rows" split
        over all its devices.
    classes
        Whether the last layer's classes are split over data parallelism's devices, and the loss.
    replicas
        A part of `data`: devices with the same shards (hybrid sharding).
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    runs: int = 1
    sequence: bool = False
    shards: int = 0
    again: Again = "none"
    tables: Literal["copied", "rows"] = "copied"
    classes: bool = False
    replicas: int = 1

    @classmethod
    def parse(cls, text: str, devices: int) -> Ways:
        """Read ``tp=4 pp=2 zero=1 again=full``; what is not said of `dp` are all other devices.

        Parameters
        ----------
        text
            Words of `WORDS` with a number each, and ``again`` with one of its values; between them
            spaces or commas.
        devices
            How many there are.

        Raises
        ------
        UserError
            If a word is unknown, or the devices do not go together.
        """
        values: dict[str, Any] = {}
        for part in text.replace(",", " ").split():
            word, _, value = part.partition("=")
            if word == "again":
                if value not in AGAIN:
                    raise unknown("value of again", value, AGAIN)
                values["again"] = value
                continue
            if word not in WORDS:
                raise unknown("way to divide training", word, [*WORDS, "again"])
            if not value.isascii() or not value.isdigit() or len(value) > 6:
                raise UserError(f"'{word}' of a division of training is a number, as in {word}=2")
            if WORDS[word] in values:
                raise UserError(f"'{text}' says {word} twice; say it once")
            values[WORDS[word]] = bool(int(value)) if word == "sp" else int(value)
        if values.get("shards", 0) > 3:
            raise UserError(f"zero has the stages 0 to 3, not {values['shards']}")
        for word, name in WORDS.items():
            if values.get(name) == 0 and name not in ("shards", "sequence"):
                raise UserError(f"{word} is 0, but at least one device is along each way; write 1")
        rest = cls(**values | {"data": 1}).devices
        if "data" not in values:
            if devices % rest:
                raise UserError(
                    f"'{text}' takes a multiple of {rest} devices, which the machine's {devices} "
                    "are not"
                )
            values["data"] = devices // rest
        ways = cls(**values)
        if ways.devices != devices:
            raise UserError(f"'{text}' takes {ways.devices} devices, but the machine has {devices}")
        return ways

    @property
    def words(self) -> str:
        """As `parse` reads them."""
        values = {word: int(getattr(self, name)) for word, name in WORDS.items()}
        said = [
            f"{word}={value}"
            for word, value in values.items()
            if value != (0 if word in ("sp", "zero") else 1)
        ]
        if self.again != "none":
            said.append(f"again={self.again}")
        return " ".join(said) or "dp=1"

    def __str__(self) -> str:
        parts = [
            f"{word.upper()} {value}"
            for word, value in (
                ("dp", self.data),
                ("tp", self.tensor),
                ("pp", self.pipeline),
                ("cp", self.context),
            )
            if value > 1
        ]
        text = " x ".join(parts) or "one device"
        notes = [
            f"EP {self.expert}" if self.expert > 1 else "",
            f"{self.runs} runs of layers a stage" if self.runs > 1 else "",
            "sequence-parallel" if self.sequence and self.tensor > 1 else "",
            f"ZeRO-{self.shards}" if self.shards else "",
            _SAID_AGAIN[self.again],
        ]
        return ", ".join([text, *(note for note in notes if note)])

    @property
    def axes(self) -> tuple[int, ...]:
        """Devices along each axis of a stage's mesh."""
        data = self.data // self.expert // self.replicas
        return (self.replicas, data, self.expert, self.context, self.tensor)

    @property
    def devices(self) -> int:
        """How many there are."""
        return self.data * self.tensor * self.pipeline * self.context


def divided(graph: Graph, ways: Ways) -> Program:
    """The program for the first devices of a machine.

    Parameters
    ----------
    graph
        What is trained.
    ways
        How.

    Raises
    ------
    UserError
        If the devices do not go together, there are too few layers for so many stages, or there is
        nothing to split or to compute again.
    """
    if ways.data % (ways.expert * ways.replicas):
        raise UserError(
            f"{ways.expert} devices for experts and {ways.replicas} replicas do not divide "
            f"{ways.data} for data"
        )
    samples = max((tensor.shape[0] for tensor in graph.inputs), default=1)
    if samples < ways.data:
        raise UserError(
            f"dp={ways.data} needs as many samples in a micro-batch at least, but it has {samples}"
        )
    if ways.runs > 1 and ways.pipeline == 1:
        raise UserError(f"vpp={ways.runs} is about the stages of a pipeline; add pp=2, say")
    axes = Axes(ways.axes)
    size = axes.devices
    stages = tuple(
        Stage(tuple(range(s * size, (s + 1) * size)), axes) for s in range(ways.pipeline)
    )
    operators = trained(graph)
    blocks = block_numbers(operators)
    numbers = _runs(graph, operators, ways, blocks)
    pairs = find_pairs(graph, ways.tensor) if ways.tensor > 1 else []
    dims = {op: dim for pair in pairs for op, dim in pair.dims.items()}
    classes = _classes(graph, ways.data) if ways.classes else {}
    divisions = {
        op: Division(axes, _along(op, ways, dims.get(op), classes.get(op))) for op in operators
    }
    _check_split(operators, ways, divisions)
    runs = runs_of(operators, [number % ways.pipeline for number in numbers])
    if len(runs) < ways.pipeline * ways.runs:
        each = f" with {ways.runs} runs of layers each" if ways.runs > 1 else ""
        raise UserError(
            f"the model has too few operators for {ways.pipeline} stages of a pipeline{each}; "
            f"choose a smaller {'vpp' if each else 'pp'}"
        )
    again = run_again(operators, ways.again, blocks)
    if ways.again != "none" and not again:
        computed = (
            "attention, which this model does not have"
            if ways.again == "attention"
            else "blocks of layers, named block0, block1, ... or layers.0, layers.1, ..., of which "
            "this model has none"
        )
        raise UserError(f"again={ways.again} computes again {computed}")
    replicated = (REPLICA,) if ways.replicas > 1 else ()
    return Program(graph, stages, runs, divisions, again, ways.shards, replicated)


def _check_split(
    operators: Sequence[Operator], ways: Ways, divisions: Mapping[Operator, Division]
) -> None:
    """Raise `UserError` if there is nothing that a way could split."""
    for axis, size, word, lacks in (
        (CONTEXT, ways.context, "cp", "the length of sequences, which this model does not have"),
        (EXPERT, ways.expert, "ep", "experts, which this model does not have"),
        (TENSOR, ways.tensor, "tp", "pairs of layers by columns and rows, of which this has none"),
    ):
        its = (op for op in operators if word != "ep" or isinstance(op.kind, Experts))
        if size > 1 and all(divisions[op].dims[axis] is None for op in its):
            raise UserError(f"{word}={size} splits {lacks}")


def block_numbers(operators: Sequence[Operator]) -> list[int]:
    """Of each operator, the number of its block of layers: what is named ``blockN.…``.

    What stands before the first block has its number, what stands behind the last one has its.
    """
    found = blocks_of(operators)
    known = sorted({n for n in found if n is not None}) or [0]
    rank = {n: i for i, n in enumerate(known)}
    last, numbers = 0, []
    for n in found:
        last = last if n is None else rank[n]
        numbers.append(last)
    return numbers


# As layers of models are named here, and in PyTorch: ``block1.…``, ``model.layers.0.…``, ``h.0.…``.
_BLOCK = re.compile(r"(?:[\w.]+\.)?(?:blocks?|layers?|h)\.?(\d+)(?:\.|$)", re.ASCII)


def blocks_of(operators: Sequence[Operator]) -> list[int | None]:
    """The N of each operator that is named ``blockN.…`` or alike; None: it is in no block.

    Where numbers begin anew, as those of an encoder and a decoder, they tell no blocks apart.
    """
    named = [_BLOCK.match(op.name) for op in operators]
    found = [None if its is None else int(its[1]) for its in named]
    known = [n for n in found if n is not None]
    return found if known == sorted(known) else [None] * len(found)


def _runs(
    graph: Graph, operators: Sequence[Operator], ways: Ways, blocks: Sequence[int]
) -> list[int]:
    """Of each operator its run: as many blocks in each, or equal work where there are none."""
    wanted = ways.pipeline * ways.runs
    count = blocks[-1] + 1
    if wanted == 1:
        return [0] * len(blocks)
    if count >= wanted:
        return [block * wanted // count for block in blocks]
    numbers = dict(
        zip(graph.operators, runs_of_layers(graph, ways.pipeline, ways.runs), strict=True)
    )
    return [numbers[op] for op in operators]


def _along(
    op: Operator, ways: Ways, pair_dim: int | None, class_dim: int | None
) -> tuple[int | None, ...]:
    """The dimension of an operator along each axis."""
    dims = op.kind.dims(op.input_shapes)
    sample = 0 if dims and dims[0].kind is DimKind.SAMPLE else None
    length = next((d for d, its in enumerate(dims) if its.name == "length"), None)
    expert = next((d for d, its in enumerate(dims) if its.name == "expert"), None)
    of_tensor = pair_dim
    if pair_dim is None and ways.tensor > 1:
        if op.looks_up:
            of_tensor = next((d for d, its in enumerate(dims) if its.name == "row"), None)
        elif isinstance(op.kind, Experts):
            of_tensor = next((d for d, its in enumerate(dims) if its.name == "unit"), None)
        elif ways.sequence:
            of_tensor = length
    data: int | None = sample
    if class_dim is not None:
        data = class_dim
    elif op.looks_up and ways.tables == "rows":
        data = next((d for d, its in enumerate(dims) if its.name == "row"), sample)
    along = [data, data, sample, length, of_tensor]
    if isinstance(op.kind, Experts) and ways.expert > 1:
        along[EXPERT] = expert
    return tuple(dim if size > 1 else None for dim, size in zip(along, ways.axes, strict=True))


def _classes(graph: Graph, parts: int) -> dict[Operator, int]:
    """The last pair of a layer's columns and a loss that sums over them."""
    for pair in reversed(find_pairs(graph, parts)):
        if any(op.kind.part_of_loss for op in pair.rows):
            return pair.dims
    raise UserError("no layer's classes can be split: no loss sums over them part by part")


def run_again(
    operators: Sequence[Operator], again: Again, blocks: Sequence[int]
) -> frozenset[Operator]:
    """What the backward pass runs forward once more; `blocks` are `block_numbers`."""
    if again == "none":
        return frozenset()
    chosen: set[Operator] = set()
    if again == "attention":
        chosen = {op for op in operators if op.kind.type == "multi_head_attention"}
        return frozenset(chosen)
    products = 0
    its = blocks_of(operators)
    for at, (op, block) in enumerate(zip(operators, blocks, strict=True)):
        last = at + 1 == len(operators) or its[at + 1] != its[at]
        if its[at] is None or last:
            continue
        if again == "blocks" and block % 2:
            continue
        if again == "half" and op.kind.family == "matmul":
            products += 1
            if products % 2:
                continue
        chosen.add(op)
    return frozenset(chosen)

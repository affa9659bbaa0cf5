"""The decoder of a transformer that a graph is: its sizes, read from its operators.

Systems that train large models have the model themselves, and are told its sizes. So a graph is
read as what they have: tokens that are looked up, blocks of attention and of a network for each
token, each of what is normalised and beside a shortcut, and an output layer with its cross-entropy.
What is something else is refused by name. Names of operators do not count.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NoReturn

from flexlegion.base.errors import UserError
from flexlegion.base.quoting import printable
from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.tensor import Tensor
from flexlegion.ops.formula import program_of
from flexlegion.strategy.pairs import trained

Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "relu", "silu", "squared_relu"]
# A formula for each, of x0; if a network is gated, that times x1.
_ACTIVATIONS: Mapping[Activation, str] = {
    "gelu": "gelu(x0)",
    "gelu_tanh": "gelu_tanh(x0)",
    "quick_gelu": "quick_gelu(x0)",
    "relu": "relu(x0)",
    "silu": "silu(x0)",
    "squared_relu": "square(relu(x0))",
}
_POINTS = ((0.7, -1.3), (-0.4, 0.9), (2.1, 0.3), (-3.2, 1.7))  # where formulas are compared
_MOVES = ("reshape", "slice", "transpose", "split", "dropout")
_NORMS = ("layer_norm",)
_HALVES = ("dense", "multi_head_attention", "rotary", "expression", "experts", "softmax", "top_k")
_ENDS = ("embedding", "position_embedding", "add", "own_logit", "logit_statistics", "cross_entropy")
_TYPES = frozenset((*_ACTIVATIONS, *_MOVES, *_NORMS, *_HALVES, "reduce", *_ENDS))


@dataclass(frozen=True)
class Block:
    """One of the blocks, which are all alike.

    Parameters
    ----------
    heads, kv_heads, head_width
        Of attention; heads of keys and values may be shared.
    base
        Of rotary positions: the last pair's rate is about one over this; None: there are none.
    bias, qkv_bias
        Whether dense layers have one; and those of queries, keys and values.
    attention_dropout
        Share of attention's weights that is dropped.
    ffn
        Width of the network for each token, of an expert.
    activation, gated
        In it; and whether a third layer's result is multiplied with it.
    experts, chosen
        How many there are, and how many a token goes to; 0: one network for all.
    rms, epsilon
        Of the normalisations: by their root mean square alone, or layer normalisation.
    dropout
        Share of what each half adds that is dropped.
    """

    heads: int
    kv_heads: int
    head_width: int
    base: float | None
    bias: bool
    qkv_bias: bool
    attention_dropout: float
    ffn: int
    activation: Activation
    gated: bool
    experts: int
    chosen: int
    rms: bool
    epsilon: float
    dropout: float


@dataclass(frozen=True)
class Decoder:
    """A model's sizes.

    Parameters
    ----------
    layers, hidden
        Blocks, and their width.
    vocabulary, steps
        Number of tokens, and the length of sequences.
    positions
        Trained ones, of this number; 0: none.
    tied
        Whether the output layer has the table of the tokens.
    block
        What all blocks are.
    """

    layers: int
    hidden: int
    vocabulary: int
    steps: int
    positions: int
    tied: bool
    block: Block


def decoder_of(graph: Graph, reader: str) -> Decoder:
    """The decoder that a graph is.

    Parameters
    ----------
    graph
        With its loss.
    reader
        What reads its sizes, for messages.

    Raises
    ------
    UserError
        If it is something else; the message names the operator that is no part of a decoder.
    """
    return _Walk(graph, reader).decoder()


class _Walk:
    """Along the shortcuts, from the tokens to the loss."""

    def __init__(self, graph: Graph, reader: str) -> None:
        self.reader = reader
        self.left = dict.fromkeys(trained(graph))  # operators not met so far
        self.readers: dict[Tensor, list[Operator]] = defaultdict(list)
        for op in self.left:
            for tensor in dict.fromkeys(op.inputs):
                self.readers[tensor].append(op)

    def decoder(self) -> Decoder:
        for op in self.left:
            if op.kind.type not in _TYPES:
                self.refuse(op)
        lookups = [op for op in self.left if op.kind.type == "embedding"]
        if len(lookups) != 1:
            self.refuse(None, f"this model looks tokens up in {len(lookups)} tables, not in one")
        embedding = self.meet(lookups[0])
        if embedding.inputs[0].kind != "input" or _fact(embedding, "padding") >= 0:
            self.refuse(embedding)
        x, positions = self.with_positions(embedding.output)
        dropout, x = self.dropped(x)
        if len(x.shape) != 3:
            self.refuse(embedding)
        blocks: list[Block] = []
        while len(self.readers[x]) == 2:
            block, x = self.block(x)
            if blocks and block != blocks[0]:
                before, after = asdict(blocks[0]), asdict(block)
                name = next(key for key in before if before[key] != after[key])
                self.refuse(
                    None,
                    f"block {len(blocks) + 1} has {name} {after[name]}, the first one "
                    f"{before[name]}",
                )
            blocks.append(block)
        if not blocks:
            self.refuse(None, "this model has no blocks beside shortcuts")
        if dropout != blocks[0].dropout:
            inside = blocks[0].dropout
            self.refuse(None, f"this model drops {dropout:g} of embeddings, {inside:g} in blocks")
        vocabulary, tied = self.end(x, blocks[0], embedding)
        if self.left:
            self.refuse(next(iter(self.left)))
        steps, hidden = x.shape[1:]
        return Decoder(len(blocks), hidden, vocabulary, steps, positions, tied, blocks[0])

    # Single steps.

    def refuse(self, op: Operator | None, why: str = "") -> NoReturn:
        if op is not None:
            name = printable(op.name)
            why = f"operator '{name}' ({op.kind.type}) of this model is no part of one"
        raise UserError(f"{self.reader} trains decoders of transformers alone, but {why}")

    def meet(self, op: Operator) -> Operator:
        if op not in self.left:
            self.refuse(op)
        del self.left[op]
        return op

    def only(self, x: Tensor, types: Collection[str], where: Operator | None = None) -> Operator:
        """The one reader of a tensor, of one of these types."""
        readers = self.readers[x]
        if len(readers) != 1 or readers[0].kind.type not in types:
            self.refuse(readers[0] if readers else where, "nothing reads its last block")
        return self.meet(readers[0])

    def dropped(self, x: Tensor) -> tuple[float, Tensor]:
        """How much of a tensor is dropped, and what is left."""
        readers = self.readers[x]
        if len(readers) == 1 and readers[0].kind.type == "dropout":
            return _fact(self.meet(readers[0]), "rate"), readers[0].output
        return 0.0, x

    def with_positions(self, x: Tensor) -> tuple[Tensor, int]:
        """Behind trained positions, if there are some; and how many these are."""
        readers = self.readers[x]
        if len(readers) != 1:
            return x, 0
        op = readers[0]
        if op.kind.type == "position_embedding":
            return self.meet(op).output, op.weights[0].shape[0]
        if op.kind.type not in ("add", "expression"):
            return x, 0
        if len(op.inputs) != 2 or not _is_formula(op, "x0 + x1"):
            self.refuse(op)
        other = next(tensor for tensor in op.inputs if tensor is not x)
        if other.producer is not None and other.producer.kind.type == "slice":
            part = self.meet(other.producer)
            if _fact(part, "start") != 0 or _fact(part, "step") != 1:
                self.refuse(part)
            other = part.inputs[0]
        if other.kind != "weight" or len(other.shape) < 2:
            self.refuse(op)
        return self.meet(op).output, other.shape[-2]

    def block(self, x: Tensor) -> tuple[Block, Tensor]:
        attention, drop, norm, x = self.half(x)
        network, drop2, norm2, x = self.half(x)
        if drop != drop2 or norm != norm2:
            self.refuse(None, "the halves of a block have unlike normalisations or dropout")
        found = self.attention(attention) | self.network(network)
        biases = {found.pop("output_bias"), found.pop("network_bias")}
        found["bias"] = biases.pop()
        if biases or found["bias"] > found["qkv_bias"]:
            self.refuse(None, "some dense layers of its blocks have biases, and others have none")
        return Block(rms=norm[0], epsilon=norm[1], dropout=drop, **found), x

    def half(self, x: Tensor) -> tuple[list[Operator], float, tuple[bool, float], Tensor]:
        """Half a block, from a shortcut's begin to its end."""
        readers = self.readers[x]
        norms = [op for op in readers if op.kind.type in _NORMS]
        adds = [op for op in readers if op.kind.type in ("add", "expression")]
        if len(readers) != 2 or len(norms) != 1 or len(adds) != 1:
            self.refuse(readers[-1] if readers else None, "a shortcut ends")
        norm, add = self.meet(norms[0]), self.meet(adds[0])
        others = [tensor for tensor in add.inputs if tensor is not x]
        if len(others) != 1 or not _is_formula(add, "x0 + x1"):
            self.refuse(add)
        drop, last = 0.0, others[0]
        if last.producer is not None and last.producer.kind.type == "dropout":
            drop, last = _fact(self.meet(last.producer), "rate"), last.producer.inputs[0]
        inner = self.between(norm.output, last)
        return inner, drop, self.norm(norm), add.output

    def norm(self, op: Operator) -> tuple[bool, float]:
        center, scale = _fact(op, "center"), _fact(op, "use_scale")
        if not scale or _fact(op, "use_bias") != center:
            self.refuse(op)
        return not center, _fact(op, "epsilon")

    def between(self, first: Tensor, last: Tensor) -> list[Operator]:
        """The operators that compute one tensor from another one, and from weights alone."""
        found: dict[Operator, None] = {}
        wanted = [last]
        while wanted:
            tensor = wanted.pop()
            if tensor is first or tensor.kind == "weight":
                continue
            op = tensor.producer
            if op is None or (op not in self.left and op not in found):
                self.refuse(op, f"a half of a block reads '{printable(tensor.name)}'")
            if op not in found:
                found[self.meet(op)] = None
                wanted += op.inputs
        return list(found)

    def attention(self, ops: Sequence[Operator]) -> dict[str, Any]:
        """What half of a block is that attends."""
        kinds = _by_type(ops, self, ("dense", "multi_head_attention", "rotary", *_MOVES))
        if len(kinds["multi_head_attention"]) != 1:
            self.refuse(ops[0] if ops else None, "a block has no attention")
        (op,) = kinds["multi_head_attention"]
        heads, width = op.inputs[0].shape[2:]
        if not _fact(op, "causal") or not math.isclose(_fact(op, "scale"), width**-0.5):
            self.refuse(op)
        last = [its for its in kinds["dense"] if _reads(its, op)]
        first = [its for its in kinds["dense"] if its not in last]
        biases = {_fact(its, "use_bias") for its in first}
        bare = all(_fact(its, "activation") == "none" for its in kinds["dense"])
        if len(last) != 1 or len(biases) != 1 or not bare:
            self.refuse(op)
        turned = kinds["rotary"]
        if len(turned) not in (0, 2) or any(_fact(its, "interleaved") for its in turned):
            self.refuse(turned[0])
        bases = {self.base(its) for its in turned}
        if len(bases) > 1 or any(_fact(its, "rate") for its in kinds["dropout"]):
            self.refuse(op)
        return {
            "heads": heads,
            "kv_heads": op.inputs[1].shape[2],
            "head_width": width,
            "base": next(iter(bases), None),
            "qkv_bias": biases.pop(),
            "output_bias": _fact(last[0], "use_bias"),
            "attention_dropout": _fact(op, "dropout"),
        }

    def base(self, op: Operator) -> float:
        """Of rotary positions whose angles are powers of a number, that number."""
        import numpy as np

        cos, sin = (tensor for tensor in op.inputs[1:])
        if cos.initializer is None or sin.initializer is None:
            self.refuse(op)
        values = [
            tensor.initializer(tensor.shape, tensor.name, 0)
            for tensor in (cos, sin)
            if tensor.initializer is not None
        ]
        steps, width = values[0].shape[1], values[0].shape[-1]
        if steps < 2:
            self.refuse(op)
        at_one = np.arctan2(*(its.reshape(-1, steps, width)[0, 1, -1] for its in values[::-1]))
        base = float(at_one) ** (-width / (width - 2)) if width > 2 else 10_000.0
        base = float(f"{base:.3g}")  # angles are single precision
        rates = base ** (-np.arange(0, width, 2) / width)
        angles = np.tile(np.arange(steps)[:, None] * rates, 2)
        for its, wanted in zip(values, (np.cos(angles), np.sin(angles)), strict=True):
            if not np.allclose(its.reshape(-1, steps, width)[0], wanted, atol=2e-3):
                self.refuse(None, f"'{printable(op.name)}' turns by angles that are no powers")
        return base

    def network(self, ops: Sequence[Operator]) -> dict[str, Any]:
        """What half of a block is that computes each token by itself."""
        if any(op.kind.type == "experts" for op in ops):
            return self.experts(ops)
        kinds = _by_type(ops, self, ("dense", "expression", *_ACTIVATIONS))
        dense = kinds.pop("dense", [])
        formulas = [op for its in kinds.values() for op in its]
        activations = [_fact(op, "activation") for op in dense]
        inside = [its for its in activations if its != "none"]
        if len(dense) == 2 and not formulas and len(inside) == 1:
            activation = inside[0] if inside[0] in _ACTIVATIONS else None
        elif len(formulas) == 1 and len(dense) in (2, 3) and not inside:
            activation = _activation(formulas[0], len(dense) == 3)
        else:
            activation = None
        biases = {_fact(op, "use_bias") for op in dense}
        if activation is None or len(biases) != 1:
            self.refuse((*formulas, *dense)[0] if ops else None, "a block has no network")
        return {
            "ffn": min(op.input_shapes[0][-1] for op in dense if _reads_any(op, dense)),
            "activation": activation,
            "gated": len(dense) == 3,
            "network_bias": biases.pop(),
            "experts": 0,
            "chosen": 0,
        }

    def experts(self, ops: Sequence[Operator]) -> dict[str, Any]:
        """Experts behind a router: a softmax over the scores of the chosen ones."""
        parts = ("dense", "softmax", "top_k", "reduce", "expression", "experts", "reshape")
        kinds = _by_type(ops, self, parts)
        wanted = {"dense": 1, "softmax": 1, "top_k": 1, "reduce": 1, "expression": 1, "experts": 1}
        if any(len(kinds[name]) != number for name, number in wanted.items()):
            self.refuse(kinds["experts"][0])
        (op,), (top,), (share,) = kinds["experts"], kinds["top_k"], kinds["expression"]
        (total,), (router,) = kinds["reduce"], kinds["dense"]
        shares = share.inputs[0] is top.output and _is_formula(share, "x0 / x1")
        sums = _fact(total, "kind") == "sum" and total.inputs[0] is top.output
        if not shares or not sums or _fact(router, "use_bias"):
            self.refuse(share)
        return {
            "ffn": _fact(op, "units"),
            "activation": _fact(op, "activation"),
            "gated": _fact(op, "gated"),
            "network_bias": False,
            "experts": op.inputs[1].shape[-1],
            "chosen": _fact(top, "k"),
        }

    def end(self, x: Tensor, block: Block, embedding: Operator) -> tuple[int, bool]:
        """The last normalisation, the output layer and the loss."""
        norm = self.only(x, _NORMS)
        if self.norm(norm) != (block.rms, block.epsilon):
            self.refuse(norm)
        head = self.only(norm.output, ("dense",), norm)
        table = embedding.weights[0]
        units = _fact(head, "units")
        if _fact(head, "use_bias") or _fact(head, "activation") != "none":
            self.refuse(head)
        if units != _fact(embedding, "vocabulary"):
            self.refuse(None, f"this model has {table.shape[0]:,} tokens and {units:,} classes")
        for op in list(self.left):
            if not op.kind.part_of_loss and op.kind.type != "softmax":
                self.refuse(op)
            if op.kind.type == "cross_entropy" and _fact(op, "smoothing"):
                self.refuse(None, f"'{printable(op.name)}' smooths labels")
            self.meet(op)
        return units, head.weights[0] is table


def _fact(op: Operator, name: str) -> Any:
    return getattr(op.kind, name)


def _by_type(
    ops: Iterable[Operator], walk: _Walk, types: Collection[str]
) -> dict[str, list[Operator]]:
    found: dict[str, list[Operator]] = defaultdict(list)
    for op in ops:
        if op.kind.type not in types:
            walk.refuse(op)
        found[op.kind.type].append(op)
    return found


def _reads(op: Operator, other: Operator) -> bool:
    """Whether an operator reads another one's output, moved or not."""
    tensor = op.inputs[0]
    while tensor.producer is not None and tensor.producer.kind.type in _MOVES:
        tensor = tensor.producer.inputs[0]
    return tensor.producer is other


def _reads_any(op: Operator, others: Sequence[Operator]) -> bool:
    """Whether an operator reads what others compute, directly or by a formula of it."""
    producer = op.inputs[0].producer
    if producer is not None and producer.kind.type in ("expression", *_ACTIVATIONS):
        return any(tensor.producer in others for tensor in producer.inputs)
    return producer in others


def _formula(op: Operator) -> str:
    """What an operator computes of x0, and x1."""
    its: str = getattr(op.kind, "formula", f"{op.kind.type}(x0)")
    return its


def _is_formula(op: Operator, formula: str) -> bool:
    """Whether an operator computes a formula of two numbers; or a sum, if it is one."""
    if op.kind.type == "add":
        return formula == "x0 + x1"
    its = _formula(op)
    return all(_value(its, at) == _value(formula, at) for at in _POINTS)


def _activation(op: Operator, gated: bool) -> Activation | None:
    """Which function a formula is, of x0; gated, times x1, whichever of both is the first."""
    formula = _formula(op)
    if len(op.inputs) != 1 + gated:
        return None
    for name, its in _ACTIVATIONS.items():
        wanted = f"{its} * x1" if gated else its
        for turned in (False, True)[: 1 + gated]:
            points = [at[::-1] if turned else at for at in _POINTS]
            pairs = zip(_POINTS, points, strict=True)
            if all(_close(_value(formula, b), _value(wanted, a)) for a, b in pairs):
                return name
    return None


def _close(a: float | None, b: float | None) -> bool:
    return a is not None and b is not None and math.isclose(a, b, rel_tol=1e-6)


_OPERATIONS: Mapping[str, Any] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "negate": lambda a: -a,
    "maximum": max,
    "relu": lambda a: max(a, 0.0),
    "tanh": math.tanh,
    "erf": math.erf,
    "exp": math.exp,
    "sigmoid": lambda a: 1 / (1 + math.exp(-a)),
    "power": lambda a, b: a**b,
}


def _value(formula: str, at: Sequence[float]) -> float | None:
    """A formula's value; None: it has other operations than activations do."""
    program = program_of(formula)
    values = list(at[: program.inputs])
    for step in program.instructions:
        if step.operation == "number":
            values.append(step.number)
        elif step.operation in _OPERATIONS:
            try:
                values.append(_OPERATIONS[step.operation](*(values[n] for n in step.of)))
            except (ArithmeticError, ValueError):
                return None
        else:
            return None
    value = values[-1]
    return value if isinstance(value, float) else None

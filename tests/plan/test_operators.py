"""Operators of sequences: shapes, SOAP dimensions, weights, access maps.

Rectangles are those of the native plan's forward launch, derived by hand in the cases.
"""

from __future__ import annotations

import numpy as np
import pytest
from touched import DEVICES, boxes, dims, forward, last, refusal, weights

from flexlegion import Model
from flexlegion.graph.operator_type import Family, OperatorType
from flexlegion.graph.tensor import Tensor
from flexlegion.strategy.configuration import random_config
from flexlegion.transforms.losses import add_loss
from flexlegion.zoo import ZOO, build

# Every type


def types(cls: type[OperatorType] = OperatorType) -> list[type[OperatorType]]:
    children = [t for child in cls.__subclasses__() for t in types(child)]
    return [*([cls] if hasattr(cls, "type") else []), *children]


@pytest.mark.parametrize("kind", types(), ids=lambda kind: kind.type)
def test_every_type_has_a_family(kind: type[OperatorType]) -> None:
    assert kind.family in Family.__args__
    assert kind.family == "loss" or not kind.is_loss


def test_types_have_names_of_their_own() -> None:
    names = [kind.type for kind in types()]
    assert len(set(names)) == len(names)


# Embeddings


def test_embedding() -> None:
    """Steps [2, 5) of 6: each task has all of their tokens, and its columns of the table."""
    model = Model(4)
    tokens = model.input((6,), "int32", name="tokens")
    x = model.embedding(tokens, 10, 8, start=2, steps=3, name="e")
    op = last(model)
    assert x.shape == (4, 3, 8)
    assert dims(op) == "NNPR"
    assert op.space == (4, 3, 8, 10)
    assert weights(op) == {"table": (10, 8)}
    assert boxes(op, model, 1, 1, 2, 1) == {
        "tokens": [((0, 4), (2, 5))] * 2,
        "table": [((0, 10), (0, 4)), ((0, 10), (4, 8))],
        "output": [((0, 4), (0, 3), (0, 4)), ((0, 4), (0, 3), (4, 8))],
    }
    # Two halves of the rows give partial values, in a slot each.
    assert boxes(op, model, 1, 1, 1, 2) == {
        "tokens": [((0, 4), (2, 5))] * 2,
        "table": [((0, 5), (0, 8)), ((5, 10), (0, 8))],
        "output": [((k, k + 1), (0, 4), (0, 3), (0, 8)) for k in range(2)],
    }


def test_embedding_refuses() -> None:
    model = Model(4)
    tokens = model.input((6,), "int32", name="t")
    assert refusal(model.embedding, tokens, 10, 8, 4, 3, name="e") == (
        "operator 'e': embedding reads steps 4 to 6, but the sequences have steps 0 to 5"
    )
    assert "reads steps -1 to 5" in refusal(model.embedding, tokens, 10, 8, -1)
    assert "vocabulary has to be at least 1" in refusal(model.embedding, tokens, 0, 8)
    x = model.input((6,), name="x")
    assert "takes int32 values, but x has float32" in refusal(model.embedding, x, 10, 8)
    wide = model.input((6, 2), "int32")
    assert "takes an input of 2 dimensions (sample, step)" in refusal(
        model.embedding, wide, 9, 8, 1
    )
    constant = model.constant([0, 9], name="c")
    assert refusal(model.embedding, constant, 9, 8, name="few") == (
        "c: token 9 is out of range; the vocabulary of 'few' has 9 tokens, so they are 0 to 8"
    )
    most = model.input((1, 1, 1, 1), "int32")
    assert "takes tokens of at most 4 dimensions" in refusal(model.embedding, most, 9, 8)


@pytest.mark.parametrize("shape", [(), (6,), (6, 2)])
def test_embedding_of_all_tokens(shape: tuple[int, ...]) -> None:
    model = Model(4)
    x = model.embedding(model.input(shape, "int32"), 10, 8)
    assert x.shape == (4, *shape, 8)


def test_position_embedding() -> None:
    model = Model(4)
    model.position_embedding(model.input((6, 8), name="x"), name="p")
    op = last(model)
    assert dims(op) == "SPP"
    assert weights(op) == {"table": (6, 8)}
    assert boxes(op, model, 2, 2, 1)["table"] == [((0, 3), (0, 8)), ((3, 6), (0, 8))] * 2


# LSTM


def test_lstm_step() -> None:
    """One step of width 3 to 4 units: a split of the units splits weights, c0, and all outputs."""
    model = Model(2)
    x, h0, c0 = model.input((1, 3), name="x"), model.input((4,), name="h0"), model.input((4,))
    out = model.lstm(x, 4, (h0, c0), name="l")
    op = last(model)
    assert [t.shape for t in out] == [(2, 1, 4), (2, 4), (2, 4)]
    assert [t.name for t in op.outputs] == ["l.y", "l.h", "l.c", "l.gates"]
    assert op.output is out.y
    assert out.state == (out.h, out.c)
    assert all(t.producer is op for t in out)
    assert dims(op) == "SNP"
    assert weights(op) == {"kernel": (4, 4, 3), "recurrent_kernel": (4, 4, 4), "bias": (4, 4)}
    assert boxes(op, model, 1, 1, 2) == {
        "x": [((0, 2), (0, 1), (0, 3))] * 2,
        "h0": [((0, 2), (0, 4))] * 2,
        "input_1": [((0, 2), (0, 2)), ((0, 2), (2, 4))],
        "kernel": [((0, 2), (0, 4), (0, 3)), ((2, 4), (0, 4), (0, 3))],
        "recurrent_kernel": [((0, 2), (0, 4), (0, 4)), ((2, 4), (0, 4), (0, 4))],
        "bias": [((0, 2), (0, 4)), ((2, 4), (0, 4))],
        "y": [((0, 2), (0, 1), (0, 2)), ((0, 2), (0, 1), (2, 4))],
        "h": [((0, 2), (0, 2)), ((0, 2), (2, 4))],
        "c": [((0, 2), (0, 2)), ((0, 2), (2, 4))],
        "gates": [((0, 2), (0, 1), (0, 5), (0, 2)), ((0, 2), (0, 1), (0, 5), (2, 4))],
    }
    # Products: 4 gates of 4 units over 3 + 4 values; 4 sums and 9 pointwise operations a unit.
    flops = 2 * (2 * 4 * 4 * (3 + 4) + 4 * (4 + 9))
    assert op.kind.flops(op.input_shapes) == flops
    assert op.kind.backward_flops(op.input_shapes) == 2 * flops


def test_lstm_of_several_steps_splits_by_samples_alone() -> None:
    model = Model(2)
    model.lstm(model.input((5, 3)), 4, name="l")
    op = last(model)
    assert dims(op) == "SNN"
    assert [t.shape for t in op.outputs] == [(2, 5, 4), (2, 4), (2, 4), (2, 5, 5, 4)]
    assert boxes(op, model, 2, 1, 1)["h"] == [((0, 1), (0, 4)), ((1, 2), (0, 4))]
    for degrees, name in (((1, 2, 1), "length"), ((1, 1, 2), "channel")):
        assert refusal(boxes, op, model, *degrees).endswith(
            f"operator 'l' splits dimension '{name}' into 2 parts, but it cannot be split; its "
            "degree has to be 1"
        )
    configs = [random_config(op, DEVICES.names, np.random.default_rng(i), 8) for i in range(50)]
    assert {config.degrees for config in configs} == {(1, 1, 1), (2, 1, 1)}
    # The first of five steps starts from zeros: four products with the recurrent kernel.
    assert op.kind.flops(op.input_shapes) == 2 * (2 * 16 * (5 * 3 + 4 * 4) + 5 * 4 * 13)


def test_lstm_refuses() -> None:
    model = Model(2)
    x, flat = model.input((5, 3)), model.input((3,))
    assert "takes an input of 3 dimensions" in refusal(model.lstm, flat, 4)
    assert "lstm takes states of shape [2, 4], but got [2, 3]" in refusal(
        model.lstm, x, 4, (flat, flat)
    )
    assert refusal(model.lstm, x, 0) == "hidden has to be at least 1, but is 0"


# Attention


def test_luong_attention() -> None:
    """A task of 3 of 6 units reads half of W_c, and all it needs for its steps' scores."""
    model = Model(2)
    states, memory = model.input((4, 3), name="states"), model.input((7, 5), name="memory")
    x = model.luong_attention(states, memory, 6, name="a")
    op = last(model)
    assert x.shape == (2, 4, 6)
    assert dims(op) == "SAP"
    assert weights(op) == {"score_kernel": (3, 5), "kernel": (6, 8)}
    found = boxes(op, model, 1, 2, 2)
    assert found["states"] == [((0, 2), (0, 2), (0, 3))] * 2 + [((0, 2), (2, 4), (0, 3))] * 2
    assert found["memory"] == [((0, 2), (0, 7), (0, 5))] * 4
    assert found["score_kernel"] == [((0, 3), (0, 5))] * 4
    assert found["kernel"] == [((0, 3), (0, 8)), ((3, 6), (0, 8))] * 2
    # A step: h W_a 2*3*5; scores and softmax 7*(2*5+5); context 2*7*5; W_c and tanh 6*(2*8+1).
    assert op.kind.flops(op.input_shapes) == 2 * 4 * (30 + 105 + 70 + 102)
    other = Model(3).input((4, 3))
    assert "belongs to another model" in refusal(model.luong_attention, other, memory, 6)
    assert "3 dimensions" in refusal(model.luong_attention, model.input((4,)), memory, 6)


def test_multi_head_attention() -> None:
    model = Model(2)
    q, k = model.input((6, 4, 3), name="q"), model.input((8, 4, 3), name="k")
    v = model.input((8, 4, 5), name="v")
    x = model.multi_head_attention(q, k, v, name="a")
    op = last(model)
    assert x.shape == (2, 6, 4, 5)
    assert dims(op) == "SAAN"
    found = boxes(op, model, 1, 2, 2, 1)
    assert found["q"][1] == ((0, 2), (0, 3), (2, 4), (0, 3))
    assert found["k"][1] == ((0, 2), (0, 8), (2, 4), (0, 3))
    assert found["v"][2] == ((0, 2), (0, 8), (0, 2), (0, 5))
    assert op.kind.flops(op.input_shapes) == 2 * 4 * 6 * 8 * (6 + 5 + 10)
    assert "but got [2, 6, 4, 3], [2, 6, 4, 3] and [2, 8, 4, 5]" in refusal(
        model.multi_head_attention, q, q, v
    )
    model.multi_head_attention(q, q, q, causal=True)
    # Position i attends to i + 1 positions: 21 pairs instead of 36.
    assert last(model).kind.flops([q.shape] * 3) == 2 * 4 * 21 * (6 + 5 + 6)
    # Of 8 keys, too. Of 6, the last two of 8 queries attend to all.
    model.multi_head_attention(q, k, v, causal=True)
    # Each half of the queries reads the keys and values up to its end.
    found = boxes(last(model), model, 1, 2, 1, 1)
    assert [box[1] for box in found["q"]] == [(0, 3), (3, 6)]
    assert [box[1] for box in found["k"]] == [box[1] for box in found["v"]] == [(0, 3), (0, 6)]
    assert last(model).kind.flops([q.shape, k.shape, k.shape]) == 2 * 4 * 21 * (6 + 5 + 6)
    assert last(model).kind.flops([k.shape, q.shape, q.shape]) == 2 * 4 * (21 + 12) * (6 + 5 + 6)


def test_attention_of_groups() -> None:
    """Six heads, in pairs: heads 1 to 2 and 3 to 4 read two groups each, head 0 and 5 one."""
    model = Model(2)
    q, k = model.input((4, 6, 3), name="q"), model.input((5, 3, 3), name="k")
    v, bias = model.input((5, 3, 7), name="v"), model.input((6, 1, 5), name="bias")
    x = model.attention(q, k, v, bias=bias, dropout=0.1, name="a")
    op = last(model)
    assert x.shape == (2, 4, 6, 7)
    assert dims(op) == "SAAN"
    found = boxes(op, model, 1, 1, 4, 1)
    assert [box[2] for box in found["q"]] == [(0, 1), (1, 3), (3, 4), (4, 6)]
    for name in ("k", "v"):
        assert [box[2] for box in found[name]] == [(0, 1), (0, 2), (1, 2), (2, 3)]
    assert [box[1:] for box in found["bias"]] == [
        (heads, (0, 1), (0, 5)) for heads in ((0, 1), (1, 3), (3, 4), (4, 6))
    ]
    found = boxes(op, model, 2, 2, 1, 1)
    assert (
        found["bias"]
        == [((0, 1), (0, 6), (0, 1), (0, 5))] * 2 + [((1, 2), (0, 6), (0, 1), (0, 5))] * 2
    )
    # A softmax's 5, 1 for the bias, and 2 for dropout.
    assert op.kind.flops(op.input_shapes) == 2 * 6 * 4 * 5 * (6 + 8 + 14)


def test_attention_refuses() -> None:
    model = Model(2)
    q, k, few = model.input((4, 6, 3)), model.input((5, 3, 3)), model.input((5, 4, 3))
    assert "cannot deal 6 heads to 4 groups" in refusal(model.attention, q, few, few)
    for bias in ((6, 4, 4), (2, 4, 5), (4, 5)):
        assert f"extents are 1 or those of [2, 6, 4, 5], but got {[2, *bias]}" in refusal(
            model.attention, q, k, k, bias=model.input(bias)
        )
    for scale in (0.0, -1.0, float("inf"), float("nan")):
        assert "finite scale above 0" in refusal(model.attention, q, k, k, scale=scale)
    assert "at least 0 and below 1, but is 1" in refusal(model.attention, q, k, k, dropout=1.0)


def test_rotary() -> None:
    model = Model(2)
    x, cos = model.input((4, 6, 8), name="x"), model.input((4, 8), name="cos")
    sin = model.input((4, 1, 8), name="sin")
    assert model.rotary(x, cos, sin).shape == (2, 4, 6, 8)
    op = last(model)
    assert dims(op) == "SAAN"
    found = boxes(op, model, 1, 2, 2, 1)
    assert found["x"][1] == ((0, 2), (0, 2), (3, 6), (0, 8))
    assert found["cos"] == [((0, 2), (0, 2), (0, 8))] * 2 + [((0, 2), (2, 4), (0, 8))] * 2
    assert found["sin"][3] == ((0, 2), (2, 4), (0, 1), (0, 8))
    assert op.kind.flops(op.input_shapes) == 3 * 2 * 4 * 6 * 8
    odd = model.input((4, 6, 7))
    assert "pairs of channels, but got 7" in refusal(model.rotary, odd, cos, sin)
    assert "[2, 4, 8] or [2, 4, 1, 8]" in refusal(model.rotary, x, cos, x)
    trained = model.dense(cos, 8, name="d")
    assert refusal(model.rotary, x, trained, sin, name="r") == (
        "operator 'r': rotary has no gradient for its cosines and sines, but d.output depends on "
        "what is trained"
    )


def test_matmul() -> None:
    model = Model(2)
    a, b = model.input((3, 4, 5), name="a"), model.input((3, 5, 6), name="b")
    assert model.matmul(a, b).shape == (2, 3, 4, 6)
    op = last(model)
    assert dims(op) == "SAAAR"
    found = boxes(op, model, 1, 1, 2, 2)
    assert found["a"][1] == ((0, 2), (0, 3), (0, 2), (0, 5))
    assert found["b"][1] == ((0, 2), (0, 3), (0, 5), (3, 6))
    assert op.kind.flops(op.input_shapes) == 2 * 2 * 3 * 4 * 6 * 5
    assert "(n, ..., i, k) and (n, ..., k, j)" in refusal(model.matmul, a, a)


# Shared weights


def test_shared_weights() -> None:
    model = Model(2)
    x = model.input((3,))
    a = model.dense(x, 3, name="a")
    b = model.dense(a, 3, name="b", share=a)
    first, second = model.graph.operators
    assert second.weights == first.weights
    assert [w.name for w in model.graph.weights] == ["a.kernel", "a.bias"]
    assert "but they are [3, 3], [3]" in refusal(model.dense, b, 4, share=a)
    assert "it needs shapes [3, 3], but" in refusal(model.dense, b, 3, use_bias=False, share=a)
    assert "is no operator's output" in refusal(model.dense, b, 3, share=x)
    other = Model(2)
    c = other.dense(other.input((3,)), 3, name="c")
    assert "operator 'c' belongs to another model" in refusal(model.dense, b, 3, share=c)
    assert len(model.graph.operators) == 2


def test_tied_embedding() -> None:
    """The table (vocabulary, units) of an embedding is a dense layer's kernel (out, in).

    As that layer's tasks need all of it, look-ups can be split by samples, too.
    """
    model = Model(2)
    x = model.embedding(model.input((4,), "int32"), 9, 5, name="e")
    embedding = last(model)
    assert dims(embedding) == "NNPR"
    model.embedding(model.input((4,), "int32"), 9, 5, share=x)
    assert dims(embedding) == "NNPR"
    y = model.dense(x, 9, use_bias=False, share=x, name="d")
    assert dims(embedding) == "SAPR"
    assert y.shape == (2, 4, 9)
    assert [w.name for w in model.graph.weights] == ["e.table"]
    assert boxes(last(model), model, 1, 1, 3)["table"] == [
        ((0, 3), (0, 5)),
        ((3, 6), (0, 5)),
        ((6, 9), (0, 5)),
    ]


# Losses of sequences


def test_sequence_loss() -> None:
    model = Model(2)
    y: Tensor = model.softmax(model.dense(model.input((4, 3)), 5))
    graph = add_loss(model.graph, y, "sparse_categorical_crossentropy")
    loss = graph.operators[-1]
    assert (loss.inputs[-1].shape, loss.inputs[-1].dtype) == ((2, 4), "int32")
    assert loss.output.shape == (2, 4)
    own, statistics = graph.operators[-3:-1]
    assert [dims(op) for op in (own, statistics)] == ["SAR", "SAR"]
    assert statistics.space == (2, 4, 5)
    before, model.graph = model.graph, graph
    logits, labels, _, log_sum, _ = forward(statistics, model, 1, 1, 2).requirements
    model.graph = before
    assert logits.boxes == [((0, 2), (0, 4), (0, 2)), ((0, 2), (0, 4), (2, 5))]
    assert labels.boxes == [((0, 2), (0, 4))] * 2
    assert log_sum.boxes == [((k, k + 1), (0, 2), (0, 4)) for k in range(2)]
    assert [a.combine for _, _, a in statistics.operands[-2:]] == ["log_sum_exp", "sum"]
    graph = add_loss(model.graph, y, "categorical_crossentropy")
    assert graph.operators[-1].inputs[1].shape == (2, 4, 5)
    assert graph.operators[-1].output.shape == (2, 4)


@pytest.mark.parametrize("name", ["nmt", "resnet101"])
def test_backward_has_about_twice_the_flops(name: str) -> None:
    """Two products for the forward pass's one."""
    assert name in ZOO
    operators = build(name).graph.operators
    forward = sum(op.kind.flops(op.input_shapes) for op in operators)
    backward = sum(op.kind.backward_flops(op.input_shapes) for op in operators)
    assert 1.9 < backward / forward < 2.1

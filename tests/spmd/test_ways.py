"""Divisions of training in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexlegion.analysis.setting import Setting, network_of
from flexlegion.base.errors import UserError
from flexlegion.model.model import Model
from flexlegion.spmd.ways import Ways, block_numbers, divided
from flexlegion.zoo import build


def test_what_is_left_is_data() -> None:
    assert Ways.parse("tp=4, pp=2 zero=1", 32) == Ways(4, 4, 2, shards=1)
    assert Ways.parse("zero=0", 8) == Ways(8)
    text = "DP 4 x TP 4 x PP 2, sequence-parallel, ZeRO-1, full recomputation"
    assert str(Ways.parse("tp=4 pp=2 sp=1 zero=1 again=full", 32)) == text
    assert str(Ways()) == "one device"


@given(
    st.builds(
        Ways,
        data=st.integers(1, 9),
        tensor=st.integers(1, 9),
        pipeline=st.integers(1, 9),
        context=st.integers(1, 3),
        runs=st.integers(1, 3),
        sequence=st.booleans(),
        shards=st.integers(0, 3),
        again=st.sampled_from(["none", "full", "attention", "half", "blocks"]),
    )
)
def test_words_are_read_back(ways: Ways) -> None:
    assert Ways.parse(ways.words, ways.devices) == ways


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tp=3", "takes a multiple of 3 devices, which the machine's 8 are not"),
        ("dp=4", "takes 4 devices, but the machine has 8"),
        ("tp=x", "'tp' of a division of training is a number"),
        ("tp=", "is a number"),
        ("tp=0", "tp is 0, but at least one device is along each way; write 1"),
        ("zero=4", "stages 0 to 3"),
        ("tb=2", "unknown way to divide training 'tb'; choose one of dp, tp, pp"),
        ("again=ful", "did you mean 'full'"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Ways.parse(text, 8)


@pytest.mark.parametrize(
    ("again", "message"),
    [
        ("full", "computes again blocks of layers, named block0"),
        ("blocks", "computes again blocks of layers, named block0"),
        ("half", "computes again blocks of layers, named block0"),
        ("attention", "computes again attention, which this model does not have"),
    ],
)
def test_nothing_to_compute_again(again: str, message: str) -> None:
    graph = Setting.of(network_of(build("mlp", 8)), "p100x4").problem.graph
    with pytest.raises(UserError, match=message):
        divided(graph, Ways.parse(f"again={again}", 4))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("vpp=2", "vpp=2 is about the stages of a pipeline"),
        ("pp=4 vpp=90", "90 runs of operators on each of 4 stages are 360"),
    ],
)
def test_runs_of_layers_that_there_cannot_be(words: str, message: str) -> None:
    graph = Setting.of(network_of(build("mlp", 8)), "p100x4").problem.graph
    with pytest.raises(UserError, match=message):
        divided(graph, Ways.parse(words, 4))


def test_what_is_only_named_like_a_block_is_none() -> None:
    model = Model(batch_size=8)
    its = model.input((16, 32))
    for number in range(3):
        its = model.layer_norm(its, name=f"layer_norm_{number}")
        its = model.dense(its, 32, name=f"blocked{number}")
    graph = Setting.of(network_of(model, loss="mean_squared_error"), "p100x4").problem.graph
    with pytest.raises(UserError, match="this model has none"):
        divided(graph, Ways.parse("again=full", 4))


@pytest.mark.parametrize(
    ("names", "blocks"),
    [
        (["embed", "block1.a", "block1.b", "block2.a", "norm"], [0, 0, 0, 1, 1]),
        (["wte", "transformer.h.0.attn", "transformer.h.1.attn", "ln_f"], [0, 0, 1, 1]),
        (["model.layers.0.q", "model.layers.2.q", "lm_head"], [0, 1, 1]),
        (["encoder.layers.0.q", "encoder.layers.1.q", "decoder.layers.0.q"], [0, 0, 0]),
    ],
)
def test_blocks_by_their_names(names: list[str], blocks: list[int]) -> None:
    """As layers are named here and in PyTorch; numbers that begin anew tell nothing apart."""
    net = Model(2)
    x = net.input((4,))
    for name in names:
        x = net.dense(x, 4, name=name)
    assert block_numbers(net.graph.operators) == blocks

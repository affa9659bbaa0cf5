"""The sizes of a decoder, read from a graph: of the zoo's networks, and of Hugging Face's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pytorch.models import hugging_face

import flexlegion as fl
from flexlegion.analysis.setting import Setting, network_of
from flexlegion.base.errors import UserError
from flexlegion.exporters.decoder import Block, Decoder, decoder_of
from flexlegion.zoo import build

SIZES: dict[str, Any] = {"layers": 2, "hidden": 64, "heads": 4, "vocabulary": 96, "steps": 16}
LIKE_GPT = Block(
    heads=4,
    kv_heads=4,
    head_width=16,
    base=None,
    bias=True,
    qkv_bias=True,
    attention_dropout=0.0,
    ffn=256,
    activation="gelu_tanh",
    gated=False,
    experts=0,
    chosen=0,
    rms=False,
    epsilon=1e-5,
    dropout=0.0,
)
LIKE_LLAMA = Block(
    heads=4,
    kv_heads=2,
    head_width=16,
    base=10_000.0,
    bias=False,
    qkv_bias=False,
    attention_dropout=0.0,
    ffn=96,
    activation="silu",
    gated=True,
    experts=0,
    chosen=0,
    rms=True,
    epsilon=1e-5,
    dropout=0.0,
)


def read(model: fl.Model) -> Decoder:
    network = network_of(model, loss="sparse_categorical_crossentropy")
    return decoder_of(Setting.of(network, "a100x2", costs="analytic").problem.graph, "it")


def with_(block: Block, **values: Any) -> Block:
    return Block(**{**vars(block), **values})


def test_the_zoos() -> None:
    gpt = read(build("gpt", 4, **SIZES))
    assert gpt == Decoder(2, 64, 96, 16, 16, True, LIKE_GPT)
    dropped = read(build("gpt", 4, **SIZES, dropout=0.1))
    assert dropped.block == with_(LIKE_GPT, dropout=0.1, attention_dropout=0.1)
    exact = read(build("transformer", 4, **SIZES))
    assert exact.block == with_(LIKE_GPT, activation="gelu")
    llama = read(build("llama", 4, **SIZES, kv_heads=2, ffn=96))
    assert llama == Decoder(2, 64, 96, 16, 0, False, LIKE_LLAMA)
    code = read(build("llama", 4, **SIZES, kv_heads=2, ffn=96, preset="3-8b"))
    assert code.block == with_(LIKE_LLAMA, base=500_000.0)
    experts = read(build("mixtral", 4, **SIZES, kv_heads=2, ffn=96, experts=4))
    assert experts.block == with_(LIKE_LLAMA, base=1e6, experts=4, chosen=2)


def imported(module: torch.nn.Module) -> Decoder:
    return read(fl.from_torch(module, {"input_ids": torch.zeros(4, 16, dtype=torch.int64)}))


def test_hugging_faces() -> None:
    sizes = {"n_layer": 2, "n_head": 4, "n_embd": 64, "vocab_size": 96, "n_positions": 32}
    tokens = {"bos_token_id": 0, "eos_token_id": 0}
    library = hugging_face()
    config = library.GPT2Config(use_cache=False, **sizes, **tokens)
    gpt = imported(library.GPT2LMHeadModel(config))
    block = with_(LIKE_GPT, dropout=0.1, attention_dropout=0.1)
    assert gpt == Decoder(2, 64, 96, 16, 32, True, block)
    config = library.LlamaConfig(
        num_hidden_layers=2,
        hidden_size=64,
        intermediate_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=96,
        attention_bias=False,
        rms_norm_eps=1e-5,
        use_cache=False,
    )
    llama = imported(library.LlamaForCausalLM(config))
    assert llama == Decoder(2, 64, 96, 16, 0, False, LIKE_LLAMA)


def block_of(change: str) -> fl.Model:
    """A decoder of one block, with a change that it is refused for."""
    model = fl.Model(4)
    tokens = model.input((8,), "int32", name="tokens")
    x = model.embedding(tokens, 32, 16, name="embed")
    y = model.layer_norm(x, name="norm1")
    parts = [
        model.reshape(model.dense(y, 16, name=name), (8, 2, 8), name=f"{name}.heads")
        for name in ("q", "k", "v")
    ]
    y = model.attention(*parts, causal=change != "future", name="attention")
    y = model.dense(model.reshape(y, (8, 16)), 16, use_bias=change != "bias", name="output")
    x = model.add([x, y] if change != "thrice" else [x, y, y], name="add1")
    normalized = model.rms_norm if change == "norm" else model.layer_norm
    y = model.dense(normalized(x, name="norm2"), 64, name="up")
    y = model.elementwise("sin(x0)" if change == "sine" else "gelu(x0)", [y], name="act")
    x = model.add([x, model.dense(y, 16, name="down")], name="add2")
    if change == "twice":
        x = model.elementwise("x0 * 2", [x], name="twice")
    x = model.layer_norm(x, name="norm")
    units = 30 if change == "classes" else 32
    model.softmax(model.dense(x, units, use_bias=False, name="logits"))
    return model


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("future", "operator 'attention' (multi_head_attention) of this model is no part of one"),
        ("bias", "some dense layers of its blocks have biases, and others have none"),
        ("thrice", "operator 'add1' (add)"),
        ("norm", "unlike normalisations"),
        ("sine", "operator 'act' (expression)"),
        ("twice", "operator 'twice' (expression)"),
        ("classes", "this model has 32 tokens and 30 classes"),
    ],
)
def test_what_is_a_bit_different_is_refused(change: str, message: str) -> None:
    read(block_of(""))
    with pytest.raises(UserError) as caught:
        read(block_of(change))
    assert message in str(caught.value)

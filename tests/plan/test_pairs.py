"""Pairs of column and row splits, and the known strategies that are made of them."""

from __future__ import annotations

import pytest

from flexlegion import Model, UserError
from flexlegion.graph.graph import Graph
from flexlegion.known_strategies import resolve
from flexlegion.profiling.machines import load_machine
from flexlegion.strategy.pairs import find_pairs
from flexlegion.strategy.strategy import Strategy
from flexlegion.transforms.losses import add_losses
from flexlegion.zoo import ZOO, build

P100X8 = load_machine("p100x8").names  # two nodes of four
EIGHT = tuple(f"gpu:{i}" for i in range(8))
LOSS = {"loss.own_logit": "class", "loss.logit_statistics": "class"}


def trained(name: str, batch_size: int = 16, **sizes: object) -> Graph:
    """A network of the zoo with its loss."""
    model = build(name, batch_size, **sizes)
    loss = model.loss or ZOO[name].loss
    return add_losses(model.graph, model.outputs, loss)


def transformer(batch_size: int = 16, heads: int = 4) -> Graph:
    sizes = {"steps": 8, "layers": 2, "hidden": 4 * heads, "heads": heads, "vocabulary": 32}
    return trained("transformer", batch_size, **sizes)


def pairs(graph: Graph, parts: int = 4) -> list[dict[str, str]]:
    """Of each pair, the names of operators and of the dimensions that are split."""
    found = find_pairs(graph, parts)
    return [{op.name: op.dims[dim].name for op, dim in pair.dims.items()} for pair in found]


def degrees(strategy: Strategy, graph: Graph, name: str) -> dict[str, int]:
    """The degrees above 1 of an operator's dimensions."""
    (op,) = (op for op in graph.operators if op.name == name)
    named = zip(op.dims, strategy[name].degrees, strict=True)
    return {dim.name: degree for dim, degree in named if degree > 1}


def test_pairs_of_a_transformer() -> None:
    """Heads from the projections to the output layer, the layers between, and the vocabulary."""
    heads = {f"{part}{end}" for part in ("query", "key", "value") for end in ("", ".heads")}
    found = pairs(transformer())
    assert len(found) == 5
    for block in (1, 2):
        attention, between = found[2 * block - 2 : 2 * block]
        prefix = f"block{block}."
        inside = {*heads, "attention", "joined", "output"}
        assert set(attention) == {prefix + name for name in inside}
        assert attention[f"{prefix}query"] == "channel"
        assert attention[f"{prefix}attention"] == "head"
        assert attention[f"{prefix}output"] == "in"
        assert [*between.values()] == ["channel", "channel", "in"]
    assert found[4] == {"logits": "channel", **LOSS}


def test_what_is_no_pair() -> None:
    """Units that a softmax reads whole, or of which slices are cut; and sums that have activations.

    Where one reader cannot be split as the units are, none is; another layer may begin there.
    """
    model = Model(8)
    x = model.dense(model.input((16,)), 16, name="a")
    y = model.dense(x, 16, name="b")
    model.dense(model.add([model.softmax(x), y]), 16, name="c")
    assert pairs(model.graph) == [{"b": "channel", "add_1": "channel", "c": "in"}]
    fused = Model(8)
    x = fused.dense(fused.input((16,)), 16, "relu", name="a")
    fused.dense(fused.dense(x, 16, "relu", name="b"), 16, name="c")
    assert pairs(fused.graph) == [{"b": "channel", "c": "in"}]
    cut = Model(8)
    x = cut.dense(cut.input((16,)), 32, name="both")
    one, two = cut.split(x, [16, 16], axis=1)
    cut.dense(cut.multiply([one, two]), 8, name="c")
    assert pairs(cut.graph) == []


def test_small_pairs_are_left_out() -> None:
    """Two heads cannot be cut into four parts, but the layers between can."""
    found = pairs(transformer(heads=2))
    assert [next(iter(pair)) for pair in found] == ["block1.expand", "block2.expand", "logits"]


def test_megatron_on_two_nodes() -> None:
    """Samples between nodes; in each, pairs by units and their sums, and what is between by length.

    Each position's partial values are summed up by its reader alone.
    """
    graph = transformer()
    strategy = resolve("megatron", graph, P100X8)
    expected = {
        "embed": {"sample": 2, "row": 4},
        "positions": {"sample": 2, "length": 4},
        "block1.norm1": {"sample": 2, "length": 4},
        "block1.query": {"sample": 2, "channel": 4},
        "block1.attention": {"sample": 2, "head": 4},
        "block1.output": {"sample": 2, "in": 4},
        "block1.add1": {"sample": 2, "length": 4},
        "block2.contract": {"sample": 2, "in": 4},
        "logits": {"sample": 2, "channel": 4},
        "loss.logit_statistics": {"sample": 2, "class": 4},
        "loss": {"sample": 2, "length": 4},
    }
    for name, split in expected.items():
        assert degrees(strategy, graph, name) == split, name
        assert strategy[name].devices == EIGHT
        assert strategy[name].sums == "readers"
    # Every part of the statistics of the classes reads all samples' own logits.
    assert strategy["loss.own_logit"].sums == "shards"


def test_a_row_split_layer_before_columns() -> None:
    """What all devices read is summed up once, shard by shard."""
    model = Model(8)
    x = model.input((16,))
    for name in "abcd":
        x = model.dense(x, 16, name=name)
    strategy = resolve("megatron", model.graph, load_machine("p100x4").names)
    sums = {name: strategy[name].sums for name in "abcd"}
    assert sums == {"a": "readers", "b": "shards", "c": "readers", "d": "readers"}
    assert degrees(strategy, model.graph, "b") == {"in": 4}
    assert degrees(strategy, model.graph, "c") == {"channel": 4}


def test_a_batch_smaller_than_the_number_of_nodes() -> None:
    graph = transformer(batch_size=1)
    strategy = resolve("megatron", graph, P100X8)
    assert strategy["block1.query"].devices == EIGHT[:4]


def test_vocabulary() -> None:
    """The classes and the table that they share on all devices, all else by samples."""
    graph = transformer()
    strategy = resolve("vocabulary", graph, P100X8)
    expected = {
        "embed": {"row": 8},
        "block1.query": {"sample": 8},
        "norm": {"sample": 8},
        "logits": {"channel": 8},
        "loss.logit_statistics": {"class": 8},
        "loss": {"sample": 8},
    }
    assert {name: degrees(strategy, graph, name) for name in expected} == expected
    assert strategy["embed"].sums == "readers"


def test_vocabulary_of_faces() -> None:
    """The margin stays with its classes."""
    sizes = {"classes": 64, "input_shape": (32, 32, 3), "blocks": (1, 1, 1, 1), "width": 8}
    graph = trained("insightface", **sizes)
    strategy = resolve("vocabulary", graph, P100X8)
    classes = {op.name for op in graph.operators if "channel" in degrees(strategy, graph, op.name)}
    assert classes == {"cosines", "loss.angular_margin"}
    assert degrees(strategy, graph, "loss.logit_statistics") == {"class": 8}
    assert degrees(strategy, graph, "embedding") == {"sample": 8}


def test_wide_deep() -> None:
    """Tables of sixteen columns by these, tables of one by their rows."""
    graph = trained("wide_deep", rows=100, tables=2, layers=2, hidden=8)
    strategy = resolve("wide-deep", graph, P100X8)
    assert degrees(strategy, graph, "deep.embed1") == {"channel": 8}
    assert degrees(strategy, graph, "wide.embed2") == {"row": 8}
    assert degrees(strategy, graph, "deep1") == {"sample": 8}
    assert strategy["wide.embed2"].sums == "readers"


@pytest.mark.parametrize(
    ("name", "network", "message"),
    [
        ("megatron", "resnet101", "this model has no such pair with 4 units"),
        ("vocabulary", "wide_deep", "this model has no such layer with 8 units"),
        ("wide-deep", "transformer", "this model has none that is used as a table alone"),
    ],
)
def test_where_they_do_not_apply(name: str, network: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as e:
        resolve(name, trained(network), P100X8)
    assert str(e.value).startswith(f"strategy '{name}' splits ")


def test_megatron_needs_nodes_of_several_devices() -> None:
    with pytest.raises(UserError, match="there is a node with one device"):
        resolve("megatron", transformer(), load_machine("p100x1").names)

"""The experts' strategies, operator by operator on small networks; all known ones fit anything."""

from __future__ import annotations

from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexlegion import Model, ParallelConfig, Strategy, UserError
from flexlegion.graph.graph import Graph
from flexlegion.known_strategies import resolve
from flexlegion.known_strategies.gnmt import layer_depths
from flexlegion.known_strategies.pipeline import (
    crossing_numbers,
    cut,
    cut_into_runs,
    runs_of_layers,
    work_of,
)
from flexlegion.machine.devices import Devices
from flexlegion.networks.network import Network
from flexlegion.objective.training import TrainingSpec
from flexlegion.ops.reduce import Reduce
from flexlegion.profiling.machines import load_machine
from flexlegion.transforms.losses import add_loss
from flexlegion.zoo import build

P100X8 = load_machine("p100x8")
EIGHT = tuple(f"gpu:{i}" for i in range(8))


def with_loss(model: Model) -> Graph:
    output = model.graph.operators[-1].output
    return add_loss(model.graph, output, "sparse_categorical_crossentropy")


def unrolled(batch_size: int, steps: int = 3) -> Graph:
    """Embedding, two LSTM layers and a dense one, unrolled: step by step, each with four operators.

    Operators are called ``lstm1_0``, the last digit being the step.
    """
    model = Model(batch_size)
    tokens = model.input((steps,), dtype="int32", name="tokens")
    layers: dict[str, list] = {name: [] for name in ("embed", "lstm1", "lstm2", "fc")}
    state: dict[str, tuple] = {}
    for step in range(steps):
        first = {name: outputs[0] if outputs else None for name, outputs in layers.items()}
        x = model.embedding(tokens, 50, 6, step, 1, name=f"embed_{step}", share=first["embed"])
        layers["embed"].append(x)
        for name in ("lstm1", "lstm2"):
            out = model.lstm(x, 4, state.get(name), name=f"{name}_{step}", share=first[name])
            layers[name].append(out.y)
            state[name] = out.state
            x = model.relu(out.y, name=f"{name}_relu_{step}")
        layers["fc"].append(model.dense(x, 50, name=f"fc_{step}", share=first["fc"]))
    model.softmax(model.concat(layers["fc"], axis=1, name="all"), name="softmax")
    return with_loss(model)


@pytest.mark.parametrize("name", ["expert", "one-weird-trick"])
def test_alexnet(name: str) -> None:
    """All samples' shares on all GPUs up to fc6; units from there on; softmax by samples again.

    dropout7 works on fc6's units where they are; dropout6 on what the convolutions flattened.
    """
    graph = with_loss(build("alexnet", 256))
    strategy = resolve(name, graph, P100X8.names)
    assert strategy.source == f"strategy '{name}'"
    units = {"fc6", "dropout7", "fc7", "fc8"}
    for operator in graph.operators:
        config = strategy[operator.name]
        rest = len(operator.dims) - 2
        expected = (1, 8, *(1,) * rest) if operator.name in units else (8, 1, *(1,) * rest)
        expected = expected[: len(operator.dims)]
        assert (config.degrees, config.devices) == (expected, EIGHT), operator.name


@pytest.mark.parametrize("name", ["data", "expert"])
def test_what_is_made_of_weights_alone_is_whole(name: str) -> None:
    """It has one sample for the whole batch; two such operators are on two devices."""
    model = Model(16)
    weight = model.parameter((4,))
    square = model.multiply([weight, weight], name="square")
    cube = model.multiply([square, weight], name="cube")
    model.softmax(model.add([model.input((4,)), cube], name="sum"), name="softmax")
    strategy = resolve(name, with_loss(model), P100X8.names)
    assert [strategy[op].devices for op in ("square", "cube")] == [("gpu:0",), ("gpu:1",)]
    assert strategy["sum"].degrees == (8, 1)


def test_dense_layers_within_convolutions_are_split_by_samples() -> None:
    """As in squeeze-and-excitation: their weights are small, and convolutions follow."""
    model = Model(8)
    x = model.conv2d(model.input((4, 4, 2)), 4, 3, padding=1, name="conv1")
    x = model.dense(x, 4, name="inner")
    x = model.conv2d(x, 4, 3, name="conv2")
    model.dense(model.flatten(x), 16, name="outer")
    strategy = resolve("one-weird-trick", model.graph, P100X8.names)
    assert strategy["inner"].degrees == (8, 1, 1, 1, 1, 1)
    assert strategy["outer"].degrees == (1, 8, 1, 1)


def test_what_follows_dense_layers() -> None:
    """A sum stays with the units; what reads all units, or other extents of them, goes by samples.

    So does what follows such an operator.
    """
    model = Model(8)
    a = model.dense(model.input((5,)), 16, name="a")
    total = model.add([a, model.dense(a, 16, name="b")], name="sum")
    model.relu(total, name="relu")
    model.relu(model.softmax(total, name="softmax"), name="relu_of_softmax")
    model.concat([a, total], axis=1, name="concat")
    strategy = resolve("one-weird-trick", model.graph, P100X8.names)
    degrees = {name: config.degrees[:2] for name, config in strategy.items()}
    units = {"a", "b", "sum", "relu"}
    assert degrees == {name: (1, 8) if name in units else (8, 1) for name in degrees}


def test_a_sum_over_dense_units_goes_by_samples() -> None:
    """Split as the units are, its parts would be partial values; other sums keep the units."""
    model = Model(8)
    x = model.dense(model.input((3, 5)), 16, name="units")
    model.graph.add(Reduce("sum", (2,)), [x], "over_units")
    model.graph.add(Reduce("sum", (1,)), [x], "over_rows")
    strategy = resolve("one-weird-trick", model.graph, P100X8.names)
    assert strategy["units"].degrees == (1, 1, 8, 1)
    assert strategy["over_units"].degrees == (8, 1, 1, 1)
    assert strategy["over_rows"].degrees == (1, 8, 1, 1)


def normalised(layers: int, batch_size: int = 8) -> Model:
    """Convolutions with batch normalisation, then a dense layer with it."""
    model = Model(batch_size)
    x = model.input((4, 4, 2))
    for i in range(layers):
        x = model.conv2d(x, 4, 3, padding=1, name=f"conv{i}")
        x = model.batch_norm(x, name=f"bn{i}")
    x = model.dense(model.flatten(x, name="flat"), 16, name="fc")
    model.batch_norm(x, name="fc_bn")
    return model


def test_what_has_no_samples_is_dealt_to_the_devices() -> None:
    """The batch's moments: the ninth are on the first of eight devices again."""
    graph = normalised(9).graph
    for name in ("data", "one-weird-trick", "expert"):
        strategy = resolve(name, graph, P100X8.names)
        for i in range(9):
            moments = strategy[f"bn{i}.moments"]
            assert (moments.degrees, moments.devices) == ((1, 1, 1), (EIGHT[i % 8],))
            for other in (f"conv{i}", f"bn{i}.statistics", f"bn{i}"):
                assert (strategy[other].degrees[0], strategy[other].devices) == (8, EIGHT)


def test_normalisation_of_a_dense_layer() -> None:
    """Data parallelism has its moments on one device; those of split units are with their units."""
    graph = normalised(1).graph
    moments = resolve("data", graph, P100X8.names)["fc_bn.moments"]
    assert (moments.degrees, moments.devices) == ((1, 1, 1), ("gpu:1",))
    strategy = resolve("one-weird-trick", graph, P100X8.names)
    for operator in ("fc", "fc_bn.statistics", "fc_bn.moments", "fc_bn"):
        config = strategy[operator]
        units = 1 if operator == "fc" else len(config.degrees) - 1
        expected = [8 if d == units else 1 for d in range(len(config.degrees))]
        assert (list(config.degrees), config.devices) == (expected, EIGHT)


def test_moments_between_nodes() -> None:
    """GNMT's strategy has them at their layer's depth, in turn on the nodes."""
    strategy = resolve("gnmt", normalised(2).graph, P100X8.names)
    # Depths: conv0, bn0, conv1, bn1, fc, fc_bn; without weights, moments have that of the input.
    assert strategy["bn0"].devices == ("gpu:1", "gpu:5")
    assert strategy["bn0.statistics"].devices == ("gpu:0", "gpu:4")
    assert strategy["bn0.moments"].devices == ("gpu:0",)
    assert strategy["bn1.statistics"].devices == ("gpu:2", "gpu:6")
    assert strategy["bn1.moments"].devices == ("gpu:6",)
    assert strategy["fc_bn.moments"].devices == ("gpu:0",)


def test_a_small_batch_has_moments_where_samples_are_not() -> None:
    """All devices take turns, although only three have samples."""
    for name in ("one-weird-trick", "data"):
        strategy = resolve(name, normalised(5, 3).graph, P100X8.names)
        assert strategy["bn4"].devices == EIGHT[:3]
        assert strategy["bn4.moments"].devices == (EIGHT[4],)


def test_small_extents_are_split_as_far_as_they_go() -> None:
    model = Model(3)
    x = model.conv2d(model.input((4, 4, 2)), 4, 3, name="conv")
    model.dense(model.flatten(x, name="flat"), 5, name="fc")
    strategy = resolve("expert", model.graph, P100X8.names)
    assert (strategy["conv"].degrees, strategy["conv"].devices) == ((3, 1, 1, 1, 1), EIGHT[:3])
    assert (strategy["fc"].degrees, strategy["fc"].devices) == ((1, 5, 1, 1), EIGHT[:5])


def test_depths_of_unrolled_steps() -> None:
    graph = unrolled(8)
    depths = {operator.name: depth for operator, depth in layer_depths(graph).items()}
    expected = {"embed": 0, "lstm1": 1, "lstm1_relu": 1, "lstm2": 2, "lstm2_relu": 2, "fc": 3}
    for layer, depth in expected.items():
        assert [depths[f"{layer}_{step}"] for step in range(3)] == [depth] * 3
    assert (depths["all"], depths["softmax"], depths["loss"]) == (3, 3, 3)


def test_depths_of_a_decoder_with_input_feeding() -> None:
    """Step 1 of the decoder reads what attention gave for step 0: no deeper layer.

    The decoder comes after the encoder, from which it gets its first state.
    """
    model = Model(4)
    x = model.input((2, 6))
    encoder = model.lstm(x, 6, name="encoder")
    state, previous, first, fed = encoder.state, None, None, None
    for step, word in enumerate(model.split(x, [1, 1], axis=1, name="word")):
        word = word if fed is None else model.add([word, fed], name=f"feed_{step}")
        out = model.lstm(word, 6, state, name=f"decoder_{step}", share=previous)
        previous, state = previous or out.y, out.state
        fed = model.luong_attention(out.y, encoder.y, 6, name=f"attend_{step}", share=first)
        first = first or fed
    depths = {operator.name: depth for operator, depth in layer_depths(model.graph).items()}
    assert depths == {
        "encoder": 0,
        "word.0": 0,
        "decoder_0": 1,
        "attend_0": 2,
        "word.1": 0,
        "feed_1": 2,
        "decoder_1": 1,
        "attend_1": 2,
    }


def test_the_longest_path_counts() -> None:
    """A branch around two layers: what joins both has the depth of the longer one."""
    model = Model(4)
    a = model.dense(model.input((6,)), 6, name="a")
    b = model.dense(model.dense(a, 6, name="b1"), 6, name="b2")
    model.dense(model.add([a, b], name="join"), 6, name="c")
    depths = {operator.name: depth for operator, depth in layer_depths(model.graph).items()}
    assert depths == {"a": 0, "b1": 1, "b2": 2, "join": 2, "c": 3}


@pytest.mark.parametrize("name", ["expert", "gnmt"])
def test_unrolled_layers_on_two_nodes(name: str) -> None:
    """p100x8 has two nodes of four GPUs: half of the samples each, a layer on one GPU of each.

    Of the table, each node has half of the columns.
    """
    strategy = resolve(name, unrolled(8), P100X8.names)
    expected = {
        "embed": ("gpu:0", "gpu:4"),
        "lstm1": ("gpu:1", "gpu:5"),
        "lstm1_relu": ("gpu:1", "gpu:5"),
        "lstm2": ("gpu:2", "gpu:6"),
        "lstm2_relu": ("gpu:2", "gpu:6"),
        "fc": ("gpu:3", "gpu:7"),
    }
    for layer, devices in expected.items():
        for step in range(3):
            config = strategy[f"{layer}_{step}"]
            split = 2 if layer == "embed" else 0
            expected = [2 if d == split else 1 for d in range(len(config.degrees))]
            assert (list(config.degrees), config.devices) == (expected, devices)
    assert strategy["softmax"].devices == ("gpu:3", "gpu:7")
    assert strategy["loss"].devices == ("gpu:3", "gpu:7")


def test_more_layers_than_devices_go_around() -> None:
    strategy = resolve("gnmt", unrolled(8), load_machine("p100x2").names)
    layers = ("embed", "lstm1", "lstm2", "fc")
    devices = [strategy[f"{layer}_1"].devices for layer in layers]
    assert devices == [("gpu:0",), ("gpu:1",), ("gpu:0",), ("gpu:1",)]


def test_batch_smaller_than_the_number_of_nodes() -> None:
    strategy = resolve("gnmt", unrolled(3), load_machine("p100x16").names)
    assert strategy["lstm1_2"].degrees == (3, 1, 1)
    assert strategy["lstm1_2"].devices == ("gpu:1", "gpu:5", "gpu:9")


def test_where_the_nodes_come_from() -> None:
    """From the devices, else from a topology; without either there is one node."""
    graph = unrolled(8)
    plain = Devices(P100X8.names.names)
    assert resolve("gnmt", graph, plain)["lstm2_0"].devices == ("gpu:2",)
    assert resolve("gnmt", graph, plain, P100X8)["lstm2_0"].devices == ("gpu:2", "gpu:6")
    some = Devices(["gpu:1", "gpu:2", "gpu:7", "gpu:6", "gpu:5"])
    # Nodes of two and of three GPUs: layers go around two on both.
    assert resolve("gnmt", graph, some, P100X8)["lstm1_0"].devices == ("gpu:2", "gpu:6")
    assert resolve("gnmt", graph, some, P100X8)["lstm2_0"].devices == ("gpu:1", "gpu:7")
    with pytest.raises(UserError, match="no device 'gpu:9'"):
        resolve("gnmt", graph, Devices(["gpu:9"]), P100X8)


def test_nodes_of_preferred_devices() -> None:
    devices = Devices(["cpu:0", "cpu:1", "gpu:0", "gpu:1", "gpu:2"], [0, 1, 2, 1, 2])
    assert devices.preferred_by_node == [["gpu:1"], ["gpu:0", "gpu:2"]]
    assert Devices.of(cpus=2).preferred_by_node == [["cpu:0", "cpu:1"]]


def chosen(model: Model) -> str:
    """What the expert's strategy is the same as."""
    devices = load_machine("p100x4").names
    expert = dict(resolve("expert", model.graph, devices))
    names = ("data", "one-weird-trick", "gnmt")
    return " ".join(n for n in names if dict(resolve(n, model.graph, devices)) == expert)


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("alexnet", "one-weird-trick"),
        ("inception_v3", "one-weird-trick"),
        ("lenet", "one-weird-trick"),
        ("resnet101", "one-weird-trick"),
        ("vgg16", "one-weird-trick"),
        ("mlp", "data"),
        ("transformer", "data"),
        ("llama", "data"),
        ("nmt", "gnmt"),
        ("rnnlm", "gnmt"),
        ("rnntc", "gnmt"),
    ],
)
def test_the_expert_knows_the_zoo(name: str, strategy: str) -> None:
    assert chosen(build(name, 8)) == strategy


def test_the_expert_looks_at_the_network() -> None:
    """Not at operators' names: one recurrent operator, or any weights that are shared."""
    recurrent = Model(8)
    recurrent.dense(recurrent.lstm(recurrent.input((3, 4)), 8).h, 8)
    assert chosen(recurrent) == "gnmt"
    shared = Model(8)
    x = shared.dense(shared.input((8,)), 8)
    shared.dense(shared.dense(x, 8, share=x), 4)
    assert chosen(shared) == "gnmt"
    tied = Model(8)  # input and output embeddings, of different types
    x = tied.embedding(tied.input((6,), dtype="int32"), 20, 8)
    tied.dense(tied.dense(x, 8), 20, use_bias=False, share=x)
    assert chosen(tied) == "data"
    convolutional = Model(8)
    x = convolutional.embedding(convolutional.input((6,), dtype="int32"), 20, 8)
    x = convolutional.conv1d(x, 8, 3)
    convolutional.dense(convolutional.flatten(x), 8)
    assert chosen(convolutional) == "one-weird-trick"


def test_the_expert_splits_small_batches_as_far_as_they_go() -> None:
    strategy = resolve("expert", build("mlp", 3).graph, P100X8.names)
    assert all(config.degrees[0] == 3 for config in strategy.values())


def test_depths_of_translation() -> None:
    """The zoo's: each layer of 40 unrolled steps has one depth; the decoder follows the encoder."""
    depths: dict[str, set[int]] = {}
    for operator, depth in layer_depths(build("nmt", 8).graph).items():
        depths.setdefault(operator.name.rstrip("0123456789."), set()).add(depth)
    assert depths["encoder.embed"] == depths["decoder.embed"] == {0}
    assert depths["attention"] == {4}
    assert depths["project"] == depths["softmax"] == {5}


@pytest.mark.parametrize("batch_size", [1, 5, 64])
@pytest.mark.parametrize("machine", ["p100x1", "p100x3", "k80x64", "h100x8"])
def test_they_fit_any_network_and_machine(machine: str, batch_size: int) -> None:
    """`resolve` checks what it returns."""
    topology = load_machine(machine)
    small = normalised(3, batch_size)
    for graph in (with_loss(build("lenet", batch_size)), unrolled(batch_size), small.graph):
        for name in ("expert", "one-weird-trick", "gnmt"):
            resolve(name, graph, topology.names)


def test_look_ups_are_split_by_columns_and_rows_or_refused() -> None:
    model = Model(4)
    model.embedding(model.input((6,), dtype="int32"), 20, 8, name="embed")
    devices = Devices.of(gpus=2)

    def strategy(*degrees: int) -> Strategy:
        return Strategy({"embed": ParallelConfig(degrees, ("gpu:0", "gpu:1"))})

    by_columns = strategy(1, 1, 2).checked(model.graph, devices)
    assert by_columns["embed"].degrees[:3] == (1, 1, 2)
    message = "'sample' into 2 parts, but what looks rows up in a table is split by its columns"
    with pytest.raises(UserError, match=message):
        strategy(2, 1, 1).checked(model.graph, devices)
    with pytest.raises(UserError, match=message):
        by_columns.changed(strategy(2, 1, 1))


def micro_batched_mlp(rounds: int) -> Graph:
    """Six equal layers and a seventh that is small, of 16 samples."""
    model = Model(16)
    x = model.input((64,))
    for layer in range(6):
        x = model.dense(x, 64, name=f"layer{layer}")
    model.dense(x, 2, name="last")
    return Network.of(model, TrainingSpec("mean_squared_error", micro_batches=rounds)).graph


@pytest.mark.parametrize("rounds", [2, 8])
def test_a_pipeline(rounds: int) -> None:
    """Stages of equal work, each on a device; stage s of p has p - s registers, m at most."""
    graph = micro_batched_mlp(rounds)
    strategy = resolve("pipeline", graph, load_machine("p100x3").names)
    stages = [0, 0, 1, 1, 2, 2, 2, 2]
    for op, stage in zip(graph.operators, stages, strict=True):
        its = strategy[op.name]
        assert its.devices == (f"gpu:{stage}",)
        assert its.buffers == min(rounds, 3 - stage)


def test_a_pipeline_of_fewer_layers_than_devices() -> None:
    """The registers are those of as many stages as there are."""
    graph = micro_batched_mlp(8)
    strategy = resolve("pipeline", graph, P100X8.names)
    stages = [strategy[op.name].devices[0] for op in graph.operators]
    assert stages == sorted(stages)
    used = len(set(stages))
    assert strategy["layer0"].buffers == used < 8
    assert strategy["loss"].buffers == 1


def test_interleaved() -> None:
    """Two runs of layers on each device, in turn, and the registers that keep these busy."""
    graph = micro_batched_mlp(8)
    strategy = resolve("interleaved", graph, load_machine("p100x2").names)
    stages = [strategy[op.name].devices[0] for op in graph.operators]
    assert [stage for stage, _ in groupby(stages)] == ["gpu:0", "gpu:1"] * 2
    assert (strategy["layer0"].buffers, strategy["loss"].buffers) == (4, 1)


@given(work=st.lists(st.integers(1, 100), min_size=12, max_size=40), data=st.data())
def test_runs_are_balanced(work: list[int], data: st.DataObject) -> None:
    """All stages have as many runs; no operator at a border could be moved to more use."""
    stages, runs = data.draw(st.integers(2, 3)), data.draw(st.integers(2, 4))
    numbers = cut_into_runs(work, stages, runs)
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(stages * runs))

    def squares(numbers: list[int]) -> int:
        works = [0] * stages
        for its, number in zip(work, numbers, strict=True):
            works[number % stages] += its
        return sum(its * its for its in works)

    for i in range(1, len(work)):
        for at, to in ((i - 1, numbers[i]), (i, numbers[i - 1])):
            other = [*numbers]
            other[at] = to
            if set(other) == set(numbers):
                assert squares(other) >= squares(numbers)


@pytest.mark.parametrize(("stages", "runs"), [(2, 1), (4, 1), (3, 2)])
def test_runs_end_between_blocks(stages: int, runs: int) -> None:
    """Of a transformer, behind a sum: one tensor crosses, and stages are nearly as equal."""
    graph = build("gpt", 4, steps=64, layers=12, hidden=64, heads=4, vocabulary=96).graph
    numbers = runs_of_layers(graph, stages, runs)
    ends = [at for at, (run, then) in enumerate(pairwise(numbers)) if run != then]
    assert len(ends) == stages * runs - 1
    assert {type(graph.operators[at].kind).__name__ for at in ends} == {"Add"}
    assert {crossing_numbers(graph)[at] for at in ends} == {4 * 64 * 64}
    work = [work_of(op) for op in graph.operators]

    def largest(numbers: list[int]) -> int:
        works = [0] * stages
        for its, number in zip(work, numbers, strict=True):
            works[number % stages] += its
        return max(works)

    assert largest(numbers) <= 1.05 * largest(cut_into_runs(work, stages, runs))


def test_what_crosses() -> None:
    """Behind each operator, what has been computed and is read later."""
    model = Model(2)
    x = model.input((3,))
    y = model.dense(x, 5)
    z = model.dense(y, 7)
    model.concat([y, z], axis=1)
    assert crossing_numbers(model.graph) == [2 * 5, 2 * (5 + 7), 0]


def test_too_few_layers_to_interleave() -> None:
    with pytest.raises(UserError, match="are 16, but the model has no more than 8"):
        resolve("interleaved", micro_batched_mlp(8), P100X8.names)


@pytest.mark.parametrize(
    ("work", "parts", "largest"),
    [
        ([1, 1, 1, 1], 2, 2),
        ([5, 1, 1, 1], 2, 5),
        ([1, 2, 3, 4, 5], 3, 6),
        ([7], 4, 7),
        ([0, 0], 2, 0),
    ],
)
def test_work_is_cut_evenly(work: list[int], parts: int, largest: int) -> None:
    numbers = cut(work, parts)
    assert numbers == sorted(numbers)
    assert numbers[-1] < parts
    sums = [sum(w for w, n in zip(work, numbers, strict=True) if n == part) for part in numbers]
    assert max(sums) == largest


@pytest.mark.parametrize(
    ("rounds", "machine", "text"),
    [(1, "p100x2", "a batch goes through in one piece"), (2, "p100x1", "there is one device")],
)
def test_no_pipeline(rounds: int, machine: str, text: str) -> None:
    with pytest.raises(UserError, match=text):
        resolve("pipeline", micro_batched_mlp(rounds), load_machine(machine).names)

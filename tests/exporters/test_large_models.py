"""Programs with recomputation, micro-batches, sharded weights and stages compute the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import torch
import torch.distributed as dist
from exported import (
    Arrays,
    differences,
    give,
    loaded,
    made_up,
    network_named,
    result,
    run,
    setting_of,
    text_of,
    weights_of,
)
from torch import nn

import flexlegion as fl
from flexlegion import Strategy
from flexlegion.analysis.export import Exported, program_of
from flexlegion.analysis.setting import Given, Setting
from flexlegion.exporters.regions import regions
from flexlegion.exporters.space import target_of
from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.tensor import Tensor
from flexlegion.known_strategies.pipeline import runs_of_layers
from flexlegion.networks.network import Network
from flexlegion.objective.training import TrainingSpec
from flexlegion.strategy.configuration import ParallelConfig, Sharding, splits

DEVICES = 4
SGD = fl.SGD(0.1, 0.9, clip_norm=0.05)  # as the workers', and clipped
WAYS = {
    "recomputed": ("data+again", 2),
    "sharded gradients": ("data+zero2", 2),  # and samples, of which each has its own
    "sharded weights": ("fsdp", 1),
    "all": ("megatron+zero3+again", 4),
}


@pytest.fixture(scope="module", params=["dtensor", "jax"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all programs for a target have run; each way's is called by its number."""
    to: str = request.param
    folder = tmp_path_factory.mktemp(to)
    network = network_named("gpt")
    # Each computes all of it.
    write(folder, "one", text_of(network, DEVICES, "single", to, optimizer=SGD))
    for number, (strategy, parts) in enumerate(WAYS.values()):
        options = {"optimizer": SGD, "micro_batches": parts}
        its = {"own_share": np.array(1)} if strategy == "data+zero2" and to == "dtensor" else {}
        its |= {"count_copies": np.array(1)} if strategy == "fsdp" and to == "jax" else {}
        write(folder, str(number), text_of(network, DEVICES, strategy, to, **options), **its)
    for name, strategy in MASKED.items():
        write_masked(folder, name, strategy, to)
    for name, options in PIPELINES.items():
        its = {"count_copies": np.array(1)} if to == "jax" else {}
        write(folder, name, pipelined(to, **options).text, **its)
    dropped = DROPPED if to == "jax" else {}
    for name, strategy in dropped.items():
        write_masked(folder, name, strategy, to, micro_batches=2)
    run(to, DEVICES, folder, ["one", *map(str, range(len(WAYS))), *MASKED, *PIPELINES, *dropped])
    return folder


# Two stages of two devices, on which operators are divided at random.
PIPELINES: dict[str, dict[str, Any]] = {
    "row": {"seed": 1, "runs": 1, "again": True, "sharding": "weights"},
    "round": {"seed": 2, "runs": 2, "sharding": "gradients", "parts": 4},
}


def pipelined(
    to: str,
    seed: int,
    runs: int,
    again: bool = False,
    sharding: Sharding = "states",
    parts: int = 2,
) -> Exported:
    """GPT in a pipeline, whose first and last operators share a table."""
    network, each = network_named("gpt"), DEVICES // 2
    setting = setting_of(network, DEVICES, optimizer=SGD, micro_batches=parts)
    graph, names = setting.problem.graph, setting.problem.devices.names
    rng, target = np.random.default_rng(seed), target_of(to, each)
    configs = {}
    for op, number in zip(graph.operators, runs_of_layers(graph, 2, runs), strict=True):
        allowed = [its for its in splits(op, each) if target.allows(op, its)]
        degrees = allowed[int(rng.integers(len(allowed)))]
        first = number % 2 * each
        mine = tuple(names[first : first + int(np.prod(degrees))])
        redone = again and not op.kind.is_loss and bool(rng.integers(2))
        configs[op.name] = ParallelConfig(degrees, mine, again=redone, sharding=sharding)
    return program_of(Given.inside(setting, Strategy(configs, "pipeline")), to)


def write(folder: Path, name: str, text: str, **more: np.ndarray) -> None:
    """A program for GPT, with labels of which some of one micro-batch do not count."""
    give(folder, name, "gpt", text)
    with np.load(folder / f"{name}.npz") as saved:
        given = dict(saved)
    given["label/labels"][:3, 2:] = -1
    np.savez(folder / f"{name}.npz", **given, **more)


DROPPED = {"in stages": "pipeline", "on one mesh": "data"}
MASKED = {"kept": "data", "again": "data+again"}


def write_masked(folder: Path, name: str, strategy: str, to: str, **training: Any) -> None:
    """A program of a network that drops half of its activations."""
    model = fl.Model(8, seed=3)
    x = model.dense(model.input((12,)), 16, activation="tanh")
    for _ in range(3):
        x = model.tanh(model.dropout(model.dense(x, 16), 0.5))
    model.dense(x, 8)
    model.loss = "mean_squared_error"
    text = fl.export(model, f"p100x{DEVICES}", strategy, to, **training).text
    assert ("again(again_1" in text) == (name == "again")
    (folder / f"{name}.py").write_text(text)
    given = {f"weight/{w.name}": w.initializer(w.shape, w.name, 3) for w in model.graph.weights}
    rng = np.random.default_rng(0)
    given["input/input_1"] = rng.standard_normal((8, 12)).astype(np.float32)
    given["label/labels"] = rng.standard_normal((8, 8)).astype(np.float32)
    np.savez(folder / f"{name}.npz", **given)


@pytest.mark.parametrize("way", WAYS)
def test_the_same_as_on_one_device(way: str, trained: Path) -> None:
    """Losses of three steps, and weights after them."""
    expected = result(trained, "one")
    del expected["dense_13.output"]  # micro-batches have it in parts
    assert differences(result(trained, str([*WAYS].index(way))), expected) == []


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_train_the_same(name: str, trained: Path) -> None:
    """Of PyTorch, each process has the gradients of its stage alone, so weights are compared."""
    expected, done = result(trained, "one"), result(trained, name)
    for key in [key for key in expected if key.endswith("gradient") and key not in done]:
        del expected[key]
    del expected["dense_13.output"]
    assert differences(done, expected) == []


def test_no_micro_batch_keeps_copies_of_weights(trained: Path) -> None:
    """Of what is gathered, or turned round, for each use."""
    for name in ("2", *PIPELINES):
        if (count := result(trained, name).get("copies of weights")) is not None:
            assert count == 0, name


def test_masks_are_the_same_in_stages(trained: Path) -> None:
    if (trained / "dropped.out.npz").exists():  # with DTensor, parts of samples have other masks
        assert differences(*(result(trained, name) for name in DROPPED), 1e-5) == []


def test_a_device_keeps_the_weights_of_its_stage() -> None:
    done = pipelined("dtensor", 1, 1)
    assert done.pipeline is not None
    assert done.facts()["pipeline"] == {
        "stages": [[0, 1], [2, 3]],
        "rounds": 1,
        "schedule": "Schedule1F1B",
    }
    assert done.pipeline.in_flight == (2, 1)
    whole = text_of(network_named("gpt"), DEVICES, "data", "dtensor", optimizer=SGD)
    assert "stages=(1,)" in done.text
    assert "stages=" not in whole
    setting = setting_of(network_named("gpt"), DEVICES, optimizer=SGD, micro_batches=2)
    everywhere = program_of(Given.inside(setting, "data"), "dtensor")
    assert done.memory.weights < everywhere.memory.weights


def test_a_pipeline_for_jax_compiles_by_itself(tmp_path: Path) -> None:
    """And nothing else does, as it moves values between stages."""
    (tmp_path / "plan.py").write_text(pipelined("jax", 1, 1).text)
    plan = loaded(tmp_path / "plan.py")
    tokens = np.zeros((8, 8), np.int32)
    with pytest.raises(ValueError, match=r"called outside of jax\.jit"):
        jax.jit(plan.value_and_grad)({"embedding_1.table": np.zeros((32, 16))}, tokens, tokens)


def placed(strategy: Callable[[Graph], dict[str, ParallelConfig]], **options: Any) -> Exported:
    """A program for three GPUs, of layers a, b, c and a loss."""
    model = fl.Model(12)
    x = model.input((8,))
    for name in "abc":
        x = model.dense(x, 8, name=name)
    model.loss = "mean_squared_error"
    setting = Setting.of(
        Network.of(model, TrainingSpec("mean_squared_error", **options)), "p100x3", costs="analytic"
    )
    its = Strategy(strategy(setting.problem.graph), "placed")
    return program_of(Given.inside(setting, its), "dtensor")


@pytest.mark.parametrize(
    ("devices", "options", "reason"),
    [
        ("0 1 01 1", {}, None),
        ("0 1 0 1", {"micro_batches": 2}, "some devices are in no stage"),
        ("0 12 12 0", {"micro_batches": 2}, "stages have unequally many devices"),
        ("0 1 0 2", {"micro_batches": 2}, "operators do not pass the stages in a row, from the"),
    ],
)
def test_what_is_no_pipeline_is_told(devices: str, options: Any, reason: str | None) -> None:
    """And is on one mesh of all devices, by samples."""

    def strategy(graph: Graph) -> dict[str, ParallelConfig]:
        places = [tuple(f"gpu:{d}" for d in its) for its in devices.split()]
        return {
            op.name: ParallelConfig((len(place), *[1] * (len(op.dims) - 1)), place)
            for op, place in zip(graph.operators, places, strict=True)
        }

    done = placed(strategy, **options)
    assert done.pipeline is None
    found = {each.reason: each.instead for each in done.replaced}
    if reason is not None:
        (told,) = found
        assert told.startswith(reason)
        assert found[told] == "3 by sample"


def test_what_is_computed_again_drops_the_same(trained: Path) -> None:
    kept, again = (result(trained, name) for name in MASKED)
    assert len({float(kept[f"{step} loss"]) for step in range(3)}) == 3
    assert differences(again, kept, 1e-6) == []


def rows(again: str, operators: list[Operator]) -> list[str]:
    """Regions as words of the operators' letters; those that are run again in capitals."""
    found = regions(operators, {op for op in operators if op.name in again})
    return [
        "".join(op.name for op in region.operators).upper()
        if region.again
        else "".join(op.name for op in region.operators)
        for region in found
    ]


def test_what_is_computed_again_together() -> None:
    model = fl.Model(4)
    x = model.dense(model.input((8,)), 8, name="a")
    y = model.tanh(x, name="b")
    z = model.dense(x, 8, name="c")
    x = model.add([model.dense(y, 8, name="d"), z], name="e")
    model.dense(model.tanh(x, name="f"), 8, name="g")
    operators = model.graph.operators
    assert rows("", operators) == [*"abcdefg"]
    # What reads a value that is not kept belongs to it; then the next row begins.
    assert rows("b", operators) == ["a", "BD", "c", "e", "f", "g"]
    assert rows("bf", operators) == ["a", "BD", "c", "e", "FG"]
    # What has nothing to do with it stands before or behind.
    assert rows("bd", operators) == ["a", "c", "BDE", "f", "g"]
    assert rows("bdef", operators) == ["a", "c", "BDEFG"]
    assert rows("bcdf", operators) == ["a", "BCDE", "FG"]


class Shifted(nn.Module):
    """Layers, with a parameter that is added to what is between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.shift = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x)) + self.shift
        return x


def test_weights_are_read_where_they_are() -> None:
    """Also if operators have them as inputs: they are nothing that is passed on, or given."""
    model = fl.from_torch(Shifted(), torch.zeros(8, 8))
    model.loss = "mean_squared_error"
    done = fl.export(model, "p100x2", "pipeline+again", micro_batches=2)
    assert done.pipeline is not None
    (shift,) = (weight for weight in model.graph.weights if is_input(weight, model))
    assert f'"{shift.name}": Place((R,), (R,), True, stages=(0, 1))' in done.text
    rows = [regions(run, {*run}) for run in done.pipeline.runs]
    assert all(tensor.kind != "weight" for its in rows for row in its for tensor in row.given)


def is_input(weight: Tensor, model: fl.Model) -> bool:
    """Whether operators read a weight as they read activations."""
    return any(weight in op.inputs for op in model.graph.operators)


def test_no_state_changes_twice() -> None:
    """Moments of a batch move running averages: they are never in what is computed again."""
    network = network_named("convnet")
    again = {op for op in network.graph.operators if not any(w.state for w in op.weights)}
    for region in regions(network.graph.operators, again):
        assert not (region.again and any(w.state for op in region.operators for w in op.weights))
    assert "again(" in text_of(network, 2, "data+again", "dtensor")


@pytest.fixture
def alone() -> Iterator[None]:
    """A process that is all of them."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("name", "parts"), [("gpt", 1), ("gpt", 2), ("lstms", 1)])
def test_batches_of_other_sizes(name: str, parts: int, tmp_path: Path) -> None:
    """Two halves of a batch have its gradients, as has the batch twice."""
    network = network_named(name)
    text = text_of(network, 1, "single", "dtensor", micro_batches=parts, optimizer=SGD)
    (tmp_path / "plan.py").write_text(text)
    plan = loaded(tmp_path / "plan.py")
    weights = plan.Weights(weights_of(network))
    given = [torch.from_numpy(its) for part in made_up(network) for its in part]

    def gradients(*batches: Sequence[torch.Tensor]) -> Arrays:
        weights.zero_grad()
        losses = [float(plan.forward_backward(weights, *batch)) for batch in batches]
        found = {f"{n} gradient": p.grad.full_tensor() for n, p in weights.named_parameters()}
        mean = {n: (its / len(batches)).numpy() for n, its in found.items()}
        return mean | {"loss": np.array(sum(losses) / len(losses))}

    whole = gradients(given)
    assert differences(gradients([x[:4] for x in given], [x[4:] for x in given]), whole) == []
    assert differences(gradients([torch.cat([x, x]) for x in given]), whole) == []
    if parts == 1:
        output = plan.forward(weights, given[0][:2])[plan.OUTPUTS[0]]
        assert output.shape == (2, *network.outputs[0].shape[1:])


def test_samples_are_cut_evenly(tmp_path: Path) -> None:
    """Six samples are not for four devices; a normalisation has the batch that it was made for."""
    plans = []
    for name in ("mlp", "convnet"):
        (tmp_path / "plan.py").write_text(text_of(network_named(name), 4, "data", "dtensor"))
        plans.append(loaded(tmp_path / "plan.py"))
    assert [plan.MULTIPLE for plan in plans] == [4, 0]
    alone = SimpleNamespace(shares=1)
    with pytest.raises(ValueError, match=r"input_1 has 6 samples, but .* takes a multiple of 4"):
        plans[0].given(alone, "input_1", torch.zeros(6, 12))
    with pytest.raises(ValueError, match=r"has shape \[16, 8, 8, 4\], but .* takes \[8, 8, 8, 4\]"):
        plans[1].given(alone, "input_1", torch.zeros(16, 8, 8, 4))


@pytest.mark.parametrize("to", ["dtensor", "jax"])
def test_a_batch_of_another_size_is_refused(to: str, tmp_path: Path) -> None:
    text = text_of(network_named("mlp"), 2, "data", to, micro_batches=4)
    (tmp_path / "plan.py").write_text(text)
    form = loaded(tmp_path / "plan.py").FORMS["input_1"]
    assert [tuple(x.shape) for x in form.parts("input_1", torch.zeros(8, 12), 4)] == [(2, 12)] * 4
    with pytest.raises(ValueError, match=r"input_1 has shape \[6, 12\], but .* \[8, 12\], in 4"):
        form.parts("input_1", torch.zeros(6, 12), 4)


@pytest.mark.parametrize("to", ["dtensor", "jax"])
def test_what_needs_the_whole_batch_is_refused(to: str) -> None:
    with pytest.raises(fl.UserError, match=r"batch_norm_moments.*needs all samples of a batch"):
        text_of(network_named("convnet"), 2, "data", to, micro_batches=2)

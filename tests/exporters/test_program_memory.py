"""What exported programs need of memory, beside what PyTorch keeps of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from exported import loaded
from torch.testing._internal.distributed.fake_pg import FakeStore

import flexlegion as fl
from flexlegion.analysis.export import export
from flexlegion.cli.main import main
from flexlegion.profiling.machines import load_machine

DEVICES = 4


@pytest.fixture
def processes() -> Iterator[None]:
    """Several, of which only this one is there: what it gets from others has the right shape."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=DEVICES)
    yield
    dist.destroy_process_group()


class Kept:
    """The memory that tensors lie in, each counted once."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.tensors: list[torch.Tensor] = []  # or their memory would be given to others

    def add(self, tensor: torch.Tensor) -> torch.Tensor:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        storage = local.untyped_storage()
        self.sizes[storage._cdata] = storage.nbytes()
        self.tensors.append(tensor)
        return tensor

    @property
    def total(self) -> int:
        return sum(self.sizes.values())


SIZES: dict[str, dict[str, Any]] = {
    "lenet": {},
    "mlp": {"input_shape": [256], "hidden": [1024, 512]},
    "gpt": {"steps": 32, "layers": 2, "hidden": 64, "heads": 4, "vocabulary": 128},
}


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("strategy", ["data", "megatron", "fsdp", "data+again", "fsdp+again"])
@pytest.mark.parametrize("name", SIZES)
def test_a_program_keeps_what_is_said(name: str, strategy: str, tmp_path: Path) -> None:
    model = fl.load_model(name, batch_size=8, sizes=SIZES[name])
    done = export(model, f"p100x{DEVICES}", strategy, optimizer="adam")
    (tmp_path / "plan.py").write_text(done.text)
    plan = loaded(tmp_path / "plan.py")
    weights = plan.Weights({key: np.asarray(value) for key, value in done.first_values().items()})
    rng = np.random.default_rng(0)
    inputs = {
        tensor.name: torch.tensor(rng.integers(0, 2, tensor.shape)).to(getattr(torch, tensor.dtype))
        for tensor in done.setting.problem.graph.inputs
    }
    labels = {key: inputs.pop(key) for key in list(inputs) if key.startswith("labels")}
    kept = Kept()
    with torch.autograd.graph.saved_tensors_hooks(kept.add, lambda tensor: tensor):
        results = plan.forward(weights, *inputs.values())
        loss = plan.loss(weights, results, *labels.values())
    for tensor in results.values():
        kept.add(tensor)
    trained = Kept()
    for parameter in weights.parameters():
        trained.add(parameter)
        kept.sizes.pop(parameter.to_local().untyped_storage()._cdata, None)
    # Weights, gradients and states are exact, activations the least that they can be.
    gathered = 0
    for weight, place in plan.WEIGHTS.items():
        if place.kept is not None:
            whole = weights[weight].redistribute(placements=place.placements).to_local()
            gathered += whole.numel() * 4
    assert (gathered > 0) == (name == "mlp")
    assert done.memory.weights == trained.total + gathered * ("fsdp" not in strategy)
    if strategy in ("data", "megatron") and not gathered:  # of others, nobody tells what is kept
        assert 0.6 * kept.total <= done.memory.activations <= kept.total
    optimizer = torch.optim.Adam(weights.parameters())
    loss.backward()
    gradients = Kept()
    for parameter in weights.parameters():
        assert parameter.grad is not None
        gradients.add(parameter.grad)
    assert done.memory.weight_gradients == gradients.total
    optimizer.step()
    states = Kept()
    for its in optimizer.state.values():
        states.add(its["exp_avg"])
        states.add(its["exp_avg_sq"])
    assert done.memory.optimizer_states == states.total


def test_small_weights_are_whole() -> None:
    """Each device that uses them keeps all of them, as in training here."""
    model = fl.Model(8)
    model.softmax(model.dense(model.input((64,)), 64, name="wide"))
    done = export(model, "p100x4", "data", optimizer="adam")
    assert done.memory.weights == done.memory.weight_gradients == 4 * (64 * 64 + 64)
    assert done.memory.optimizer_states == 2 * done.memory.weights
    split = export(model, "p100x4", "model", optimizer="adam").memory
    here = fl.simulate(model, "p100x4", "data", optimizer="adam").timeline.contents_bytes
    assert sum(its["optimizer states"] for its in here.values()) < 4 * done.memory.optimizer_states
    assert split.weights <= done.memory.weights


def test_what_does_not_fit_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = str(tmp_path / "plan.py")
    options = ["--model", "gpt", "--size", "preset=13b", "--size", "layers=12", "--batch-size", "8"]
    options += ["--machine", "p100x8", "--optimizer", "adam", "--to", "dtensor", "--out", plan]
    assert main(["export", "data", *options, "--json"]) == 0
    out, err = capsys.readouterr()
    memory = json.loads(out)["memory_of_each_device"]
    assert memory["needed"] > memory["capacity"] == load_machine("p100x8").devices[0].memory_bytes
    assert memory["fits"] is False
    assert err.startswith("warning: the program does not fit into the devices' memory: each device")
    assert main(["export", "data", *options]) == 0
    out, _ = capsys.readouterr()
    assert "trained with adam, each device needs" in out
    assert "it does not fit" in " ".join(out.split())


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_no_gathered_weight_is_kept(precision: str, tmp_path: Path) -> None:
    """Nor a rounded copy of it, in the graph of the backward pass."""
    model = fl.Model(8)
    model.dense(model.tanh(model.dense(model.input((256,)), 1024)), 512)
    model.loss = "mean_squared_error"
    kept = {}
    for strategy in ("data+zero2", "fsdp"):
        done = export(model, f"h100x{DEVICES}", strategy, optimizer="adam", precision=precision)
        (tmp_path / "plan.py").write_text(done.text)
        plan = loaded(tmp_path / "plan.py")
        weights = plan.Weights(
            {key: np.asarray(value) for key, value in done.first_values().items()}
        )
        results = plan.forward(weights, torch.zeros(8, 256))
        loss = plan.loss(weights, results, torch.zeros(8, 512))
        kept[strategy] = saved_elements(loss)
        loss.backward()
    assert 1024 * 512 in kept["data+zero2"]
    assert 1024 * 512 not in kept["fsdp"]


def saved_elements(loss: torch.Tensor) -> set[int]:
    """The numbers of elements of tensors that a graph keeps for the backward pass."""
    seen, left, found = set(), [loss.grad_fn], set()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        left += [other for other, _ in node.next_functions]
        for name in dir(node):
            if name.startswith("_raw_saved_"):
                kept = getattr(node, name)
                for each in kept if isinstance(kept, tuple) else (kept,):
                    if isinstance(each.data, torch.Tensor):
                        size = each.data.untyped_storage().nbytes()
                        found.add(size // each.data.element_size())
    return found


def test_a_search_refuses_programs_that_do_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With gathered weights they do not, but with weights in shards they do."""
    sizes = ["--size", "input_shape=32000", "--size", "hidden=32000x32000x32000"]
    options = ["--model", "mlp", *sizes, "--batch-size", "16", "--machine", "p100x8"]
    options += ["--optimizer", "adam", "--dimensions", "sample"]
    options += ["--proposals", "1", "--chains", "1", "--space", "dtensor", "--json", "--out"]
    sharded, whole = tmp_path / "sharded.json", tmp_path / "whole.json"
    assert main(["search", *options, str(sharded), "--start", "fsdp"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["fits"] is True
    assert facts["memory_of_each_device"]["fits"] is True
    assert main(["search", *options, str(whole), "--start", "data"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "no strategy was found that fits into the machine's memories" in err
    assert "by what its program for dtensor keeps there" in err
    assert not whole.exists()


def test_searches_within_a_target_tell_the_memory_of_the_program() -> None:
    found = fl.search(
        "lenet", "p100x4", proposals=50, chains=1, space="dtensor", optimizer="adam", progress=False
    )
    done = export("lenet", "p100x4", found, optimizer="adam")
    assert found.facts()["memory_of_each_device"] == done.memory.facts()
    assert "as a program" in str(found)
    assert (
        "memory_of_each_device"
        not in fl.search("lenet", "p100x4", proposals=5, chains=1, progress=False).facts()
    )

"""Files of weights for imported modules: each array has the module's shape or ours, or is refused.

All types that such files have are read, and all ways in which they are cut.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from launch import run_legate
from safetensors.torch import save_file
from torch import nn

import flexlegion as fl
from flexlegion.training.checkpoints.weights import Unmatched, fitted, matched, read_weights

Arrays = dict[str, Any]


class Net(nn.Module):
    """Weights that are stored as in the module, in another order, and joined; and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.tall = nn.Linear(4 * 3 * 5, 6)
        self.mixed = nn.Parameter(torch.randn(6, 5))
        self.bias = nn.Parameter(torch.randn(5))
        self.register_buffer("scale", torch.rand(5) + 1)
        self.register_buffer("mask", torch.tensor([True, False, True, True, False]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        x = self.tall(torch.flatten(x, 1)) @ self.mixed
        return (x + self.bias) * self.scale * self.mask


class Tied(nn.Module):
    """Two layers of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 6), nn.Linear(6, 6)
        self.down.weight = self.up.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def net(seed: int, kind: type[nn.Module] = Net) -> nn.Module:
    torch.manual_seed(seed)
    return kind()


IMAGES = torch.zeros(2, 2, 3, 5)


def first(model: fl.Model) -> Arrays:
    """The weights that a model begins with."""
    return {
        tensor.name: tensor.initializer(tensor.shape, tensor.name, 0, tensor.host_dtype)
        for tensor in model.graph.weights
        if tensor.initializer is not None
    }


def loaded(arrays: Arrays, model: fl.Model) -> Arrays:
    """What `Model.load_weights` sets."""
    shapes = {tensor.name: tensor.shape for tensor in model.graph.weights}
    needed = {tensor.name for tensor in model.graph.weights if not tensor.constant}
    return fitted(arrays, shapes, needed, model.origin, "w")


def partly(arrays: Arrays, model: fl.Model) -> tuple[Arrays, Unmatched]:
    """What `Model.load_weights` sets and returns if it is not strict."""
    shapes = {tensor.name: tensor.shape for tensor in model.graph.weights}
    needed = {tensor.name for tensor in model.graph.weights if not tensor.constant}
    return matched(arrays, shapes, needed, model.origin, "w")


def state(module: nn.Module) -> Arrays:
    return {name: value.detach().numpy() for name, value in module.state_dict().items()}


def test_every_array_has_the_modules_shape_or_ours() -> None:
    """Any other order of an array's extents is refused, however many elements it has."""
    module = net(1)
    model = fl.from_torch(net(2), IMAGES)
    for name, value in model.origin.buffers.items():
        module.get_buffer(name)[...] = torch.from_numpy(value)
    ours = first(fl.from_torch(module, IMAGES))
    right = state(module)
    for given in (right, ours):
        for name, value in loaded(given, model).items():
            np.testing.assert_array_equal(value, ours[name])
    tried = 0
    for given in (right, ours):
        for name in given.keys() & (model.origin.shapes.keys() | ours.keys()):
            array = given[name]
            for other in (array.T, array[None], array.reshape(-1)):
                if other.shape in (array.shape, (1,) * (other.ndim - array.ndim) + array.shape):
                    continue
                with pytest.raises(fl.UserError, match=r"shape \[.*has \[|are those of another"):
                    loaded(given | {name: other}, model)
                tried += 1
    assert tried > 10


@pytest.mark.parametrize("change", [lambda v: v + 1, lambda v: ~v if v.dtype == bool else -v])
@pytest.mark.parametrize("name", ["scale", "mask"])
def test_buffers_that_are_part_of_the_model_cannot_be_others(name: str, change: Any) -> None:
    module = net(1)
    model = fl.from_torch(module, IMAGES)
    arrays = state(module)
    loaded(arrays, model)
    with pytest.raises(fl.UserError, match=f"buffer '{name}' has other values"):
        loaded(arrays | {name: change(arrays[name])}, model)


def test_one_weight_has_one_value() -> None:
    module = net(1, Tied)
    model = fl.from_torch(module, torch.zeros(2, 6))
    arrays = state(module)
    assert {"up.weight", "down.weight"} <= arrays.keys()
    loaded(arrays, model)
    loaded({name: value for name, value in arrays.items() if name != "up.weight"}, model)
    with pytest.raises(fl.UserError, match="are one weight of the model, but differ"):
        loaded(arrays | {"down.weight": arrays["up.weight"] + 1}, model)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str
)
def test_all_types_are_read(dtype: torch.dtype, tmp_path: Path) -> None:
    """Real numbers become float32; masks and numbers of positions stay what they are."""
    others = {
        "bool": torch.tensor([True, False]),
        "u8": torch.tensor([1, 255], dtype=torch.uint8),
        "i8": torch.tensor([-1, 127], dtype=torch.int8),
        "i16": torch.tensor([-300, 300], dtype=torch.int16),
        "i64": torch.tensor([2**40, -(2**40)]),
    }
    real = torch.tensor([0.5, -2.25, 3.0]).to(dtype)
    save_file({"real": real} | others, tmp_path / "w.safetensors")
    arrays = read_weights(tmp_path / "w.safetensors")
    assert arrays["real"].dtype == np.float32
    np.testing.assert_array_equal(arrays["real"], [0.5, -2.25, 3.0])
    for name, value in others.items():
        np.testing.assert_array_equal(arrays[name], value.numpy())


def test_a_type_that_is_not_known_is_named(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(2).to(torch.float8_e4m3fn)}, tmp_path / "w.safetensors")
    with pytest.raises(fl.UserError, match="'w' is of type F8_E4M3"):
        read_weights(tmp_path / "w.safetensors")


def sharded(folder: Path, arrays: dict[str, torch.Tensor]) -> Path:
    """Files of one array each, and the index that lists them."""
    names = {key: f"model-{i:05}-of-{len(arrays):05}.safetensors" for i, key in enumerate(arrays)}
    for key, name in names.items():
        save_file({key: arrays[key].contiguous()}, folder / name)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": names}))
    return index


def test_shards_are_read_by_their_index_or_their_folder(tmp_path: Path) -> None:
    module = net(1)
    index = sharded(tmp_path, dict(module.state_dict()))
    expected = state(module)
    for source in (index, tmp_path):
        arrays = read_weights(source)
        assert arrays.keys() == expected.keys()
        for name, value in arrays.items():
            np.testing.assert_array_equal(value, expected[name])


def test_faults_of_an_index_are_named(tmp_path: Path) -> None:
    index = sharded(tmp_path, {"a": torch.zeros(2), "b": torch.ones(2)})
    good = json.loads(index.read_text())
    files = good["weight_map"]
    for document, message in (
        ([], "has to be an object"),
        ({"weight_map": []}, "has to be an object"),
        ({"weight_map": files | {"a": "../a.safetensors"}}, "in a file of the same folder"),
        ({"weight_map": files | {"a": 3}}, "in a file of the same folder"),
        ({"weight_map": files | {"a": "none.safetensors"}}, "none.safetensors is missing"),
        ({"weight_map": files | {"a": files["b"]}}, "has no 'a'"),
    ):
        index.write_text(json.dumps(document))
        with pytest.raises(fl.UserError, match=message):
            read_weights(index)
    index.write_text(json.dumps(good))
    (tmp_path / files["a"]).write_bytes(b"cut short")
    with pytest.raises(fl.UserError, match="neither an"):
        read_weights(index)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_modules_of_other_precisions(dtype: torch.dtype) -> None:
    """Their weights have the module's values, and the model says that it is in float32."""
    module = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)).to(dtype)
    model = fl.from_torch(module, torch.zeros(2, 6, dtype=dtype))
    weights = first(model)
    for name, parameter in module.named_parameters():
        value = model.origin.parameter(name, weights)
        np.testing.assert_array_equal(value.reshape(parameter.shape), parameter.float().detach())
    kind = str(dtype).removeprefix("torch.")
    assert any(f"{kind} parameters are float32 here" in note for note in model.origin.notes)


@pytest.mark.parametrize("name", ["mixed", "tall.weight"])
def test_a_parameter_among_the_outputs_is_refused(name: str) -> None:
    class Both(Net):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x), self.get_parameter(name)

    with pytest.raises(fl.UserError, match=f"output '1' is the parameter '{name}' itself"):
        fl.from_torch(Both(), IMAGES)


def test_without_strict_what_is_there_is_taken_and_the_rest_is_told() -> None:
    """By the module's names as PyTorch's load_state_dict, and by ours."""
    module = net(1)
    model = fl.from_torch(module, IMAGES)
    whole = first(model)
    theirs = state(module) | {"head.weight": np.ones((2, 2), np.float32)}
    for name in ("conv.bias", "mixed"):
        del theirs[name]
    other = net(2)
    told = other.load_state_dict({k: torch.tensor(v) for k, v in theirs.items()}, strict=False)
    taken, unmatched = partly(theirs, model)
    assert unmatched == Unmatched(sorted(told.missing_keys), sorted(told.unexpected_keys))
    constants = {tensor.name for tensor in model.graph.weights if tensor.constant}
    assert whole.keys() - taken.keys() - constants == {
        place.weight for name in unmatched.missing for place in model.origin.places[name]
    }
    for name, value in taken.items():
        np.testing.assert_array_equal(value, whole[name])
    ours = dict(whole) | {"head.kernel": np.ones((2, 2), np.float32)}
    del ours["tall.kernel"]
    taken, unmatched = partly(ours, model)
    assert unmatched == Unmatched(["tall.kernel"], ["head.kernel"])
    assert taken.keys() == whole.keys() - {"tall.kernel"}


def test_without_strict_other_shapes_and_other_models_are_refused() -> None:
    module = net(1)
    model = fl.from_torch(module, IMAGES)
    wrong = state(module) | {"tall.weight": np.ones((6, 61), np.float32)}
    with pytest.raises(fl.UserError, match=r"'tall.weight' has shape \[6, 61\]"):
        partly(wrong, model)
    with pytest.raises(fl.UserError, match=r"another model: the model has no 'head\.weight'"):
        partly({"head.weight": np.ones(3, np.float32)}, model)


def test_names_of_both_do_not_tell_how_weights_are_stored() -> None:
    """Where that makes a difference: a bias is the same in both."""

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 4, 3)
            self.offset = nn.Parameter(torch.randn(4, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x) + self.offset[:, None]

    model = fl.from_torch(Flat(), torch.zeros(2, 2, 3, 5))
    bias = {"conv.bias": np.ones(4, np.float32)}
    taken, unmatched = partly(bias, model)
    assert taken.keys() == {"conv.bias"}
    assert unmatched == Unmatched(["conv.weight", "offset"], [])
    both = {"offset"} & {tensor.name for tensor in model.graph.weights}
    for name in both:
        with pytest.raises(fl.UserError, match="do not tell as which of both they are stored"):
            partly(bias | {name: np.ones((4, 3), np.float32)}, model)


@pytest.mark.legion
def test_load_weights_says_what_did_not_match(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    code = f"""
import numpy as np, flexlegion as fl
net = fl.Model(2)
net.dense(net.dense(net.input((3,)), 4, name="trunk"), 2, name="head")
net.compile(loss="mean_squared_error")
before = net.get_weights()
np.savez({str(file.with_suffix(".npz"))!r}, **{{"trunk.kernel": before["trunk.kernel"] + 1,
         "trunk.bias": before["trunk.bias"] + 2, "old.kernel": np.ones((4, 5))}})
told = net.load_weights({str(file.with_suffix(".npz"))!r}, strict=False)
assert told.missing == ["head.bias", "head.kernel"] and told.unexpected == ["old.kernel"], told
after = net.get_weights()
for name, more in ("trunk.kernel", 1), ("trunk.bias", 2), ("head.kernel", 0):
    assert np.array_equal(after[name], before[name] + np.float32(more)), name
"""
    worker = tmp_path / "worker.py"
    worker.write_text(code)
    run_legate(worker, cpus=1)

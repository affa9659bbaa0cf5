"""Networks for exported programs: what they are given, and random strategies that targets allow."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from networks import NETWORKS
from zoo_cases import CASES

from flexlegion import Model, Strategy
from flexlegion.analysis.export import program_of
from flexlegion.analysis.setting import Given, Setting
from flexlegion.exporters.space import target_of
from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.tensor import Tensor
from flexlegion.networks.network import Network
from flexlegion.objective.losses import (
    BinaryCrossentropy,
    CategoricalCrossentropy,
    Huber,
    MeanSquaredError,
    SparseCategoricalCrossentropy,
)
from flexlegion.objective.training import TrainingSpec
from flexlegion.strategy.configuration import ParallelConfig, splits
from flexlegion.strategy.granularity import Granularity
from flexlegion.transforms.losses import add_losses

Arrays = dict[str, np.ndarray]
WORKERS = Path(__file__).parents[1] / "exporters"


def without_dropout(graph: Graph) -> Graph:
    """The same graph, whose random operators drop nothing."""
    for op in graph.operators:
        for name in ("rate", "dropout"):
            if getattr(op.kind, name, 0.0) > 0:
                op.kind = replace(op.kind, **{name: 0.0})
    return graph


def mlp(m: Model) -> None:
    """A wide layer and a narrow one, as Megatron's pairs."""
    x = m.input((12,))
    x = m.dense(x, 16, activation="relu", name="up")
    x = m.dense(x, 12, name="down")
    x = m.dense(m.relu(x), 24, name="wide")
    m.softmax(m.dense(x, 8, name="logits"))


def transformer(m: Model) -> None:
    """Two blocks of GPT's kind, on tokens; their table is the output layer, too."""
    looked_up = m.embedding(m.input((8,), dtype="int32"), 32, 16)
    x = m.position_embedding(looked_up)
    for _ in range(2):
        y = m.layer_norm(x)
        q, v = (m.reshape(m.dense(y, 16), (8, 4, 4)) for _ in range(2))
        k = m.reshape(m.dense(y, 16, use_bias=False), (8, 4, 4))
        y = m.reshape(m.attention(q, k, v, causal=True), (8, 16))
        x = m.add([x, m.dense(y, 16)])
        y = m.dense(m.gelu(m.dense(m.layer_norm(x), 32)), 16)
        x = m.add([x, y])
    m.dense(m.rms_norm(x), 32, use_bias=False, share=looked_up)


def weighed(m: Model) -> None:
    """Outputs of one trunk, of which classes, labels, and what labels say have weights."""
    x = m.dense(m.input((4, 6)), 8, activation="tanh")
    steps = m.dense(x, 4, name="steps")
    x = m.dense(m.flatten(x), 8, activation="tanh")
    names = ("shares", "rare", "sure", "size", "near", "kind")
    others = [m.dense(x, 4, name=name) for name in names]
    others[2] = m.sigmoid(others[2])
    m.set_outputs([steps, *others])
    weights = [0.5, 2.0, 0.0, 1.5]
    m.loss = [
        SparseCategoricalCrossentropy(0.2, ignore_index=255, class_weights=weights, weighted=True),
        CategoricalCrossentropy(0.1, weighted=True),
        BinaryCrossentropy(positive_weight=3.0, weighted=True),
        BinaryCrossentropy(False, positive_weight=0.5),
        MeanSquaredError(weighted=True),
        Huber(0.5, weighted=True),
        SparseCategoricalCrossentropy(ignore_index=2, class_weights=[0.01] * 4),
    ]


def convolutional(m: Model) -> None:
    """Convolutions with halos and without, normalisations, a pooling, a residual, axes moved."""
    x = m.input((8, 8, 4))
    x = m.batch_norm(m.conv2d(x, 8, 3, padding=1, use_bias=False), activation="relu")
    y = m.conv2d(x, 8, 1, use_bias=False)
    x = m.batch_norm(y, residual=x, activation="relu")
    x = m.rearrange(x, (4, 2, 8, 8), (0, 2, 1, 3), (4, 16, 8))  # rows by pairs, and back
    x = m.rearrange(x, (4, 8, 2, 8), (0, 2, 1, 3), (8, 8, 8))
    x = m.pool2d(x, 2, stride=2)
    x = m.conv2d(x, 8, 2, stride=2, activation="tanh")
    x = m.reduce(x, "mean", (1, 2))
    m.dense(x, 8)


def recurrent(m: Model) -> None:
    """Two LSTM layers on tokens, and one unrolled step by step."""
    x = m.embedding(m.input((4,), dtype="int32"), 24, 8)
    x = m.lstm(x, 8).y
    x = m.lstm(x, 8).y
    state, steps = None, []
    for part in m.split(x, (1, 1, 2), axis=1)[:2]:
        made = m.lstm(part, 8, state)
        state = made.state
        steps.append(made.y)
    m.dense(m.concat(steps, axis=1), 16)


ZOO_CASE = "zoo-"
BUILDERS: Mapping[str, Callable[[Model], None]] = {
    "mlp": mlp,
    "gpt": transformer,
    "convnet": convolutional,
    "lstms": recurrent,
    "weighed": weighed,
}


def network_named(name: str) -> Network:
    """One of these, or one that covers operators (networks.py), or a small one of the zoo."""
    if name.startswith(ZOO_CASE):
        case = CASES[name.removeprefix(ZOO_CASE)]
        network = Network.of(replace(case, batch_size=8).model(), TrainingSpec(case.loss))
    elif name in BUILDERS:
        model = Model(8, seed=3)
        model.loss = "sparse_categorical_crossentropy"
        BUILDERS[name](model)
        network = Network.of(model)
    else:
        its = NETWORKS[name]
        model = its.model()
        graph = add_losses(model.graph, model.outputs, its.loss, its.loss_weights)
        plain = replace(its.optimizer, clip_norm=None)  # as the workers' own optimizers
        training = TrainingSpec(its.loss, its.loss_weights, plain)
        network = Network(model, graph, tuple(model.outputs), training)
    without_dropout(network.graph)
    return network


def setting_of(network: Network, devices: int, **training: Any) -> Setting:
    """The network on that many GPUs; if it is trained otherwise, small weights have shards, too."""
    if not training:
        return Setting.of(network, f"p100x{devices}", costs="analytic")
    its = Network.of(network.model, replace(network.training, **training))
    without_dropout(its.graph)
    fine = Granularity(shard_bytes=64)
    return Setting.of(its, f"p100x{devices}", costs="analytic", granularity=fine)


def random_allowed(network: Network, devices: int, to: str, seed: int) -> Strategy:
    """A strategy that a target can express: each operator by random dimensions, or whole."""
    rng = np.random.default_rng(seed)
    target = target_of(to, devices)
    names = [f"gpu:{i}" for i in range(devices)]
    configs = {}
    for op in network.graph.operators:
        allowed = [its for its in splits(op, devices) if target.allows(op, its)]
        degrees = allowed[int(rng.integers(len(allowed)))]
        configs[op.name] = ParallelConfig(degrees, tuple(names[: int(np.prod(degrees))]))
    return Strategy(configs, f"seed {seed}")


def text_of(
    network: Network, devices: int, strategy: str | Strategy, to: str, **training: Any
) -> str:
    """The program."""
    return program_of(Given.inside(setting_of(network, devices, **training), strategy), to).text


def loaded(path: Path) -> ModuleType:
    """A program, imported."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def weights_of(network: Network, name: str = "") -> Arrays:
    """First values."""
    seed = network.model.seed
    values = {}
    for weight in network.graph.weights:
        assert weight.initializer is not None
        values[weight.name] = weight.initializer(weight.shape, weight.name, seed, weight.dtype)
    if name.startswith(ZOO_CASE):
        values = CASES[name.removeprefix(ZOO_CASE)].shifted(values)
    return values


def made_up(network: Network, seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Inputs and labels."""
    rng = np.random.default_rng(seed)
    inputs, labels = [], []
    for tensor in network.graph.inputs:
        values = _values(network.graph, tensor, rng)
        (labels if tensor.name.startswith("labels") else inputs).append(values)
    return inputs, labels


def _values(graph: Graph, tensor: Tensor, rng: np.random.Generator) -> np.ndarray:
    reader: Operator = next(op for op in graph.operators if tensor in op.inputs)
    its: Any = reader.kind.input_values(reader.input_shapes)[reader.inputs.index(tensor)]
    if tensor.dtype == "int32":
        return rng.integers(0, its if isinstance(its, int) else 2, tensor.shape).astype(np.int32)
    values = rng.standard_normal(tensor.shape)
    if its == "one-hot":
        values = np.exp(values) / np.exp(values).sum(-1, keepdims=True)
    elif its == 2:
        values = rng.random(tensor.shape)
    return values.astype(np.float32)


def give(folder: Path, name: str, network: str, text: str = "", double: bool = False) -> None:
    """Write a program, and what it is given, in double precision if that is said."""
    its = network_named(network)
    inputs, labels = made_up(its)
    given = {f"weight/{key}": value for key, value in weights_of(its, network).items()}
    tensors = its.graph.inputs
    kinds = {True: iter(labels), False: iter(inputs)}
    for tensor in tensors:
        is_label = tensor.name.startswith("labels")
        given[f"{'label' if is_label else 'input'}/{tensor.name}"] = next(kinds[is_label])
    if double:
        given = {
            key: value.astype(np.float64) if value.dtype == np.float32 else value
            for key, value in given.items()
        }
    np.savez(folder / f"{name}.npz", **given)
    if text:
        (folder / f"{name}.py").write_text(text)


def run(to: str, devices: int, folder: Path, names: Sequence[str]) -> None:
    """Run programs."""
    worker = WORKERS / f"{to}_worker.py"
    command = [sys.executable, str(worker), str(devices), str(folder), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]


def result(folder: Path, name: str) -> dict[str, np.ndarray]:
    """What a worker saved."""
    with np.load(folder / f"{name}.out.npz") as saved:
        return dict(saved)


def differences(mine: Arrays, reference: Arrays, tolerance: float = 1e-4) -> list[str]:
    """What is not equal by relative norm; gradients count as at least 1e-3 of the largest."""
    found = [f"{name} is missing" for name in reference if name not in mine]
    norms = {name: float(np.linalg.norm(value)) for name, value in reference.items()}
    largest = max((norm for name, norm in norms.items() if "gradient" in name), default=0.0)
    for name in reference.keys() & mine.keys():
        least = 1e-3 * largest if "gradient" in name else 1e-5
        error = float(np.linalg.norm(mine[name] - reference[name])) / max(norms[name], least)
        if not error <= tolerance:
            found.append(f"{name}: {error:.1e}")
    return found

"""Simulations on clusters of DGX boxes."""

from __future__ import annotations

import json

import pytest

import flexlegion as fl
from flexlegion.machine.files import PLATFORMS, parse_machine


def network(batch: int) -> fl.Model:
    model = fl.Model(batch)
    model.dense(model.input((2048,)), 4096, activation="softmax")
    return model


@pytest.mark.parametrize("name", ["v100", "a100", "h100", "h200"])
def test_adapters_bound_data_parallelism_over_boxes(name: str) -> None:
    """Weights' gradients cross the network: adapters ten times as fast shorten the iteration."""
    document = json.loads((PLATFORMS / f"{name}.json").read_text())
    document["link_types"]["infiniband"]["bandwidth"] *= 10
    faster = parse_machine(document, name, "faster").topology(16)
    usual = fl.simulate(network(64), f"{name}x16", "data")
    assert fl.simulate(network(64), faster, "data").iteration_time_ns < usual.iteration_time_ns
    box = fl.simulate(network(64), f"{name}x8", "data")
    assert box.iteration_time_ns < usual.iteration_time_ns


def test_sixty_four_boxes() -> None:
    result = fl.simulate(network(512), "h100x512", "data")
    moved = result.facts()["bytes_moved"]
    weights = 4 * (2048 * 4096 + 4096)
    # Each element of each gradient is read by its one owner from all others, and then by them.
    assert moved == pytest.approx(2 * 511 * weights, rel=0.05)


def test_the_generations_follow_each_other() -> None:
    times = [
        fl.simulate(network(64), f"{name}x16", "data").iteration_time_ns
        for name in ("v100", "a100", "h100")
    ]
    assert times == sorted(times, reverse=True)


def test_a_gpu_whose_efficiency_nobody_stated() -> None:
    """The user is told so in a sentence; those that somebody stated count."""
    document = json.loads((PLATFORMS / "v100.json").read_text())
    kind = document["device_types"]["V100"]
    times = {}
    for matmul in (0.88, 0.44):
        kind["efficiency"] = {"matmul": matmul, "matmul_backward": matmul, "source": "a test"}
        machine = parse_machine(document, "mine", "mine").topology(1)
        times[matmul] = fl.simulate(network(8192), machine, "data").iteration_time_ns
    assert times[0.44] > 1.5 * times[0.88]
    del kind["efficiency"]
    kind["model"] = "Z9000"
    machine = parse_machine(document, "mine", "mine").topology(1)
    with pytest.warns(UserWarning, match="nothing says what share of its peak rates the GPU 'Z90"):
        result = fl.simulate(network(8192), machine, "data")
    assert result.iteration_time_ns == times[0.88]

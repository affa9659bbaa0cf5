"""Parallelization configurations: checks, and random points of the SOAP space."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexlegion import Model, ParallelConfig, UserError
from flexlegion.graph.graph import Operator
from flexlegion.machine.devices import Devices
from flexlegion.strategy.configuration import random_config

DEVICES = Devices.of(cpus=4)


@pytest.fixture
def conv() -> Operator:
    """A convolution with output (5, 7, 3, 2)."""
    model = Model(5)
    model.conv2d(model.input((9, 5, 1)), 2, 3, name="c1")
    return model.graph.operators[0]


def message(config: ParallelConfig, operator: Operator, devices: Devices = DEVICES) -> str:
    with pytest.raises(UserError) as e:
        config.filled(operator, "s.json").check(operator, devices, "s.json")
    return str(e.value)


def test_tasks() -> None:
    assert ParallelConfig((2, 1, 3), ("cpu:0",) * 6).tasks == 6
    assert ParallelConfig((), ()).tasks == 1


def test_uneven_degrees_fit(conv: Operator) -> None:
    for config in (
        ParallelConfig((5, 1, 1, 1), ("cpu:0", "cpu:3", "cpu:0", "cpu:1", "cpu:1")),
        ParallelConfig((3, 4, 2, 1), ("cpu:2",) * 24),
        ParallelConfig((5, 7, 3, 2), ("cpu:2",) * 210),
    ):
        config.filled(conv, "").check(conv, DEVICES, "")


def test_wrong_number_of_degrees(conv: Operator) -> None:
    assert message(ParallelConfig((1, 1), ("cpu:0",)), conv) == (
        "s.json: operator 'c1' has 2 degrees, but 5 dimensions (sample, height, width, channel, in)"
    )


@pytest.mark.parametrize("degree", [0, -3])
def test_degree_below_one(conv: Operator, degree: int) -> None:
    assert message(ParallelConfig((1, degree, 1, 1), ()), conv) == (
        f"s.json: operator 'c1' has degree {degree} in dimension 'height'; degrees start at 1"
    )


def test_more_parts_than_extent(conv: Operator) -> None:
    assert message(ParallelConfig((1, 1, 4, 1), ("cpu:0",) * 4), conv) == (
        "s.json: operator 'c1' splits dimension 'width' into 4 parts, but it has an extent of 3; "
        "use at most 3"
    )
    assert "it has a batch of 5; use at most 5" in message(
        ParallelConfig((6, 1, 1, 1), ("cpu:0",) * 6), conv
    )
    # Nothing of that size is built.
    assert "use at most 2" in message(ParallelConfig((1, 1, 1, 10**18), ("cpu:0",)), conv)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_number_of_devices(conv: Operator, count: int) -> None:
    assert message(ParallelConfig((2, 1, 1, 1), ("cpu:0",) * count), conv) == (
        f"s.json: operator 'c1' needs one device a task, but names {count} "
        f"device{'s' * (count != 1)} for 2 tasks (the product of its degrees)"
    )


@pytest.mark.parametrize(
    "name", ["tpu:0", "cpu", "cpu:", "cpu:01", "cpu:-1", "CPU:0", "cpu:0 ", ""]
)
def test_unknown_device(conv: Operator, name: str) -> None:
    assert message(ParallelConfig((1, 1, 1, 1), (name,)), conv) == (
        f"s.json: operator 'c1' names an unknown device '{name}'; devices are called "
        "cpu:0, cpu:1, ... and gpu:0, gpu:1, ..."
    )


def test_device_that_is_not_there(conv: Operator) -> None:
    text = message(ParallelConfig((1, 1, 1, 1), ("cpu:4",)), conv)
    assert "'c1' needs device 'cpu:4', but this run has cpu:0 to cpu:3;" in text
    text = message(ParallelConfig((1, 1, 1, 1), ("gpu:0",)), conv, Devices.of(cpus=2))
    assert "'c1' needs device 'gpu:0', but this run has cpu:0, cpu:1;" in text


@given(seed=st.integers(0, 10**6), max_tasks=st.integers(1, 12))
def test_random_configs_fit(seed: int, max_tasks: int) -> None:
    model = Model(5)
    model.conv2d(model.input((9, 5, 1)), 2, 3)
    operator = model.graph.operators[0]
    config = random_config(operator, DEVICES.names, np.random.default_rng(seed), max_tasks)
    config.check(operator, DEVICES, "")
    assert config.tasks <= max_tasks


def test_random_configs_reach_everything(conv: Operator) -> None:
    """Every dimension is split, devices repeat, are permuted, and are not contiguous."""
    rng = np.random.default_rng(0)
    configs = [random_config(conv, DEVICES.names, rng, 8) for _ in range(400)]
    for d, extent in enumerate(conv.output.shape):
        degrees = Counter(config.degrees[d] for config in configs)
        assert set(degrees) == set(range(1, min(extent, 8) + 1))
    assert {math.prod(config.degrees) for config in configs} >= {1, 2, 3, 4, 5, 6, 7, 8}
    assert any(sum(d > 1 for d in config.degrees) > 2 for config in configs)
    placements = {config.devices for config in configs}
    assert any(len(set(p)) < len(p) for p in placements)
    assert any(len(p) > 2 and len(set(p)) == len(p) and list(p) != sorted(p) for p in placements)
    assert any(set(p) == {"cpu:0", "cpu:3"} for p in placements)
    assert {name for p in placements for name in p} == set(DEVICES.names)


def test_device_names() -> None:
    assert str(Devices.of(cpus=1)) == "cpu:0"
    assert str(Devices.of(cpus=2)) == "cpu:0, cpu:1"
    assert str(Devices.of(cpus=5, gpus=1)) == "cpu:0 to cpu:4, gpu:0"
    assert Devices.of(cpus=2, gpus=2).preferred == ["gpu:0", "gpu:1"]
    assert Devices.of(cpus=2).preferred == ["cpu:0", "cpu:1"]
    devices = Devices.of(cpus=2, gpus=1)
    assert [devices.number(name) for name in devices.names] == [0, 1, 2]
    assert "gpu:1" not in devices


@pytest.mark.parametrize(("cpus", "gpus"), [(0, 0), (-1, 2), (2, -1)])
def test_no_devices(cpus: int, gpus: int) -> None:
    with pytest.raises(UserError, match="has no device"):
        Devices.of(cpus, gpus)

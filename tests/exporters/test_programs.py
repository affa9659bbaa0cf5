"""Exported programs compute what the model does, on one device and on several."""

from __future__ import annotations

from pathlib import Path

import pytest
from exported import (
    BUILDERS,
    differences,
    give,
    network_named,
    random_allowed,
    result,
    run,
    text_of,
)
from launch import run_legate
from networks import NETWORKS

import flexlegion as fl

HERE = Path(__file__).parent
ALL = [*NETWORKS, *BUILDERS]
TARGETS = ["dtensor", "jax"]
RANDOM = 3  # strategies for each network


def on_one_device(factory: pytest.TempPathFactory, names: list[str]) -> dict[str, Path]:
    """Where the results of these networks on one device are, for each target."""
    folders = {}
    for to in TARGETS:
        folder = folders[to] = factory.mktemp(to)
        for name in names:
            give(folder, name, name, text_of(network_named(name), 1, "single", to))
        run(to, 1, folder, names)
    return folders


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Those that are run on several devices, too."""
    return on_one_device(tmp_path_factory, [*BUILDERS])


@pytest.fixture(scope="module")
def all_on_one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """All networks."""
    return on_one_device(tmp_path_factory, ALL)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All networks, trained by flexlegion."""
    folder = tmp_path_factory.mktemp("legion")
    for name in ALL:
        give(folder, name, name)
    run_legate(HERE / "legion_worker.py", folder, *ALL, cpus=1, timeout=600)
    return folder


@pytest.mark.legion
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("to", TARGETS)
def test_one_device(name: str, to: str, all_on_one: dict[str, Path], reference: Path) -> None:
    """Losses, outputs, gradients, weights: as flexlegion has them."""
    assert differences(result(all_on_one[to], name), result(reference, name)) == []


@pytest.mark.parametrize("to", TARGETS)
def test_known_and_found(to: str, one: dict[str, Path], tmp_path: Path) -> None:
    """The same of data parallelism, of Megatron's strategy, and of what a search finds.

    On one axis of devices; the random strategies below have two.
    """
    devices, names = 2, []
    for network in BUILDERS:
        its = network_named(network)
        found = fl.search(
            its, f"p100x{devices}", proposals=200, costs="analytic", space=to, chains=1
        )
        megatron = ["megatron"] if network == "gpt" else []
        for strategy in ("data", *megatron, found.strategy):
            names.append(f"{network}-{len(names)}")
            give(tmp_path, names[-1], network, text_of(its, devices, strategy, to))
    run(to, devices, tmp_path, names)
    for name in names:
        expected = result(one[to], name.partition("-")[0])
        assert differences(result(tmp_path, name), expected) == [], name


@pytest.mark.parametrize("to", TARGETS)
def test_random_strategies(to: str, one: dict[str, Path], tmp_path: Path) -> None:
    """Three steps under strategies of every dimension that a target allows: as on one device."""
    devices, names = 4, []
    for network in BUILDERS:
        for seed in range(RANDOM):
            strategy = random_allowed(network_named(network), devices, to, seed)
            names.append(f"{network}-{seed}")
            text = text_of(network_named(network), devices, strategy, to)
            give(tmp_path, names[-1], network, text)
    run(to, devices, tmp_path, names)
    for name in names:
        expected = result(one[to], name.partition("-")[0])
        assert differences(result(tmp_path, name), expected) == [], name

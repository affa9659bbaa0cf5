"""Every strategy computes what one device computes, on the devices that it names.

FLEXLEGION_STRATEGIES is the number of strategies for each number of processors, 60 unless it is
set. Of narrow storage and of threads there is a third of that, on ranks a twelfth.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from launch import BFLOAT16, run_legate, run_ranks
from networks import NETWORKS, Network

from flexlegion.graph.graph import Operator
from flexlegion.graph.operator_type import DimKind

WORKER = Path(__file__).parent / "strategies_worker.py"
PROCESSORS = [1, 2, 3, 4]  # more than this machine may have cores
COUNT = int(os.environ.get("FLEXLEGION_STRATEGIES", "60"))
SOME, FEW = max(1, COUNT // 3), max(1, COUNT // 12)
pytestmark = pytest.mark.legion


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """What the worker found, for each number of processors."""
    found = {}
    for cpus in PROCESSORS:
        out = tmp_path_factory.mktemp("strategies") / "result.json"
        arguments = ["--first", (cpus - 1) * COUNT, "--count", COUNT, "--out", out]
        run_legate(WORKER, *arguments, cpus=cpus, timeout=600)
        found[cpus] = json.loads(Path(f"{out}.0").read_text())
    return found


@pytest.mark.parametrize("cpus", PROCESSORS)
def test_random_strategies(cpus: int, results: dict[int, dict[str, Any]]) -> None:
    """Weights, all gradients, outputs, losses and placements of three steps, by relative norm."""
    assert results[cpus]["failures"] == []
    assert results[cpus]["processors"] == cpus
    assert results[cpus]["strategies"] == COUNT
    # Processors of one memory share every instance.
    assert results[cpus]["copied_bytes"] == 0


def test_random_strategies_of_threads(tmp_path: Path) -> None:
    """The same where a processor of one thread and one of two share the tasks, small ones as well.

    The reference is computed by the one thread.
    """
    out = tmp_path / "result.json"
    arguments = ["--first", 5000, "--count", SOME, "--out", out, "--threads", 1, 2]
    run_legate(WORKER, *arguments, cpus=2, timeout=600)
    result = json.loads(Path(f"{out}.0").read_text())
    assert result["failures"] == []
    assert (result["threads"], result["strategies"]) == ([1, 2], SOME)


@pytest.mark.parametrize(
    "storage",
    [
        pytest.param("bf16", marks=pytest.mark.skipif(not BFLOAT16, reason="no AVX512-BF16")),
        "fp16",
    ],
)
def test_random_strategies_stored_narrow(storage: str, tmp_path: Path) -> None:
    """The first step of one device that stores activations so, within 2e-2."""
    out = tmp_path / "result.json"
    arguments = ["--first", 20000, "--count", SOME, "--out", out, "--storage", storage]
    run_legate(WORKER, *arguments, cpus=3, timeout=600)
    result = json.loads(Path(f"{out}.0").read_text())
    assert result["failures"] == []
    assert (result["strategies"], result["copied_bytes"]) == (SOME, 0)


def test_random_strategies_on_two_ranks(tmp_path: Path) -> None:
    """The same between memories; each rank compares everything."""
    out = tmp_path / "result.json"
    run_ranks(WORKER, "--first", 9000, "--count", FEW, "--out", out, ranks=2, cpus=2)
    for rank in (0, 1):
        result = json.loads(Path(f"{out}.{rank}").read_text())
        assert result["failures"] == []
        assert (result["ranks"], result["processors"]) == (2, 4)


def test_strategies_reach_every_dimension(results: dict[int, dict[str, Any]]) -> None:
    """The strategies split every dimension of every operator that training executes."""
    dims = {
        f"{op.kind.type}.{dim.name}"
        for network in NETWORKS.values()
        for op in trained_operators(network)
        for dim in op.dims
        if dim.kind is not DimKind.NONE
    }
    assert set().union(*(result["split_dims"] for result in results.values())) >= dims


def trained_operators(network: Network) -> list[Operator]:
    """All but a classifier's last softmax, which is part of the loss."""
    graph = network.graph()
    read = {tensor.name for op in graph.operators for tensor in op.inputs}
    return [op for op in graph.operators if op.output.name in read or op.kind.is_loss]

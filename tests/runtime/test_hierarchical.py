"""Gradients that are summed inside nodes first: the same function, the same bits every time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launch import run_legate, run_ranks

from flexlegion.machine.running import NODES

WORKER = Path(__file__).parent / "strategies_worker.py"
pytestmark = pytest.mark.legion


@pytest.mark.parametrize(("ranks", "cpus", "count"), [(1, 4, 20), (2, 2, 10)])
def test_random_strategies(
    ranks: int, cpus: int, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On two nodes of two processors: what one device computes, and the same bits again."""
    monkeypatch.setenv(NODES, "2")
    out = tmp_path / "result.json"
    arguments = ["--first", 31000, "--count", count, "--out", out, "--reductions"]
    if ranks == 1:
        run_legate(WORKER, *arguments, cpus=cpus, timeout=600)
    else:
        run_ranks(WORKER, *arguments, ranks=ranks, cpus=cpus, timeout=600)
    for rank in range(ranks):
        result = json.loads(Path(f"{out}.{rank}").read_text())
        assert result["failures"] == []
        assert result["passes"]["node_sum"] == result["passes"]["spread"] > count / 4


def test_nodes_that_there_are_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(NODES, "3")
    script = tmp_path / "script.py"
    script.write_text(
        "from flexlegion.machine.running import running_machine\n"
        "try:\n    running_machine()\nexcept ValueError as e:\n"
        f"    open({str(tmp_path / 'said')!r}, 'w').write(str(e))\n"
    )
    run_legate(script, cpus=2)
    assert (tmp_path / "said").read_text() == (
        f'{NODES} has to be a number of nodes to share out 2 cpus to, but is "3"'
    )

"""Tasks of LeNet are measured on Legion; the machine `local` is what Legion found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest
from launch import legate_environment, run_checked, run_legate, run_ranks

from flexlegion.machine.view import drawing_json
from flexlegion.profiling.local import cpu_model
from flexlegion.profiling.machines import load_machine

WORKER = Path(__file__).parent / "measure_worker.py"
OPERATORS = 10  # of LeNet, its loss included
TASK_PASSES = ("forward", "backward")

pytestmark = pytest.mark.legion


def found(folder: Path, rank: int = 0) -> dict[str, Any]:
    """What a rank wrote."""
    return dict(json.loads((folder / f"found-{rank}.json").read_text()))


@pytest.fixture(scope="module", params=[1, 2])
def one_rank(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The number of processors, and what the worker found on them."""
    folder = tmp_path_factory.mktemp(f"cpus{request.param}")
    run_legate(WORKER, folder, cpus=request.param, timeout=300)
    return request.param, found(folder)


def test_everything_is_measured_once(one_rank: Any) -> None:
    """All tasks have measured times; what the data base has is not measured again."""
    _, result = one_rank
    assert result["count"] >= 2 * OPERATORS
    assert result["progress"][-1] == [result["count"], result["count"]]
    assert result["second"] == 0
    assert (result["lines"], result["lines_again"]) == (3, 0)
    for key, (time, source, contention) in result["measured"].items():
        assert source == "measured", key
        assert 0 < time < 1_000_000_000, key
        assert contention >= 0, key
    for linear in result["linear"].values():
        assert linear["overhead_ns"] >= 0
        assert 10**8 < linear["bytes_per_second"] < 10**12


def test_tasks_are_measured_alone_too_where_there_are_neighbours(one_rank: Any) -> None:
    cpus, result = one_rank
    assert result["alone"]
    assert all((time > 0) == (cpus > 1) for time in result["alone"])


def test_parts_are_tasks_of_their_own(one_rank: Any) -> None:
    """The whole batch and the half of it are measured each, where there are processors for both."""
    cpus, result = one_rank
    for pass_ in TASK_PASSES:
        assert f"c3 {pass_} (64, 10, 10, 16)" in result["measured"]
        assert (f"c3 {pass_} (32, 10, 10, 16)" in result["measured"]) == (cpus == 2)


def test_memory_is_given_back(one_rank: Any) -> None:
    """Three tasks of 1.5 GiB, one after the other, in a memory of 4000 MiB; one of 6000 cannot."""
    _, result = one_rank
    assert result["big"] == [1] * 3
    assert "needs 6000 MiB in a memory of 4000 MiB" in result["too_big"]


def test_what_cannot_be_measured(one_rank: Any) -> None:
    """Devices of other machines, and links where there are none."""
    cpus, result = one_rank
    assert "gpu:0 (P100) is no device of this run, which has cpu:0 (" in result["elsewhere"]
    assert f"cpu:0 and cpu:{cpus - 1} share a memory" in result["no_link"]


def test_topology_of_one_rank(one_rank: Any) -> None:
    """Processors share the rank's memory, whose size is Legate's; no links."""
    cpus, result = one_rank
    topology = result["topology"]
    assert result["again"] == topology  # rates come from the data base
    assert topology["links"] == []
    memory = "cpu:0" if cpus == 1 else "node:0/ram"
    assert len(topology["devices"]) == cpus
    for i, device in enumerate(topology["devices"]):
        assert device["name"] == f"cpu:{i}"
        assert device["memory"] == memory
        assert device["memory_bytes"] == 4000 << 20
        assert 10**9 < device["peak_flops"]["float32"] < 10**13
        assert 10**8 < device["memory_bandwidth"] < 10**12


def test_two_ranks(tmp_path: Path) -> None:
    """Each rank has a memory; the link between them is measured; both know the same times."""
    run_ranks(WORKER, tmp_path, ranks=2, cpus=1, timeout=600)
    results = [found(tmp_path, rank) for rank in (0, 1)]
    assert results[0] == results[1]
    result = results[0]
    assert result["ranks"] == 2
    assert result["count"] > 0
    assert result["second"] == 0
    assert all(source == "measured" for _, source, _ in result["measured"].values())
    topology = result["topology"]
    assert [device["memory"] for device in topology["devices"]] == ["cpu:0", "cpu:1"]
    assert [device["node"] for device in topology["devices"]] == [0, 0]
    (link,) = topology["links"]
    assert {link["source"], link["destination"]} == {"cpu:0", "cpu:1"}
    assert link["bandwidth"] > 10**6
    assert link["latency_ns"] >= 0
    assert topology["description"].endswith("ranks of a node: measured")
    assert result["again"] == topology


@pytest.mark.parametrize("ranks", [1, 2])
def test_machine_file(ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`machine measure` writes what it finds as a file that others read without Legion."""
    monkeypatch.chdir(tmp_path)
    environment = {k: v for k, v in legate_environment().items() if k != "LEGATE_CONFIG"}
    path = tmp_path / "my.json"
    command = [sys.executable, "-m", "flexlegion", "machine", "measure", "--out", str(path)]
    options = ["--ranks", str(ranks), "--cpus", str(3 - ranks), "--json"]
    done = run_checked([*command, *options], environment=environment, timeout=120)
    (topology,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert list(tmp_path.iterdir()) == [path]
    machine = load_machine(path)
    assert drawing_json(machine) == topology
    assert [device.name for device in machine.devices] == ["cpu:0", "cpu:1"]
    assert {device.model for device in machine.devices} == {cpu_model()}
    assert machine.description.startswith(f"1 node of 2 processors, measured on {gethostname()}, ")
    source = json.loads(path.read_text())["source"]
    assert f"machine measure on {ranks} rank" in source
    if ranks == 1:
        assert machine.memories == ("node:0/ram:0",)
        assert machine.links == ()
        # A network cannot be told from one node; no file is touched.
        more = [*command, "--cpus", "1", "--nodes", "16"]
        refused = run_checked(more, environment=environment, timeout=120, status=2)
        assert "error: --nodes 16 needs to know the network" in refused.stderr
        assert json.loads(path.read_text())["source"] == source
    else:
        assert machine.memories == ("cpu:0", "cpu:1")
        (link,) = machine.links
        assert link.kind == "ranks"
        assert link.bandwidth > 10**6
        assert "UCX" in source


def test_machine_file_of_more_nodes(tmp_path: Path) -> None:
    """Two nodes are measured, sixteen written: what joins any two is what joined the two."""
    path = tmp_path / "my.json"
    run_ranks(WORKER.with_name("two_nodes_worker.py"), path, 16, timeout=120)
    machine = load_machine(path)
    assert machine.nodes == 16
    assert "16 nodes of 1 processor, measured on host0, host1, " in machine.description
    assert machine.description.endswith("; extended from 2 nodes")
    assert {link.kind for link in machine.links} == {"network"}
    near, far = machine.route("cpu:0", "cpu:1"), machine.route("cpu:3", "cpu:15")
    assert [hop.destination for hop in far] == ["network", "cpu:15"]
    assert [hop.link.bandwidth for hop in near] == [hop.link.bandwidth for hop in far]
    assert machine.latency_ns("cpu:0", "cpu:1") > 0


def test_local_without_legion() -> None:
    """Where Legion cannot start: one sentence, and status 2."""
    environment = legate_environment() | {"LEGATE_CONFIG": "--cpus 1 --gpus 64"}
    command = [sys.executable, "-m", "flexlegion", "machine", "show", "local"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    message = run.stderr.splitlines()[-1]
    assert message.startswith("error: the machine 'local' is the one that Legion finds, but ")
    assert "legate was asked for '--cpus 1 --gpus 64" in message
    assert "Traceback" not in run.stderr

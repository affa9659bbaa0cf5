"""The whole way through GPUs, on GPUs in software (tests/soft_gpu): what there is without one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import operators
import pytest
from common.workloads import Workload
from launch import (
    BFLOAT16,
    ROOT,
    SOFT_GPU,
    legate_command,
    legate_environment,
    run_checked,
    run_legate,
    run_ranks,
)
from lazy_adam import WAYS, check
from narrow_cases import JUMPS_ON_GPUS, worst_error
from networks import NETWORKS
from pytorch_cases import CASES as OPERATORS
from pytorch_reference import load
from sbp_cases import PAIRS
from tables import problem_of, simulated
from workers.memory_worker import RESULTS
from zoo_cases import CASES

import flexlegion.networks.network
from flexlegion import ParallelConfig, Strategy, library_folder
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.objective.training import TrainingSpec
from flexlegion.profiling.machines import load_machine
from flexlegion.sim.simulator import full

RUNTIME_TESTS = ROOT / "tests" / "runtime"
STRATEGIES_WORKER = RUNTIME_TESTS / "strategies_worker.py"
SCRIPTS = ROOT / "scripts"

pytestmark = [
    pytest.mark.legion,
    pytest.mark.skipif(
        not (SOFT_GPU / "libflexlegion_cuda.so").exists(),
        reason="the GPU in software is not built: it needs the headers of CUDA, cuBLAS and cuDNN",
    ),
]


def test_it_is_as_strict_as_a_gpu() -> None:
    """The host cannot reach device memory; a copy, which is done later, can."""
    code = f"""
import ctypes
cuda = ctypes.CDLL({str(SOFT_GPU / "libcuda.so.1")!r})
address, size = ctypes.c_void_p(), 4096
assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0
there, back = (ctypes.c_char * size)(*b"abc"), (ctypes.c_char * size)()
assert cuda.cuMemcpyHtoDAsync_v2(address, there, ctypes.c_size_t(size), None) == 0
assert cuda.cuMemcpyDtoHAsync_v2(back, address, ctypes.c_size_t(size), None) == 0
assert cuda.cuStreamSynchronize(None) == 0
print(back.value.decode(), flush=True)
ctypes.string_at(address, 3)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "abc\n"
    assert done.returncode == -signal.SIGSEGV


def test_kernels_of_another_version(tmp_path: Path) -> None:
    """A library that was built before the runtime is refused by a sentence that names it."""
    source, library = tmp_path / "old.cc", tmp_path / "libflexlegion_cuda.so"
    source.write_text("""#include "ops/device_functions.h"
using namespace flexlegion;
const RegisterDeviceFunctions registered({}, DeviceKind::gpu, device_interface() + 1);
""")
    runtime = f"-L{library_folder()}"
    build = ("g++", "-std=c++17", "-shared", "-fPIC", "-I", str(ROOT / "native"), str(source))
    subprocess.run([*build, "-o", str(library), runtime, "-lflexlegion_rt"], check=True)
    script = tmp_path / "script.py"
    script.write_text("from flexlegion.machine.running import running_machine\nrunning_machine()\n")
    environment = legate_environment(gpus=1)
    environment["LD_LIBRARY_PATH"] = f"{tmp_path}:{environment['LD_LIBRARY_PATH']}"
    command = legate_command(script, gpus=1)
    done = run_checked(command, environment=environment, timeout=60, status=1)
    assert f"{library}: flexlegion's kernels for GPUs are of another version" in done.stderr


# In other precisions, and stored as float16: scripts/gpu_check.sh, on real GPUs.
def test_operators(tmp_path: Path) -> None:
    """All of them agree with PyTorch."""
    file = tmp_path / "saved.npz"
    run_legate(RUNTIME_TESTS / "pytorch_worker.py", file, "fp32", gpus=1)
    failed, _worst = operators.compare(file, "fp32", 1e-5)
    assert failed == []


def test_operators_stored_narrow(tmp_path: Path) -> None:
    """All of them, as on CPU processors (tests/runtime/test_operators_narrow.py)."""
    file = tmp_path / "saved.npz"
    arguments = [file, "fp32", "single", "", "bf16"]
    run_legate(RUNTIME_TESTS / "pytorch_worker.py", *arguments, gpus=1)
    saved = load(file)
    errors = {name: worst_error(name, saved[name], JUMPS_ON_GPUS) for name in OPERATORS}
    assert {name: its for name, its in errors.items() if not its[0] <= 1} == {}


def test_random_strategies_mix_gpus_and_processors(tmp_path: Path) -> None:
    """Whatever runs where: as on one CPU processor."""
    out = tmp_path / "result.json"
    arguments = ["--first", 0, "--count", 20, "--reference", "cpu", "--out", out]
    run_legate(STRATEGIES_WORKER, *arguments, cpus=2, gpus=2)
    result = json.loads(Path(f"{out}.0").read_text())
    assert result["failures"] == []
    assert result["processors"] == 4
    assert result["copied_bytes"] > 0


@pytest.mark.parametrize(
    "storage",
    [
        pytest.param("bf16", marks=pytest.mark.skipif(not BFLOAT16, reason="no AVX512-BF16")),
        "fp16",
    ],
)
def test_random_strategies_stored_narrow(storage: str, tmp_path: Path) -> None:
    """GPUs take tiles as they are stored; processors, which share the tasks, may not."""
    out = tmp_path / "result.json"
    arguments = ["--first", 20000, "--count", 20, "--reference", "cpu", "--out", out]
    run_legate(STRATEGIES_WORKER, *arguments, "--storage", storage, cpus=1, gpus=2)
    assert json.loads(Path(f"{out}.0").read_text())["failures"] == []


def test_random_strategies_of_networks(tmp_path: Path) -> None:
    # Of other seeds, one has a ReLU of ResNet-101 whose input rounds to the other side of zero on
    # GPUs: all values agree, but gradients below that block differ by some thousandths.
    out = tmp_path / "result.json"
    arguments = ["--first", 200, "--count", 8, "--reference", "cpu", "--out", out]
    networks = ["lenet", "resnet101", "nmt_pieces", "transformer"]
    run_legate(STRATEGIES_WORKER, *arguments, "--zoo", *networks, cpus=1, gpus=2)
    assert json.loads(Path(f"{out}.0").read_text())["failures"] == []


def test_ranks_with_a_gpu_each(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    arguments = ["--first", 9000, "--count", 2, "--zoo", "lenet", "--out", out]
    run_ranks(STRATEGIES_WORKER, *arguments, gpus=1)
    for rank in (0, 1):
        result = json.loads(Path(f"{out}.{rank}").read_text())
        assert result["failures"] == []
        assert (result["ranks"], result["processors"]) == (2, 4)


def test_memory_is_as_predicted_while_models_come_and_go(tmp_path: Path) -> None:
    """A GPU's own memory holds what plan and simulator say, in each of six models in turn."""
    case, strategies = CASES["rnntc"], ("single", "data", "model", "expert", "random:1", "fsdp")
    work = Workload(case.name, case.batch_size, 2, case.sizes, samples=2 * case.batch_size)
    out = tmp_path / "result.json"
    arguments = ["--workload", work.to_json(), "--strategies", ",".join(strategies), "--out", out]
    run_legate(SCRIPTS / "bench" / "workers" / "memory_worker.py", *arguments, gpus=2, timeout=120)
    results = json.loads(Path(f"{out}.0").read_text())
    assert [result["strategy"] for result in results] == list(strategies)
    for result in results:
        assert result["finite"]
        assert result["left"] <= RESULTS
        assert result["simulated"] == pytest.approx(result["training"], rel=0.05)
        assert result["planned"] == pytest.approx(result["with_prediction"], rel=0.05)


def test_tables_stay_and_looked_up_rows_move(tmp_path: Path) -> None:
    """Legion copies between four GPUs what the simulator says, and holds each table once."""
    sizes = {"rows": 10_000, "columns": 16, "tables": 4, "hidden": 32}
    strategies = ("data", "model", "random:1", "random:2", "random:3")
    out = tmp_path / "result.json"
    arguments = ["--sizes", json.dumps(sizes), "--optimizer", "momentum", "--out", out]
    worker = SCRIPTS / "bench" / "workers" / "tables_worker.py"
    run_legate(worker, *arguments, "--strategies", ",".join(strategies), gpus=4)
    results = json.loads(Path(f"{out}.0").read_text())
    assert [result["strategy"] for result in results] == list(strategies)
    tables = 4 * sizes["tables"] * sizes["rows"] * sizes["columns"] * (1 + 1)
    for result in results:
        np.testing.assert_allclose(result["losses"], results[0]["losses"], rtol=1e-5)
        timeline = simulated(problem_of(sizes, "momentum"), result["strategy"])
        # The second iteration is recorded, and all others are that one again.
        assert result["copied_bytes"][1] == timeline.bytes_moved > 0
        assert result["copied_bytes"][2:] == [0, 0]
        for name, held in result["memory_bytes"].items():
            assert held == pytest.approx(timeline.allocated_bytes[name], rel=0.01)
        if not result["strategy"].startswith("random"):  # which deals the columns without order
            assert tables < sum(result["memory_bytes"].values()) < 1.3 * tables


def test_lazy_adam_changes_looked_up_rows_alone(tmp_path: Path) -> None:
    """On three GPUs, as on CPU processors (tests/runtime/test_lazy_adam.py)."""
    ways = [name for name, way in WAYS.items() if way.storage == "fp32"]
    run_legate(RUNTIME_TESTS / "lazy_adam_worker.py", tmp_path, *ways, cpus=1, gpus=3)
    for name in ways:
        check(name, tmp_path / f"{name}.npz", 1e-4)


def test_partial_values_move_as_predicted(tmp_path: Path) -> None:
    """Where reductions are split, Legion copies between GPUs what the plan says, and simulates."""
    out, names = tmp_path / "result.json", ["sequences", "attention", "reductions"]
    worker = RUNTIME_TESTS / "moved_worker.py"
    run_legate(worker, "--networks", *names, "--seeds", 3, "--out", out, gpus=4)
    machine = load_machine("p100x4")
    for result in json.loads(out.read_text()):
        case = NETWORKS[result["network"]]
        training = TrainingSpec(case.loss, optimizer=case.optimizer)
        network = flexlegion.networks.network.Network.of(case.model(), training)
        configs = {
            op: ParallelConfig(
                tuple(its["degrees"]),
                tuple(its["devices"]),
                its.get("sums", "readers"),
                again=its.get("again", False),
                sharding=its.get("sharding", "states"),
            )
            for op, its in result["strategy"].items()
        }
        problem = network.problem(machine, AnalyticCosts())
        timeline = full(problem, problem.checked(Strategy(configs, "the worker's")))
        assert result["partial"] > 0
        # The second iteration is recorded, and all others are that one again.
        assert result["copied_bytes"][1] == result["planned_bytes"] == timeline.bytes_moved > 0
        assert result["copied_bytes"][2:] == [0]


def test_signatures_move_what_the_paper_says(tmp_path: Path) -> None:
    """OneFlow's Table 2, on the same four GPUs and from two to two others."""
    out = tmp_path / "result.json"
    run_legate(RUNTIME_TESTS / "sbp_worker.py", out, gpus=4)
    results = json.loads(out.read_text())
    assert len(results) == 2 * len(PAIRS)
    for result in results:
        assert result["between"] == result["expected"], result["case"]
        assert result["copied_bytes"][1] == result["planned_bytes"], result["case"]


def test_weights_pass_the_network_once_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Summed inside nodes first, (N - 1) |W| each way is what Legion copies between two nodes."""
    monkeypatch.setenv("FLEXLEGION_NODES", "2")
    out = tmp_path / "result.json"
    run_legate(RUNTIME_TESTS / "hierarchical_worker.py", out, gpus=4)
    result = json.loads(out.read_text())
    weights = result["hierarchical"]["weight_bytes"]
    # The second iteration is recorded, and all others are that one again.
    assert result["hierarchical"]["between"][1:] == [2 * weights, 0]
    assert result["hierarchical"]["inside"][1:] == [4 * weights, 0]
    # Of partial gradients each GPU of the other node sends its own; what a GPU has got of a weight
    # from there, its neighbour gets from it.
    assert result["direct"]["between"][1:] == [3 * weights, 0]


def test_what_does_not_fit_is_refused_before_it_starts() -> None:
    options = ["--model", "alexnet", "--data", "synthetic", "--batch-size", 64, "--samples", 64]
    done = run_legate(SCRIPTS / "train.py", *options, gpus=2, status=2)
    [mistake, heads, *_] = [line for line in done.stderr.splitlines() if "MiB" in line]
    assert "MiB in a memory of 300 MiB (gpu:0)" in mistake
    assert "--fbmem" in mistake
    assert heads.split()[1:4] == ["weights", "gradients", "optimizer"]
    assert any(line.startswith("gpu:1 ") for line in done.stderr.splitlines())


def report_of(stdout: str) -> dict[str, Any]:
    [line] = [line for line in stdout.splitlines() if line.startswith("{")]
    report: dict[str, Any] = json.loads(line)
    return report


def test_tunes_and_trains(tmp_path: Path) -> None:
    """Kernels are timed by events, links by copies, and a strategy for all of it is found."""
    out, db = tmp_path / "s.json", tmp_path / "p.db"
    options = ["--model", "lenet", "--data", "synthetic", "--batch-size", 16, "--budget", 1]
    options += ["--rounds", 3, "--max-rounds", 4, "--profile-db", db, "--json", "--out", out]
    done = run_legate(SCRIPTS / "tune_mapper.py", *options, cpus=1, gpus=2)
    report = report_of(done.stdout)
    assert report["tasks_measured"] > 0
    assert set(report["priced_by"]) == {"measured"}
    assert report["finalists"][0]["name"] == "data parallelism"
    assert all(row["measured_iteration_time_ns"] > 0 for row in report["finalists"])
    train = ["--model", "lenet", "--data", "synthetic", "--strategy", out, "--epochs", 3]
    trained = run_legate(SCRIPTS / "train.py", *train, cpus=1, gpus=2)
    assert "1 CPU processor and 2 GPUs on 1 rank" in trained.stdout
    assert "loss nan" not in trained.stdout

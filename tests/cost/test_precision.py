"""Precisions of GPUs: kept apart by the profile data base, and mistakes in a sentence."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import flexlegion as fl
from flexlegion import UserError
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.cost.measured import MeasuredCosts, task_key
from flexlegion.cost.profile_db import ProfileDB
from flexlegion.cost.records import DeviceRates, Sample
from flexlegion.graph.graph import Graph
from flexlegion.machine.parts import Device
from flexlegion.objective.precision import PRECISIONS, check_precision, check_used, in_library
from flexlegion.ops.dense import Dense

SOFTWARE = "cuDNN 9.1.0, cuBLAS 13.0.0, CUDA 13.0, driver 580.1"
SHAPES = ((4, 8), (8, 8), (8,), (4, 8))


def test_measurements_are_kept_apart(tmp_path: Path) -> None:
    """Each precision's own times; the runtime's time from task to task is one for all."""
    graph = Graph()
    graph.add(Dense(8), [graph.add_input("x", (4, 8), "float32")], "dense")
    operator = graph.operators[0]
    gpu = Device("gpu:0", "gpu", "NVIDIA H200", 0, "gpu:0", 1, {"float32": 10**12}, 10**12)
    cpu = Device("cpu:0", "cpu", "EPYC", 0, "cpu:0", 1, {"float32": 10**12}, 10**12)
    key = task_key(operator, "forward", SHAPES)
    with ProfileDB(tmp_path / "p") as db:
        db.add_device(gpu.model, SOFTWARE, DeviceRates(1, 1))
        for i, precision in enumerate(("fp32", "bf16")):
            db.add_task(gpu.model, in_library(SOFTWARE, precision), key, Sample(100 + i, 1, 0))
        db.add_task(cpu.model, "oneDNN 3", key, Sample(700, 1, 0))
        times = {}
        for precision in PRECISIONS:
            costs = MeasuredCosts(db, AnalyticCosts(), precision=precision)
            times[precision] = costs.exe_time(operator, "forward", SHAPES, gpu)
            assert costs.exe_time(operator, "forward", SHAPES, cpu).time_ns == 700
        assert (times["fp32"].time_ns, times["bf16"].time_ns) == (100, 101)
        assert times["tf32"].source == "analytic"
        assert db.newest_library(gpu.model, "bf16") == f"{SOFTWARE}, bf16"
        assert db.newest_library(gpu.model) == SOFTWARE
        assert db.newest_library(gpu.model, "tf32") is None


def test_mistakes() -> None:
    assert check_precision("tf32") == "tf32"
    with pytest.raises(
        UserError,
        match=r"unknown precision 'fp16' \(did you mean 'bf16'\?\); choose one of fp32, tf32, bf16",
    ):
        check_precision("fp16")
    check_used("fp32", ["cpu:0"], "data")
    check_used("bf16", ["cpu:0", "gpu:0"], "data")
    with pytest.raises(UserError, match="precision bf16 is for GPUs, but data uses none"):
        check_used("bf16", ["cpu:0", "cpu:1"], "data")


def test_a_machine_without_a_rate_in_a_precision_is_told_of() -> None:
    """Products are priced as in single precision there, and nowhere without a word."""
    with pytest.warns(UserWarning, match=r"'p100x2' states no rate in bf16 for P100, so products"):
        narrow = fl.simulate("mlp", "p100x2", precision="bf16")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fl.simulate("mlp", "p100x2").iteration_time_ns == narrow.iteration_time_ns
        fl.simulate("mlp", "a100x8", precision="bf16")

"""Operators that are linear in an input keep its partial values apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from plan_properties import CHECKS

from flexlegion import Model, ParallelConfig, Strategy
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.graph.graph import Operator
from flexlegion.known_strategies import resolve
from flexlegion.networks.network import Network
from flexlegion.objective.training import TrainingSpec
from flexlegion.ops.formula import program_of
from flexlegion.plan.plan import Plan
from flexlegion.profiling.machines import load_machine
from flexlegion.sim.simulator import FLOWS, full
from flexlegion.strategy.configuration import splits

GPUS = ("gpu:0", "gpu:1", "gpu:2", "gpu:3")


def named(model: Model) -> dict[str, Operator]:
    return {op.name: op for op in model.graph.operators}


def has_parts(op: Operator) -> bool:
    return op.dims[-1].name == "part"


def test_what_is_linear_in_what_may_be_partial_has_parts() -> None:
    """Layer by layer; behind what is not linear, nothing has."""
    model = Model(4)
    x = model.input((6, 8), name="x")
    first = model.dense(x, 12, name="first")
    model.reshape(first, (3, 24), name="reshape")
    model.transpose(first, (0, 2, 1), name="transpose")
    model.split(first, (5, 7), 2, name="split")
    model.add([first, model.tanh(first, name="tanh")], name="add")
    model.concat([x, first], 2, name="concat")
    model.multiply([first, first], name="multiply")
    model.reduce(first, "mean", 1, name="mean")
    model.reduce(first, "max", 1, name="max")
    model.dropout(first, 0.5, name="dropout")
    model.divide(first, 2, name="half")
    model.dense(model.reshape(first, (72,), name="flat"), 5, name="dense")
    model.dense(model.relu(first, name="relu"), 5, name="behind")
    model.dense(first, 5, activation="relu", name="fused")
    ops = named(model)
    without = {"first", "tanh", "max", "relu", "behind", "fused"}
    assert {name for name, op in ops.items() if not has_parts(op)} == without
    # One factor of a product is linear, and a bias is added once.
    part = len(ops["dense"].dims) - 1
    x_access, kernel, bias, _ = (access for _, _, access in ops["dense"].operands)
    assert (x_access.part, kernel.part, kernel.once) == (part, -1, ())
    assert part in bias.once


@pytest.mark.parametrize("formula", ["-x0", "x0 * 2", "x0 / 4 - x0", "-(3 * x0)"])
def test_multiples(formula: str) -> None:
    assert program_of(formula).is_multiple


@pytest.mark.parametrize("formula", ["x0 + 1", "x0 * x0", "x0 * x1", "2 / x0", "relu(x0)"])
def test_no_multiples(formula: str) -> None:
    assert not program_of(formula).is_multiple


def test_it_is_not_drawn_where_there_is_nothing_to_share_out() -> None:
    """Nor do searches split it as they split other dimensions."""
    network = three_factors()
    op = network.graph.operators[1]
    assert all(degrees[-1] == 1 for degrees in splits(op, 4))
    for seed in range(40):
        strategy = resolve(f"random:{seed}", network.graph, load_machine("p100x4").names)
        uv, uvw = strategy["UV"], strategy["UVW"]
        assert uvw.degrees[-1] == 1 or (uv.degrees[-1] > 1 and uv.sums == "readers")


def three_factors(rows: int = 64, inner: int = 4096, columns: int = 4) -> Network:
    """U V W, where U's columns and V's rows are many, and W's columns few."""
    model = Model(1)
    u = model.input((rows, inner), name="U")
    uv = model.matmul(u, model.parameter((inner, rows), name="V"), name="UV")
    model.matmul(uv, model.parameter((rows, columns), name="W"), name="UVW")
    return Network.of(model, TrainingSpec("mean_squared_error"))


def moved(network: Network, uvw: ParallelConfig) -> dict[str, int]:
    """Bytes of values that move, by tensor, with U and V split by what they share."""
    problem = network.problem(load_machine("p100x4"), AnalyticCosts())
    configs = dict(resolve("single", network.graph, problem.devices))
    configs |= {"UV": ParallelConfig((1, 1, 1, 4), GPUS), "UVW": uvw}
    strategy = problem.checked(Strategy(configs))
    plan = Plan(strategy, network.outputs)
    for check in CHECKS:
        check(plan)
    rows = full(problem, strategy).tasks
    values = (rows["hop"] == 0) & (rows["flow"] == FLOWS.index("value"))
    names = [tensor.name for tensor in problem.graph.tensors]
    return {
        name: int(rows["bytes"][values & (rows["tensor"] == names.index(f"{name}.output"))].sum())
        for name in ("UV", "UVW")
    }


def test_three_factors() -> None:
    """To the sums of UV's rows, three terms of each element move; or of UVW's, which are fewer."""
    network = three_factors()
    uv, uvw = 4 * 64 * 64, 4 * 64 * 4  # bytes
    by_rows = moved(network, ParallelConfig((1, 4, 1, 1, 1), GPUS))
    assert by_rows == {"UV": 3 * uv, "UVW": 3 * uvw // 4}
    apart = moved(network, ParallelConfig((1, 1, 1, 1, 4), GPUS))
    assert apart == {"UV": 0, "UVW": 3 * uvw}


def test_files_name_it(tmp_path: Path) -> None:
    """And without it, degrees mean what they did."""
    network = three_factors()
    chosen = ParallelConfig((1, 1, 1, 1, 4), GPUS, "shards")
    names = load_machine("p100x4").names
    whole = resolve("single", network.graph, names)
    changes = {"UV": ParallelConfig((1, 1, 1, 4), GPUS), "UVW": chosen}
    whole.changed(changes).save(tmp_path / "s.json")
    entry = json.loads((tmp_path / "s.json").read_text())["operators"]["UVW"]
    assert entry == {"degrees": {"part": 4}, "sums": "shards", "devices": list(GPUS)}
    assert resolve(tmp_path / "s.json", network.graph, names)["UVW"] == chosen
    op = network.graph.operators[1]
    for degrees in ((1, 4, 1), (1, 4, 1, 1)):
        assert ParallelConfig(degrees, GPUS).filled(op, "s").degrees == (1, 4, 1, 1, 1)

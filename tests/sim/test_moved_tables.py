"""What looks rows up moves these rows and their gradients, however large its table is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from networks import NETWORKS
from simulated import ArbitraryCosts, finely_cut, images, strategy_of, tables

from flexlegion import Model, ParallelConfig, Strategy, UserError
from flexlegion.known_strategies import resolve
from flexlegion.networks.references import load_model
from flexlegion.objective.losses import parts_of_loss
from flexlegion.plan.coherence import moved_bytes
from flexlegion.plan.plan import Plan
from flexlegion.profiling.machines import load_machine
from flexlegion.sim.simulator import Timeline, full
from flexlegion.strategy.configuration import splits

DLRM = Path(__file__).resolve().parents[2] / "scripts" / "examples" / "dlrm.py"
STRATEGIES = ("data", "model", "expert", *(f"random:{seed}" for seed in range(6)))


def simulated(model: Model, states: int, strategy: str) -> tuple[Timeline, int]:
    """On four GPUs; and the bytes that the plan itself moves there."""
    topology = load_machine("p100x4")
    problem = finely_cut(model, topology, ArbitraryCosts(0), states=states)
    chosen = strategy_of(problem, strategy)
    plan = Plan(chosen, problem.outputs, states, granularity=problem.granularity)
    memory_of = {device.name: device.memory for device in topology.devices}
    return full(problem, chosen), moved_bytes(plan, memory_of)


def dlrm(**sizes: Any) -> Model:
    return load_model(f"{DLRM}:dlrm", 32, sizes)


@pytest.mark.parametrize("states", [0, 2])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_bytes_do_not_depend_on_the_tables(strategy: str, states: int) -> None:
    """Four tables of 256 MB, and of 256 KB: below 5 MB either way, by simulator and by plan."""
    (few, _), (many, by_plan) = (
        simulated(dlrm(rows=rows), states, strategy) for rows in (1_000, 1_000_000)
    )
    assert few.bytes_moved == many.bytes_moved == by_plan
    assert 0 < many.bytes_moved < 5_000_000


def test_looked_up_rows_move() -> None:
    """By hand: a table of 8 columns on four GPUs, 6 samples of 5 tokens, SGD.

    The tokens are loaded on one GPU, and each of the three others gets all 30 of them. Of 30 x 8
    looked-up numbers each GPU has two columns; what uses them is on the first, so 30 x 6 move
    there, and as many gradients back.
    """
    model = Model(6)
    x = model.embedding(model.input((5,), "int32"), 1000, 8, name="embed")
    model.flatten(x)
    problem = finely_cut(model, load_machine("p100x4"), ArbitraryCosts(0), "mean_squared_error", 0)
    strategy = dict(strategy_of(problem, "single")) | {
        "embed": strategy_of(problem, "data")["embed"]
    }
    moved = full(problem, problem.checked(Strategy(strategy))).bytes_moved
    assert moved == 4 * (3 * 30 + 2 * 30 * 6)


@pytest.mark.parametrize("strategy", ["data", "model", "expert"])
def test_memory_is_one_tables(strategy: str) -> None:
    """All memories together hold each table and its two states once, and little else."""
    timeline, _ = simulated(dlrm(rows=1_000_000), 2, strategy)
    whole = 4 * 1_000_000 * 64 * 4 * (1 + 2)
    assert whole < sum(timeline.allocated_bytes.values()) < 1.01 * whole


SOURCES = [NETWORKS[name].build for name in ("arithmetic", "frozen")]


@pytest.mark.parametrize("network", [images, tables, *SOURCES])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_simulator_moves_what_the_plan_does(network: Any, strategy: str) -> None:
    """Look-ups of one table in different places make its columns move, which is charged.

    What is frozen or constant does not move again, and a weight that is an input moves once.
    """
    model = Model(6)
    network(model)
    timeline, by_plan = simulated(model, 1, strategy)
    assert timeline.bytes_moved == by_plan


def test_splits_of_other_dimensions_are_refused(tmp_path: Path) -> None:
    """And what a file says of a loss stands for what it is made of."""
    model = Model(8)
    x = model.embedding(model.input((5,), "int32"), 9, 3, name="embed")
    model.dense(x, 4, name="dense")
    problem = finely_cut(model, load_machine("p100x4"), ArbitraryCosts(0))
    names = tuple(problem.devices.names)
    right = {
        "embed": ParallelConfig((1, 1, 3), names[:3]),
        "dense": ParallelConfig((2, 2, 1, 1), names),
        "loss": ParallelConfig((1, 1), names[:1]),
    }
    Strategy(right).save(tmp_path / "right.json")
    new = resolve(tmp_path / "right.json", problem.graph, problem.devices)
    parts = dict.fromkeys(parts_of_loss("loss"), ParallelConfig((1, 1, 1), names[:1]))
    embed = ParallelConfig((1, 1, 3, 1), names[:3])
    dense = ParallelConfig((2, 2, 1, 1, 1), names)
    assert dict(new) == right | parts | {"embed": embed, "dense": dense}
    wrong = Strategy(right | {"embed": ParallelConfig((2, 2, 1), names)})
    with pytest.raises(UserError, match="splits dimension 'sample' into 2 parts, but what looks"):
        resolve(wrong, problem.graph, problem.devices)


def test_the_search_splits_tables_by_columns_and_rows() -> None:
    operator = dlrm().graph.operators[2]
    assert operator.name == "embed0"
    both = [(1, columns, rows) for columns in (1, 2, 4) for rows in (1, 2, 4)]
    assert sorted(splits(operator, 4)) == [split for split in both if split[1] * split[2] <= 4]

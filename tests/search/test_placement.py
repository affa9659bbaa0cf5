"""Placement alone, without splitting."""

from __future__ import annotations

from simulated import problem_of, strategy_of

from flexlegion import Model
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.profiling.machines import load_machine
from flexlegion.searches.options import Budget
from flexlegion.searches.placement import placement_only
from flexlegion.sim.simulator import full


def branches(model: Model) -> None:
    """Two branches that can run side by side, with many FLOPs for what they read."""
    x = model.input((32, 32, 64))
    both = model.add([model.conv2d(x, 64, 9, name="a"), model.conv2d(x, 64, 9, name="b")])
    model.dense(model.flatten(both), 4)


def test_every_operator_is_one_task_and_branches_run_side_by_side() -> None:
    model = Model(64)
    branches(model)
    problem = problem_of(model, load_machine("p100x2"), AnalyticCosts())
    problem.prepare(problem.graph.operators[0], (2, 1, 1, 1, 1))  # does not count
    result = placement_only(problem, Budget(None, 500), chains=1)
    assert all(config.tasks == 1 for config in result.strategy.values())
    assert result.strategy["a"].devices != result.strategy["b"].devices
    assert result.iteration_time_ns == full(problem, result.strategy).iteration_time_ns
    single = full(problem, strategy_of(problem, "single"))
    assert result.iteration_time_ns < single.iteration_time_ns
    again = placement_only(problem, Budget(None, 500), chains=1)
    assert again.strategy == result.strategy

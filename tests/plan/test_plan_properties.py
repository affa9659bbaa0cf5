"""Every plan has the properties of plan_properties.py: of random graphs, and of the zoo."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_properties import CHECKS
from sample_plans import plans, zoo_plan

from flexlegion.strategy.granularity import DEFAULT_GRANULARITY, Granularity

# Smaller images than the paper's, cut in the same ways: half the elements to count.
SIZES = {"alexnet": {"input_shape": (127, 127, 3)}}


# Small networks' weights are not cut at all unless small shards are allowed, and their tensors take
# turns in memory only where few launches run as one.
@pytest.mark.parametrize("granularity", [Granularity(8, 1), DEFAULT_GRANULARITY])
@settings(max_examples=80)
@given(data=st.data())
def test_random_plans(data: st.DataObject, granularity: Granularity) -> None:
    plan = data.draw(plans(granularity))
    for check in CHECKS:
        check(plan)
    assert plan.describe().count("\n") > len(plan.launches)


@pytest.mark.parametrize(
    "strategy", ["single", "data", "model", *(f"random:{i}" for i in range(8))]
)
@pytest.mark.parametrize("model", ["alexnet", "lenet", "mlp"])  # test_zoo.py has the others
def test_zoo_plans(model: str, strategy: str) -> None:
    plan = zoo_plan(model, strategy, **SIZES.get(model, {}))
    for check in CHECKS:
        check(plan)


def test_same_plan_twice() -> None:
    assert zoo_plan("lenet", "random:3").describe() == zoo_plan("lenet", "random:3").describe()


def test_replicated_weights_have_one_shard_a_device() -> None:
    plan = zoo_plan("mlp", "data", granularity=Granularity(shard_bytes=1))
    update = next(
        x
        for x in plan.launches
        if x.pass_ == "update" and x.operator is not None and x.operator.name == "output"
    )
    kernel = next(r for r in update.requirements if r.field == "value")
    assert update.devices == ["cpu:0", "cpu:1", "cpu:2"]
    assert kernel.boxes == [((0, 10), (0, 85)), ((0, 10), (85, 170)), ((0, 10), (170, 256))]
    assert plan.gradient_slots(kernel.tensor) == 3

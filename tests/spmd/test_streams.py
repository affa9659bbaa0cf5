"""What computation and collectives take side by side, and in turn; what updates read and write."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flexlegion as fl
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.machine.files import described_machine
from flexlegion.networks.network import Network
from flexlegion.objective.training import TrainingSpec
from flexlegion.sim.problem import Problem
from flexlegion.spmd.steps import COLLECTIVES, Steps
from flexlegion.spmd.system import System
from flexlegion.spmd.timeline import Training, simulated
from flexlegion.spmd.ways import Ways, divided


def test_computation_is_slower_beside_a_collective() -> None:
    """A fifth of the device is taken for 50 ns, in which 40 are computed: 60 are left."""
    steps = Steps()
    steps.add("backward", 100)
    steps.add("gradients", 50, taken=0.2)
    played = steps.played()
    assert played.time_ns == 110
    assert played.busy_ns == {"backward": 110, "gradients": 50}
    assert played.exposed_ns == 0


def test_nothing_is_slower_behind_each_other() -> None:
    steps = Steps()
    first = steps.add("backward", 100)
    steps.add("gradients", 50, [first], taken=0.2)
    assert steps.played().time_ns == 150
    # What is computed beside it, is: 50 ns of 60 at four fifths, the other 20 at all of it.
    steps.add("backward", 60)
    assert steps.played().time_ns == 100 + 50 + 20


def test_one_stream_takes_all_in_turn() -> None:
    steps = Steps(streams=1)
    steps.add("backward", 100)
    steps.add("gradients", 50, taken=0.2)
    steps.add("backward", 10)
    assert steps.played().time_ns == 160
    assert steps.played().exposed_ns == 50


@given(
    st.lists(
        st.tuples(st.sampled_from(["forward", "backward", *COLLECTIVES]), st.integers(0, 999)),
        min_size=1,
        max_size=12,
    ),
    st.floats(0, 0.5),
    st.randoms(use_true_random=False),
)
def test_between_side_by_side_and_in_turn(steps_, taken, random) -> None:  # type: ignore[no-untyped-def]
    """What is taken costs at most what it would have computed; without it nothing changes."""

    def played(streams: int, share: float):  # type: ignore[no-untyped-def]
        steps = Steps(streams)  # type: ignore[arg-type]
        for n, (kind, time_ns) in enumerate(steps_):
            steps.add(kind, time_ns, after[n], taken=share)
        return steps.played()

    after = [[m for m in range(n) if random.random() < 0.3] for n in range(len(steps_))]
    free, shared, turns = played(2, 0.0), played(2, taken), played(1, taken)
    moving = sum(time_ns for kind, time_ns in steps_ if kind in COLLECTIVES)
    computing = sum(time_ns for kind, time_ns in steps_ if kind not in COLLECTIVES)
    assert free.time_ns - 1 <= shared.time_ns <= free.time_ns + taken * moving + 1
    assert turns.time_ns == moving + computing
    busy = sum(its for kind, its in shared.busy_ns.items() if kind not in COLLECTIVES)
    assert computing - 1 <= busy <= computing + taken * moving + len(steps_)


# Bytes of a weight's element. Fused: the gradient is read, the weight and Adam's two states are
# read and written. Half precision: the new weight is rounded (4 read, 2 written), the gradient
# widened (2 and 4), unscaled (4 and 4). By steps: 24 passes.
@pytest.mark.parametrize(
    ("system", "storage", "size"),
    [
        (System(), "fp32", 12 + 16),
        (System(gradients="half", weights="half"), "fp16", 12 + 16 + 6 + 6 + 8),
        (System(weights="half"), "bf16", 12 + 16 + 6),
        (System(update="by steps"), "fp32", 4 * 24),
    ],
)
def test_bytes_of_an_update(system: System, storage: str, size: int) -> None:
    model = fl.Model(8)
    x = model.input((512,), name="x")
    model.dense(x, 512, name="layer")
    model.loss = "mean_squared_error"
    network = Network.of(model, TrainingSpec.of(storage=storage))
    costs = AnalyticCosts()
    machine = described_machine("a100x1")
    problem = network.problem(machine, costs)
    program = divided(problem.graph, Ways())
    its = simulated(program, problem.topology, costs, Training(2), system)
    elements = sum(prod(weight.shape) for weight in problem.graph.weights)
    linear, _ = costs.linear("update", problem.topology.devices[0])
    assert its.parts_ns["update"] == linear.time_ns(size * elements)
    # A host that issues ten kernels for each of two weights takes longer than the GPU.
    if system.update == "by steps":
        slow = System(update="by steps", issue_ns=100_000)
        its = simulated(program, problem.topology, costs, Training(2), slow)
        assert its.parts_ns["update"] == pytest.approx(2 * 10 * 100_000, rel=0.01)


def _of_rows(tables: bool) -> Problem:
    """Two dense layers, or a table of 4096 rows of 64 that 8 samples look up 32 of each."""
    model = fl.Model(8)
    if tables:
        x = model.embedding(model.input((32,), "int32", name="x"), 4096, 64, name="table")
        model.dense(model.flatten(x, name="flat"), 1, name="layer")
    else:
        model.dense(model.dense(model.input((512,), name="x"), 512, name="a"), 512, name="b")
    model.loss = "mean_squared_error"
    network = Network.of(model, TrainingSpec.of(micro_batches=4))
    return network.problem(described_machine("a100x1"), AnalyticCosts())


def test_what_an_update_passes_more() -> None:
    costs = AnalyticCosts()
    for tables, its, size in (
        (False, {"more_bytes": 6}, 6 * 2 * (512 * 512 + 512)),
        # All 8 x 32 look-ups are sorted; of a whole table that is updated none is.
        (True, {"lazy": True, "sorted_bytes": 200}, 200 * 8 * 32),
        (True, {"sorted_bytes": 200}, 0),
    ):
        problem = _of_rows(tables)
        program = divided(problem.graph, Ways())
        linear, _ = costs.linear("update", problem.topology.devices[0])
        without = Training(2, lazy=its.get("lazy", False))
        times = [
            simulated(program, problem.topology, costs, training).parts_ns["update"]
            for training in (replace(without, **its), without)
        ]
        expected = size * 1e9 / linear.bytes_per_second
        assert times[0] - times[1] == pytest.approx(expected, abs=2)


def test_gradients_of_micro_batches_are_added() -> None:
    """Of 4 three times: the product's is read, and the sum read and written; or by products."""
    problem, costs = _of_rows(False), AnalyticCosts()
    program = divided(problem.graph, Ways())
    linear, _ = costs.linear("update", problem.topology.devices[0])
    by_kernels, by_products = (
        simulated(program, problem.topology, costs, Training(2), System(accumulates=how))
        for how in ("kernel", "product")
    )
    each = linear.time_ns(3 * 4 * (512 * 512 + 512))
    more = by_kernels.parts_ns["backward"] - by_products.parts_ns["backward"]
    assert more == by_kernels.iteration_time_ns - by_products.iteration_time_ns == 3 * 2 * each

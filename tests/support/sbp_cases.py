"""OneFlow's Table 2, case by case: a tensor written with one signature and read with another."""

from __future__ import annotations

from collections.abc import Mapping

from flexlegion import B, Mesh, Model, P, S, Strategy
from flexlegion.networks.network import Network
from flexlegion.objective.training import TrainingSpec
from flexlegion.plan.coherence import moves
from flexlegion.plan.plan import Plan
from flexlegion.strategy.sbp.deduction import deduced

BATCH, CHANNELS = 16, 8
T_BYTES = 4 * BATCH * CHANNELS  # of the tensor, the paper's |T|
KINDS = {"S(0)": S(0), "S(1)": S(1), "P": P, "B": B}

PAIRS = [
    *((a, b) for a in ("S(0)", "S(1)") for b in ("S(0)", "S(1)", "B")),
    *((a, b) for a in ("B", "P") for b in ("S(0)", "S(1)")),
    ("B", "B"),
    ("P", "B"),
]
# Rows of the table that no strategy says: nothing reads partial values as such.
NOT_READ = ["S -> P", "B -> P", "P -> P"]


def table_2(p1: int, p2: int) -> dict[str, tuple[float, float]]:
    """The paper's, in multiples of |T|: on the same devices, on others."""
    return {
        "S(i) -> S(i)": (0, 1),
        "S(i) -> S(j)": ((p1 - 1) / p1, 1),
        "S -> B": (p1 - 1, p2),
        "S -> P": (0, 1),
        "B -> S": (0, 1),
        "B -> B": (0, p2),
        "B -> P": (0, 1),
        "P -> S": (p1 - 1, p1),
        "P -> B": (2 * (p1 - 1), p1 + p2 - 1),
        "P -> P": (0, p1),
    }


def row_of(before: str, after: str) -> str:
    if before[0] == after[0] == "S":
        return f"S(i) -> S({'i' if before == after else 'j'})"
    return f"{before[0]} -> {after[0]}"


def transition(before: str, after: str, first: Mesh, second: Mesh) -> tuple[Network, Strategy]:
    """A tensor t that is written in one way and read in another.

    What is B has been read as that by another operator, on the devices that wrote it.
    """
    model = Model(BATCH)
    t = model.dense(model.input((CHANNELS,), name="x"), CHANNELS, use_bias=False, name="t")
    outputs = []
    if before == "B":
        outputs.append(model.dense(t.to_global(first, B), CHANNELS, use_bias=False, name="gather"))
    wanted = t.to_global(second, KINDS[after])
    if after == "B":
        outputs.append(model.dense(wanted, CHANNELS, use_bias=False, name="read"))
    else:
        outputs.append(model.relu(wanted, name="read"))
    model.set_outputs(outputs)
    written = S(0) if before == "B" else KINDS[before]
    network = Network.of(model, TrainingSpec("mean_squared_error"))
    strategy, messages = deduced(network.graph, first, {"t": written}, "Table 2")
    assert not messages
    return network, strategy


def expected(before: str, after: str, first: Mesh, second: Mesh) -> float:
    same, others = table_2(len(first.devices), len(second.devices))[row_of(before, after)]
    return T_BYTES * (same if first == second else others)


def moved_between(
    network: Network, plan: Plan, before: str, memory_of: Mapping[str, str]
) -> tuple[int, int]:
    """Bytes of t's value that a plan moves: from the one signature to the other, and all."""
    t = next(tensor for tensor in network.graph.tensors if tensor.name == "t.output")
    between = total = 0
    for move in moves(plan, memory_of):
        if move.requirement.tensor is t and move.requirement.field in ("value", "partial"):
            total += move.bytes
            # What is B was gathered before.
            op = move.launch.operator
            if op is not None and (before != "B" or op.name == "read"):
                between += move.bytes
    return between, total

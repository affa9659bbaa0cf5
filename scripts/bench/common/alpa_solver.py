"""Alpa's choice of a split for each operator: its integer linear programme, with our costs.

Alpa (Zheng et al., 2022, "Automating Inter- and Intra-Operator Parallelism for Distributed Deep
Learning", section 4) gives each operator a few ways to lie on a mesh of devices, counts what each
costs by itself and what each pair of neighbours costs, and has an integer linear programme solved.
Its Python function takes all of that as arrays, which are made here: operators are the nodes,
tensors between them the edges.

- Ways are those of two axes: an operator is whole, or one or two of its dimensions are split, each
  by the length of an axis, or one by all devices.
- Costs are OptCNN's sums (`flexlegion.searches.optcnn`): the slowest task, forward and backward,
  and what transfers take on the busiest link, for every micro-batch; and once the sums of weights'
  gradients. (Alpa's own are bytes over bandwidths, and computation counts as nothing.)
- Memory is what a device has at the end of a forward pass: weights, gradients and the optimizer's
  states, and what the backward pass will read.
"""

from __future__ import annotations

import ast
import importlib.util
import multiprocessing
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion.base.errors import UserError
from flexlegion.graph.graph import Operator
from flexlegion.graph.tensor import STATE_BYTES, Tensor
from flexlegion.searches.optcnn import SummedCosts, strategy_of, summed_costs
from flexlegion.sim.problem import Degrees, Problem
from flexlegion.strategy.strategy import Strategy

SOURCE = "alpa/shard_parallel/auto_sharding.py"
FUNCTION = "_call_solver_serialized_args"
MIB = 1 << 20
MS = 1e-6  # of a nanosecond: the solver likes numbers near 1

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Solver:
    """Alpa's function.

    Parameters
    ----------
    call
        With the arrays, by name; its first result are the choices.
    seconds
        After which it returns the best so far.
    """

    call: Callable[..., tuple[Any, ...]]
    seconds: float


@dataclass(frozen=True)
class Programme:
    """A problem as the solver takes it.

    Parameters
    ----------
    costs
        Of all choices, in ns.
    memory
        Of each operator and choice, MiB of a device.
    capacity
        MiB of a device.
    """

    costs: SummedCosts
    memory: list[Floats]
    capacity: float

    def arrays(self) -> dict[str, Any]:
        """By the solver's names for them."""
        count, pairs = len(self.costs.own), self.costs.pairs
        # Every operator's memory counts at one moment; at the others, nothing is alive.
        alive = [0] * (count - 1) + [count]
        own = np.concatenate(self.costs.own) * MS
        edges = [np.zeros(0), *(matrix.ravel() * MS for matrix in pairs.values())]
        return {
            "N": count,
            "M": self.capacity,
            "s_len_np": np.array([len(its) for its in self.costs.own]),
            "s_follow_np": np.full(count, -1),
            "E_np": np.array(list(pairs), np.int64).ravel(),
            "A_np": np.zeros(0, np.int64),
            "L_np": np.array([*alive, *range(count)]),
            "c_np": own,
            "d_np": np.zeros(len(own)),
            "m_np": np.concatenate(self.memory),
            "r_np": np.concatenate(edges),
            "v_np": np.zeros(0),
        }


@dataclass(frozen=True)
class Solved:
    """What the solver chose.

    Parameters
    ----------
    strategy
        In our words.
    summed_ns
        What it adds up to.
    ended
        Whether the solver was done before its limit: then nothing adds up to less.
    operators, choices, pairs
        How large the programme was: nodes, all their choices, and all pairs of choices.
    """

    strategy: Strategy
    summed_ns: int
    ended: bool
    operators: int
    choices: int
    pairs: int


def solver_of(folder: Path, seconds: float) -> Solver:
    """Alpa's function, out of its module, the rest of which needs its build of JAX.

    Parameters
    ----------
    folder
        Alpa's sources.
    seconds
        That it has; its own limit is ten minutes.

    Raises
    ------
    UserError
        If it is not there, or what it calls is not installed.
    """
    try:
        tree = ast.parse((folder / SOURCE).read_text())
    except (OSError, SyntaxError) as e:
        raise UserError(f"{folder} has no readable {SOURCE} ({e}); --help says what it is") from e
    wanted: list[ast.stmt] = [
        its
        for its in tree.body
        if (isinstance(its, ast.FunctionDef) and its.name == FUNCTION)
        or (isinstance(its, ast.Assign) and isinstance(its.value, ast.Constant))
    ]
    names: dict[str, Any] = {
        "multiprocessing": multiprocessing,
        "np": np,
        "time": time,
        "warnings": warnings,
    }
    for its in (node for part in wanted for node in ast.walk(part)):
        if isinstance(its, ast.Assign) and ast.unparse(its.targets[0]) == "time_limit":
            its.value = ast.copy_location(ast.Constant(seconds), its.value)
    exec(compile(ast.Module(wanted, []), SOURCE, "exec"), names)
    if FUNCTION not in names:
        raise UserError(f"{folder}/{SOURCE} has no function {FUNCTION}; --help names the version")
    if importlib.util.find_spec("pulp") is None:  # which the function imports when it is called
        raise UserError("Alpa's solver needs the package pulp: pip install pulp")
    return Solver(names[FUNCTION], seconds)


def on_mesh(axes: tuple[int, int]) -> Callable[[Degrees], bool]:
    """Whether degrees are those of an operator on a mesh of two axes."""
    ways = {(), *((size,) for size in (*axes, prod(axes))), axes}

    def allowed(degrees: Degrees) -> bool:
        return tuple(degree for degree in degrees if degree > 1) in ways

    return allowed


def programme_of(problem: Problem, axes: tuple[int, int]) -> Programme:
    """The costs and the memory of all choices.

    Parameters
    ----------
    problem
        Graph, machine and costs.
    axes
        Of the mesh of its devices.
    """
    costs = summed_costs(
        problem,
        tied=False,
        max_candidates=1 << 30,
        among=on_mesh(axes),
        rounds=problem.graph.micro_batches,
    )
    kept = {
        tensor
        for op in problem.facts.trained
        for _, tensor, access in op.operands
        if access.saved and tensor.producer is not None
    }
    counted: set[Tensor] = set()
    known: dict[tuple[Any, ...], Floats] = {}
    memory = []
    for (op,), candidates in zip(costs.groups, costs.candidates, strict=True):
        # A weight that several operators read is the first one's.
        own = [weight for weight in op.weights if weight not in counted]
        counted.update(own)
        key = (problem.class_of(op), len(own), *(tensor in kept for tensor in op.outputs))
        if key not in known:
            its = [_bytes(problem, op, degrees, kept, own) / MIB for degrees in candidates]
            known[key] = np.array(its)
        memory.append(known[key])
    capacity = min(device.memory_bytes for device in problem.topology.devices) / MIB
    return Programme(costs, memory, capacity)


def _bytes(
    problem: Problem, op: Operator, degrees: Degrees, kept: set[Tensor], own: list[Tensor]
) -> int:
    """What a device keeps of an operator that is split so."""
    parts = problem.parts(problem.operator_numbers[op.name], degrees).max(axis=0)
    size = 0
    for (role, tensor, _), extents in zip(op.operands, parts, strict=True):
        part = prod(extents[: len(tensor.shape)].tolist())
        if role == "output" and tensor in kept:
            size += part * tensor.element_bytes
        elif role == "weight" and tensor in own:
            size += part * tensor.element_bytes
            if tensor.requires_gradient:
                # The devices that have the same part keep a shard each of the optimizer's states.
                sharing = max(1, prod(degrees) * part // prod(tensor.shape))
                states = (problem.optimizer_states + tensor.has_master) * STATE_BYTES
                size += part * tensor.gradient_bytes + part * states // sharing
    return size


def solve(problem: Problem, solver: Solver, axes: tuple[int, int]) -> Solved:
    """What Alpa's solver chooses.

    Parameters
    ----------
    problem
        Graph, machine and costs.
    solver
        `solver_of`.
    axes
        Of the mesh.

    Raises
    ------
    UserError
        If nothing fits into memory by its count, or nothing was found in time.
    """
    programme = programme_of(problem, axes)
    began = time.monotonic()
    try:
        chosen, *_ = solver.call(**programme.arrays())
    except RuntimeError as e:
        raise UserError(f"Alpa's solver: {e}") from e
    except AssertionError as e:  # of no choice it says that it is one
        raise UserError(f"Alpa's solver found nothing in {solver.seconds:g} s") from e
    ended = time.monotonic() - began < solver.seconds
    choice = [int(its) for its in chosen]
    costs = programme.costs
    return Solved(
        strategy_of(problem, costs, choice, "Alpa's choice"),
        costs.total(choice),
        ended,
        len(costs.own),
        sum(map(len, costs.own)),
        sum(matrix.size for matrix in costs.pairs.values()),
    )

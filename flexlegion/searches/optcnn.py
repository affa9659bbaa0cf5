"""OptCNN: the strategy of the least summed cost, by dynamic programming.

Jia, Lin, Qi, Aiken 2018: Exploring Hidden Dimensions in Parallelizing Convolutional Neural
Networks. It assumes that operators do not run in parallel: an iteration takes the sum of all
operators' computation (forward and backward) and weight synchronisation, and of all tensors'
transfers. An operator's tasks run on the first devices of the machine. Then an operator with at
most two neighbours can be eliminated, exactly: for each pair of their configurations its own best
one is kept, and what all that costs becomes a cost of the pair (the paper's node and edge
elimination). Chains, residual blocks and inception modules vanish that way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import isqrt, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion.graph.graph import Operator
from flexlegion.graph.tensor import Tensor
from flexlegion.searches.chain import prepare_candidates
from flexlegion.sim.problem import Degrees, Problem
from flexlegion.strategy.configuration import ParallelConfig
from flexlegion.strategy.pairs import with_sums
from flexlegion.strategy.splitting import by_samples
from flexlegion.strategy.strategy import Strategy

Costs = npt.NDArray[np.int64]
Choice = list[int]

# Where eliminations end in a kernel of operators with three and more neighbours each: how many
# partial choices are kept from one operator of it to the next.
BEAM_WIDTH = 512
# An operator with more ways to be split keeps those that are cheapest by themselves, and those of
# one dimension: so many, or fewer where all pairs of them, for each kind of transfer, exchange more
# between devices than can be looked at in some seconds.
MAX_CANDIDATES, MIN_CANDIDATES = 84, 16
MOST_EXCHANGES = 2_000_000_000


@dataclass(frozen=True)
class SummedCosts:
    """Costs by variable: a variable is a group of operators that share one configuration.

    Parameters
    ----------
    groups
        The operators of each variable.
    candidates
        The tuples of degrees that it chooses from.
    own
        What each choice costs by itself, in ns.
    pairs
        For variables (a, b), a < b, that exchange tensors: [choice of a, choice of b], in ns.
    complete
        Whether the candidates are all that there are.
    """

    groups: list[list[Operator]]
    candidates: list[list[Degrees]]
    own: list[Costs]
    pairs: dict[tuple[int, int], Costs]
    complete: bool = True

    def total(self, choice: Sequence[int]) -> int:
        """The summed cost of a choice for each variable, in ns."""
        cost = sum(int(own[c]) for own, c in zip(self.own, choice, strict=True))
        return cost + sum(int(m[choice[a], choice[b]]) for (a, b), m in self.pairs.items())


@dataclass(frozen=True)
class OptCnnResult:
    """What `solve` found.

    Parameters
    ----------
    strategy
        Its operators use the first devices of the machine.
    summed_cost_ns
        What the strategy was chosen for; the simulated time is another.
    tied
        Whether operators of a kind share one configuration.
    exact
        Whether no other choice has a smaller summed cost.
    """

    strategy: Strategy
    summed_cost_ns: int
    tied: bool
    exact: bool


def optcnn(
    problem: Problem,
    tied: bool | None = None,
    max_candidates: int | None = None,
    least_message: int = 0,
) -> Strategy:
    """The strategy that OptCNN would choose.

    Parameters
    ----------
    problem
        Graph, machine and costs.
    tied
        Whether operators of one class, and those that share weights, get one configuration; None:
        only where the graph cannot be eliminated otherwise, as with unrolled recurrences.
    max_candidates
        Of operators with more ways to be split, only as many are looked at: those that are cheapest
        by themselves, and those that split one dimension. The time grows with the square, and with
        that of the number of devices; None: as many as take some seconds.
    least_message
        Bytes that each message between two devices counts as, at least. On many devices, OptCNN's
        minimum is made of many small messages, whose bytes alone it counts.
    """
    return solve(problem, tied, max_candidates, least_message).strategy


def solve(
    problem: Problem,
    tied: bool | None = None,
    max_candidates: int | None = None,
    least_message: int = 0,
) -> OptCnnResult:
    """`optcnn`, with what is known about the result."""
    if tied is None:
        tied = not _vanishes(problem)
    costs = summed_costs(problem, tied, max_candidates, least_message)
    choice, exact = minimise(costs)
    strategy = strategy_of(problem, costs, choice, "strategy 'optcnn'")
    return OptCnnResult(strategy, costs.total(choice), tied, exact and costs.complete)


def strategy_of(
    problem: Problem, costs: SummedCosts, choice: Sequence[int], source: str
) -> Strategy:
    """What a choice for each variable says: every operator on the machine's first devices."""
    names = problem.devices.names
    configs = {op.name: by_samples(op, names) for op in problem.graph.operators}
    for group, candidates, c in zip(costs.groups, costs.candidates, choice, strict=True):
        degrees = candidates[c]
        devices = tuple(names[: prod(degrees)])
        for op in group:
            configs[op.name] = ParallelConfig(degrees, devices)
    return Strategy(with_sums(configs, problem.graph), source)


def summed_costs(
    problem: Problem,
    tied: bool,
    max_candidates: int | None = None,
    least_message: int = 0,
    *,
    among: Callable[[Degrees], bool] | None = None,
    rounds: int = 1,
) -> SummedCosts:
    """The costs of all choices of a problem; operators that training leaves out have none.

    Parameters
    ----------
    problem, tied, max_candidates, least_message
        As of `optcnn`.
    among
        Which degrees are candidates; None: all.
    rounds
        Of how many micro-batches costs are the sum: weights are synchronised once for all of them.
    """
    prepare_candidates(problem)
    groups = _groups(problem, tied)
    variable = {op.name: v for v, group in enumerate(groups) for op in group}
    table = _Table(problem, least_message)
    transfers = [
        (tensor.producer, op, index)
        for group in groups
        for op in group
        for index, tensor in enumerate(op.inputs)
        if tensor.producer is not None and tensor not in op.inputs[:index]
    ]
    if max_candidates is None:
        max_candidates = _affordable(problem, len({table.key(*its) for its in transfers}))
    candidates, own, complete = [], [], True
    for group in groups:
        its = [degrees for degrees in problem.splits(group[0]) if among is None or among(degrees)]
        costs = _own_costs(table, group, its, rounds)
        if len(its) > max_candidates:
            complete = False
            cheap = set(np.argsort(costs, kind="stable")[:max_candidates].tolist())
            kept = [i for i, d in enumerate(its) if i in cheap or sum(x > 1 for x in d) < 2]
            its, costs = [its[i] for i in kept], costs[kept]
        candidates.append(its)
        own.append(costs)
    # Each kind of transfer once. Native code does not hold Python's lock.
    kinds = {table.key(*its): its for its in transfers}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        matrices = pool.map(
            lambda writer, reader, index: table.transfer(
                writer,
                candidates[variable[writer.name]],
                reader,
                index,
                candidates[variable[reader.name]],
            ),
            *zip(*kinds.values(), strict=True),
        )
        costs_of = dict(zip(kinds, matrices, strict=True))
    pairs: dict[tuple[int, int], Costs] = {}
    for writer, reader, index in transfers:
        u, v = variable[writer.name], variable[reader.name]
        costs = costs_of[table.key(writer, reader, index)]
        if u == v:
            own[v] += rounds * costs.diagonal()
        else:
            _add(pairs, u, v, rounds * costs)
    return SummedCosts(groups, candidates, own, pairs, complete)


def _affordable(problem: Problem, transfers: int) -> int:
    """How many candidates, if there are so many kinds of transfers."""
    pairs = MOST_EXCHANGES // (max(1, transfers) * len(problem.devices) ** 2)
    return min(MAX_CANDIDATES, max(MIN_CANDIDATES, isqrt(pairs)))


def _own_costs(
    table: _Table, group: list[Operator], candidates: list[Degrees], rounds: int
) -> Costs:
    """What the operators of a group cost by themselves."""
    own = np.zeros(len(candidates), np.int64)
    for op in group:
        computation, synchronisation = table.operator(op, candidates)
        own += rounds * computation + synchronisation
    return own


def minimise(costs: SummedCosts, beam_width: int = BEAM_WIDTH) -> tuple[Choice, bool]:
    """The choice of the least total, and whether that is certain.

    Variables with at most two neighbours are eliminated. If a kernel remains, it is enumerated as
    far as `beam_width` partial choices go, and what that gives is improved variable by variable;
    it is certain if the kernel has no more choices than that.
    """
    own = [its.copy() for its in costs.own]
    pairs = {key: matrix.copy() for key, matrix in costs.pairs.items()}
    left = set(range(len(own)))
    beside: list[set[int]] = [set() for _ in own]
    for a, b in pairs:
        beside[a].add(b)
        beside[b].add(a)
    # (variable, neighbours, its best choice for each of theirs)
    eliminated: list[tuple[int, list[int], npt.NDArray[np.intp]]] = []
    while True:
        v = min(left, key=lambda v: (len(beside[v]), len(own[v]), v), default=-1)
        if v < 0 or len(beside[v]) > 2:
            break
        neighbours = sorted(beside[v])
        eliminated.append((v, neighbours, _eliminate(own, pairs, v, neighbours)))
        left.remove(v)
        for n in neighbours:
            beside[n] = (beside[n] - {v}) | (set(neighbours) - {n})
    choice = [0] * len(own)
    exact = not left or _kernel(own, pairs, sorted(left), beam_width, choice)
    for v, neighbours, best in reversed(eliminated):
        choice[v] = int(best[tuple(choice[n] for n in neighbours)])
    return choice, exact


def _eliminate(
    own: list[Costs], pairs: dict[tuple[int, int], Costs], v: int, neighbours: list[int]
) -> npt.NDArray[np.intp]:
    """Charge its neighbours with what it costs at its best; returns that choice, for theirs."""
    # Of each neighbour: [its choice, v's choice].
    sides = [_take(pairs, n, v) for n in neighbours]
    if not sides:
        alone: npt.NDArray[np.intp] = np.asarray(own[v].argmin())
        return alone
    if len(sides) == 1:
        total = sides[0] + own[v]
        own[neighbours[0]] += total.min(axis=1)
        beside: npt.NDArray[np.intp] = total.argmin(axis=1)
        return beside
    a, b = neighbours
    first, second = sides[0] + own[v], sides[1]
    best = np.empty((len(first), len(second)), np.intp)
    least = np.empty((len(first), len(second)), np.int64)
    for i, row in enumerate(first):
        total = second + row
        best[i] = total.argmin(axis=1)
        least[i] = np.take_along_axis(total, best[i][:, None], axis=1)[:, 0]
    _add(pairs, a, b, least)
    return best


def _kernel(
    own: list[Costs],
    pairs: dict[tuple[int, int], Costs],
    left: list[int],
    beam_width: int,
    choice: Choice,
) -> bool:
    """Choose for the variables that are left; returns whether nothing was cut off."""
    beam = np.zeros((1, 0), np.intp)  # [partial choice, variable]
    totals = np.zeros(1, np.int64)
    exact = True
    for i, v in enumerate(left):
        grown = totals[:, None] + own[v]
        for j, u in enumerate(left[:i]):
            if (u, v) in pairs:
                grown = grown + pairs[u, v][beam[:, j]]
        flat = grown.ravel()
        kept = np.argsort(flat, kind="stable")[:beam_width]
        exact = exact and (len(kept) == len(flat) or i + 1 == len(left))
        beam = np.column_stack([beam[kept // len(own[v])], kept % len(own[v])])
        totals = flat[kept]
    for j, v in enumerate(left):
        choice[v] = int(beam[0, j])
    changed = not exact
    while changed:
        changed = False
        for v in left:
            cost = own[v].copy()
            for n in _neighbours(pairs, v):
                cost += pairs[n, v][choice[n]] if n < v else pairs[v, n][:, choice[n]]
            best = int(cost.argmin())
            if cost[best] < cost[choice[v]]:
                choice[v], changed = best, True
    return exact


def _neighbours(pairs: dict[tuple[int, int], Any], v: int) -> list[int]:
    return sorted(b if a == v else a for a, b in pairs if v in (a, b))


def _add(pairs: dict[tuple[int, int], Costs], a: int, b: int, costs: Costs) -> None:
    """Add [choice of a, choice of b] to their pair's costs."""
    if a > b:
        a, b, costs = b, a, costs.T
    pairs[a, b] = pairs[a, b] + costs if (a, b) in pairs else costs


def _take(pairs: dict[tuple[int, int], Costs], a: int, b: int) -> Costs:
    """Remove a pair; [choice of a, choice of b]."""
    return pairs.pop((a, b)) if a < b else pairs.pop((b, a)).T


def _vanishes(problem: Problem) -> bool:
    """Whether eliminations leave nothing of the graph, with all operators on their own."""
    neighbours: dict[str, set[str]] = {op.name: set() for op in problem.facts.trained}
    for op in problem.facts.trained:
        for tensor in op.inputs:
            if tensor.producer is not None:
                neighbours[op.name].add(tensor.producer.name)
                neighbours[tensor.producer.name].add(op.name)
    ready = [name for name, its in neighbours.items() if len(its) <= 2]
    while ready:
        name = ready.pop()
        if name not in neighbours:
            continue
        its = neighbours.pop(name)
        for other in its:
            neighbours[other] -= {name}
            neighbours[other] |= its - {other}
        ready += [other for other in its if len(neighbours[other]) <= 2]
    return not neighbours


def _groups(problem: Problem, tied: bool) -> list[list[Operator]]:
    """Operators that share a configuration; in the graph's order."""
    operators = problem.facts.trained
    group_of = {op.name: i for i, op in enumerate(operators)}
    first: dict[object, int] = {}
    for op in operators:
        keys: list[object] = [("class", problem.class_of(op))]
        if op.weights:
            keys.append((tuple(op.weights), tuple(problem.splits(op))))
        for key in keys if tied else []:
            mine, theirs = group_of[op.name], first.setdefault(key, group_of[op.name])
            if (theirs := group_of[operators[theirs].name]) != mine:
                for name, group in group_of.items():
                    group_of[name] = min(mine, theirs) if group in (mine, theirs) else group
    groups: dict[int, list[Operator]] = {}
    for op in operators:
        groups.setdefault(group_of[op.name], []).append(op)
    return list(groups.values())


class _Table:
    """Costs from the native library (``native/search/summed_costs.h``), each asked for once."""

    def __init__(self, problem: Problem, least_message: int) -> None:
        self._problem = problem
        lib, ffi = problem.core.lib, problem.core.ffi
        self._costs = ffi.gc(
            problem.core.check(lib.fl_summed_create(problem.handle, least_message)),
            lib.fl_summed_destroy,
        )
        self._operators: dict[tuple[int, tuple[bool, ...]], tuple[Costs, Costs]] = {}
        self._transfers: dict[tuple[int, int, int, int], Costs] = {}
        self._owner: dict[Tensor, Operator] = {}  # of a weight: the first operator that trains it
        for op in problem.facts.trained:
            for weight in self._updated(op):
                self._owner.setdefault(weight, op)

    def _updated(self, op: Operator) -> list[Tensor]:
        tensors = (*op.inputs, *op.weights)
        return [tensor for tensor in tensors if tensor in self._problem.facts.updated]

    def operator(self, op: Operator, candidates: list[Degrees]) -> tuple[Costs, Costs]:
        """Computation and synchronisation for each candidate, in ns."""
        problem = self._problem
        owned = tuple(self._owner[weight] is op for weight in self._updated(op))
        key = problem.class_of(op), owned
        if key not in self._operators:
            core = problem.core
            costs = np.zeros((2, len(candidates)), np.int64)
            pointers = [core.ffi.cast("int64_t *", row.ctypes.data) for row in costs]
            core.check(
                core.lib.fl_summed_operators(
                    self._costs,
                    problem.operator_numbers[op.name],
                    len(candidates),
                    [d for degrees in candidates for d in degrees],
                    *pointers,
                )
            )
            self._operators[key] = costs[0], costs[1]
        return self._operators[key]

    def key(self, writer: Operator, reader: Operator, operand: int) -> tuple[int, int, int, int]:
        """What transfers have in common that take as long."""
        output = writer.outputs.index(reader.inputs[operand])
        class_of = self._problem.class_of
        return class_of(writer), output, class_of(reader), operand

    def transfer(
        self,
        writer: Operator,
        writer_candidates: list[Degrees],
        reader: Operator,
        operand: int,
        reader_candidates: list[Degrees],
    ) -> Costs:
        """[writer's candidate, reader's candidate], in ns."""
        problem, key = self._problem, self.key(writer, reader, operand)
        if key not in self._transfers:
            core = problem.core
            costs = np.zeros((len(writer_candidates), len(reader_candidates)), np.int64)
            core.check(
                core.lib.fl_summed_transfers(
                    self._costs,
                    problem.operator_numbers[writer.name],
                    len(writer_candidates),
                    [d for degrees in writer_candidates for d in degrees],
                    problem.operator_numbers[reader.name],
                    operand,
                    len(reader_candidates),
                    [d for degrees in reader_candidates for d in degrees],
                    core.ffi.cast("int64_t *", costs.ctypes.data),
                )
            )
            self._transfers[key] = costs
        return self._transfers[key]

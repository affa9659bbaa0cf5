"""The division of training by the usual ways that comes nearest to a strategy.

Megatron-LM and torchtitan divide every layer alike: by degrees of data, tensor, pipeline, context
and expert parallelism (`flexlegion.spmd.ways`). A strategy says it operator by operator. Of all
degrees that multiply up to its devices, the nearest are those by which operators' degrees differ by
the fewest doublings and halvings, on average over the work; of equally near ones, those that leave
most of it where it is. Then follow what of weights is in shards, and what the backward pass
computes again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log2, prod

from flexlegion.base.errors import UserError
from flexlegion.console.text import count, names
from flexlegion.graph.graph import Graph, Operator
from flexlegion.known_strategies.pipeline import registers
from flexlegion.sim.problem import Problem
from flexlegion.spmd.program import Program, Stage, device_sets
from flexlegion.spmd.ways import Again, Ways, divided
from flexlegion.strategy.configuration import SHARDING, ParallelConfig
from flexlegion.strategy.hierarchy import hierarchical
from flexlegion.strategy.pairs import trained, with_sums
from flexlegion.strategy.splitting import data_dim, split
from flexlegion.strategy.strategy import ResolvedStrategy, Strategy
from flexlegion.strategy.words import by_dimension, work_of

EQUAL = 1e-9  # distances that differ by less are the same


@dataclass(frozen=True)
class Otherwise:
    """Operators that are divided otherwise than a strategy says.

    Parameters
    ----------
    operators
        Their names.
    given, instead
        How the strategy divides them, and how they are divided.
    """

    operators: tuple[str, ...]
    given: str
    instead: str

    @property
    def names(self) -> str:
        """The operators, those of several blocks as one: ``block*.query (12)``."""
        counts = Counter(re.sub(r"[0-9]+", "*", name) for name in self.operators)
        first = {re.sub(r"[0-9]+", "*", name): name for name in reversed(self.operators)}
        return ", ".join(
            first[name] if number == 1 else f"{name} ({number})" for name, number in counts.items()
        )


@dataclass(frozen=True)
class Nearest:
    """What comes nearest to a strategy.

    Parameters
    ----------
    ways
        The degrees.
    program
        Where each operator is by these.
    strategy
        The same as one of flexlegion's strategies.
    share
        Of the work, what is divided as the given strategy says, and on the same devices.
    otherwise
        The operators that are not.
    lost
        What else is otherwise: of shards, and of what is computed again.
    """

    ways: Ways
    program: Program
    strategy: ResolvedStrategy
    share: float
    otherwise: tuple[Otherwise, ...]
    lost: tuple[str, ...]


def nearest(
    problem: Problem,
    given: ResolvedStrategy,
    refusal: Callable[[Ways], str | None],
    again: Sequence[Again],
    shards: Mapping[int, int],
) -> Nearest:
    """The division that comes nearest to a strategy.

    Parameters
    ----------
    problem
        Graph and machine.
    given
        The strategy.
    refusal
        Why degrees cannot be run; None: they can.
    again
        What can be computed again.
    shards
        By ZeRO's stage that the strategy has, the one that is run instead.

    Raises
    ------
    UserError
        If no degrees that can be run multiply up to the strategy's devices.
    """
    graph = problem.graph
    operators = trained(graph)
    numbers = {op: [problem.devices.number(d) for d in given[op.name].devices] for op in operators}
    devices = len(set().union(*numbers.values()))
    total = sum(map(work_of, operators)) or 1
    stages = device_sets([frozenset(its) for its in numbers.values()])
    found: list[tuple[float, Ways, Program]] = []
    refused: dict[str, None] = {}
    for ways in _candidates(operators, given, devices, _rounds(numbers, stages, graph)):
        reason = refusal(ways)
        if reason is None:
            try:
                program = divided(graph, ways)
            except UserError as e:
                reason = str(e)
            else:
                apart = sum(work_of(op) * _distance(op, given, program) for op in operators)
                found.append((apart / total, ways, program))
        if reason is not None:
            refused[reason] = None
    if not found:
        reasons = "; ".join(list(refused)[:3])
        raise UserError(
            f"no degrees of data, tensor and pipeline parallelism that can be run multiply up to "
            f"the strategy's {count(devices, 'device')}: {reasons}"
        )
    least = min(its[0] for its in found)
    close = [its for its in found if its[0] < least + EQUAL]
    ways = max(close, key=lambda its: _in_place(problem, given, its[2]))[1]
    ways, said = _sharded(operators, given, ways, shards)
    ways = replace(ways, again=_nearest_again(graph, operators, given, ways, again))
    program = divided(graph, ways)
    strategy = _strategy(problem, program, given)
    otherwise = _otherwise(problem, given, program)
    moved = {name for each in otherwise for name in each.operators}
    share = sum(work_of(op) for op in operators if op.name not in moved) / total
    lost = (*said, *_otherwise_again(operators, given, program))
    return Nearest(ways, program, strategy, share, otherwise, lost)


def as_said(problem: Problem, ways: Ways) -> Nearest:
    """A division in words as what comes nearest to itself.

    Raises
    ------
    UserError
        If the model cannot be divided so.
    """
    program = divided(problem.graph, ways)
    strategy = _strategy(problem, program, None)
    return Nearest(ways, program, strategy, 1.0, (), ())


def _rounds(
    numbers: Mapping[Operator, Sequence[int]], stages: Sequence[frozenset[int]], graph: Graph
) -> list[tuple[int, int]]:
    """(stages, runs of layers on each): no pipeline, or the strategy's."""
    alone = [(1, 1)]
    if len(stages) == 1 or len({len(its) for its in stages}) > 1:
        return alone
    at = [
        next(s for s, its in enumerate(stages) if places[0] in its) for places in numbers.values()
    ]
    visits = 1 + sum(a != b for a, b in pairwise(at))
    pipelines = [(len(stages), 1)]
    if visits % len(stages) == 0 and visits > len(stages) and graph.micro_batches > 1:
        pipelines.insert(0, (len(stages), visits // len(stages)))
    return pipelines + alone


def _candidates(
    operators: Sequence[Operator],
    given: ResolvedStrategy,
    devices: int,
    rounds: Sequence[tuple[int, int]],
) -> Iterator[Ways]:
    """All degrees that multiply up, those of fewer kinds first."""
    lengths = _most_parts(operators, given, "length", "multi_head_attention")
    experts = _most_parts(operators, given, "expert", "experts")
    for pipeline, runs in rounds:
        each = devices // pipeline
        for context in _divisors(each):
            if context > lengths:
                continue
            for tensor in _divisors(each // context):
                data = each // context // tensor
                for expert in _divisors(data):
                    if expert > experts:
                        continue
                    for sequence in (False, True) if tensor > 1 else (False,):
                        yield Ways(data, tensor, pipeline, context, expert, runs, sequence=sequence)


def _most_parts(operators: Sequence[Operator], given: ResolvedStrategy, dim: str, kind: str) -> int:
    """Into how many parts a dimension of operators of a type is divided at most."""
    parts = [
        degree
        for op in operators
        if op.kind.type == kind
        for its, degree in zip(op.dims, given[op.name].degrees, strict=True)
        if its.name == dim
    ]
    return max(parts, default=1)


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _distance(op: Operator, given: ResolvedStrategy, program: Program) -> float:
    """How often degrees have to be doubled or halved."""
    division = program.divisions[op]
    return sum(
        abs(log2(degree / division.parts(d))) for d, degree in enumerate(given[op.name].degrees)
    )


def _in_place(problem: Problem, given: ResolvedStrategy, program: Program) -> tuple[int, int]:
    """The work, and the operators, that are on the devices where a strategy has them."""
    same = [
        op
        for op in program.operators
        if given[op.name].devices == _placed(problem, program, op).devices
    ]
    return sum(map(work_of, same)), len(same)


def _sharded(
    operators: Sequence[Operator],
    given: ResolvedStrategy,
    ways: Ways,
    shards: Mapping[int, int],
) -> tuple[Ways, list[str]]:
    """With ZeRO's stage of most weights, or what is run instead; and what is otherwise."""
    if ways.data * ways.context == 1:
        return ways, []
    elements = dict.fromkeys(SHARDING, 0)
    for op in operators:
        whole = [weight for weight in op.trained_weights if not weight.table]  # tables have homes
        elements[given[op.name].sharding] += sum(prod(weight.shape) for weight in whole)
    total = sum(elements.values()) or 1
    most = max(SHARDING, key=lambda its: elements[its])
    stage = 1 + SHARDING.index(most)
    said = []
    if shards[stage] != stage:
        said.append(f"ZeRO-{shards[stage]} in place of ZeRO-{stage}")
    if (share := 1 - elements[most] / total) > 0:
        said.append(f"ZeRO-{shards[stage]} of all weights, of which {share:.1%} have another stage")
    return replace(ways, shards=shards[stage]), said


def _otherwise_again(
    operators: Sequence[Operator], given: ResolvedStrategy, program: Program
) -> Iterator[str]:
    wanted = {op for op in operators if given[op.name].again}
    if kept := wanted - program.again:
        yield f"{count(len(kept), 'operator')} kept that the strategy computes again"
    if more := program.again - wanted:
        yield f"{count(len(more), 'operator')} computed again that the strategy keeps"


def _nearest_again(
    graph: Graph,
    operators: Sequence[Operator],
    given: ResolvedStrategy,
    ways: Ways,
    choices: Sequence[Again],
) -> Again:
    """What is computed again, of which the least work is wrongly computed again or kept."""
    wanted = {op for op in operators if given[op.name].again}
    best: tuple[tuple[int, int], Again] | None = None
    for again in choices:
        try:
            found = divided(graph, replace(ways, again=again)).again
        except UserError:
            continue  # it has no such operators
        wrong = wanted ^ found
        key = (sum(op.kind.flops(op.input_shapes) for op in wrong), len(wrong))
        if best is None or key < best[0]:
            best = key, again
    assert best is not None  # nothing at all can always be computed again
    return best[1]


def _strategy(
    problem: Problem, program: Program, given: ResolvedStrategy | None
) -> ResolvedStrategy:
    """A program as one of flexlegion's strategies.

    Where one was given, it has what is not trained, and tables: in flexlegion's runtime a table
    that is only looked up is never copied.
    """
    graph, names = problem.graph, problem.devices.names
    stages, last = len(program.stages), len(program.runs) - 1
    deep, runs = min(last + 1, stages), len(program.runs) // stages
    configs: dict[str, ParallelConfig] = {}
    for op in graph.operators:
        number = program.run_of.get(op)
        if number is None or op.looks_up:
            where = (0,) if number is None else program.stage_of(op).devices
            alone = split(op, data_dim(op), [names[d] for d in where])
            configs[op.name] = alone if given is None else given[op.name]
            continue
        configs[op.name] = replace(
            _placed(problem, program, op),
            buffers=registers(deep, runs, number, graph.micro_batches) if stages > 1 else 1,
            again=op in program.again,
            sharding=SHARDING[max(program.shards, 1) - 1],
        )
    source = "a division" if given is None else given.source
    made = Strategy(with_sums(configs, graph), source)
    return problem.checked(Strategy(hierarchical(made, graph, problem.devices), source))


def _placed(problem: Problem, program: Program, op: Operator) -> ParallelConfig:
    degrees, devices = _tasks(program, op)
    return ParallelConfig(degrees, tuple(problem.devices.names[d] for d in devices))


def _tasks(program: Program, op: Operator) -> tuple[tuple[int, ...], list[int]]:
    """An operator's degrees, and the device of each task: where several repeat it, the first."""
    stage: Stage = program.stage_of(op)
    division = program.divisions[op]
    degrees = tuple(division.parts(d) for d in range(len(op.dims)))
    devices = [-1] * prod(degrees)
    for at, device in enumerate(stage.devices):
        place = stage.axes.digits(at)
        task = 0
        for d, degree in enumerate(degrees):
            task = task * degree + division.part(d, place)
        if devices[task] < 0:
            devices[task] = device
    return degrees, devices


def _otherwise(
    problem: Problem, given: ResolvedStrategy, program: Program
) -> tuple[Otherwise, ...]:
    """Operators that are divided otherwise, those of equal words together."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for op in program.operators:
        before, after = given[op.name], _placed(problem, program, op)
        words = by_dimension(op, before), by_dimension(op, after)
        if before.degrees == after.degrees:
            if before.devices == after.devices:
                continue
            words = f"on {names(before.devices, 30)}", f"on {names(after.devices, 30)}"
        kinds.setdefault(words, []).append(op.name)
    return tuple(Otherwise(tuple(its), *words) for words, its in kinds.items())

"""All strategies that have a name: those that come along, and those that users register."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from flexlegion.base.arguments import typed
from flexlegion.base.errors import UserError
from flexlegion.base.registry import Registry
from flexlegion.base.users_code import line_of
from flexlegion.graph.graph import Graph
from flexlegion.machine.devices import Devices
from flexlegion.sim.problem import Problem
from flexlegion.strategy.additions import ADDITIONS, Configs, with_additions
from flexlegion.strategy.hierarchy import hierarchical
from flexlegion.strategy.strategy import Strategy

Make = TypeVar("Make", bound=Callable[..., Configs])


@dataclass(frozen=True)
class NamedStrategy:
    """How a strategy is made.

    Parameters
    ----------
    make
        Of a graph and devices, or, where it needs costs, of a `Problem`; where it takes a seed,
        with that.
    needs_costs
        Whether it depends on what tasks take on a machine.
    takes_seed
        Whether its name goes on with a number: ``random:7``.
    own
        Whether it is flexlegion's own. Such a one leaves open how weights' gradients are summed,
        unless it is drawn at random.
    """

    make: Callable[..., Configs]
    needs_costs: bool = False
    takes_seed: bool = False
    own: bool = False


STRATEGIES: Registry[NamedStrategy] = Registry("strategy")


def own_strategy(
    name: str, *, needs_costs: bool = False, takes_seed: bool = False
) -> Callable[[Make], Make]:
    """Register one of flexlegion's own; each stands in a module of this package."""

    def register(make: Make) -> Make:
        STRATEGIES.add(name, NamedStrategy(make, needs_costs, takes_seed, own=True), own=True)
        return make

    return register


@typed
def register_strategy(name: str, *, needs_costs: bool = False) -> Callable[[Make], Make]:
    """Give a strategy of your own a name, for ``--strategy``, ``--start`` and `Model.compile`.

    Parameters
    ----------
    name
        Lower-case letters, digits, ``-`` and ``_``.
    needs_costs
        Whether the function takes a `Problem` (graph, machine, costs) instead of a graph and
        devices; then it needs a machine.

    Returns
    -------
    callable
        A decorator of a function ``(graph, devices)`` that returns a `Strategy`, or a
        `ParallelConfig` for each operator's name.

    Raises
    ------
    UserError
        If it is no such name, or one of flexlegion's own.

    Examples
    --------
    >>> @register_strategy("halves")
    ... def halves(graph, devices):
    ...     first, second = devices.names[0], devices.names[-1]
    ...     middle = len(graph.operators) // 2
    ...     return {
    ...         operator.name: ParallelConfig(
    ...             (1,) * len(operator.dims), (first if i < middle else second,)
    ...         )
    ...         for i, operator in enumerate(graph.operators)
    ...     }
    """

    def register(make: Make) -> Make:
        STRATEGIES.add(name, NamedStrategy(make, needs_costs))
        return make

    return register


def is_named(spec: str) -> bool:
    """Whether it is a known strategy's name, with a seed and additions where these belong to it."""
    name, *additions = spec.split("+")
    name, colon, _ = name.partition(":")
    known = name in STRATEGIES and STRATEGIES[name].takes_seed == bool(colon)
    return known and all(addition in ADDITIONS for addition in additions)


def strategy_names() -> str:
    """For help and messages: all names."""
    names = [f"{name}:SEED" if STRATEGIES[name].takes_seed else name for name in STRATEGIES]
    additions = ", ".join(f"+{name}" for name in ADDITIONS)
    return f"{', '.join(names)}; each with {additions} behind it"


def make_strategy(
    spec: str, graph: Graph, devices: Devices, problem: Problem | None = None
) -> Strategy:
    """The strategy of that name.

    Parameters
    ----------
    spec
        A name, with a seed where one belongs to it, and additions.
    graph, devices
        What it is for.
    problem
        With the costs, for those that need them.

    Raises
    ------
    UserError
        If there is no such strategy, the seed is none, or costs are missing.
    """
    spec, *additions = spec.split("+")
    name, _, argument = spec.partition(":")
    entry = STRATEGIES[name]
    arguments: list[object] = [graph, devices]
    if entry.needs_costs:
        if problem is None:
            raise UserError(
                f"strategy '{name}' depends on costs, so on a machine: name one by --machine, or "
                f"to train with it make a file of it by flexlegion search --start {name}"
            )
        arguments = [problem]
    if entry.takes_seed:
        if not argument.isdecimal() or len(argument) > 18:
            raise UserError(
                f"strategy '{spec[:40]}': the seed has to be a number of at most 18 digits, as in "
                f"{name}:7"
            )
        arguments.append(int(argument))
    try:
        made = entry.make(*arguments)
    except UserError as e:
        if entry.own:
            raise
        raise UserError(f"strategy '{name}': {e}{line_of(e)}") from e
    source = "+".join([f"strategy '{name}", *additions]) + "'"
    if entry.own and not entry.takes_seed:
        made = Strategy(hierarchical(made, graph, devices), source)
    if additions and isinstance(made, Mapping):
        origin = made if isinstance(made, Strategy) else Strategy(made)
        changed = with_additions(made, additions, graph)
        made = Strategy(changed, source, origin.found, origin.granularity)
    if isinstance(made, Strategy):
        return made
    if not isinstance(made, Mapping):
        raise UserError(
            f"strategy '{name}': its function returns a {type(made).__name__}, but has to return a "
            "Strategy, or a ParallelConfig for each operator's name"
        )
    return Strategy(made, source)

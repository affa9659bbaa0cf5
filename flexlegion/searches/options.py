"""How to search, and when to stop."""

from __future__ import annotations

from dataclasses import dataclass

from flexlegion.base.errors import UserError
from flexlegion.searches.chain import ChainOptions, switch


@dataclass(frozen=True)
class Budget:
    """When to stop: whichever comes first.

    With `proposals` alone a search is reproducible to the last digit; with `seconds` it gets as far
    as the machine allows.

    Parameters
    ----------
    seconds
        For the whole search; None: no limit.
    proposals
        For each chain from each start, at most; None: no limit.
    """

    seconds: float | None = 60.0
    proposals: int | None = None

    def __post_init__(self) -> None:
        if self.seconds is None and self.proposals is None:
            raise UserError("a search needs a budget: seconds, proposals, or both")
        if self.seconds is not None and not 0 < self.seconds <= 10**7:
            raise UserError(f"a budget has to be 0 to 10^7 seconds, but is {self.seconds}")
        if self.proposals is not None and not 0 < self.proposals <= 10**15:
            raise UserError(f"a budget has to be 1 to 10^15 proposals, but is {self.proposals}")


@dataclass(frozen=True)
class SearchOptions(ChainOptions):
    """How to search: how chains move (`ChainOptions`), and the course of a search.

    What speeds it up can be switched off, so that its worth can be measured.

    Parameters
    ----------
    temperature
        At first, in the coolest chain.
    tied
        A first phase changes operators of a kind together.
    descent
        A last phase descends to a local optimum.
    cooling
        The temperature falls to nothing in the course of each phase; else it stays, and is a share
        of the start's iteration time.
    exchange
        Now and then, chains of one start go on from the best of them, and each is hotter than the
        one before; else they are alike and know nothing of each other.
    race
        After the first phase of each start, those that led furthest go on, and share what is left
        of the budget; else all have equal shares of it.
    """

    temperature: float = 0.005
    tied: bool = switch("do not change operators of a kind together at first")
    descent: bool = switch("do not descend to a local optimum at the end")
    cooling: bool = switch("keep the temperature instead of letting it fall")
    exchange: bool = switch("run several chains of one start by themselves")
    race: bool = switch("go on from all starts, with equal shares of the budget")


# FlexFlow, section 6; beta, a constant that can be chosen, is 200 / the start's iteration time.
PAPER = SearchOptions(
    uniform=True,
    tied=False,
    descent=False,
    cooling=False,
    exchange=False,
    race=False,
    temperature=0.005,
)

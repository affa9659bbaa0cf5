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
        Now and then, chains that go on from one strategy go on from the best of them, and each is
        hotter than the one before; else they are alike and know nothing of each other.
    bundles
        Phases begin with chains that look at bundles of transfers instead of each; the more, the
        larger the share of transfers in the task graph is. What they find is then simulated.
    proof
        Where there are few operators and devices, branch and bound looks for the optimum before
        and after chains run, so that the result may be proved to be that.
    race
        Many chains from all starts race, and two of those who came first go on; else all starts
        have equal shares of the budget.
    """

    temperature: float = 0.005
    tied: bool = switch("do not change operators of a kind together at first")
    descent: bool = switch("do not descend to a local optimum at the end")
    cooling: bool = switch("keep the temperature instead of letting it fall")
    exchange: bool = switch("run several chains of one start by themselves")
    bundles: bool = switch("look at each transfer from the first proposal on")
    proof: bool = switch("do not look for a proof that the optimum was found")
    race: bool = switch("go on from all starts, with equal shares of the budget")


# FlexFlow, section 6; beta, a constant that can be chosen, is 200 / the start's iteration time.
PAPER = SearchOptions(
    uniform=True,
    tied=False,
    descent=False,
    cooling=False,
    exchange=False,
    bundles=False,
    proof=False,
    race=False,
    temperature=0.005,
)

"""What the tuner's decision is worth: how soon it finds a faster strategy, how often a slower one.

Computed over all sequences of rounds, not drawn. A round is won where a strategy is faster than
data parallelism by more than the gain asked for; how often that happens follows from how much
faster it is, and how much the machine's speed varies.

Usage: python scripts/bench/duel.py
"""

from __future__ import annotations

from flexlegion.console.text import table
from flexlegion.profiling.intervals import wins_needed
from flexlegion.tuner.duel import Rules

FINALISTS = (1, 3)
ROUNDS_WON = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)


def chosen_by(won: float, finalists: int, rules: Rules) -> list[float]:
    """The probability that a finalist is chosen after at most 1, 2, ... rounds.

    Parameters
    ----------
    won
        The probability with which it wins a round.
    finalists
        How many there are.
    rules
        Of the duel.
    """
    error = (1 - rules.confidence) / (2 * finalists)
    undecided, chosen, result = {0: 1.0}, 0.0, []
    for rounds in range(1, rules.max_rounds + 1):
        following: dict[int, float] = {}
        for wins, probability in undecided.items():
            following[wins + 1] = following.get(wins + 1, 0.0) + probability * won
            following[wins] = following.get(wins, 0.0) + probability * (1 - won)
        needed = wins_needed(rounds, error)
        if rounds < rules.rounds or needed is None:
            needed = rounds + 1
        chosen += sum(p for wins, p in following.items() if wins >= needed)
        undecided = {wins: p for wins, p in following.items() if wins < needed}
        result.append(chosen)
    return result


def main() -> None:
    """Print the table."""
    rules = Rules()
    rows = []
    for finalists in FINALISTS:
        for won in ROUNDS_WON:
            chosen = chosen_by(won, finalists, rules)
            half = next((n for n, p in enumerate(chosen, 1) if p >= 0.5), None)
            rows.append(
                (
                    f"{finalists}",
                    f"{won:.0%}",
                    f"{chosen[19]:.1%}",
                    f"{chosen[-1]:.1%}",
                    "never" if half is None else f"{half}",
                )
            )
    columns = ("finalists", "rounds won", "chosen by round 20", f"by {rules.max_rounds}", "half by")
    print(table(columns, rows, texts=()))


if __name__ == "__main__":
    main()

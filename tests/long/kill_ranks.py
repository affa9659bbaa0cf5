"""Lose a rank, again and again, at random moments: do the others end, and do they say which it was?

    python tests/long/kill_ranks.py [--times 50] [--ranks 2] [--stops 5] [--seed 1]

Trains a small network on several ranks of this machine, waits until a rank that was drawn has come
to a stage that was drawn (and a moment longer), and kills it (SIGKILL) or, the last --stops times,
stops it (SIGSTOP), so that its heart beats no more. Prints a table. The exit status is 1 if ever
processes were left 30 s after a rank was killed, or 30 s after it had been silent for 30 s, or if
the command's status was 0.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from lost_rank import STAGES, Run

HEARTBEAT = 30
LIMIT = 30  # seconds for the others to end


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--stops", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    draw = random.Random(args.seed)
    print(f"{'':>3} {'rank':4} {'moment':15} {'signal':8} {'s':>5} {'status':>6}  what was said")
    bad = 0
    for i in range(args.times):
        blow = signal.SIGSTOP if i >= args.times - args.stops else signal.SIGKILL
        rank = draw.randrange(args.ranks)
        # Whom nothing watches yet cannot fall silent.
        stage = draw.choice(STAGES[2:] if blow == signal.SIGSTOP else ("", *STAGES))
        with tempfile.TemporaryDirectory() as folder:
            run = Run(Path(folder), args.ranks, epochs=6, heartbeat=HEARTBEAT)
            moment = run.strike(rank, stage, draw.uniform(0, 0.5), blow)
            end = run.outcome(moment, LIMIT + (HEARTBEAT if blow == signal.SIGSTOP else 0))
        bad += end.seconds is None or end.status == 0
        seconds = "hung" if end.seconds is None else f"{end.seconds:.1f}"
        said = end.sentences() or [s for s in end.output.splitlines() if "noticed that" in s]
        print(
            f"{i + 1:3} {rank:4} {moment:15} {blow.name:8} {seconds:>5} {end.status:6}  "
            + " / ".join(said),
            flush=True,
        )
    print(f"{args.times} times, {bad} bad")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())

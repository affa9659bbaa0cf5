"""Modules drawn at random from a grammar of PyTorch's operations, imported and compared.

    python tests/long/random_modules.py [--modules 2000] [--seed 0] [--show 20]

Each module of tests/support/module_grammar.py is imported, and compared with PyTorch in double
precision: outputs with two numbers of samples, gradients of parameters, running averages. Prints
how many are right, refused (by sentence), wrong (each with its source), or crashed. Exits with 1 if
any is wrong or crashed. Legion is not needed. About half an hour for 2,000.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from random_modules import Outcome, outcome, sentence


def main() -> None:
    """Try them, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--modules", type=int, default=2000, help="default: 2000")
    parser.add_argument("--seed", type=int, default=0, help="of the first; default: 0")
    parser.add_argument("--show", type=int, default=20, help="sources of failures; default: 20")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    failures: list[tuple[int, Outcome]] = []
    seed = args.seed
    while sum(counts.values()) - counts["unfit"] < args.modules:
        found = outcome(seed)
        counts[found.kind] += 1
        if found.kind == "refused":
            refusals[sentence(found.why)] += 1
        elif found.kind in ("wrong", "crashed"):
            failures.append((seed, found))
            print(f"seed {seed}: {found.kind}: {found.why}", flush=True)
        seed += 1
    for text, count in refusals.most_common():
        print(f"refused {count:5}  {text}")
    for number, found in failures[: args.show]:
        print(f"\n# seed {number}: {found.kind}: {found.why}\n{found.source}")
    print(", ".join(f"{counts[k]} {k}" for k in ("right", "refused", "wrong", "crashed", "unfit")))
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()

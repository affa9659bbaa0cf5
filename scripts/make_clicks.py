"""Make the sample records in flexlegion/data/samples/clicks/, in the form of Criteo's data.

They are made up: each category and number moves the odds of a click a little, so that a network has
something to learn, and some of both are missing.

    python scripts/make_clicks.py
"""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parents[1] / "flexlegion" / "data" / "samples" / "clicks"
NUMBERS, FIELDS = 13, 26
PARTS = {"train": 1600, "test": 400}
SEED = 0


def lines(count: int, rng: np.random.Generator, world: np.random.Generator) -> list[str]:
    """Records; `world` says what there is, and is the same for all parts."""
    sizes = world.integers(3, 12, FIELDS)
    names = [[f"{n:08x}" for n in world.integers(2**32, size=size)] for size in sizes]
    effects = [world.normal(0, 0.5, size) for size in sizes]
    slopes = world.normal(0, 0.3, NUMBERS)
    records = []
    for _ in range(count):
        values = np.floor(np.exp(rng.normal(0.5, 0.8, NUMBERS))).astype(int)
        chosen = [min(int(rng.geometric(0.4)) - 1, size - 1) for size in sizes]
        odds = -1.0 + (np.log1p(values) - 1) @ slopes
        odds += sum(effect[which] for effect, which in zip(effects, chosen, strict=True))
        clicked = int(rng.random() < 1 / (1 + np.exp(-odds)))
        missing = rng.random(NUMBERS + FIELDS) < 0.05
        texts = [str(v) for v in values]
        texts += [name[which] for name, which in zip(names, chosen, strict=True)]
        shown = ["" if gone else text for text, gone in zip(texts, missing, strict=True)]
        records.append("\t".join([str(clicked), *shown]))
    return records


def main() -> None:
    """Write both parts."""
    FOLDER.mkdir(exist_ok=True)
    rng = np.random.default_rng(SEED)
    for part, count in PARTS.items():
        text = "\n".join(lines(count, rng, np.random.default_rng(SEED + 1))) + "\n"
        (FOLDER / f"{part}.tsv.xz").write_bytes(lzma.compress(text.encode(), preset=9))


if __name__ == "__main__":
    main()

"""Draw made-up faces, a folder a person, to try networks that recognise faces on.

A person has a shape of the head, of eyes, nose and mouth, hair and a tone; an image moves, turns
and lights them a little.

    python scripts/make_faces.py faces --persons 40
    flexlegion train --model insightface --data faces --size input_shape=32x32x1 \
        --size blocks=1x1 --size width=16 --size embedding=64
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

SIDE = 64  # pixels of a drawing; images are half as large
FEATURES = 9  # numbers from 0 to 1 that make a person


def face(person: np.ndarray, rng: np.random.Generator, side: int) -> Image.Image:
    """An image of a person, grey."""
    head, eyes, gap, size, nose, mouth, lips, hair, tone = person
    light = rng.uniform(0.8, 1.2)

    def grey(value: float) -> int:
        return int(np.clip(255 * value * light, 0, 255))

    image = Image.new("L", (SIDE, SIDE), int(rng.integers(20, 60)))
    draw = ImageDraw.Draw(image)

    def ellipse(x: float, y: float, width: float, height: float, value: float) -> None:
        box = [x - width, y - height, x + width, y + height]
        draw.ellipse([SIDE * (0.5 + edge) for edge in box], fill=grey(value))

    wide = 0.22 + 0.12 * head
    ellipse(0, -0.04 - 0.1 * hair, wide + 0.04, 0.36, 0.15 + 0.3 * hair)
    ellipse(0, 0.03, wide, 0.36, 0.55 + 0.4 * tone)
    for sign in (-1, 1):
        ellipse(sign * (0.08 + 0.08 * gap), -0.1 + 0.08 * eyes, 0.03 + 0.03 * size, 0.03, 0.1)
    ellipse(0, 0.06, 0.015 + 0.03 * nose, 0.05 + 0.04 * nose, 0.4)
    ellipse(0, 0.2, 0.05 + 0.1 * mouth, 0.01 + 0.04 * lips, 0.25)
    right, down = rng.integers(-3, 4, 2).tolist()
    turned = image.rotate(rng.uniform(-12, 12), Image.Resampling.BILINEAR, translate=(right, down))
    return turned.resize((side, side), Image.Resampling.BILINEAR)


def main() -> None:
    """Write ``FOLDER/personNNN/NN.png``."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path, help="is made, if there is none")
    parser.add_argument("--persons", type=int, default=40)
    parser.add_argument("--images", type=int, default=20, help="of each person")
    parser.add_argument("--side", type=int, default=32, help="pixels")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    for number in range(args.persons):
        person = rng.random(FEATURES)
        folder = args.folder / f"person{number:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        for i in range(args.images):
            face(person, rng, args.side).save(folder / f"{i:02d}.png")


if __name__ == "__main__":
    main()

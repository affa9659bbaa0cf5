"""Whether loaders keep up: training on real images and texts beside made-up data, in one run.

    python scripts/bench/loading.py

Each network and number of ranks is one start of legate, in which rounds on synthetic and on real
data take turns; the ratio is the median of those of neighbouring rounds. Images are JPEG files of
the size of photographs, made up, too; texts are the sample that comes along. Needs a machine with
nothing else to do.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from common.sides import environment, legate
from PIL import Image
from rich.console import Console
from rich.table import Table

import flexlegion

TEXTS = Path(flexlegion.__file__).parent / "data" / "samples" / "chapters"
CLASSES = 10
OCTAVES = (3, 6, 12, 24, 48, 96, 192)
GRAIN = 7  # with it, files are as large as ImageNet's
BATCHES = {"alexnet": 32, "rnntc": 16}
COLUMNS = (
    "network",
    "ranks",
    "data",
    "synthetic/s",
    "real/s",
    "real / synthetic",
    "core-ms to decode",
    "core-ms to train",
)
LEFT = ("network", "data")


def picture(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Smooth shapes, finer and finer ones, and grain, as photographs have them."""
    total = GRAIN * rng.standard_normal((height, width, 3), np.float32)
    for cells in OCTAVES:
        noise = rng.standard_normal((3, cells, cells), np.float32) * 72 / cells**0.75
        for channel in range(3):
            grown = Image.fromarray(noise[channel]).resize(
                (width, height), Image.Resampling.BICUBIC
            )
            total[..., channel] += np.asarray(grown)
    return Image.fromarray(np.clip(total + 128, 0, 255).astype(np.uint8))


def write_pictures(root: Path, number: int, size: tuple[int, int], quality: int) -> int:
    """Write a folder a class of JPEG files; their mean size in bytes."""
    rng = np.random.default_rng(0)
    total = 0
    for i in range(number):
        path = root / str(i % CLASSES) / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(rng, *size).save(path, quality=quality)
        total += path.stat().st_size
    return total // number


def command(ranks: int, cpus: int, *arguments: str) -> list[str]:
    """A command line that starts workers on so many ranks, each bound to its cores."""
    start = legate("loading_worker.py", cpus // ranks, *arguments, sysmem=6000 // ranks)
    if ranks == 1:
        return start
    binding = f"--bind-to core --map-by slot:PE={cpus // ranks} -x LEGION_DEFAULT_ARGS"
    launcher = ["--launcher", "mpirun", f"--launcher-extra={binding}"]
    return [start[0], *launcher, "--nodes", "1", "--ranks-per-node", str(ranks), *start[1:]]


def measured(ranks: int, cpus: int, network: str, data: Path, options: dict[str, int]) -> Any:
    """What a worker on the first of some ranks says."""
    arguments = [network, str(data)]
    for name, value in options.items():
        arguments += [f"--{name}", str(value)]
    variables = {"LEGION_DEFAULT_ARGS": "-ll:bgwork 1"} if ranks > 1 else {}
    done = subprocess.run(
        command(ranks, cpus, *arguments),
        capture_output=True,
        text=True,
        env=environment() | variables,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        sys.exit(f"error: {network} on {ranks} ranks ended: {done.stderr[-2000:]}")
    return json.loads(lines[-1])


def main() -> None:
    """Run all and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cpus", type=int, default=2, help="processors in all; default: 2")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2], help="default: 1 2")
    parser.add_argument("--networks", nargs="+", choices=BATCHES, default=[*BATCHES])
    parser.add_argument("--size", default="500x375", help="of the images; default: 500x375")
    parser.add_argument("--quality", type=int, default=95, help="of JPEG; default: 95")
    parser.add_argument("--iterations", type=int, default=8, help="a round; default: 8")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    args = parser.parse_args()
    width, height = map(int, args.size.split("x"))
    table = Table()
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in LEFT else "right")
    with tempfile.TemporaryDirectory() as folder:
        pictures = Path(folder) / "pictures"
        if "alexnet" in args.networks:
            number = BATCHES["alexnet"] * args.iterations
            mean = write_pictures(pictures, number, (width, height), args.quality)
            print(f"{number} images of {width}x{height} pixels, {mean:,} bytes each", flush=True)
        for network, ranks in itertools.product(args.networks, args.ranks):
            data = pictures if network == "alexnet" else TEXTS
            options = {
                "batch-size": BATCHES[network],
                "iterations": args.iterations,
                "rounds": args.rounds,
            }
            told = measured(ranks, args.cpus, network, data, options)
            synthetic = told["rates"].pop("synthetic")
            for name, rates in told["rates"].items():
                ratios = [real / made for real, made in zip(rates, synthetic, strict=True)]
                table.add_row(
                    network,
                    str(ranks),
                    name,
                    f"{statistics.median(synthetic):.1f}",
                    f"{statistics.median(rates):.1f}",
                    f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
                    f"{told['decoding_ms']:.2f}",
                    f"{args.cpus * 1e3 / statistics.median(synthetic):.1f}",
                )
    Console(width=150).print(table)


if __name__ == "__main__":
    main()

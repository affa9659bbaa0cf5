"""Rounds of training on made-up and on real data in turn, in one process a rank; prints JSON."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from flexlegion import SGD
from flexlegion.data import TokenDataset, images, load_images
from flexlegion.data.classification import load_classification
from flexlegion.data.synthetic import made_up
from flexlegion.training.binding import Binding
from flexlegion.training.feeds import Feed
from flexlegion.training.program import TRAIN, Program
from flexlegion.training.trainer import run_series
from flexlegion.zoo import ZOO, build


def decoding_ms(data: images.ImageFolder, samples: int = 64) -> float:
    """Milliseconds of a core that reading a sample takes."""
    out = np.zeros(data.shape, np.uint8), np.zeros((), np.int32)
    data.read(0, 0, out)
    started = time.thread_time()
    for row in range(samples):
        data.read(row, 0, out)
    return (time.thread_time() - started) / samples * 1e3


def rate_of(program: Program, feed: Feed, batches: int, epoch: int) -> float:
    """Samples a second, of batches that are drawn at random."""
    rows = np.random.default_rng(epoch).permutation(feed.samples)[: batches * model_batch(program)]
    started = time.perf_counter()
    sums = run_series(program, TRAIN, feed.batches(rows, epoch), lr=0.001)
    program.wait()
    return sums.samples / (time.perf_counter() - started)


def model_batch(program: Program) -> int:
    """Samples of a batch."""
    return program.plan.graph.inputs[0].shape[0]


def main() -> None:
    """Train; the first rank prints the rates of all rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("network", choices=("alexnet", "rnntc"))
    parser.add_argument("data", type=Path)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    args = parser.parse_args()
    sizes: dict[str, Any] = dict(ZOO[args.network].sizes)
    real: dict[str, tuple[Any, Any]] = {}
    if args.network == "alexnet":
        shape = sizes["input_shape"]
        kept = load_images(args.data, shape, augment=True).train
        images.IN_MEMORY = 0
        decoded = load_images(args.data, shape, augment=True).train
        sizes["classes"] = decoded.n_classes
        real = {"decoded each time": (decoded, None), "decoded before": (kept, None)}
        cost = decoding_ms(decoded)
    else:
        started = time.thread_time()
        texts = load_classification(args.data, sizes["steps"], sizes["vocabulary"]).train
        assert isinstance(texts, TokenDataset)
        cost = (time.thread_time() - started) / len(texts) * 1e3  # of all texts at the start
        sizes |= {"classes": texts.n_classes, "vocabulary": texts.vocabulary}
        sizes["steps_per_op"] = sizes["steps"]  # of which each layer is one operator
        real = {"read at the start": (texts.x, texts.y)}
    model = build(args.network, args.batch_size, **sizes)
    model.compile(SGD(0.001), ZOO[args.network].loss, strategy="data")
    made = made_up(model.program.plan.graph, args.batch_size * args.iterations)
    with Binding(model.program, args.batch_size).feeds() as feed_of:
        feeds = {name: feed_of(*data) for name, data in ({"synthetic": made} | real).items()}
        rates: dict[str, list[float]] = {name: [] for name in feeds}
        for number in range(args.rounds + 1):  # the first one warms up
            for name, feed in feeds.items():
                rates[name].append(rate_of(model.program, feed, args.iterations, number))
    if model.machine.rank == 0:
        told = {"rates": {name: its[1:] for name, its in rates.items()}, "decoding_ms": cost}
        print(json.dumps(told), flush=True)
    model.close()


if __name__ == "__main__":
    main()

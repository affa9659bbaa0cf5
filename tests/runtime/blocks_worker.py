"""Trains the networks of blocks.py on Legion and saves what test_blocks.py compares (.npz).

Usage: legate blocks_worker.py FILE STRATEGY...

Keys are NETWORK/STRATEGY/KIND/NAME: KIND is "initial" or "final" (weights), "gradient" (the first
step's), or "loss" (NAME is the step).
"""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt
from blocks import BLOCKS
from networks import Network

from flexlegion.training.program import NO_BATCH, TRAIN, Batch

Arrays = dict[str, npt.NDArray[np.float32]]


def run(network: Network, strategy: str) -> Arrays:
    """One network under one strategy."""
    model = network.model()
    model.compile(network.optimizer, network.loss, strategy=strategy)
    arrays = {f"initial/{name}": value for name, value in model.get_weights().items()}
    program, samples = model.program, network.iterations * model.batch_size
    data, _ = model.bind(*network.data(samples))
    for step in range(network.iterations):
        rows = np.arange(step, samples, network.iterations)
        program.stage(TRAIN, Batch(data, rows))
        ticket = program.step(TRAIN, len(rows), NO_BATCH, step, network.optimizer.lr)
        (sums,) = program.metrics(ticket)
        arrays[f"loss/{step}"] = np.array(sums.loss / sums.labels)
        if step == 0:
            for weight in model.plan.graph.trained_weights:
                arrays[f"gradient/{weight.name}"] = program.read(weight, "gradient")
    arrays |= {f"final/{name}": value for name, value in model.get_weights().items()}
    model.close()
    return arrays


def main() -> None:
    """All networks under all strategies."""
    file, *strategies = sys.argv[1:]
    saved: Arrays = {}
    for name in BLOCKS:
        for strategy in strategies:
            arrays = run(BLOCKS[name], strategy)
            saved |= {f"{name}/{strategy}/{key}": value for key, value in arrays.items()}
    np.savez(file, allow_pickle=False, **saved)


main()

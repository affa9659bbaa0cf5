"""Trains the zoo's networks on Legion and saves what test_networks_pytorch.py compares (.npz).

Usage: legate zoo_worker.py FILE STRATEGY CASE...

Keys are CASE/KIND/NAME: KIND is "initial" or "final" (weights), "gradient" (the first step's),
"kept" (a dropout layer's elements, NAME with the step in front), "value" (logits and losses).
"""

from __future__ import annotations

import sys
import traceback

import numpy as np
from zoo_cases import CASES, Array, ZooCase

from flexlegion.graph.graph import Graph
from flexlegion.graph.tensor import Tensor
from flexlegion.strategy.granularity import Granularity
from flexlegion.training.program import NO_BATCH, TRAIN, Batch, Program


def _mean_loss(program: Program, ticket: int) -> Array:
    (sums,) = program.metrics(ticket)
    return np.array(sums.loss / sums.labels)


def _logits(graph: Graph) -> Tensor:
    """What the loss reads, before margins; of a loss of several operators, what the first reads."""
    between = ("logit_statistics", "smoothed_logit_statistics", "angular_margin")
    read = graph.operators[-1].inputs[0]
    while read.producer is not None and read.producer.kind.type in between:
        read = read.producer.inputs[0]
    return read


def run(case: ZooCase, strategy: str) -> dict[str, Array]:
    """One case."""
    model = case.model()
    kept = Granularity(keep_tensors=True)
    model.compile(case.optimizer, case.loss, strategy=strategy, granularity=kept)
    model.set_weights(case.shifted(model.get_weights()))
    arrays = {f"initial/{name}": value for name, value in model.get_weights().items()}
    program, graph = model.program, model.plan.graph
    data, samples = model.bind(*case.data(case.iterations * case.batch_size))
    for step in range(case.iterations):
        rows = np.arange(step, samples, case.iterations)
        program.stage(TRAIN, Batch(data, rows))
        ticket = program.step(TRAIN, len(rows), NO_BATCH, step, case.optimizer.lr)
        arrays[f"value/loss{step}"] = _mean_loss(program, ticket)
        for operator in graph.operators:
            if operator.kind.type == "dropout":
                drawn = program.read(operator.output) != 0
                arrays[f"kept/{step}.{operator.name}"] = drawn
        if step == 0:
            arrays["value/logits"] = program.read(_logits(graph))
            for weight in graph.trained_weights:
                arrays[f"gradient/{weight.name}"] = program.read(weight, "gradient")
    arrays |= {f"final/{name}": value for name, value in model.get_weights().items()}
    model.close()
    return arrays


def main() -> None:
    """All cases."""
    file, strategy, *names = sys.argv[1:]
    saved: dict[str, Array] = {}
    for name in names:
        try:
            arrays = run(CASES[name], strategy)
        except Exception:
            arrays = {"error": np.array(traceback.format_exc())}
        saved |= {f"{name}/{key}": value for key, value in arrays.items()}
    np.savez(file, allow_pickle=False, **saved)


if __name__ == "__main__":
    main()

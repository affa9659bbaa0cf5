"""Run under legate on two processors: a pipeline of two stages, as it ran.

Writes a JSON object by the number of buffers, or "interleaved", where each processor has two runs
of layers: of each micro-batch, on each processor, when its
first forward task began and its last backward task ended (ns); and how far its weights are from
those that one processor trains with the whole batch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from flexlegion import Model, ParallelConfig, Strategy
from flexlegion.machine.running import running_machine
from flexlegion.transforms.losses import add_losses

BATCH, ROUNDS, LAYERS, WIDTH = 64, 4, 6, 384
LOSS = "mean_squared_error"


def build() -> Model:
    """Equal layers."""
    model = Model(BATCH, seed=1)
    x = model.input((WIDTH,))
    for layer in range(LAYERS):
        x = model.dense(x, WIDTH, activation="tanh", name=f"layer{layer}")
    return model


def trained(model: Model, strategy: Strategy | str, rounds: int) -> dict[str, np.ndarray]:
    """Weights after some steps; the model stays open."""
    model.compile("sgd", LOSS, strategy=strategy, micro_batches=rounds)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2 * BATCH, WIDTH)).astype(np.float32)
    y = rng.random((2 * BATCH, WIDTH)).astype(np.float32)
    model.fit(x, y, epochs=2, progress=False)
    return model.get_weights()


def lives(model: Model) -> list[list[tuple[int, int]]]:
    """Of each processor, of each micro-batch: from when to when it was under way there."""
    rng = np.random.default_rng(0)
    x, y = (rng.random((BATCH, WIDTH)).astype(np.float32) for _ in range(2))
    timeline = model.timeline(x, y, iterations=1)
    launches = model.plan.launches
    spans: list[list[tuple[int, int]]] = []
    for device in range(2):
        of_rounds = []
        for number in range(ROUNDS):
            rows = [
                row
                for row in timeline.tasks
                if row["device"] == device
                and row["round"] == number
                and row["launch"] >= 0
                and launches[row["launch"]].pass_ in ("forward", "backward")
            ]
            begin = min(int(row["start_time"]) for row in rows)
            of_rounds.append((begin, max(int(row["end_time"]) for row in rows)))
        spans.append(of_rounds)
    return spans


def main() -> None:
    (out,) = sys.argv[1:]
    names = running_machine().devices.names
    reference = trained(whole := build(), "single", 1)
    whole.close()
    result = {}
    for name, buffers in (("1", 1), ("2", 2), ("interleaved", 3)):
        model = build()
        graph = add_losses(model.graph, model.outputs, LOSS)
        stage = {f"layer{layer}": layer * 2 // LAYERS for layer in range(LAYERS)}
        if name == "interleaved":  # runs of one layer or two: 0, 1, 0, 1
            stage = {f"layer{layer}": layer * 4 // LAYERS % 2 for layer in range(LAYERS)}
        configs = {
            op.name: ParallelConfig(
                (1,) * len(op.dims), (names[stage.get(op.name, 1)],), buffers=buffers
            )
            for op in graph.operators
        }
        weights = trained(model, Strategy(configs), ROUNDS)
        error = max(float(np.abs(weights[name] - its).max()) for name, its in reference.items())
        result[name] = {"error": error, "lives": lives(model)}
        model.close()
    Path(out).write_text(json.dumps(result))


if __name__ == "__main__":
    main()

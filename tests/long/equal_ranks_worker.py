"""Run under legate on several ranks: trains under random strategies, each twice.

Between epochs it predicts, evaluates, and reads and writes the weights.

Writes FILE.RANK, a JSON object: of each network and strategy the loss of each epoch, and how much
weights differ from what one device computes; and what differs on repetition, which is an error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from networks import NETWORKS

from flexlegion.machine.running import running_machine

EPOCHS, ROWS, FEW = 2, 16, 5


def main() -> None:
    """All networks under all strategies."""
    out, names, first, end = sys.argv[1], sys.argv[2].split(","), *map(int, sys.argv[3:5])
    found: dict[str, dict[str, float]] = {}
    for name in names:
        network = NETWORKS[name]
        x, y = network.data(ROWS)

        def train(
            strategy: str, network=network, x=x, y=y
        ) -> tuple[list[float], dict[str, np.ndarray]]:
            model = network.model()
            options = {"strategy": strategy, "loss_weights": network.loss_weights}
            model.compile(network.optimizer, network.loss, **options)
            losses = []
            for _ in range(EPOCHS):
                model.predict(x[:FEW])
                losses.append(model.fit(x, y, progress=False).epochs[0]["loss"])
                losses.append(model.evaluate(x, y)["loss"])
                model.set_weights(model.get_weights())
            state = losses, model.get_weights()
            model.close()
            return state

        losses, expected = train("single")
        for seed in range(first, end):
            (its, weights), (again, weights_again) = (train(f"random:{seed}") for _ in range(2))
            same = its == again and all(
                np.array_equal(value, weights_again[key]) for key, value in weights.items()
            )
            found[f"{name} random:{seed}"] = {
                "repeats": same,
                "loss": max(abs(a - b) / abs(b) for a, b in zip(its, losses, strict=True)),
                "weights": max(
                    float(np.linalg.norm(weights[key] - value) / np.linalg.norm(value))
                    for key, value in expected.items()
                ),
            }
    machine = running_machine()
    Path(f"{out}.{machine.rank}").write_text(
        json.dumps({"ranks": machine.ranks, "owners": machine.owners, "found": found})
    )


if __name__ == "__main__":
    main()

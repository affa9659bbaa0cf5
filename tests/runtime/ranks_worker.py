"""Run under legate on several ranks: each writes its weights and placements."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from networks import NETWORKS
from training_state import misplaced, placements

from flexlegion.machine.running import running_machine

EPOCHS = 2
ROWS = 16  # two full batches of 7 and a short one


def main() -> None:
    folder, *strategies = sys.argv[1:]
    machine = running_machine()
    summary = {
        "ranks": machine.ranks,
        "owners": machine.owners,
        "misplaced": [],
        "ran_here": 0,
        "metrics": {},
    }
    for name in ("images", "sequences"):
        network = NETWORKS[name]
        x, y = network.data(ROWS)
        for strategy in strategies:
            model = network.model()
            model.compile(network.optimizer, network.loss, strategy=strategy)
            history = model.fit(x, y, epochs=EPOCHS, progress=False)
            key = f"{name} {strategy}"
            summary["metrics"][key] = [epoch["loss"] for epoch in history.epochs]
            file = f"{name}-{strategy.replace(':', '')}-{machine.rank}.npz"
            prediction = model.predict(x[:3])
            np.savez(Path(folder) / file, prediction=prediction, **model.get_weights())
            batch = network.data(model.batch_size)
            summary["misplaced"] += misplaced(model, batch)
            summary["ran_here"] += len(placements(model, batch))
            model.close()
    (Path(folder) / f"summary-{machine.rank}.json").write_text(json.dumps(summary))


if __name__ == "__main__":
    main()

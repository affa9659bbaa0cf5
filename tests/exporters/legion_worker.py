"""Run under legate: three steps of networks on one processor; see dtensor_worker.py."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from exported import network_named

from flexlegion.objective.optimizers import SGD
from flexlegion.training.program import NO_BATCH, TRAIN, Batch

STEPS = 3


def main() -> None:
    folder = Path(sys.argv[1])
    for name in sys.argv[2:]:
        with np.load(folder / f"{name}.npz") as saved:
            given = dict(saved)
        network = network_named(name)
        model = network.model
        optimizer = SGD(lr=0.1, momentum=0.9)
        terms = network.training.loss_weights
        model.compile(optimizer, network.training.loss, strategy="single", loss_weights=terms)
        inputs = [v for k, v in given.items() if k.startswith("input/")]
        labels = {k.removeprefix("label/"): v for k, v in given.items() if k.startswith("label/")}
        y = {k.removeprefix("labels."): v for k, v in labels.items()}
        x = inputs[0] if len(inputs) == 1 else inputs
        data, _ = model.bind(x, y.get("labels", y))
        program, batch, goal = model.program, model.batch_size, model._ready().goal
        result = {}
        for step in range(STEPS):
            program.stage(TRAIN, Batch(data, np.arange(batch)))
            ticket = program.step(TRAIN, batch, NO_BATCH, step, 0.1)
            result[f"{step} loss"] = np.array(goal.means(program.metrics(ticket))["loss"])
            if step == 0:
                for launch in model.plan.launches:
                    if launch.pass_ == "forward" and launch.runs & TRAIN:
                        output = launch.operator.output
                        if output in network.outputs:
                            result[output.name] = program.read(output)
                for tensor in model.plan.graph.trained_weights:
                    if model.plan.gradient_slots(tensor) > 0:
                        result[f"{tensor.name} gradient"] = program.read(tensor, "gradient")
        result |= model.get_weights()
        program.drop_data(data)
        model.close()
        np.savez(folder / f"{name}.out.npz", **result)


if __name__ == "__main__":
    main()

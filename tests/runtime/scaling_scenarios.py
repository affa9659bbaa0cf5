"""Scenarios of training_worker.py: gradients that are scaled, for float16 to hold them."""

from __future__ import annotations

import numpy as np
from training_cases import BATCH, table_data
from training_scenarios import LOSS, Result, message, network, plain

from flexlegion import SGD
from flexlegion.training.fit import Training
from flexlegion.training.program import NO_BATCH, TRAIN, Batch


def overflows() -> Result:
    """Of gradients in float16: what each iteration says, and changes; then in single precision."""
    x, y = table_data()
    result: Result = {"overflows": [], "scales": [], "changed": []}
    for storage, key in (("fp16", "narrow"), ("fp32", "wide")):
        model = network()
        model.compile(
            SGD(0.002, momentum=0.9, clip_norm=50.0),
            LOSS,
            strategy="data",
            loss_weights=[100.0],
            storage=storage,
        )
        data, _ = model.bind(x, y)
        before = plain(model.get_weights())
        result["initial"] = before
        for step in range(20):
            program = model.program
            program.stage(TRAIN, Batch(data, np.arange(BATCH)))
            if program.loss_scale is not None:
                result["scales"].append(program.loss_scale.value)
            sums = program.metrics(program.step(TRAIN, BATCH, NO_BATCH, step, 0.002))[0]
            after = plain(model.get_weights())
            if storage == "fp16":
                result["overflows"].append(sums.overflows)
                result["changed"].append(after != before)
            gradient = program.read(model.plan.graph.weights[0], "gradient")
            result[f"{key} gradient"] = gradient.tolist()
            if after != before:
                break
        result[key] = after
        model.close()
    return result


def stored_as_float16() -> Result:
    """Losses of some epochs beside those in single precision; the scale that another takes over."""
    losses, scales = {}, []
    for storage in ("fp32", "fp16"):
        model = network()
        model.compile(SGD(0.2, momentum=0.9), LOSS, strategy="data", storage=storage)
        losses[storage] = [e["loss"] for e in model.fit(*table_data(), 4, progress=False).epochs]
        if storage == "fp16":
            state = Training(model, model._compiled, 1).state()
            state["loss_scale"]["value"] = 512.0
            model.resume_training(state)
            model.fit(*table_data(), epochs=1, progress=False)
            scales.append(model.program.loss_scale.value)
        model.close()
    return {"losses": losses, "scales": scales}


def gradients_without_end() -> Result:
    """Gradients that are not finite however they are scaled end training."""
    model = network()
    model.compile(SGD(0.1), LOSS, strategy="data", loss_weights=[1e9], storage="fp16")
    failure = message(lambda: model.fit(*table_data(), epochs=20, progress=False))
    model.close()
    return {"failure": failure}


SCALED = (overflows, stored_as_float16, gradients_without_end)

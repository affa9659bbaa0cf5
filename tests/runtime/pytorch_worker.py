"""Runs every case on Legion and saves all tensors (.npz); test_pytorch.py reads them.

Usage: legate pytorch_worker.py FILE [PRECISION [STRATEGY [BEGINNING [STORAGE]]]]

With a beginning, only of the cases whose names begin so.

Keys are CASE/WHEN/KIND/TENSOR: WHEN is "initial", "predict", "evaluate", the number of a training
step, or "after" (a prediction at the end), KIND "value", "gradient", "weight", "state0", "state1"
or "metrics". A case that raises has the one key CASE/error.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

import numpy as np
import numpy.typing as npt
from pytorch_cases import CASES
from pytorch_layers import BATCH, LISTS, SOURCES, Case, sources

from flexlegion.layers.sequences import GRUOutput, LSTMOutput
from flexlegion.model.model import Model
from flexlegion.objective.metrics import MetricSums
from flexlegion.objective.precision import DEFAULT, DEFAULT_STORAGE
from flexlegion.strategy.granularity import Granularity
from flexlegion.training.program import EVALUATE, NO_BATCH, PREDICT, TRAIN, Batch

Arrays = dict[str, npt.NDArray[Any]]

SCALE = 4.0  # of losses: the gradients of some cases overflow float16 with more


def build(case: Case, precision: str, strategy: str, storage: str) -> Model:
    """The case's network, compiled."""
    model = Model(BATCH, seed=3)
    if case.vocabulary:
        x = model.input(case.shape, "int32", name="x")
    else:
        x = model.input(case.shape, name="x", requires_gradient=case.with_gradient)
    tensors = [x]
    recurrent: dict[int, LSTMOutput] = {}
    for i, (kind, of, options) in enumerate(sources(case.layers)):
        read = [
            tensors[k] if isinstance(k, int) else k for k in (of if isinstance(of, list) else [of])
        ]
        arguments: list[Any] = [read] if kind in LISTS else [] if kind in SOURCES else read
        if kind == "elementwise":
            arguments = [options.pop("formula"), read]
        if "after" in options:
            before = recurrent[options.pop("after")]
            options |= {"state": before.state, "share": before.y}
        for named in ("residual", "bias"):
            if named in options:
                options[named] = tensors[options[named]]
        made = getattr(model, kind)(*arguments, name=f"l{i}", **options)
        if isinstance(made, LSTMOutput):
            recurrent[i] = made
            made = made.y
        if isinstance(made, GRUOutput):
            made = made.y
        tensors.extend(made if kind == "split" else [made])
    model.compile(
        case.optimizer,
        case.loss,
        strategy=strategy,
        precision=precision,
        storage=storage,
        granularity=Granularity(keep_tensors=True),
    )
    return model


def metrics_of(losses: list[MetricSums], when: str | int) -> Arrays:
    """Means over the labels that count, and numbers."""
    (sums,) = losses
    means = sums.means(
        ["accuracy", "top_5_accuracy", "perplexity", "mean_squared_error", "mean_absolute_error"]
    )
    counts = {"labels": sums.labels, "samples": sums.samples}
    arrays = {name: np.array(value) for name, value in (means | counts).items()}
    return {f"{when}/metrics/{name}": value for name, value in arrays.items()}


def trained(model: Model, states: int, when: int) -> Arrays:
    """All that a training step computed."""
    plan, program = model.plan, model.program
    arrays = {f"{when}/value/x": program.read(plan.graph.inputs[0])}
    for launch in plan.launches:
        if launch.pass_ == "forward" and launch.runs & TRAIN and launch.operator is not None:
            for output in launch.operator.outputs:
                if output.name.endswith((".h", ".c", ".gates")):
                    continue  # an LSTM's y has the state, and nothing but its backward pass gates
                arrays[f"{when}/value/{output.name}"] = program.read(output)
    for tensor in plan.graph.tensors:
        if plan.gradient_slots(tensor) > 0 or plan.lookups(tensor):
            arrays[f"{when}/gradient/{tensor.name}"] = program.read(tensor, "gradient")
    for weight in plan.graph.weights:
        arrays[f"{when}/weight/{weight.name}"] = program.read(weight)
        for s in range(states if weight.requires_gradient else 0):
            arrays[f"{when}/state{s}/{weight.name}"] = program.read(weight, "state", s)
    return arrays


def run(name: str, case: Case, precision: str, strategy: str, storage: str) -> Arrays:
    """One case."""
    model = build(case, precision, strategy, storage)
    program, inputs = model.program, model.plan.graph.inputs
    if program.loss_scale is not None:
        program.loss_scale.value = SCALE
    last = model.graph.operators[-1].output
    output = next(t for t in model.plan.graph.tensors if t.name == last.name)
    x, y = case.data(name, output.shape)
    arrays = {"initial/value/x": x, "initial/value/labels": y}
    arrays |= {f"initial/weight/{key}": value for key, value in model.get_weights().items()}
    data = [program.add_data(t, a) for t, a in zip(inputs, (x, y), strict=True)]

    first = case.rows(0)
    program.stage(PREDICT, Batch(data[:1], first))
    program.step(PREDICT, len(first), NO_BATCH)
    arrays["predict/value/output"] = program.read(output)
    program.stage(EVALUATE, Batch(data, first))
    ticket = program.step(EVALUATE, len(first), NO_BATCH)
    arrays |= metrics_of(program.metrics(ticket), "evaluate")

    program.stage(TRAIN, Batch(data, first))
    for step in range(case.steps):
        last = step + 1 == case.steps
        following = NO_BATCH if last else Batch(data, case.rows(step + 1))
        rows = len(case.rows(step))
        ticket = program.step(TRAIN, rows, following, step, case.optimizer.lr)
        arrays |= metrics_of(program.metrics(ticket), step)
        arrays |= trained(model, case.optimizer.states, step)
    program.stage(PREDICT, Batch(data[:1], first))
    program.step(PREDICT, len(first), NO_BATCH)
    arrays["after/value/output"] = program.read(output)
    model.close()
    return arrays


def main() -> None:
    """All cases."""
    file, *given = sys.argv[1:]
    defaults = [DEFAULT, "single", "", DEFAULT_STORAGE]
    precision, strategy, beginning, storage = [*given, *defaults[len(given) :]]
    saved: Arrays = {}
    for name, case in CASES.items():
        if not name.startswith(beginning):
            continue
        try:
            arrays = run(name, case, precision, strategy, storage)
        except Exception:
            arrays = {"error": np.array(traceback.format_exc())}
        saved |= {f"{name}/{key}": value for key, value in arrays.items()}
    np.savez(file, allow_pickle=False, **saved)


main()

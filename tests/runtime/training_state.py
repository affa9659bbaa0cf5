"""A few training steps of a network under a strategy, and everything that they leave behind."""

from __future__ import annotations

from typing import Any

import numpy as np
from networks import Network
from zoo_cases import ZooCase

from flexlegion import Model, Strategy
from flexlegion.graph.graph import Graph
from flexlegion.objective.precision import DEFAULT_STORAGE
from flexlegion.strategy.granularity import Granularity
from flexlegion.training.program import NO_BATCH, TRAIN, Batch

State = dict[str, np.ndarray]
KEPT = Granularity(keep_tensors=True)
Data = tuple[Any, Any]  # of a batch: inputs and labels


def train(
    network: Network | ZooCase,
    strategy: str | Strategy,
    granularity: Granularity = KEPT,
    storage: str = DEFAULT_STORAGE,
    micro_batches: int = 1,
) -> tuple[Model, State]:
    """Train for the network's number of steps, the last with a short batch.

    Returns the model, still open, and every gradient after every step, every output, the losses,
    and the weights and the optimizer's states at the end. Where tensors take turns in memory, of
    the gradients those of weights alone, and no output.
    """
    model = network.model()
    weights = getattr(network, "loss_weights", None)
    model.compile(
        network.optimizer,
        network.loss,
        strategy=strategy,
        loss_weights=weights,
        granularity=granularity,
        storage=storage,
        micro_batches=micro_batches,
    )
    if isinstance(network, ZooCase) and network.idle_weights:
        model.set_weights(network.shifted(model.get_weights()))
    program, graph = model.program, model.plan.graph
    batch = model.batch_size
    steps = network.iterations
    data, _ = model.bind(*network.data(steps * batch))
    state: State = {}
    extents = {tensor.name: tensor.shape[0] for tensor in network.graph().tensors}
    for step in range(steps):
        rows = np.arange(step * batch, (step + 1) * batch)
        if step == steps - 1:
            rows = rows[: batch - 2]
        program.stage(TRAIN, Batch(data, rows))
        ticket = program.step(TRAIN, len(rows), NO_BATCH, step, network.optimizer.lr)
        for number, sums in enumerate(program.metrics(ticket)):
            state[f"{step} loss {number}"] = np.array(
                [sums.loss, sums.correct, sums.correct_top5, sums.labels, sums.samples]
            )
        for tensor in graph.tensors if granularity.keep_tensors else graph.weights:
            if model.plan.lookups(tensor) and not granularity.keep_tensors:
                continue  # its gradient is put together of those of activations
            if model.plan.gradient_slots(tensor) > 0 or model.plan.lookups(tensor):
                gradient = program.read(tensor, "gradient")
                # Of what is the same for all samples, each micro-batch has its part.
                if len(gradient) != extents[tensor.name]:
                    gradient = gradient.sum(0, keepdims=True)
                state[f"{step} {tensor.name} gradient"] = gradient
        for launch in model.plan.launches:
            if not granularity.keep_tensors:
                break
            if launch.pass_ == "forward" and launch.runs & TRAIN:
                operator = launch.operator
                value = program.read(operator.output)
                state[f"{step} {operator.name}"] = value[: extents[operator.output.name]]
    for name, value in model.get_weights().items():
        state[name] = value
    for weight in filter(program.updates, graph.tensors):  # on every rank in the same order
        for number in range(network.optimizer.states):
            state[f"{weight.name} state {number}"] = program.read(weight, "state", number)
    program.drop_data(data)
    return model, state


def relative_error(value: np.ndarray, reference: np.ndarray, floor: float = 1e-5) -> float:
    """Norm of the difference by the norm of the reference, which counts as at least `floor`."""
    if not np.all(np.isfinite(value)):
        return float("inf")
    scale = float(np.linalg.norm(reference))
    error = float(np.linalg.norm(value.astype(np.float64) - reference))
    # A gradient that is zero but for rounding (behind a saturated unit, say) has no relative error.
    return error / max(scale, floor)


def errors(state: State, reference: State, share: float = 0.0) -> dict[str, float]:
    """The relative error of everything.

    The norm of a gradient, or of a momentum, counts as at least `share` of the largest gradient's:
    what rounding leaves of gradients that are zero in exact arithmetic differs.
    """
    assert state.keys() == reference.keys()
    gradients = [np.linalg.norm(v) for name, v in reference.items() if name.endswith("gradient")]
    floor = max(1e-5, share * float(max(gradients, default=0.0)))
    return {
        name: relative_error(state[name], value, floor if _sums_gradients(name) else 1e-5)
        for name, value in reference.items()
    }


def _sums_gradients(name: str) -> bool:
    return name.endswith("gradient") or " state " in name


def turned_units(graph: Graph, state: State, reference: State) -> int:
    """How many units of the first step's ReLUs are zero in one of two trainings alone.

    A unit that is zero up to rounding passes its gradient on in one training and not in the other.
    Both are right, and the gradients of all layers before it differ by as much as it passes on.
    """
    return sum(
        int(np.sum((state[f"0 {op.name}"] == 0) != (reference[f"0 {op.name}"] == 0)))
        for op in graph.operators
        if op.kind.type == "relu" or getattr(op.kind, "activation", "") == "relu"
    )


def of_first_forward_pass(state: State) -> State:
    """Losses and outputs of the first step."""
    return {
        name: value
        for name, value in state.items()
        if name.startswith("0 ") and not name.endswith("gradient")
    }


def differences(
    state: State, reference: State, tolerance: float = 1e-4, share: float = 0.0
) -> list[str]:
    """What differs, in words; `share` as of `errors`."""
    found = errors(state, reference, share)
    return [f"{name}: {error:.2e}" for name, error in found.items() if not error <= tolerance]


def differences_of_rounded(
    graph: Graph, state: State, reference: State, exact: State, tolerance: float = 2e-2
) -> list[str]:
    """What differs in the first step where activations are rounded, in words.

    Losses and outputs one by one, and the gradients of all weights together: some are sums of terms
    that cancel, and off by what the terms are. Where rounding alone moves the gradients of one
    device, another strategy, which rounds elsewhere, may move them three times as far.

    Parameters
    ----------
    graph, state, reference
        What was trained, and how by a strategy and on one device, both rounded.
    exact
        The same on one device, in single precision.
    """
    first = of_first_forward_pass(reference)
    found = {name: relative_error(state[name], value) for name, value in first.items()}
    wrong = [f"{name}: {error:.2e}" for name, error in found.items() if not error <= tolerance]
    names = [f"0 {weight.name} gradient" for weight in graph.trained_weights]
    ours, one, unrounded = (
        np.concatenate([its[name].ravel() for name in names if name in its])
        for its in (state, reference, exact)
    )
    error = relative_error(ours, one)
    if not error <= max(tolerance, 3 * relative_error(one, unrounded)):
        wrong.append(f"0 gradients of all weights: {error:.2e}")
    return wrong


def placements(model: Model, data: Data) -> dict[tuple[int, int], str]:
    """Where the tasks of one more iteration run, by launch and part; those of this rank."""
    program, size = model.program, model.batch_size
    program.record(True)
    program.stage(TRAIN, Batch(model.bind(*data)[0], np.arange(size)))
    program.step(TRAIN, size, NO_BATCH)
    names = model.machine.devices.names
    return {(task["launch"], task["part"]): names[task["device"]] for task in program.record(False)}


def misplaced(model: Model, data: Data) -> list[str]:
    """Launches of the training plan whose tasks run elsewhere than the strategy says.

    It trains one more iteration. On several ranks, tasks of other ranks are not seen here.
    """
    wrong = []
    machine = model.machine
    placed = placements(model, data)
    for i, launch in enumerate(model.plan.launches):
        if not launch.runs & TRAIN:
            continue
        name = launch.operator.name if launch.operator else launch.requirements[0].tensor.name
        for k, told in enumerate(launch.devices):
            ran = placed.get((i, k))
            here = machine.owners[machine.devices.number(told)] == machine.rank
            if ran != (told if here else None):
                wrong.append(f"{launch.pass_} {name} task {k}: told {told}, ran on {ran}")
            if launch.operator is not None and launch.pass_ in ("forward", "backward"):
                config = model.strategy[launch.operator.name]
                if told != config.devices[k]:
                    wrong.append(f"{launch.pass_} {name} task {k}: plan {told}, strategy differs")
    return wrong

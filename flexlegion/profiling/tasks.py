"""Measuring what tasks cost on the devices of this run, into the profile data base.

A task's time is "estimated by running the task multiple times on the device" (FlexFlow, section
5.1): the very leaf tasks of the runtime are timed, over tiles of exactly the shapes that they would
have, while the processors that share a memory all do the same, and then while these are idle. Only
what the data base lacks is measured. On several ranks each rank makes the same calls; each keeps
the results in its data base.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from flexlegion.base.errors import UserError
from flexlegion.cost.measured import task_key
from flexlegion.cost.model import ELEMENT_BYTES, Linear, Shapes
from flexlegion.cost.profile_db import ProfileDB
from flexlegion.cost.records import Sample, TaskKey
from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.tensor import Tensor
from flexlegion.machine.devices import Devices
from flexlegion.machine.parts import Device
from flexlegion.machine.running import all_gather, running_machine
from flexlegion.machine.topology import Topology
from flexlegion.objective.optimizers import SGD, Optimizer
from flexlegion.objective.precision import DEFAULT
from flexlegion.ops.dense import Dense
from flexlegion.ops.losses import MeanSquaredError
from flexlegion.plan.passes import TASK_PASSES
from flexlegion.plan.plan import Launch, Plan
from flexlegion.profiling.gpus import libraries, library_of
from flexlegion.profiling.local import local_topology
from flexlegion.profiling.timing import REPEATS, Repeats, fit_linear, sample_of, time_sum, time_task
from flexlegion.strategy.configuration import ParallelConfig, splits
from flexlegion.strategy.strategy import ResolvedStrategy, Strategy

# Called with how many are done, and how many there are.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class TaskRequest:
    """A task whose time is wanted.

    Parameters
    ----------
    operator
        The node of the graph.
    degrees
        How its space is split.
    part
        Which of the tasks, row-major over the degrees.
    pass_
        ``"forward"`` or ``"backward"``.
    device
        A device of `flexlegion.profiling.local.local_topology`, or one like it.
    graph
        The operator's: outputs that nothing reads in it have no gradient. Without a graph, all are
        taken to have one.
    """

    operator: Operator
    degrees: tuple[int, ...]
    part: int
    pass_: str
    device: Device
    graph: Graph | None = field(default=None, compare=False, repr=False)


def task_requests(strategy: ResolvedStrategy, topology: Topology) -> list[TaskRequest]:
    """All tasks of a strategy's forward and backward passes."""
    graph = strategy.graph
    return [
        TaskRequest(operator, config.degrees, part, pass_, topology.device(name), graph)
        for operator in graph.operators
        for config in [strategy[operator.name]]
        for part, name in enumerate(config.devices)
        for pass_ in TASK_PASSES
    ]


def all_requests(graph: Graph, topology: Topology) -> list[TaskRequest]:
    """All tasks of all splits, on one device of each model: the others take as long."""
    kinds = one_of_each_model(topology)
    return [
        TaskRequest(operator, degrees, part, pass_, device, graph)
        for operator in graph.operators
        for degrees in splits(operator, len(topology.devices))
        for part in range(prod(degrees))
        for pass_ in TASK_PASSES
        for device in kinds
    ]


def one_of_each_model(topology: Topology) -> list[Device]:
    """The first device of each model."""
    return list({device.model: device for device in reversed(topology.devices)}.values())


def measure(
    requests: Sequence[TaskRequest],
    db: ProfileDB,
    progress: Progress | None = None,
    repeats: Repeats = REPEATS,
    precision: str = DEFAULT,
) -> int:
    """Measure the tasks that the data base lacks.

    Parameters
    ----------
    requests
        Tasks may repeat; those that agree in all that their time depends on are one.
    db
        Where times are kept.
    progress
        Called after each task that was measured.
    repeats
        How often to run each.
    precision
        Of tasks on GPUs.

    Returns
    -------
    int
        How many tasks were measured.

    Raises
    ------
    UserError
        If this run has no such device, or too little memory.
    """
    machine = running_machine()
    names = machine.devices.names
    models = {device.name: device.model for device in local_topology(db).devices}
    library = libraries(machine, models, precision)
    plans: dict[tuple[Operator, tuple[int, ...], str], tuple[Plan, list[Shapes]]] = {}
    wanted: dict[tuple[str, TaskKey], tuple[TaskRequest, int, Plan]] = {}
    for request in requests:
        device, operator = request.device, request.operator
        if models.get(device.name) != device.model:
            raise UserError(
                f"{device.name} ({device.model}) is no device of this run, which has "
                f"{', '.join(f'{name} ({model})' for name, model in models.items())}; measure on "
                "the machine 'local'"
            )
        if request.pass_ not in TASK_PASSES:
            raise UserError(f"no pass '{request.pass_}'; the choices are {', '.join(TASK_PASSES)}")
        degrees, parts = operator.without_parts(request.degrees)
        tile = request.part // parts
        which = (operator, degrees, device.name)
        if which not in plans:
            plan = _alone(operator, degrees, device.name, names, request.graph)
            plans[which] = (plan, _shapes(plan))
        plan, shapes = plans[which]
        if _launches(plan, request.pass_):  # without a gradient there is no backward pass
            key = task_key(operator, request.pass_, shapes[tile])
            wanted.setdefault((device.model, key), (request, tile, plan))
    known = [db.task(model, library[model], key) is not None for model, key in wanted]
    missing = [item for item, lacks in zip(wanted, _any_lacks(known), strict=True) if lacks]
    for done, (model, key) in enumerate(missing):
        request, tile, plan = wanted[model, key]
        bound = _bound(request.operator)
        samples = [
            sample_of(
                time_task(
                    plan,
                    launch,
                    tile,
                    bound=bound,
                    precision=precision,
                    repeats=repeats,
                )
            )
            for launch in _launches(plan, request.pass_)
        ]
        share = request.operator.kind.measured_share(request.operator.input_shapes)
        total = Sample(
            round(share * sum(sample.time_ns for sample in samples)),
            min(sample.runs for sample in samples),
            round(share * sum(sample.spread_ns for sample in samples)),
            round(share * sum(sample.alone_ns for sample in samples)),
        )
        db.add_task(model, library[model], key, total)
        if progress is not None:
            progress(done + 1, len(missing))
    return len(missing)


def measure_linears(
    device: Device,
    db: ProfileDB,
    optimizer: Optimizer | None = None,
    repeats: Repeats = REPEATS,
    precision: str = DEFAULT,
) -> int:
    """Measure and fit updates, loads, and sums of gradients on a device, where they are missing.

    Parameters
    ----------
    device
        A device of `flexlegion.profiling.local.local_topology`.
    db
        Where the fits are kept.
    optimizer
        Whose updates; plain SGD by default.
    repeats
        How often to run each task.
    precision
        Under which of a GPU's precisions to keep the fits; they do not depend on it.

    Returns
    -------
    int
        How many lines were fitted.
    """
    machine = running_machine()
    if device.name not in machine.devices:
        raise UserError(f"{device.name} is no device of this run, which has {machine.devices}")
    optimizer = optimizer or SGD()
    library = library_of(machine.devices.number(device.name), precision)
    passes = {"update": optimizer.type, "load": "", "sum": ""}
    known = [db.linear(device.model, library, s, v) is not None for s, v in passes.items()]
    lacks = _any_lacks(known)
    for (pass_, variant), missing in zip(passes.items(), lacks, strict=True):
        if missing:
            line = _line(pass_, device.name, machine.devices.names, optimizer, repeats)
            db.add_linear(device.model, library, pass_, line, variant)
    return sum(lacks)


def _line(
    pass_: str, device: str, names: list[str], optimizer: Optimizer, repeats: Repeats
) -> Linear:
    """The fit of one pass's times over tensors from 4 KiB to 16 MiB."""
    sizes: list[int] = []
    samples: list[Sample] = []
    for rows in (16, 256, 4096, 65536):
        if pass_ == "sum":
            runs = time_sum(names.index(device), 2, 64 * rows, repeats)
            size = 2 * 64 * rows * ELEMENT_BYTES
        else:
            graph = Graph()
            batch = rows if pass_ == "load" else 1
            x = graph.add_input("x", (batch, 64), "float32")
            graph.add(Dense(1 if pass_ == "load" else rows, use_bias=False), [x], "dense")
            plan = _plan(graph, {}, device, names, optimizer.states)
            launch = _launches(plan, pass_)[0]
            runs = time_task(plan, launch, 0, optimizer=optimizer, repeats=repeats)
            size = _touched_bytes(plan.launches[launch])
        sizes.append(size)
        samples.append(sample_of(runs))
    alone = [min(sample.time_ns, sample.alone_ns or sample.time_ns) for sample in samples]
    ratios = [s.time_ns / max(1, time) for s, time in zip(samples, alone, strict=True)]
    return replace(fit_linear(sizes, alone), contention=statistics.mean(ratios) - 1)


def _touched_bytes(launch: Launch) -> int:
    """Bytes that the first task reads, and those that it writes."""
    elements = 0
    for requirement in launch.requirements:
        times = 2 if requirement.privilege == "read-write" else 1
        elements += times * prod(hi - lo for lo, hi in requirement.boxes[0])
    return ELEMENT_BYTES * elements


def _any_lacks(known: Sequence[bool]) -> list[bool]:
    """For each entry, whether some rank does not know it: all ranks have to do the same."""
    if not known:
        return []
    ranks = all_gather(bytes(known))
    return [not all(rank[i] for rank in ranks) for i in range(len(known))]


def _alone(
    operator: Operator,
    degrees: tuple[int, ...],
    device: str,
    names: list[str],
    whole: Graph | None = None,
) -> Plan:
    """The plan of that operator alone, all tasks on one device; losses ask for its gradients.

    Of outputs beside the primary one, losses read those that an operator of the whole graph reads.
    """
    graph = Graph()
    copies: dict[Tensor, Tensor] = {}
    for tensor in operator.inputs:
        if tensor not in copies:
            copies[tensor] = graph.add_input(
                f"input{len(copies)}", tensor.shape, tensor.host_dtype, tensor.requires_gradient
            )
    inputs = [copies[t] for t in operator.inputs]
    trainable = not any(weight.constant for weight in operator.weights)
    node = graph.apply(operator.kind, inputs, "measured", trainable=trainable)
    own = (*zip(operator.weights, node.weights, strict=True), *copies.items())
    for tensor, copy in (*own, *zip(operator.outputs, node.outputs, strict=True)):
        copy.dtype = tensor.dtype
    if not operator.kind.is_loss:
        for i, output in enumerate(node.outputs):
            if i > 0 and whole is not None and not _is_read(operator.outputs[i], whole):
                continue
            _compare(graph, output, f"target{i}", f"loss{i}")
    _use_tables(operator, node, graph)
    return _plan(graph, {node.name: degrees}, device, names, 0)


def _compare(graph: Graph, output: Tensor, target: str, loss: str) -> None:
    """A loss that asks for an output's gradient, however that is stored."""
    labels = graph.add_input(target, output.shape, "float32")
    dtype, output.dtype = output.dtype, "float32"
    graph.apply(MeanSquaredError(), [output, labels], loss)
    output.dtype = dtype


def _is_read(tensor: Tensor, graph: Graph) -> bool:
    return any(tensor in reader.inputs for reader in graph.operators)


def _use_tables(operator: Operator, node: Operator, graph: Graph) -> None:
    """Where a product uses the table too, have one use it here: then it is a weight like others."""
    for weight, its in zip(operator.weights, node.weights, strict=True):
        if its.table and not weight.table:
            rows, units = weight.shape
            x = graph.add_input("x", (1, units), "float32")
            logits = graph.add(Dense(rows, use_bias=False), [x], "product", node)
            _compare(graph, logits, "product_target", "product_loss")


def _plan(
    graph: Graph,
    degrees: dict[str, tuple[int, ...]],
    device: str,
    names: list[str],
    states: int,
) -> Plan:
    """A plan on one device; operators without degrees are not split."""
    last = graph.operators[-1]
    if not last.kind.is_loss:
        _compare(graph, last.output, "target", "loss")
    configs = {}
    for operator in graph.operators:
        mine = degrees.get(operator.name, (1,) * len(operator.space))
        configs[operator.name] = ParallelConfig(mine, (device,) * prod(mine))
    strategy = Strategy(configs, "measuring").checked(graph, Devices(names))
    return Plan(strategy, graph.operators[0].output, states)


def _launches(plan: Plan, pass_: str) -> list[int]:
    """The first operator's launches of that pass, or the loading of its input."""
    first = plan.graph.operators[0]
    return [
        i
        for i, launch in enumerate(plan.launches)
        if launch.pass_ == pass_ and launch.operator is (None if pass_ == "load" else first)
    ]


def _shapes(plan: Plan) -> list[Shapes]:
    """For each task of the plan's first operator, the extents of each operand."""
    launch = plan.launches[_launches(plan, "forward")[0]]
    values = [r for r in launch.requirements if r.field in ("value", "partial")]
    slots = [r.field == "partial" for r in values]  # whether boxes have these in front
    return [
        tuple(
            tuple(hi - lo for lo, hi in r.boxes[task][slot:])
            for r, slot in zip(values, slots, strict=True)
        )
        for task in range(len(launch.devices))
    ]


def _bound(operator: Operator) -> int:
    """What int32 inputs stay below: rows of the table that they index, or a loss's classes."""
    values = operator.kind.input_values(operator.input_shapes)
    return min((value for value in values if isinstance(value, int)), default=1)

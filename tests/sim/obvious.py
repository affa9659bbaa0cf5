"""A third opinion on the simulation: slow and obvious, element by element, in Python.

It shares nothing with the native simulator but the plan that both read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product, zip_longest
from typing import Any

from flexlegion.bindings.native import enumeration
from flexlegion.cost.model import NO_RUNTIME, RuntimeCosts
from flexlegion.machine.topology import Topology
from flexlegion.plan.passes import CLOSING, FIELDS
from flexlegion.plan.plan import Plan, Requirement

TRAINS = enumeration("fl_run")["trains"]
SPREADING = ("spread", "gather_spread", "again_spread")
VALUE, COPY, GRADIENT, NODE_SUMS, REDUCED = map(
    FIELDS.index, ("value", "copy", "gradient", "node sums", "reduced")
)

Place = tuple[int, int, int]  # tensor, field, index


@dataclass
class Task:
    """A task; `before` holds (predecessor, whether this is a later hop of it, latency).

    Normal tasks have what the `runtime` takes there, and those of launches that are not fused with
    the one before are `issued`; the first of a launch in its memory is its `first` one. Beside
    busy neighbours they take longer by `contention` thousandths; its `siblings` are the devices of
    its launch's tasks. It has so many `crossings`: dependencies on tasks of other devices of its
    memory.
    """

    device: str
    exe_time: int
    bytes: int = 0
    before: list[tuple[int, bool, int]] = field(default_factory=list)
    ready_time: int = 0
    start_time: int = -1
    end_time: int = -1
    memory: str = ""
    runtime: RuntimeCosts = NO_RUNTIME
    crossings: int = 0
    contention: int = 0
    siblings: frozenset[str] = frozenset()
    issued: bool = True
    first: bool = False


@dataclass
class Issued:
    """The tasks of a launch that may be fused with others; whether it is an update, or a loss.

    `uses` holds (tensor and field, whether it only reads, each task's elements).
    """

    tasks: range
    update: bool
    loss: bool
    uses: list[tuple[Any, bool, list[set[Any]]]]


def elements(box: Any) -> list[tuple[int, ...]]:
    """Every element of a box, by its coordinates."""
    return list(product(*(range(lo, hi) for lo, hi in box)))


def owners(plan: Plan) -> dict[Place, int]:
    """For each weight's fields, the first operator that trains it: its weights travel together.

    With them travel the gradients of what was looked up in a table, which the update reads. What is
    gathered of a weight travels by itself, and so do partial gradients that are reduced.
    """
    result: dict[Place, int] = {}
    numbers = {op.name: i for i, op in enumerate(plan.graph.operators)}
    reduced = {
        plan.tensor_numbers[r.tensor]
        for launch in plan.launches
        for r in launch.requirements
        if FIELDS.index(r.field) == REDUCED
    }
    for launch in plan.launches:
        if launch.pass_ == "forward" and launch.runs & TRAINS:
            assert launch.operator is not None
            for tensor in launch.operator.weights:
                number = plan.tensor_numbers[tensor]
                first = result.setdefault((number, VALUE, 0), numbers[launch.operator.name])
                for field_ in (REDUCED,) if number in reduced else (GRADIENT, NODE_SUMS):
                    result[number, field_, 0] = first
                if launch.operator in plan.lookups(tensor):
                    result[plan.tensor_numbers[launch.operator.output], GRADIENT, 0] = first
    return result


def place_of(plan: Plan, requirement: Requirement) -> Place:
    """By number; norms of gradients belong to no tensor of the graph."""
    none = len(plan.tensor_numbers)
    tensor = plan.tensor_numbers.get(requirement.tensor, none)
    return tensor, FIELDS.index(requirement.field), requirement.index


def flow(place: Place, owner: dict[Place, int]) -> tuple[int, int, int, int]:
    """Transfers of one flow go by writer and destination.

    Flows go by tensor, then by weights' owners, then come those of clipping.
    """
    if place[1] > FIELDS.index("state"):
        return (2, *place)
    return (1, -owner[place], 0, 0) if place in owner else (0, *place)


def build(
    plan: Plan,
    topology: Topology,
    exe_times: Sequence[Sequence[int]],
    contentions: Sequence[int],
    runtimes: Mapping[str, RuntimeCosts],
) -> list[Task]:
    """The task graph: normal tasks, then the hops of all transfers.

    `contentions` are those of each launch's tasks, `runtimes` is what the runtime takes on each
    device.
    """
    tasks: list[Task] = []
    writer: dict[Any, dict[Any, int]] = {}  # (tensor, field) -> element -> who wrote it last
    reads: list[tuple[Any, int, Any]] = []  # of weights' values
    spread: dict[Any, dict[Any, int]] = {}  # (tensor, field) -> (node, element) -> who spread it
    needs: dict[Any, tuple[set[Any], set[int]]] = {}  # transfer -> elements, consumers
    memories = topology.memories
    owner = owners(plan)
    forward_tasks: dict[str, int] = {}  # operator -> its first forward task
    touched: dict[str, list[Any]] = {}  # operator -> what its forward launch touched, and where
    order: list[Issued] = []
    linked: set[Any] = set()  # (flow, writer, reader) of those that cross
    waits: dict[int, set[int]] = {}  # task -> those whose results it needs

    def memory(task: int) -> int:
        return memories.index(topology.device(tasks[task].device).memory)

    def node(task: int) -> int:
        return topology.device(tasks[task].device).node

    def spread_to(place: Any, reader: int, element: Any, wrote: int | None) -> int | None:
        """From whom a task reads: from who brought it to its node, or if nobody did, who wrote."""
        if there := sorted({its for its, _ in spread.get(place, {})}):
            its = node(reader) if node(reader) in there else there[node(reader) % len(there)]
            return spread[place][its, element]
        return wrote

    def need(producer: int, place: Any, destination: int, element: Any) -> set[int]:
        transfer = (flow(place, owner), producer, destination)
        what, consumers = needs.setdefault(transfer, (set(), set()))
        what.add((place, element))
        return consumers

    for launch, times, more in zip(plan.launches, exe_times, contentions, strict=True):
        if not launch.runs & TRAINS:
            continue
        first = len(tasks)
        homes = [topology.device(d).memory for d in launch.devices]
        siblings = frozenset(launch.devices)
        tasks += [
            Task(d, max(1, t), 0, [], 0, -1, -1, home, runtimes[d], 0, more, siblings)
            for d, t, home in zip(launch.devices, times, homes, strict=True)
        ]
        for k, home in enumerate(homes):
            tasks[first + k].first = home not in homes[:k]
        if launch.pass_ != "load":
            operator = launch.operator
            loss = launch.pass_ == "forward" and operator is not None and operator.kind.is_loss
            uses = [
                (
                    place_of(plan, r),
                    r.privilege == "read",
                    [set(elements(box)) for box in r.boxes],
                )
                for r in launch.requirements
                if r.field != "state"
            ]
            order.append(Issued(range(first, len(tasks)), launch.pass_ in CLOSING, loss, uses))
        if launch.pass_ == "forward":
            forward_tasks[launch.operator.name] = first
            touched[launch.operator.name] = [
                (place_of(plan, r), r.boxes) for r in launch.requirements
            ]
        if launch.pass_ == "backward":
            for k in range(len(launch.devices)):
                its_forward = forward_tasks[launch.operator.name] + k
                tasks[first + k].before.append((its_forward, False, 0))
                waits.setdefault(first + k, set()).add(its_forward)
        for r, k in product(launch.requirements, range(len(launch.devices))):
            place = place_of(plan, r)
            if r.privilege == "write" or r.field == "state":
                continue
            for element in elements(r.boxes[k]):
                if r.tensor.kind == "weight" and r.field == "value" and launch.pass_ == "forward":
                    reads.append((place, first + k, element))
                producer = writer.get(place, {}).get(element)
                if place[1] == COPY and launch.pass_ not in SPREADING:
                    producer = spread_to(place, first + k, element, producer)
                if launch.pass_ in SPREADING:
                    spread.setdefault(place, {})[node(first + k), element] = first + k
                if producer is None or producer == first + k:
                    continue
                # What a backward task reads of values, its forward task has read or written; but
                # not other partial values, nor what was made of them.
                known = (
                    launch.pass_ == "backward" and (place, r.boxes) in touched[launch.operator.name]
                )
                if not known:
                    waits.setdefault(first + k, set()).add(producer)
                if memory(producer) == memory(first + k):
                    apart = tasks[producer].device != tasks[first + k].device
                    edge = (producer, False, tasks[first + k].runtime.wake_ns * apart)
                    if edge not in tasks[first + k].before:
                        tasks[first + k].before.append(edge)
                    link = (flow(place, owner), producer, first + k)
                    if apart and not known and link not in linked:
                        linked.add(link)
                        tasks[first + k].crossings += 1
                else:
                    need(producer, place, memory(first + k), element).add(first + k)
        for r, k in product(launch.requirements, range(len(launch.devices))):
            place = place_of(plan, r)
            if r.privilege != "read" and r.field != "state":
                writer.setdefault(place, {}).update(dict.fromkeys(elements(r.boxes[k]), first + k))
    for place, reader, element in reads:
        producer = spread_to(place, reader, element, writer.get(place, {}).get(element))
        if producer is not None and memory(producer) != memory(reader):
            need(producer, place, memory(reader), element)
    for (_, producer, destination), (what, consumers) in sorted(needs.items()):
        target = next(d.name for d in topology.devices if d.memory == memories[destination])
        before = producer
        for i, hop in enumerate(topology.route(tasks[producer].device, target)):
            size, link = 4 * len(what), hop.link
            exe_time = -(-size * 10**9 // link.bandwidth)
            tasks.append(Task(hop.channel, exe_time, size, [(before, i > 0, link.latency_ns)]))
            before = len(tasks) - 1
        for consumer in consumers:
            tasks[consumer].before.append((before, False, 0))
    longest = 128 if topology.names.has_gpus else 16
    for number in running_on(order, tasks, waits, memory, longest):
        tasks[number].issued = False
    return tasks


def running_on(
    order: list[Issued],
    tasks: list[Task],
    waits: Mapping[int, set[int]],
    memory: Callable[[int], int],
    longest: int,
) -> list[int]:
    """The tasks of launches that are fused with the one before them.

    Both have their tasks on the same devices, wait, at last, for the same launches of other
    devices, and no other device needs the first one's results next. Inside a run, of the `longest`
    at most, no task needs what another one of the same device computed, nor more memory than was
    touched there.
    """
    place = {number: i for i, issued in enumerate(order) for number in issued.tasks}
    far: list[set[int]] = []
    awaited: set[int] = set()
    crossing: list[int] = []
    for issued in order:
        mine, last, crossed = set(), {}, -1
        for k, number in enumerate(issued.tasks):
            for producer in sorted(waits.get(number, set()) & place.keys()):
                i = place[producer]
                mine |= far[i]
                if tasks[producer].device == tasks[number].device:
                    if order[i].tasks[k : k + 1] != range(producer, producer + 1):
                        crossed = max(crossed, i)
                    continue
                mine.add(i)
                if not issued.update or memory(producer) != memory(number):
                    last[number, tasks[producer].device] = i
        crossed = max([crossed, *(j for j in range(len(far)) if not get_by(issued, order[j]))])
        far.append(mine)
        awaited |= set(last.values())
        crossing.append(crossed)
    result: list[int] = []
    first = 0
    for i, issued in enumerate(order[1:], 1):
        devices = [[tasks[number].device for number in each.tasks] for each in order[i - 1 : i + 1]]
        if (
            i - first < longest
            and devices[0] == devices[1]
            and far[i - 1] == far[i]
            and i - 1 not in awaited
            and crossing[i] < first
            and not issued.loss
            and not order[i - 1].loss
        ):
            result += issued.tasks
        else:
            first = i
    return result


def get_by(launch: Issued, before: Issued) -> bool:
    """Whether tasks get by with what their likes of another launch were given.

    Where one of the two writes what the other touches, what is read was written there, and what is
    written was touched.
    """
    for (place, reads, mine), (other, only_read, its) in product(launch.uses, before.uses):
        if place != other or (reads and only_read):
            continue
        if not set().union(*mine) & set().union(*its):
            continue
        if not all(m <= i if reads else m == i for m, i in zip_longest(mine, its, fillvalue=set())):
            return False
    return True


def simulate(tasks: list[Task], topology: Topology, runtimes: Mapping[str, RuntimeCosts]) -> int:
    """Set all times; returns the iteration's. The next task is the first by (ready, number).

    What the utility processor of a memory has to do is done where a core has nothing else to do;
    what is left is taken from a task that starts while all cores are busy.
    """
    free: dict[str, int] = {}
    users = {m: [d.name for d in topology.devices if d.memory == m] for m in topology.memories}
    owed = {memory: runtimes[names[0]].iteration_ns for memory, names in users.items() if names}
    work = dict(owed)
    open_tasks = set(range(len(tasks)))
    while open_tasks:
        ready = []
        for number in open_tasks:
            task = tasks[number]
            if all(tasks[p].end_time >= 0 for p, _, _ in task.before):
                times = [
                    (tasks[p].start_time if follows else tasks[p].end_time) + latency
                    for p, follows, latency in task.before
                ]
                task.ready_time = max(times, default=0)
                ready.append((task.ready_time, task.bytes == 0, number))
        # Transfers and normal tasks never meet on a device; among their like they go by number.
        number = min(ready)[2]
        task = tasks[number]
        task.start_time = max(task.ready_time, free.get(task.device, 0))
        extra = 0
        if task.memory:
            brought = task.runtime.task_ns + task.crossings * task.runtime.crossing_ns
            if task.issued:
                brought += task.runtime.launch_ns * task.first
                extra = task.runtime.dispatch_ns
            idle = task.start_time - free.get(task.device, 0)
            owed[task.memory] = max(0, owed[task.memory] - idle) + brought
            work[task.memory] += brought
            others = [d for d in users[task.memory] if d != task.device]
            busy = [d for d in others if free.get(d, 0) > task.start_time or d in task.siblings]
            if others:
                more = task.exe_time * task.contention * len(busy)
                extra += more // (1000 * len(others))
            if 1 + sum(free.get(d, 0) > task.start_time for d in others) >= task.runtime.cores:
                extra += owed[task.memory]
                owed[task.memory] = 0
        hop_ends = [tasks[p].end_time for p, follows, _ in task.before if follows]
        task.end_time = max([task.start_time + extra + task.exe_time, *hop_ends])
        free[task.device] = task.end_time
        open_tasks.remove(number)
    return max(*(task.end_time for task in tasks), *work.values())

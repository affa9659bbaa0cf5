"""Properties of every plan: what Legion is to execute is right.

The plan is executed on counts: each task that reads an element in the forward pass owes its
gradient exactly one contribution, marked by a number of its own, and whoever reads the gradient has
to find the sum of all marks.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import numpy.typing as npt

from flexlegion.bindings.native import enumeration
from flexlegion.graph.operator_type import Access, DimKind
from flexlegion.graph.tensor import Tensor
from flexlegion.plan.passes import PASSES
from flexlegion.plan.plan import STACKED_FIELDS, Box, Launch, Plan, Requirement

TRAINS = enumeration("fl_run")["trains"]
RUNS = enumeration("fl_run").values()

Marks = npt.NDArray[np.int64]


def region(box: Box) -> tuple[slice, ...]:
    return tuple(slice(lo, hi) for lo, hi in box)


def is_empty(box: Box) -> bool:
    return any(hi <= lo for lo, hi in box)


def overlap(a: Box, b: Box) -> bool:
    return all(max(p[0], q[0]) < min(p[1], q[1]) for p, q in zip(a, b, strict=True))


def inside(box: Box, shape: tuple[int, ...]) -> bool:
    return all(lo >= 0 and hi <= n for (lo, hi), n in zip(box, shape, strict=True))


def _is_concat(launch: Launch) -> bool:
    return launch.operator is not None and launch.operator.kind.type == "concat"


def _is_once(launch: Launch, requirement: Requirement) -> bool:
    """Whether one of the parts alone that compute partial values touches it."""
    return any(access.once for access in _accesses(launch, requirement))


def _accesses(launch: Launch, requirement: Requirement) -> list[Access]:
    operands = [] if launch.operator is None else launch.operator.operands
    return [access for _, tensor, access in operands if tensor is requirement.tensor]


def _parts(plan: Plan, launch: Launch) -> int:
    """Into how many parts a launch cuts the partial values of its linear inputs."""
    operator = launch.operator
    if operator is None or launch.pass_ not in ("forward", "backward"):
        return 1
    its = operator.dims[-1].kind is DimKind.PART
    return plan.strategy[operator.name].degrees[-1] if its else 1


def _linear_reads(launch: Launch) -> set[int]:
    """The requirements, by position, that read a value in which the operator is linear."""
    operator = launch.operator
    if operator is None or launch.pass_ not in ("forward", "backward"):
        return set()
    # Of a tensor that it reads twice, the requirements come in the order of operands.
    accesses: dict[Tensor, list[Access]] = defaultdict(list)
    for role, tensor, access in operator.operands:
        if role == "input" and (launch.pass_ == "forward" or access.saved):
            accesses[tensor].append(access)
    reads = [
        (i, r.tensor)
        for i, r in enumerate(launch.requirements)
        if r.role in ("input", "saved") and accesses[r.tensor]
    ]
    return {i for i, tensor in reads if accesses[tensor].pop(0).part >= 0}


def check_parts(plan: Plan) -> None:
    """The parts of a linear input follow each other, and read each of its partial values once.

    But where the first part alone runs backward: what it computes depends on none of them.
    """
    for launch in plan.launches:
        parts = _parts(plan, launch)
        for i in _linear_reads(launch) if parts > 1 and not _is_idle(plan, launch) else ():
            requirement = launch.requirements[i]
            values = plan.value_slots(requirement.tensor)
            for first in range(0, len(launch.devices), parts):
                boxes = [b for b in requirement.boxes[first : first + parts] if not is_empty(b)]
                if requirement.field == "value":
                    assert len(boxes) <= 1
                    assert not boxes or boxes[0] == requirement.boxes[first]
                elif boxes:
                    assert len({box[1:] for box in boxes}) == 1
                    slots = [slot for box in boxes for slot in range(*box[0])]
                    assert slots == list(range(values))


def _is_idle(plan: Plan, launch: Launch) -> bool:
    """Whether the first parts alone run backward: they have nothing to multiply."""
    operator = launch.operator
    if operator is None or launch.pass_ != "backward":
        return False
    once = {
        id(tensor)
        for _, tensor, access in operator.operands
        if access.part >= 0 or len(operator.dims) - 1 in access.once
    }
    contributed = [r.tensor for r in launch.requirements if r.role == "contribution"]
    several = _parts(plan, launch) > 1
    return several and all(id(tensor) in once for tensor in contributed)


def check_structure(plan: Plan) -> None:
    """Launches come pass by pass, on the strategy's devices, inside the tensors."""
    # Partial values are combined right after they were computed.
    passes = [PASSES.index("forward" if x.pass_ == "sum" else x.pass_) for x in plan.launches]
    assert passes == sorted(passes)
    forward = {x.operator: x for x in plan.launches if x.pass_ == "forward"}
    for launch in plan.launches:
        if launch.pass_ == "backward":
            assert launch.devices == forward[launch.operator].devices
            assert launch.runs == TRAINS
            assert forward[launch.operator].runs & TRAINS
        for requirement in launch.requirements:
            assert len(requirement.boxes) == len(launch.devices)
            shape = requirement.tensor.shape
            if requirement.field in STACKED_FIELDS:
                shape = (plan.slots(requirement), *shape)
            assert all(is_empty(box) or inside(box, shape) for box in requirement.boxes)


def check_values(plan: Plan) -> None:
    """In each kind of run: tiles partition what is written, and nothing is read before that.

    That holds of each slot of partial values, which are read all together.
    """
    for run in RUNS:
        written = {("value", t): np.full(t.shape, t.kind == "weight") for t in plan.graph.tensors}
        for t in plan.graph.tensors:
            written["partial", t] = np.zeros((plan.value_slots(t), *t.shape), np.bool_)
        for launch in plan.launches:
            if not launch.runs & run:
                continue
            values = [r for r in launch.requirements if r.field in ("value", "partial")]
            in_parts = _linear_reads(launch) if _parts(plan, launch) > 1 else set()
            for i, requirement in enumerate(launch.requirements):
                if requirement not in values or "read" not in requirement.privilege:
                    continue
                for box in requirement.boxes:
                    # A tile of a concatenation may lie beside an input.
                    shards = launch.pass_ in ("update", "sum", "spread")
                    nothing = shards or _is_concat(launch)
                    nothing = nothing or i in in_parts or _is_idle(plan, launch)
                    assert not is_empty(box) or nothing or _is_once(launch, requirement)
                    assert written[requirement.field, requirement.tensor][region(box)].all()
                    slots = (0, plan.value_slots(requirement.tensor))
                    shared = requirement.field == "value" or is_empty(box) or i in in_parts
                    assert shared or box[0] == slots
            for requirement in values:
                if requirement.privilege == "read":
                    continue
                there = written[requirement.field, requirement.tensor]
                counts = np.zeros(there.shape, np.int64)
                for box in requirement.boxes:
                    if not is_empty(box):
                        counts[region(box)] += 1
                assert (counts == 1).all()
                there[...] = True


def check_gradient_slots(plan: Plan) -> None:
    """A write lies in one slot; tasks of a launch never meet in one; adding is to one's own."""
    earlier: dict[Tensor, list[tuple[Box, str]]] = defaultdict(list)
    for launch in plan.launches:
        mine: dict[Tensor, list[tuple[Box, str]]] = defaultdict(list)
        for requirement in launch.requirements:
            if requirement.field != "gradient" or requirement.privilege == "read":
                continue
            assert launch.pass_ == "backward"
            assert (requirement.privilege == "read-write") == any(requirement.adds)
            for k, box in enumerate(requirement.boxes):
                assert box[0][1] - box[0][0] == 1
                assert not any(overlap(box, other) for other, _ in mine[requirement.tensor])
                met = [p for p in earlier[requirement.tensor] if overlap(box, p[0])]
                assert requirement.adds[k] == bool(met)
                assert all(p == (box, launch.devices[k]) for p in met)
                mine[requirement.tensor].append((box, launch.devices[k]))
        for tensor, pieces in mine.items():
            earlier[tensor] += pieces


def _marks_of(launch: Launch, tensor: Tensor) -> Marks:
    """A mark for each task; different for each operator, so that no two sums agree by chance."""
    assert launch.operator is not None
    seed = [*launch.operator.name.encode(), *tensor.name.encode()]
    return np.random.default_rng(seed).integers(1, 1 << 40, len(launch.devices))


def _owed(plan: Plan) -> dict[Tensor, Marks]:
    """For each tensor: the marks of all tasks that read each element on the way to the loss."""
    owed = {t: np.zeros(t.shape, np.int64) for t in plan.graph.tensors}
    for launch in plan.launches:
        if launch.pass_ != "forward" or not launch.runs & TRAINS:
            continue
        assert launch.operator is not None
        if all(tensor.detached for tensor in launch.operator.outputs):
            continue  # no gradient passes through it
        parts, linear = _parts(plan, launch), _linear_reads(launch)
        for i, requirement in enumerate(launch.requirements):
            if requirement.privilege == "read" and plan.gradient_slots(requirement.tensor):
                marks = _marks_of(launch, requirement.tensor)
                if i in linear:  # the gradient is that of the sum, and one part contributes it
                    marks[np.arange(len(marks)) % parts > 0] = 0
                for box, mark in zip(requirement.boxes, marks, strict=True):
                    its = box[1:] if requirement.field == "partial" else box
                    owed[requirement.tensor][region(its)] += mark
    return owed


def _write(stack: Marks, launch: Launch, requirement: Requirement) -> None:
    marks = _marks_of(launch, requirement.tensor)
    for box, adds, mark in zip(requirement.boxes, requirement.adds, marks, strict=True):
        if adds:
            stack[region(box)] += mark
        else:
            stack[region(box)] = mark


def _sum_in_nodes(launch: Launch, stacks: dict[Tensor, Marks], sums: dict[Tensor, Marks]) -> None:
    """Each task sums the slots of its node, and writes them into that node's slot."""
    partial = {r.tensor: r.boxes for r in launch.requirements if r.role == "node gradient"}
    for r in launch.requirements:
        if r.role != "node sum":
            continue
        sums[r.tensor][...] = -1
        for read, box in zip(partial[r.tensor], r.boxes, strict=True):
            if not is_empty(box):
                assert read[1:] == box[1:]
                assert box[0][1] - box[0][0] == 1
                assert (sums[r.tensor][region(box)] == -1).all()
                sums[r.tensor][region(box)] = stacks[r.tensor][region(read)].sum(axis=0)
        assert (sums[r.tensor] != -1).all()


def _readers(tensor: Tensor) -> list[set[str]]:
    """The passes that may read a tensor's gradient."""
    if tensor.kind == "input":
        return [set()]
    updates = [{"update"}, {"norm", "update"}]
    if tensor.kind == "weight":
        return [*updates, *({"node_sum", *passes} for passes in updates)]
    return [{"backward"}, *updates]


def check_clipping(plan: Plan) -> None:
    """Norm tasks read what update tasks will; one task reads all that they write."""
    updates = {x.operator: x for x in plan.launches if x.pass_ == "update"}
    norms = {x.operator: x for x in plan.launches if x.pass_ == "norm"}
    clips = [x for x in plan.launches if x.pass_ == "clip"]
    if not norms:
        assert not clips
        return
    assert list(norms) == list(updates)
    written = []
    for operator, norm in norms.items():
        update = updates[operator]
        assert norm.devices == update.devices
        reads = [r for r in update.requirements if r.privilege == "read"]
        assert reads[-1].role == "clipped by"
        assert norm.requirements[-1].role == "norm"
        assert [(r.tensor, r.boxes) for r in norm.requirements[:-1]] == [
            (r.tensor, r.boxes) for r in reads[:-1]
        ]
        written += norm.requirements[-1].boxes
    count = plan.of_iteration["norms"].shape[0]
    assert written == [((i, i + 1),) for i in range(count)]
    assert [[(r.role, r.boxes) for r in clip.requirements] for clip in clips] == [
        [("all norms", [((0, count),)]), ("total norm", [((0, 1),)])]
    ]


def check_gradient_sums(plan: Plan) -> None:
    """Readers find every contribution exactly once, in the second iteration as in the first.

    Where gradients are clipped, those of weights have two readers. Where they are summed inside
    nodes first, each node's tasks find that node's contributions, and the update their sums. The
    gradient of an output that has partial values is each one's, and what was looked up in a table
    is read by each part of its rows.
    """
    owed = _owed(plan)
    backward = {
        r.tensor: launch
        for launch in plan.launches
        for r in launch.requirements
        if r.role == "output gradient"
    }
    stacks = {t: np.zeros((plan.gradient_slots(t), *t.shape), np.int64) for t in plan.graph.tensors}
    sums = {t: np.zeros((plan.node_sums(t), *t.shape), np.int64) for t in plan.graph.tensors}
    for _ in range(2):
        read: dict[tuple[Tensor, str], Marks] = {}
        row_parts: dict[tuple[Tensor, str], int] = {}
        for launch in plan.launches:
            gradients = [r for r in launch.requirements if r.field in ("gradient", "node sums")]
            if launch.pass_ == "node_sum":
                _sum_in_nodes(launch, stacks, sums)
            for requirement in gradients:
                if requirement.privilege != "read":
                    continue
                tensor = requirement.tensor
                mine = read.setdefault((tensor, launch.pass_), np.zeros(tensor.shape, np.int64))
                if requirement.role == "looked up gradient":
                    parts = Counter(box for box in requirement.boxes if not is_empty(box))
                    row_parts[tensor, launch.pass_] = max(parts.values())
                for box in requirement.boxes:
                    if not is_empty(box):
                        stack = (sums if requirement.field == "node sums" else stacks)[tensor]
                        found = stack[region(box)].sum(axis=0)
                        in_node = requirement.role == "node gradient"
                        assert in_node or (found == owed[tensor][region(box[1:])]).all()
                        mine[region(box[1:])] += 1
            for requirement in gradients:
                if requirement.privilege != "read" and requirement.field == "gradient":
                    _write(stacks[requirement.tensor], launch, requirement)
        for tensor, stack in stacks.items():
            if len(stack):
                assert (stack.sum(axis=0) == owed[tensor]).all()
                readers = {pass_ for its, pass_ in read if its is tensor}
                assert readers in _readers(tensor)
        for (tensor, pass_), times in read.items():
            values = plan.value_slots(tensor) if pass_ == "backward" else 1
            if pass_ == "backward" and _is_idle(plan, backward[tensor]):
                values //= _parts(plan, backward[tensor])
            if pass_ == "node_sum":
                values = plan.node_sums(tensor)
            readers_of_each = row_parts.get((tensor, pass_), values)
            assert (times == readers_of_each).all()


def check_gradients_exist(plan: Plan) -> None:
    """Weights that training reads have a gradient and one update; others have none."""
    trained = {
        r.tensor
        for launch in plan.launches
        if launch.pass_ == "forward" and launch.runs & TRAINS
        for r in launch.requirements
        if r.tensor.kind == "weight" and r.tensor.requires_gradient
    }
    updated = [
        r.tensor
        for launch in plan.launches
        if launch.pass_ == "update"
        for r in launch.requirements
        if r.field == "value" and r.privilege == "read-write"
    ]
    assert sorted(map(repr, updated)) == sorted(map(repr, trained))
    # As Python found from the access maps while the graph was drawn, so did the plan.
    assert {tensor for tensor in trained if tensor.table} == set(plan.facts.lookups)
    for tensor in plan.graph.weights:
        has_gradient = tensor in trained and not tensor.table
        assert (plan.gradient_slots(tensor) > 0) == has_gradient


def check_shards(plan: Plan) -> None:
    """Each part of a weight is cut into one shard a replica device.

    Capped by its extent, and so that shards do not get too small.
    """
    forward = {x.operator: x for x in plan.launches if x.pass_ == "forward"}
    for launch in plan.launches:
        if launch.pass_ != "update":
            continue
        user = forward[launch.operator]
        for requirement in launch.requirements:
            if requirement.field != "value" or requirement.privilege == "read":
                continue
            users: dict[Box, set[str]] = defaultdict(set)
            reads = next(r for r in user.requirements if r.tensor is requirement.tensor)
            for box, device in zip(reads.boxes, user.devices, strict=True):
                if not is_empty(box):
                    users[box].add(device)
            for part, devices in users.items():
                shards = [
                    (box, device)
                    for box, device in zip(requirement.boxes, launch.devices, strict=True)
                    if not is_empty(box) and overlap(box, part)
                ]
                extents = [hi - lo for lo, hi in part]
                longest = max(extents)
                size = 4 * np.prod([hi - lo for lo, hi in part])
                least = plan.granularity.shard_bytes
                most = max(1, size // least) if least else len(devices)
                count = min(longest, len(devices), most)
                if plan.node_sums(requirement.tensor):  # the same in all nodes
                    assert 1 <= len(shards) <= count
                else:
                    assert len(shards) == count
                assert len({device for _, device in shards}) == len(shards)
                assert {device for _, device in shards} <= devices
                sizes = [np.prod([hi - lo for lo, hi in box]) for box, _ in shards]
                assert sum(sizes) == np.prod([hi - lo for lo, hi in part])
                assert max(sizes) - min(sizes) <= sum(sizes) // longest


def check_states(plan: Plan) -> None:
    """An update touches value, gradient and states of the very same shards."""
    for launch in plan.launches:
        by_tensor: dict[Tensor, list[list[Box]]] = defaultdict(list)
        for r in launch.requirements if launch.pass_ == "update" else []:
            if r.tensor.kind != "weight":  # of what was looked up in a table
                assert r.privilege == "read"
                continue
            assert r.privilege == ("read" if r.field in STACKED_FIELDS else "read-write")
            stacked = r.field in STACKED_FIELDS
            by_tensor[r.tensor].append(
                [box[1:] if stacked and not is_empty(box) else box for box in r.boxes]
            )
        for boxes in by_tensor.values():
            for other in boxes[1:]:
                for a, b in zip(boxes[0], other, strict=True):
                    assert a == b or (is_empty(a) and is_empty(b))


def check_tables(plan: Plan) -> None:
    """Each column of a table, and of its states, lives on the device that looks it up."""
    homes: dict[Tensor, list[tuple[Box, str]]] = {}
    for launch in plan.launches:
        for r in launch.requirements:
            if r.tensor.table and launch.pass_ == "forward":
                homes.setdefault(r.tensor, sorted(zip(r.boxes, launch.devices, strict=True)))
            elif r.tensor.table:
                assert launch.pass_ == "update"
                shards = zip(r.boxes, launch.devices, strict=True)
                assert sorted((box, d) for box, d in shards if not is_empty(box)) == homes[r.tensor]
    for home in homes.values():
        assert not any(overlap(a, b) for i, (a, _) in enumerate(home) for b, _ in home[:i])


def check_facts(plan: Plan) -> None:
    """What Python and native code each say of a graph agrees."""
    assert plan.facts.backward == {x.operator for x in plan.launches if x.pass_ == "backward"}
    launched = {launch.operator for launch in plan.launches}
    assert plan.facts.idle == [op for op in plan.graph.operators if op not in launched]


CHECKS = [
    Plan.verify,
    check_facts,
    check_tables,
    check_structure,
    check_values,
    check_parts,
    check_gradient_slots,
    check_gradient_sums,
    check_gradients_exist,
    check_clipping,
    check_shards,
    check_states,
]

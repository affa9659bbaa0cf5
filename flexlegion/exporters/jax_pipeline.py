"""How a plan for JAX trains in stages: one process gives all devices their turns.

A stage has its own mesh, and each of its runs of operators is compiled by itself, forward and
backward. What goes from stage to stage is put from one mesh to the other. JAX computes behind the
process's back, each device in the order in which it was given work; so stages compute at the same
time, and each in the order of the schedule.
"""

# mypy: disable-error-code="no-untyped-call, no-any-return"

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from flexlegion.spmd.schedule import Turn, orders

if TYPE_CHECKING:
    from flexlegion.exporters.jax_runtime import Form, Place, Weights, arranged, placed, trained
    from flexlegion.exporters.jax_training import scaled, squares

# begin


class Passed(NamedTuple):
    """A tensor that goes from one run to the next, and how the first one that reads it has it."""

    name: str
    spec: Spec
    has_gradient: bool


@functools.cache
def meshes() -> Sequence[Mesh]:
    """The devices of each stage."""
    if jax.process_count() > 1:
        raise ValueError("a pipeline runs in one process, which has the devices of all stages")
    devices = jax.devices()
    return [arranged([devices[number] for number in stage]) for stage in STAGES]


def mesh() -> Mesh:
    """The devices of the run that is being compiled."""
    return mesh_of(COMPILED[-1])


def mesh_of(run: int) -> Mesh:
    """The devices of a run."""
    return meshes()[run % len(STAGES)]


def home(place: Place) -> Mesh:
    """Where a weight is stored: with the first run that reads it."""
    return mesh_of(place.runs[0])


@contextlib.contextmanager
def compiling(run: int) -> Iterator[None]:
    """While a run is compiled."""
    COMPILED.append(run)
    try:
        yield
    finally:
        COMPILED.pop()


COMPILED: list[int] = []


def put(value: Any, run: int, spec: Spec) -> Array:
    """An array on the devices of a run."""
    return jax.device_put(value, NamedSharding(mesh_of(run), spec))


def once_more(function: Callable[..., Any], policy: Any = None) -> Callable[..., Any]:
    """A function that the backward pass runs again, but for the results that a policy keeps.

    Forward and backward pass are compiled apart, so that the compiler cannot join equal parts.
    """
    return jax.checkpoint(function, policy=policy, prevent_cse=False)


def by_stage(values: Mapping[str, Array]) -> list[dict[str, Array]]:
    """Of each stage: values by weight, such as gradients, that are on its devices.

    A compiled function takes those of one stage.
    """
    parts: list[dict[str, Array]] = [{} for _ in STAGES]
    for name, value in values.items():
        parts[WEIGHTS[name].runs[0] % len(STAGES)][name] = value
    return parts


def clipped(gradients: Weights) -> dict[str, Array]:
    """Gradients by weight, scaled down to the norm CLIP_NORM, of all together."""
    if CLIP_NORM is None:
        return dict(gradients)
    parts = by_stage(gradients)
    total = sum((put(jax.jit(squares)(its), 0, Spec()) for its in parts), jnp.zeros(()))
    factor = CLIP_NORM / (jnp.sqrt(total) + 1e-6)
    result: dict[str, Array] = {}
    for stage, its in enumerate(parts):
        result |= jax.jit(scaled)(its, put(factor, stage, Spec()))
    return {name: result[name] for name in gradients}


def in_pipeline(
    w: Weights, inputs: Mapping[str, Any], labels: Mapping[str, Any], key: Any
) -> tuple[Array, dict[str, Array], dict[str, Array]]:
    """Loss, gradients and new states of a batch that goes through the stages.

    It is no function for `jax.jit`: it gives out work that is compiled.
    """
    if any(isinstance(weight, jax.core.Tracer) for weight in w.values()):
        raise ValueError("value_and_grad of a pipeline is called outside of jax.jit")
    its = Iteration(w, inputs, labels, key)
    stages = [run % len(STAGES) for run in range(len(RUNS))]
    queues = [deque(turns) for turns in orders(stages, MICRO_BATCHES, SCHEDULE)]
    while any(queues):
        for queue in queues:
            if queue and its.has_what_needs(queue[0]):
                its.take(queue.popleft())
    return its.loss, its.gradients, its.states


class Iteration:
    """What is there of a batch while its micro-batches go through the runs.

    What has come for a turn, and what its forward pass keeps for its backward pass, is found by
    run and micro-batch.
    """

    def __init__(
        self, w: Weights, inputs: Mapping[str, Any], labels: Mapping[str, Any], key: Any
    ) -> None:
        runs = range(len(RUNS))
        # A weight in shards is gathered once, unless each use of it gathers it.
        self.weights = [
            {
                name: put(w[name], run, its.stored if its.sharding == "weights" else its.spec)
                for name, its in WEIGHTS.items()
                if run in its.runs
            }
            for run in runs
        ]
        self.sums = [
            {
                name: jnp.zeros(
                    value.shape, value.dtype, device=NamedSharding(mesh_of(run), stored_as(name))
                )
                for name, value in trained(self.weights[run]).items()
            }
            for run in runs
        ]
        self.data = {
            name: FORMS[name].parts(name, value, MICRO_BATCHES)
            for name, value in {**inputs, **labels}.items()
        }
        self.keys = [None if key is None else put(key, run, Spec()) for run in runs]
        self.labels = {name: put(its, len(RUNS) - 1, Spec()) for name, its in labels.items()}
        first: dict[str, Array] = {}
        self.passed = {(0, number): first for number in range(MICRO_BATCHES)}
        self.returned: dict[tuple[int, int], Any] = {}
        self.kept: dict[tuple[int, int], Any] = {}
        self.states: dict[str, Array] = {}
        self.loss: Any = 0

    def has_what_needs(self, turn: Turn) -> bool:
        """Whether what a turn is given has been computed, or will be."""
        come = self.returned if turn.backward else self.passed
        return (turn.run, turn.micro_batch) in come

    def take(self, turn: Turn) -> None:
        """Let a run compute."""
        (self.backward if turn.backward else self.forward)(turn.run, turn.micro_batch)

    def forward(self, run: int, number: int) -> None:
        """A run's forward pass of a micro-batch."""
        given = dict(self.passed.pop((run, number)))
        smooth = {its.name: given.pop(its.name) for its in received(run) if its.has_gradient}
        for name in READ[run]:
            given[name] = put(FORMS[name].taken(name, self.data[name][number]), run, Spec())
        is_last = run == len(RUNS) - 1
        others = given, self.labels if is_last else {}, self.keys[run], number
        made, backward, (more, states) = forward_of(run, self.weights[run], smooth, others)
        self.kept[run, number] = backward
        self.states |= states
        if is_last:
            self.loss = self.loss + made
            self.returned[run, number] = jnp.ones((), made.dtype)
        else:
            made = {**made, **more}
            self.passed[run + 1, number] = {
                its.name: put(made[its.name], run + 1, its.spec) for its in PASSED[run]
            }

    def backward(self, run: int, number: int) -> None:
        """A run's backward pass of a micro-batch."""
        its = self.kept.pop((run, number)), self.returned.pop((run, number))
        self.sums[run], back = backward_of(run, self.weights[run], *its, self.sums[run])
        if run:
            self.returned[run - 1, number] = {
                its.name: put(back[its.name], run - 1, its.spec)
                for its in received(run)
                if its.has_gradient
            }

    @property
    def gradients(self) -> dict[str, Array]:
        """By weight, where it is stored: the sum over the runs that read it."""
        found: dict[str, Array] = {}
        for name, place in WEIGHTS.items():
            if place.trained:
                home, *others = place.runs
                found[name] = self.sums[home][name]
                for run in others:
                    found[name] = found[name] + put(self.sums[run][name], home, place.stored)
        return found


def received(run: int) -> Sequence[Passed]:
    """What comes to a run from the one before."""
    return PASSED[run - 1] if run else ()


def stored_as(name: str) -> Spec:
    """How a weight, its gradient or its new state lies."""
    return WEIGHTS[name].stored


@functools.partial(jax.jit, static_argnums=0)
def forward_of(run: int, w: Weights, smooth: Weights, others: Any) -> Any:
    """A run's forward pass.

    Parameters
    ----------
    run
        Its number.
    w
        The weights that it reads.
    smooth
        What it is given that has a gradient, by name.
    others
        Other tensors that it is given; all labels, for the last run; a key, and the number of the
        micro-batch.

    Returns
    -------
    tuple
        What has a gradient, the loss or tensors by name; a function for the backward pass; and
        other tensors by name with new states.
    """
    given, labels, key, number = others
    mine = None if key is None else jax.random.fold_in(key, number)

    def function(its: Weights, smooth: Weights) -> Any:
        t: dict[str, Any] = {**given, **smooth}
        RUNS[run]({**w, **its}, t, mine)
        states = {name: placed(t[name], stored_as(name)) for name in STATES if name in t}
        if run == len(RUNS) - 1:
            return loss(w, t, labels), ({}, states)
        made: dict[bool, dict[str, Array]] = {True: {}, False: {}}
        for its_place in PASSED[run]:
            name = its_place.name
            made[its_place.has_gradient][name] = placed(t[name], its_place.spec)
        return made[True], (made[False], states)

    backward: Any
    with compiling(run):
        results, backward, more = jax.vjp(function, trained(w), smooth, has_aux=True)
    backward.args_res[0] = None  # the weights are there: a micro-batch keeps no copy of them
    return results, backward, more


@functools.partial(jax.jit, static_argnums=0, donate_argnums=4)
def backward_of(run: int, w: Weights, backward: Any, gradients: Any, sums: Weights) -> Any:
    """A run's backward pass: gradients of weights added to the sums, those of what it was given."""
    backward.args_res[0] = trained(w)
    of_weights, of_given = backward(gradients)
    with compiling(run):
        added = {
            name: sums[name] + placed(its, stored_as(name)) for name, its in of_weights.items()
        }
        back = {
            its.name: placed(of_given[its.name], its.spec)
            for its in received(run)
            if its.has_gradient
        }
    return added, back


# end
# A plan has values of its own.
CLIP_NORM: float | None = None
FORMS: dict[str, Form] = {}
MICRO_BATCHES: int = 1
PASSED: Sequence[Sequence[Passed]] = ()
READ: Sequence[Sequence[str]] = ()
RUNS: Sequence[Callable[[Weights, dict[str, Any], Any], None]] = ()
SCHEDULE: str = ""
STAGES: Sequence[Sequence[int]] = ()
STATES: tuple[str, ...] = ()
WEIGHTS: dict[str, Place] = {}
loss: Callable[..., Array] = jnp.zeros

"""How a plan for DTensor trains in stages, by `torch.distributed.pipelining`."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import pipelining
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from flexlegion.exporters.dtensor_runtime import spread
from flexlegion.exporters.dtensor_training import adding_up, share_of

if TYPE_CHECKING:
    from flexlegion.exporters.dtensor_runtime import Form, Place, Placements, Weights

# begin


class Passed(NamedTuple):
    """A tensor that goes from one run to the next: the shape of each device's part, how it lies."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    placements: Placements

    @property
    def example(self) -> Tensor:
        """A tensor of the part's shape."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        its = torch.empty(self.shape, dtype=dtype, device="meta")
        return its.requires_grad_(dtype.is_floating_point)


def devices(kind: str) -> DeviceMesh:
    """All devices: the stages, and a mesh of each stage's devices."""
    numbers = torch.tensor(STAGES).reshape(len(STAGES), *SIZES)
    return DeviceMesh(kind, numbers, mesh_dim_names=(STAGE, *AXES))


STAGE = "stage"


class Run(torch.nn.Module):
    """A row of operators of the stage that this process is in."""

    def __init__(self, w: Weights, number: int) -> None:
        super().__init__()
        self.weights, self.number = [w], number  # a list, as they are no parts of this module

    def forward(self, *passed: Tensor, micro_batch: Tensor, **data: Tensor) -> Any:
        """What the next run needs; or the loss of the micro-batch."""
        (w,), number = self.weights, self.number
        w.micro_batch = int(micro_batch)
        t: dict[str, Any] = {}
        if number:
            for its, tile in zip(PASSED[number - 1], passed, strict=True):
                t[its.name] = DTensor.from_local(tile, w.mesh, its.placements, run_check=False)
        for name in READ[number]:
            t[name] = spread(w, data[keyword_of(name)])
        RUNS[number](w, t)
        if number == len(RUNS) - 1:
            return loss(w, t, w.whole).reshape(1)
        return tuple(
            t[its.name].redistribute(placements=its.placements).to_local().contiguous()
            for its in PASSED[number]
        )


def keyword_of(name: str) -> str:
    """The keyword by which an input goes to all runs."""
    return f"x{[*FORMS].index(name)}"


def schedule_of(w: Weights) -> Any:
    """The order in which micro-batches go forward and backward at the stage of this process."""
    group = w.stages.get_group(STAGE)
    kind = w.mesh.device_type
    device = torch.device(kind, torch.cuda.current_device() if kind == "cuda" else 0)
    mine = range(dist.get_rank(group), len(RUNS), len(STAGES))
    last = Passed("loss", (1,), "float32", ())
    runs = [
        pipelining.PipelineStage(
            Run(w, number),
            number,
            len(RUNS),
            device,
            input_args=tuple(its.example for its in PASSED[number - 1]) if number else (),
            output_args=tuple(
                its.example for its in (PASSED[number] if number < len(RUNS) - 1 else (last,))
            ),
            group=group,
        )
        for number in mine
    ]
    schedule: Any = getattr(pipelining, SCHEDULE)
    its: Any = runs if len(RUNS) > len(STAGES) else runs[0]
    return schedule(its, MICRO_BATCHES, loss_fn=lambda loss, _: loss.sum(), scale_grads=False)


def in_pipeline(w: Weights, inputs: Mapping[str, Tensor], labels: Mapping[str, Tensor]) -> Tensor:
    """The loss of a batch whose micro-batches go through the stages forward and backward.

    Gradients are in the `grad` of the parameters of this process's stage.
    """
    if w.schedule is None:
        w.groups, w.schedule = groups_of(w.stages), schedule_of(w)
    data = {}
    for name, value in {**inputs, **labels}.items():
        form = share_of(w, name, value)
        parts = form.parts(name, value, MICRO_BATCHES)
        data[keyword_of(name)] = torch.cat([form.taken(name, part) for part in parts])
    losses: list[Tensor] = []
    numbers = torch.arange(MICRO_BATCHES)
    is_last = w.stages.get_local_rank(STAGE) == len(STAGES) - 1
    more: dict[str, Any] = {"target": numbers, "losses": losses} if is_last else {}
    w.whole = labels
    with shared_by_stages(w), adding_up(w):
        w.schedule.step(micro_batch=numbers, **data, **more)
    total = torch.zeros((), device=w.mesh.device_type)
    for value in losses:
        total = total + value.detach()
    dist.all_reduce(total, group=w.stages.get_group(STAGE))
    return total


@contextlib.contextmanager
def shared_by_stages(w: Weights) -> Iterator[None]:
    """Afterwards, gradients of weights that several stages have are the sums over these."""
    shared = {n: getattr(w, a) for n, a in w.names.items() if len(WEIGHTS[n].stages) > 1}
    before = {name: parameter.grad for name, parameter in shared.items()}
    for parameter in shared.values():
        parameter.grad = None
    yield
    for name, parameter in shared.items():
        if parameter.requires_grad:
            its: Any = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.all_reduce(its.to_local(), group=w.groups[WEIGHTS[name].stages])
            parameter.grad = its if before[name] is None else its + before[name]


def groups_of(mesh: DeviceMesh) -> dict[tuple[int, ...], Any]:
    """Of stages that have a weight in common: the processes at the place of this one."""
    found = {}
    for stages in sorted({place.stages for place in WEIGHTS.values() if len(place.stages) > 1}):
        for ranks in mesh.mesh[list(stages)].flatten(1).t().tolist():
            group = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                found[stages] = group
    return found


# end
# A plan has values of its own.
AXES: tuple[str, ...] = ()
FORMS: dict[str, Form] = {}
MICRO_BATCHES: int = 1
PASSED: Sequence[Sequence[Passed]] = ()
READ: Sequence[Sequence[str]] = ()
RUNS: Sequence[Callable[[Weights, dict[str, Any]], None]] = ()
SCHEDULE: str = ""
SIZES: tuple[int, ...] = ()
STAGES: Sequence[Sequence[int]] = ()
WEIGHTS: dict[str, Place] = {}
loss: Callable[..., Tensor] = torch.zeros

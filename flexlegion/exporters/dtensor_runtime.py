"""What a plan for DTensor begins with."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.experimental import local_map

from flexlegion.exporters.dtensor_training import Copy, devices, gathered_again

# begin
Placements = tuple[Placement, ...]
R, P = Replicate(), Partial()
S0, S1, S2, S3, S4, S5 = (Shard(d) for d in range(6))


class Operand(NamedTuple):
    """How an operator reads a tensor: see `read`."""

    tensor: DTensor
    placements: Placements
    gradient: Placements
    once: tuple[int, ...]
    gathered: bool


def read(
    tensor: DTensor,
    placements: Placements,
    gradient: Placements,
    once: tuple[int, ...] = (),
    gathered: bool = False,
) -> Operand:
    """An operand: where it has to lie, how its gradient lies, by axes of the mesh.

    Along the axes `once`, all but the first device take zeros: the operand is a term of a sum. One
    that is `gathered` is a weight in shards, which the backward pass gathers once more.
    """
    return Operand(tensor, placements, gradient, once, gathered)


def run(
    function: Callable[..., Any],
    operands: Sequence[Operand],
    outputs: Sequence[Placements],
    **attributes: Any,
) -> Any:
    """Apply a function to each device's tiles of the operands; they make the outputs' tiles.

    With the precision "bf16", factors of products are rounded to bfloat16, and what comes out is in
    single precision again.
    """
    mesh = operands[0].tensor.device_mesh

    def on_tiles(*tiles: Tensor) -> tuple[Tensor, ...]:
        given = [
            tile * 0 if part(operand.once, mesh) else tile
            for tile, operand in zip(tiles, operands, strict=True)
        ]
        rounded = torch.autocast(mesh.device_type, torch.bfloat16, enabled=PRECISION == "bf16")
        with gathered_again(operands, tiles), rounded:
            results = function(*given, **attributes)
        kept = (results if isinstance(results, tuple) else (results,))[: len(outputs)]
        return tuple(tile.float() if tile.dtype == torch.bfloat16 else tile for tile in kept)

    results = local_map(
        on_tiles,
        out_placements=tuple(outputs),
        in_placements=tuple(operand.placements for operand in operands),
        in_grad_placements=tuple(operand.gradient for operand in operands),
        device_mesh=mesh,
        redistribute_inputs=True,
    )(*(operand.tensor for operand in operands))
    return results[0] if len(outputs) == 1 else results


def clip(weights: Weights) -> Tensor:
    """Scale all gradients down to the norm CLIP_NORM, of all together; their norm before.

    It is called between the backward pass and the optimizer's step.
    """
    mesh = weights.mesh
    names = {name: getattr(weights, attribute).grad for name, attribute in weights.names.items()}
    gradients: dict[str, Any] = {name: its for name, its in names.items() if its is not None}
    total = torch.zeros((), device=mesh.device_type)
    with torch.no_grad():
        for name, gradient in gradients.items():
            if WEIGHTS[name].stages[0] != weights.stage:
                continue  # the first stage that has it counts it
            placed = tuple(R if isinstance(p, Partial) else p for p in gradient.placements)
            summed = tuple(P if isinstance(p, Shard) else R for p in placed)
            squares = run(_squares, [read(gradient, placed, placed)], [summed])
            total = total + squares.redistribute(mesh, [R] * mesh.ndim).to_local()
        if weights.stages is not None:
            dist.all_reduce(total, group=weights.stages.get_group(0))
        norm = total.sqrt()
        if CLIP_NORM is not None:
            factor = (CLIP_NORM / (norm + 1e-6)).clamp(max=1)
            for gradient in gradients.values():
                gradient.to_local().mul_(factor)
    return norm


def _squares(tile: Tensor) -> Tensor:
    return tile.square().sum()


def part(axes: Sequence[int], mesh: DeviceMesh) -> int:
    """Which of the parts along some axes of the mesh is this device's."""
    place: Sequence[int] = mesh.get_coordinate() or []
    number = 0
    for axis in axes:
        number = number * mesh.size(axis) + place[axis]
    return number


def given(w: Weights, name: str, value: Tensor) -> DTensor:
    """An input or labels on the devices: whole on each, or each device's own share."""
    form = FORMS[name]
    its = form.sized(value) if MULTIPLE else form.of(form.samples // w.shares)
    if MULTIPLE and its.samples * w.shares % MULTIPLE:
        raise ValueError(
            f"{name} has {its.samples * w.shares} samples, but the program takes a multiple of "
            f"{MULTIPLE}"
        )
    return spread(w, its.taken(name, value))


def spread(w: Weights, tensor: Tensor) -> DTensor:
    """Data that all devices have, as a tensor that is replicated; or those of their own shares."""
    axes = SHARED if w.own_share else ()
    placed = [S0 if axis in axes else R for axis in range(w.mesh.ndim)]
    return DTensor.from_local(tensor, w.mesh, placed, run_check=False)


def counted(w: Weights, counts: Tensor) -> Tensor:
    """What labels count together, those of all devices' shares."""
    axes = SHARED if w.own_share else ()
    placed = [P if axis in axes else R for axis in range(w.mesh.ndim)]
    return DTensor.from_local(counts.sum(), w.mesh, placed, run_check=False).full_tensor()


def mean(values: DTensor, count: Tensor | None, parts: int = 1) -> Tensor:
    """The mean of a loss over the batch, on every device.

    The batch has so many `parts`, of one of which these are the values; its labels count so much
    together, by default each of them 1.
    """
    mesh = values.device_mesh
    placed = tuple(values.placements)
    summed = tuple(P if isinstance(p, Shard) else R for p in placed)
    total = run(torch.sum, [read(values, placed, placed)], [summed])
    whole: Tensor = total.redistribute(mesh, [R] * mesh.ndim).to_local()
    return whole / (parts * values.numel() if count is None else torch.where(count > 0, count, 1))


class Form(NamedTuple):
    """How the module has an input, labels or an output, and how the program's tensor has it.

    The module's `shape`, cut into the dimensions `cut`, in this `order`, is the tensor's: `stored`.
    Labels may differ from the shape in extents of 1: they are `loose`.
    """

    shape: tuple[int, ...]
    cut: tuple[int, ...]
    order: tuple[int, ...]
    stored: tuple[int, ...]
    loose: bool

    def taken(self, name: str, value: Tensor) -> Tensor:
        """Data as the program has them; `ValueError` if their shape is another one."""
        if not fits(tuple(value.shape), self.shape, self.loose):
            raise ValueError(
                f"{name} has shape {list(value.shape)}, but the program takes {list(self.shape)}"
            )
        return value.reshape(self.cut).permute(self.order).reshape(self.stored)

    @property
    def samples(self) -> int:
        """Of a batch."""
        return self.cut[self.order[0]]

    def of(self, samples: int) -> Form:
        """The same for another number of samples."""
        at = self.order[0]
        before = math.prod(self.cut[:at])
        d = next(d for d in range(len(self.shape)) if math.prod(self.shape[:d]) == before)
        each = self.shape[d] // self.samples
        return Form(
            (*self.shape[:d], each * samples, *self.shape[d + 1 :]),
            (*self.cut[:at], samples, *self.cut[at + 1 :]),
            self.order,
            (samples, *self.stored[1:]),
            self.loose,
        )

    def sized(self, value: Tensor, parts: int = 1) -> Form:
        """The same for a part of as many samples as data have; as it is, if these are no data."""
        before = math.prod(self.cut[: self.order[0]])
        d = next(d for d in range(len(self.shape)) if math.prod(self.shape[:d]) == before)
        each = parts * self.shape[d] // self.samples
        if value.dim() <= d or value.shape[d] % each or not value.shape[d]:
            return self
        return self.of(value.shape[d] // each)

    def parts(self, name: str, value: Tensor, count: int) -> Sequence[Tensor]:
        """Data of so many batches, cut into these; `ValueError` if their shape is another one."""
        whole = self.of(count * self.samples)
        if not fits(tuple(value.shape), whole.shape, self.loose):
            raise ValueError(
                f"{name} has shape {list(value.shape)}, but the program takes "
                f"{list(whole.shape)}, in {count} micro-batches"
            )
        chunks = value.reshape(whole.cut).chunk(count, self.order[0])
        return [chunk.reshape(self.shape) for chunk in chunks]

    def made(self, tensor: DTensor) -> DTensor:
        """An output as the module has it."""
        if self.stored[0] == self.samples != tensor.shape[0]:
            return self.of(tensor.shape[0]).made(tensor)
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        places = tuple(tensor.placements)
        if self.cut != self.shape:
            places = (R,) * len(places)  # dimensions that are joined are not split
        moved = tuple(Shard(self.order[p.dim]) if isinstance(p, Shard) else p for p in places)

        def on_tile(tile: Tensor) -> Tensor:
            cut = tile[: self.cut[back.index(0)]].permute(back)
            return cut if self.cut == self.shape else cut.reshape(self.shape)

        gradient = tuple(R if isinstance(p, Partial) else p for p in places)
        made: DTensor = run(on_tile, [read(tensor, places, gradient)], [moved])
        return made


def fits(shape: tuple[int, ...], wanted: tuple[int, ...], loose: bool) -> bool:
    """Whether data have a shape; or differ in extents of 1, where they may."""
    tight = [extent for extent in wanted[1:] if extent != 1]
    if shape == wanted or not (loose or not tight):
        return shape == wanted
    return shape[:1] == wanted[:1] and [extent for extent in shape[1:] if extent != 1] == tight


class Source(NamedTuple):
    """How a weight holds a parameter: cut into factors, one of which may be taken, and reordered.

    `order` is of the factors that are left, `shape` what they make, `taken` (factor, i). Of a part
    of the parameter, `rows` is how many there are, the first one and the last (exclusive).
    """

    parameter: str
    factors: tuple[int, ...]
    order: tuple[int, ...]
    shape: tuple[int, ...]
    taken: tuple[int, int] | None
    rows: tuple[int, int, int] | None

    def of(self, parameter: Tensor) -> Tensor:
        """The weight's values."""
        whole = parameter.detach().contiguous()  # a module's in channels_last is not
        return self.part(whole).permute(self.order).reshape(self.shape)

    def put(self, weight: Tensor, parameter: Tensor) -> None:
        """Write a weight's values to where they are in the parameter."""
        whole = parameter.detach().contiguous()
        part = self.part(whole)
        cut = weight.reshape([part.shape[d] for d in self.order])
        part.permute(self.order).copy_(cut)
        parameter.detach().copy_(whole)

    def part(self, parameter: Tensor) -> Tensor:
        """The factors that are left, as a view."""
        if self.rows is not None:
            count, start, stop = self.rows
            parameter = parameter.view(count, -1)[start:stop]
        cut = parameter.view(self.factors)
        return cut if self.taken is None else cut.select(*self.taken)


def weights_of(module: torch.nn.Module, others: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The weights that a module's parameters and buffers make; `others` are those it lacks."""
    state = _tensors(module)
    its = {name: source.of(state[source.parameter]) for name, source in SOURCES.items()}
    return dict(others or {}) | its


def to_module(weights: Mapping[str, Tensor], module: torch.nn.Module) -> None:
    """Write weights, such as `Weights.full` returns, to a module's parameters and buffers."""
    state = _tensors(module)
    for name, source in SOURCES.items():
        source.put(weights[name], state[source.parameter])


def _tensors(module: torch.nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers; those that are tied under each of their names."""
    parameters = module.named_parameters(remove_duplicate=False)
    return dict(parameters) | dict(module.named_buffers(remove_duplicate=False))


class Place(NamedTuple):
    """Where a weight is, by axes of the mesh.

    Its first reader has it as `placements`, and its gradient comes out as `gradient`. The optimizer
    has it, its gradient and its states as `kept`: in shards, if that is said. Of "states" and
    "gradients", an iteration gathers the weight once; of "weights", each use of it does. In a
    pipeline, it is on the devices of one of the `stages`, or of several that read it.
    """

    placements: Placements
    gradient: Placements
    trained: bool
    kept: Placements | None = None
    sharding: str = "states"
    stages: tuple[int, ...] = (0,)


class Weights(torch.nn.Module):
    """The weights by name, each distributed as WEIGHTS says.

    Parameters
    ----------
    values
        Arrays or tensors by weight, the same on all devices.
    mesh
        The devices; by default all processes. That of a pipeline has an axis of stages before all
        others, and a process has the weights of its stage.
    own_share
        Whether a process is given its own share of each batch, number `share` of `shares`, rather
        than all of it.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        mesh: DeviceMesh | None = None,
        own_share: bool = False,
    ) -> None:
        super().__init__()
        if mesh is None:
            mesh = devices("cuda" if torch.cuda.is_available() else "cpu")
        self.stages: Any = mesh if mesh.ndim > len(AXES) else None
        self.mesh = mesh if self.stages is None else mesh[AXES]
        self.stage = 0 if self.stages is None else mesh.get_local_rank(0)
        if own_share and not SHARED:
            raise ValueError("devices have no samples of their own here; give each the whole batch")
        self.own_share = own_share
        self.shares = math.prod(SIZES[axis] for axis in SHARED) if own_share else 1
        self.share = part(SHARED, self.mesh) if own_share else 0
        self.schedule: Any = None
        self.groups: Any = None
        self.whole: Any = None
        self.step = self.micro_batch = 0
        if PRECISION == "tf32":
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        self.names: dict[str, str] = {}
        self.shapes: dict[str, Tensor] = {}
        self.copies: dict[str, Tensor] = {}
        for name, place in WEIGHTS.items():
            value = torch.as_tensor(values[name])
            self.shapes[name] = value.to("meta")
            if self.stage not in place.stages:
                continue
            value = value.to(mesh.device_type)
            attribute = name.replace(".", "/")
            while hasattr(self, attribute) or not attribute:  # a name that modules use, or a twin
                attribute += "_"
            self.names[name] = attribute
            placed = distribute_tensor(value.clone(), self.mesh, place.kept or place.placements)
            if place.trained:
                self.register_parameter(attribute, torch.nn.Parameter(placed))
            else:
                self.register_buffer(attribute, placed)

    def __getitem__(self, name: str) -> DTensor:
        """A weight by its name: as it is kept, or its copy if there is one."""
        if name in self.copies:
            place = WEIGHTS[name]
            copy: DTensor = Copy.apply(self.copies[name], self.mesh, place)
            return copy
        tensor: DTensor = getattr(self, self.names[name])
        return tensor

    @property
    def now(self) -> tuple[int, int]:
        """What masks of dropout are functions of, beside the place in the network."""
        return self.step, self.micro_batch

    def full(self) -> dict[str, Tensor]:
        """All weights, whole, on every device."""
        its = {name: getattr(self, attribute) for name, attribute in self.names.items()}
        whole = {name: tensor.full_tensor().detach() for name, tensor in its.items()}
        if self.stages is None:
            return whole
        group = self.stages.get_group(0)
        for name, shape in self.shapes.items():
            if name not in whole:
                whole[name] = torch.empty_like(shape, device=self.mesh.device_type)
            dist.broadcast(whole[name], dist.get_global_rank(group, WEIGHTS[name].stages[0]), group)
        return whole


# end
PRECISION: str = "fp32"
CLIP_NORM: float | None = None
SIZES: tuple[int, ...] = ()
AXES: tuple[str, ...] = ()
SHARED: tuple[int, ...] = ()
MULTIPLE: int = 0
WEIGHTS: dict[str, Place] = {}
FORMS: dict[str, Form] = {}
SOURCES: dict[str, Source] = {}
_ = (F, math)  # which functions of plans use

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
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.experimental import local_map

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


def read(
    tensor: DTensor, placements: Placements, gradient: Placements, once: tuple[int, ...] = ()
) -> Operand:
    """An operand: where it has to lie, how its gradient lies, by axes of the mesh.

    Along the axes `once`, all but the first device take zeros: the operand is a term of a sum.
    """
    return Operand(tensor, placements, gradient, once)


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
        with torch.autocast(mesh.device_type, torch.bfloat16, enabled=PRECISION == "bf16"):
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
    gradients: list[Any] = [p.grad for p in weights.parameters() if p.grad is not None]
    total = torch.zeros((), device=mesh.device_type)
    with torch.no_grad():
        for gradient in gradients:
            placed = tuple(R if isinstance(p, Partial) else p for p in gradient.placements)
            summed = tuple(P if isinstance(p, Shard) else R for p in placed)
            squares = run(_squares, [read(gradient, placed, placed)], [summed])
            total = total + squares.redistribute(mesh, [R] * mesh.ndim).to_local()
        norm = total.sqrt()
        if CLIP_NORM is not None:
            factor = (CLIP_NORM / (norm + 1e-6)).clamp(max=1)
            for gradient in gradients:
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


def everywhere(tensor: Tensor, mesh: DeviceMesh) -> DTensor:
    """A tensor that all devices have, as one that is replicated."""
    return DTensor.from_local(tensor, mesh, [R] * mesh.ndim, run_check=False)


def mean(values: DTensor, labels: Tensor | None) -> Tensor:
    """The mean of a loss over the batch, on every device; of labels, those from 0 on count."""
    mesh = values.device_mesh
    placed = tuple(values.placements)
    summed = tuple(P if isinstance(p, Shard) else R for p in placed)
    total = run(torch.sum, [read(values, placed, placed)], [summed])
    count = values.numel() if labels is None else int((labels >= 0).sum())
    whole: Tensor = total.redistribute(mesh, [R] * mesh.ndim).to_local()
    return whole / max(count, 1)


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

    def made(self, tensor: DTensor) -> DTensor:
        """An output as the module has it."""
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


class Weights(torch.nn.Module):
    """The weights by name, each distributed as the first operator that reads it has them.

    Parameters
    ----------
    values
        Arrays or tensors by weight, the same on all devices.
    mesh
        The devices; by default all processes.
    """

    def __init__(self, values: Mapping[str, Any], mesh: DeviceMesh | None = None) -> None:
        super().__init__()
        if mesh is None:
            kind = "cuda" if torch.cuda.is_available() else "cpu"
            mesh = init_device_mesh(kind, SIZES, mesh_dim_names=AXES)
        self.mesh = mesh
        self.step = 0
        if PRECISION == "tf32":
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        self.names: dict[str, str] = {}
        for name, (placements, trained) in WEIGHTS.items():
            value = torch.as_tensor(values[name]).to(mesh.device_type)
            attribute = name.replace(".", "/")
            while hasattr(self, attribute) or not attribute:  # a name that modules use, or a twin
                attribute += "_"
            self.names[name] = attribute
            placed = distribute_tensor(value.clone(), mesh, placements)
            if trained:
                self.register_parameter(attribute, torch.nn.Parameter(placed))
            else:
                self.register_buffer(attribute, placed)

    def __getitem__(self, name: str) -> DTensor:
        """A weight by its name."""
        tensor: DTensor = getattr(self, self.names[name])
        return tensor

    def full(self) -> dict[str, Tensor]:
        """All weights, whole, on every device."""
        return {name: self[name].full_tensor().detach() for name in self.names}


# end
PRECISION: str = "fp32"
CLIP_NORM: float | None = None
SIZES: tuple[int, ...] = ()
AXES: tuple[str, ...] = ()
WEIGHTS: dict[str, tuple[Placements, bool]] = {}
SOURCES: dict[str, Source] = {}
_ = (dist, F, math)  # which functions of plans use

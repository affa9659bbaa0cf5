"""The numbers of a module's tensors: read when somebody needs them, or not there at all.

Tensors on the device "meta" and fake ones have a shape and a type alone. A model of such a module
can be searched and simulated, for which no number matters; whatever reads one is refused by the
tensor's name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves, tree_map_only

from flexlegion.base.errors import UserError
from flexlegion.graph.initializers import Later
from flexlegion.importers.program import Array

_OF_NUMPY = (torch.float64, torch.float32, torch.float16)


def has_values(tensor: torch.Tensor) -> bool:
    """Whether a tensor has elements, and not a shape alone."""
    return not tensor.is_meta and not isinstance(tensor, FakeTensor)


def memory_of(tensor: torch.Tensor) -> Any:
    """What two tensors have in common that are the same elements in the same arrangement."""
    if has_values(tensor):
        return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
    its = tensor.untyped_storage()._cdata, tensor.storage_offset()
    return (*its, tuple(tensor.shape), tensor.stride())


def without_devices(value: Any) -> Any:
    """A structure whose tensors are on the device "meta"."""
    return tree_map_only(torch.Tensor, _shape_of, value)


def all_have_values(module: torch.nn.Module, inputs: Any) -> bool:
    """Whether a module's tensors have values, and those of its inputs."""
    return all(
        has_values(tensor)
        for tensor in (*module.parameters(), *module.buffers(), *tree_leaves(inputs))
        if isinstance(tensor, torch.Tensor)
    )


@contextmanager
def on_device_meta(module: torch.nn.Module) -> Iterator[None]:
    """While this lasts, all of a module's tensors are on the device "meta".

    torch.export takes no module whose tensors are on several devices, as of one whose parameters
    alone have no values.
    """
    shapes: dict[int, torch.Tensor] = {}  # by the tensor, as some are shared by several modules
    replaced: list[tuple[dict[str, Any], str, torch.Tensor]] = []
    for part in module.modules():
        stores: list[dict[str, Any]] = [part._buffers, vars(part)]
        stores.append(part._parameters)
        for held in stores:
            for name, tensor in held.items():
                if isinstance(tensor, torch.Tensor) and not tensor.is_meta:
                    replaced.append((held, name, tensor))
    for held, name, tensor in replaced:
        held[name] = shapes.setdefault(id(tensor), _shape_of(tensor))
    try:
        yield
    finally:
        for held, name, tensor in replaced:
            held[name] = tensor


def _shape_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same shape and kind without values."""
    shape = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(shape, tensor.requires_grad)
    return shape.requires_grad_(tensor.requires_grad)


def numbers(tensor: torch.Tensor) -> Array:
    """A tensor's numbers on the host; real ones that NumPy has no type for become float32."""
    tensor = tensor.detach().cpu()
    narrow = tensor.is_floating_point() and tensor.dtype not in _OF_NUMPY
    return tensor.float().numpy() if narrow else tensor.numpy()


def later(name: str, tensor: torch.Tensor) -> Later:
    """A parameter's numbers, which are read when somebody needs them, or refused by its name.

    What has changed meanwhile is refused, too: a model has the weights that its module had when it
    was imported.
    """
    shape = tuple(tensor.shape)
    if not has_values(tensor):
        return Later.never(shape, without_values(name))
    version = _version(tensor)

    def make() -> Array:
        if _version(tensor) != version:
            raise UserError(
                f"the module's '{name}' has changed since the module was imported; import it "
                "again, or compile the model before you change the module"
            )
        return numbers(tensor)

    return Later(shape, make)


def without_values(name: str) -> str:
    """Why a tensor cannot be read that has no values."""
    return (
        f"'{name}' of the module has no values, as it is on the device 'meta' or fake; such a "
        "module can be searched and simulated, but what computes needs values: create the module "
        "without that device, or give it values by module.to_empty(device='cpu') and "
        "module.load_state_dict"
    )


def _version(tensor: torch.Tensor) -> int:
    """How often a tensor was written; those of inference mode do not count it."""
    return 0 if tensor.is_inference() else tensor._version

"""An imported model's weights, back into its module."""

from __future__ import annotations

from typing import Any

from flexlegion.base.arguments import typed
from flexlegion.base.errors import UserError
from flexlegion.model.model import Model


@typed
def to_torch(model: Model, module: Any) -> None:
    """Fill a module's parameters and running averages with an imported model's.

    Parameters
    ----------
    model
        Made by `from_torch`, and compiled.
    module
        The module that was imported, or another one of the same class and sizes.

    Raises
    ------
    UserError
        If the model was not imported, or the module has other parameters.
    """
    import torch

    origin = getattr(model, "origin", None)
    if origin is None:
        raise UserError("to_torch takes a model that from_torch made")
    weights = model.get_weights()
    state = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    values = {}
    for name in origin.places:
        value = origin.parameter(name, weights)
        targets = [n for n in {name, *origin.aliases.get(name, ())} if n in state]
        if not targets:
            raise UserError(f"the module has no parameter '{name}', which the model was made from")
        for target in targets:
            shape = origin.shapes[name]
            if tuple(state[target].shape) != shape:
                raise UserError(
                    f"parameter '{target}' has shape {list(state[target].shape)}, but the model was"
                    f" made from one of shape {list(shape)}"
                )
            values[target] = value.reshape(shape)
    with torch.no_grad():
        for target, value in values.items():
            state[target].copy_(torch.from_numpy(value))

"""Operations that PyTorch itself makes of others: what it makes of them is read in their place.

Only those that nothing here knows as a whole are: batch normalisation, attention, recurrent layers
and the like have operators of their own. Cells are such steps of recurrent layers as a module's own
code runs one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch._decomp import decomposition_table
from torch._guards import detect_fake_mode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from flexlegion.base.errors import UserError
from flexlegion.importers.program import at
from flexlegion.importers.schemas import module_of, op_name

_NAMES = frozenset(
    [
        "baddbmm",
        "bilinear",
        "cosine_similarity",
        "diff",
        "einsum",
        "glu",
        "kron",
        "logsumexp",
        "moveaxis",
        "movedim",
        "outer",
        "pairwise_distance",
        "pixel_shuffle",
        "pixel_unshuffle",
        "repeat",
        "rnn_relu",
        "rnn_relu_cell",
        "rnn_tanh",
        "rnn_tanh_cell",
        "rot90",
        "tensordot",
        "tile",
        "tril",
        "triu",
    ]
)


def _lstm_cell(
    x: torch.Tensor,
    states: list[torch.Tensor],
    kernel: torch.Tensor,
    recurrent: torch.Tensor,
    bias: torch.Tensor | None = None,
    recurrent_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    h, c = states
    gates = F.linear(x, kernel, bias) + F.linear(h, recurrent, recurrent_bias)
    i, f, g, o = gates.chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru_cell(
    x: torch.Tensor,
    h: torch.Tensor,
    kernel: torch.Tensor,
    recurrent: torch.Tensor,
    bias: torch.Tensor | None = None,
    recurrent_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    r, z, n = F.linear(x, kernel, bias).chunk(3, 1)
    hr, hz, hn = F.linear(h, recurrent, recurrent_bias).chunk(3, 1)
    n = torch.tanh(n + torch.sigmoid(r + hr) * hn)
    return n + torch.sigmoid(z + hz) * (h - n)


def _weight_norm(v: torch.Tensor, g: torch.Tensor, dim: int = 0) -> torch.Tensor:
    others = [d for d in range(v.ndim) if dim != -1 and d != dim % v.ndim]
    length: torch.Tensor = torch.linalg.vector_norm(v, 2, others or None, keepdim=dim != -1)
    return v * (g / length)


def _dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a * b).sum(-1)


# Of cells, PyTorch's own decompositions hold for the example's number of samples alone; of the
# others, it has none.
_OWN: dict[str, Callable[..., Any]] = {
    "_weight_norm": _weight_norm,
    "dot": _dot,
    "gru_cell": _gru_cell,
    "lstm_cell": _lstm_cell,
    "mv": _dot,
    "vdot": _dot,
}


def is_decomposed(name: str, args: list[Any]) -> bool:
    """Whether an operation is read as those that PyTorch makes of it."""
    if name == "repeat_interleave":  # over rows, it belongs to mixtures of experts
        return len(args) > 2 and args[2] not in (None, 0) and isinstance(args[1], int)
    return name in _NAMES or name in _OWN


def _is_fixed(extent: Any) -> bool:
    """Whether an extent that was symbolic has become a number."""
    return isinstance(extent, torch.SymInt) and bool(extent.node.expr.is_number)


def decomposed(fx_node: Any) -> tuple[Any, list[Any]]:
    """The graph that PyTorch makes of an operation, and the nodes that its placeholders stand for.

    The graph returns a tuple.

    Raises
    ------
    UserError
        If PyTorch makes it for the example's number of samples alone.
    """
    leaves, structure = pytree.tree_flatten((fx_node.args, fx_node.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.fx.Node)]
    target = fx_node.target
    is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(
        target.name(), "CompositeImplicitAutograd"
    )
    function = _OWN.get(op_name(target))
    if function is None:
        function = target.decompose if is_composite else decomposition_table[target]

    def run(*values: Any) -> Any:
        given = list(leaves)
        for place, value in zip(places, values, strict=True):
            given[place] = value
        args, kwargs = pytree.tree_unflatten(given, structure)
        result = function(*args, **kwargs)
        return tuple(result) if isinstance(result, list | tuple) else (result,)

    values = [leaves[place].meta["val"] for place in places]
    mode = detect_fake_mode(values)
    assert mode is not None
    with mode, torch.no_grad():
        module = make_fx(run, _allow_non_fake_inputs=True)(*values)
    if any(_is_fixed(extent) for value in values for extent in getattr(value, "shape", ())):
        raise UserError(
            f"'{op_name(target)}'{at(module_of(fx_node)[0])} cannot be read as other operations "
            "for any number of samples"
        )
    for node in module.graph.nodes:
        node.meta["nn_module_stack"] = fx_node.meta.get("nn_module_stack")
    return module, [leaves[place] for place in places]

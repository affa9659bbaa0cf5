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
from flexlegion.importers.volumes import conv3d, max_pool3d

_MOST_STEPS = 128  # that are read one by one

_NAMES = frozenset(
    [
        "baddbmm",
        "column_stack",
        "cosine_similarity",
        "diff",
        "dstack",
        "einsum",
        "glu",
        "hstack",
        "inner",
        "kron",
        "linalg_cross",
        "logit",
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
        "select_scatter",
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


def _projected_lstm(
    x: torch.Tensor,
    states: list[torch.Tensor],
    params: list[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """An LSTM whose states are a product of its units and a matrix, step by step."""
    if train and dropout:
        raise UserError("'lstm' with projected states and dropout between its layers is not known")
    steps = x.shape[1 if batch_first else 0]
    if steps > _MOST_STEPS:
        raise UserError(
            f"'lstm' with projected states has {steps} steps; {_MOST_STEPS} are the most that are "
            "read one by one"
        )
    each, directions = (5 if has_biases else 3), 1 + bidirectional
    last: list[tuple[torch.Tensor, torch.Tensor]] = []
    for layer in range(num_layers):
        sides = []
        for side in range(directions):
            number = layer * directions + side
            *own, projection = params[number * each : (number + 1) * each]
            h, c = states[0][number], states[1][number]
            made: list[torch.Tensor] = []
            inputs = x.unbind(1 if batch_first else 0)
            for step in reversed(inputs) if side else inputs:
                h, c = _lstm_cell(step, [h, c], *own)
                h = F.linear(h, projection)
                made.append(h)
            last.append((h, c))
            sides.append(torch.stack(made[::-1] if side else made, 1 if batch_first else 0))
        x = torch.cat(sides, -1) if bidirectional else sides[0]
    return x, torch.stack([h for h, _ in last]), torch.stack([c for _, c in last])


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


def _with_mean(spread: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """`var_mean` and `std_mean`, in either of the ways in which they are called."""

    def both(
        x: torch.Tensor,
        dim: Any = None,
        unbiased: bool = True,
        keepdim: bool = False,
        *,
        correction: float | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        left = int(unbiased) if correction is None else correction
        dims = list(range(x.ndim)) if dim is None else dim
        return spread(x, dims, correction=left, keepdim=keepdim), x.mean(dims, keepdim)

    return both


def _argmax(x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    """The first place of the largest element: the largest of what is left behind each."""
    if dim is None:
        raise UserError("'argmax' and 'argmin' over all dimensions join samples")
    count = x.shape[dim]
    shape = [1] * x.ndim
    shape[dim] = count
    left = torch.arange(count, 0, -1, device=x.device).view(shape)
    is_largest = (x == x.amax(dim, keepdim=True)).to(torch.int64)
    behind: torch.Tensor = (is_largest * left).amax(dim, keepdim)
    return count - behind


def _argmin(x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
    return _argmax(-x, dim, keepdim)


def _aminmax(
    x: torch.Tensor, *, dim: int | None = None, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    dims: Any = () if dim is None else dim
    return x.amin(dims, keepdim), x.amax(dims, keepdim)


def _prod(
    x: torch.Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None
) -> torch.Tensor:
    if dim is None:
        raise UserError("'prod' joins samples")
    x = x if dtype is None else x.to(dtype)
    while (count := x.shape[dim]) > 1:  # halves at a time
        half = count // 2
        product = x.narrow(dim, 0, half) * x.narrow(dim, half, half)
        rest = x.narrow(dim, 2 * half, count % 2)
        x = torch.cat([product, rest], dim) if count % 2 else product
    return x if keepdim else x.squeeze(dim)


def _bilinear(
    x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Of each output a product x W y: x by all its matrices' rows, and the products with y."""
    outputs, left, right = weight.shape
    rows = F.linear(x, weight.permute(0, 2, 1).reshape(outputs * right, left))
    rows = rows.reshape(*rows.shape[:-1], outputs, right)
    result = (rows * y.unsqueeze(-2)).sum(-1)
    return result if bias is None else result + bias


def _cumprod(x: torch.Tensor, dim: int, *, dtype: Any = None) -> torch.Tensor:
    """Products of all up to each element: of windows that are twice as long at every step."""
    x = x if dtype is None else x.to(dtype)
    count, width = x.shape[dim], 1
    while width < count:
        rest = count - width
        longer = x.narrow(dim, width, rest) * x.narrow(dim, 0, rest)
        x = torch.cat([x.narrow(dim, 0, width), longer], dim)
        width *= 2
    return x


def _cumulated(largest: bool) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """`cummax` and `cummin`: of windows that are twice as long at every step.

    Of equal elements it is the last one, which gets the gradient, as in PyTorch.
    """

    def both(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        shape = [1] * x.ndim
        shape[dim] = count = x.shape[dim]
        places = torch.arange(count, device=x.device).view(shape).expand_as(x)
        width = 1
        while width < count:
            rest = count - width
            here, before = x.narrow(dim, width, rest), x.narrow(dim, 0, rest)
            is_later = (here >= before) if largest else (here <= before)
            is_later = is_later | here.isnan()
            of_both = []
            for its in (x, places):
                later = torch.where(
                    is_later, its.narrow(dim, width, rest), its.narrow(dim, 0, rest)
                )
                of_both.append(torch.cat([its.narrow(dim, 0, width), later], dim))
            x, places = of_both
            width *= 2
        return x, places

    return both


def _cdist(
    a: torch.Tensor, b: torch.Tensor, p: float = 2.0, compute_mode: Any = None
) -> torch.Tensor:
    del compute_mode
    between = a.unsqueeze(-2) - b.unsqueeze(-3)
    distance: torch.Tensor = torch.linalg.vector_norm(between, p, -1)
    return distance


def _one_hot(tokens: torch.Tensor, classes: int = -1) -> torch.Tensor:
    return (tokens.unsqueeze(-1) == torch.arange(classes, device=tokens.device)).to(tokens.dtype)


def _holds(all_of_them: bool) -> Callable[..., torch.Tensor]:
    """`any` and `all` along dimensions."""

    def holds(x: torch.Tensor, dim: Any = None, keepdim: bool = False) -> torch.Tensor:
        truth = (x != 0).to(torch.float32)
        dims = list(range(x.ndim)) if dim is None else dim
        return (truth.amin if all_of_them else truth.amax)(dims, keepdim) > 0

    return holds


def _slice_scatter(
    x: torch.Tensor,
    part: torch.Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> torch.Tensor:
    if step != 1:
        raise UserError("'slice_scatter' writes every other element, which is not known")
    first, last, _ = slice(start, end).indices(x.shape[dim])
    pieces = [x.narrow(dim, 0, first), part, x.narrow(dim, last, x.shape[dim] - last)]
    return torch.cat([piece for piece in pieces if piece.shape[dim]], dim)


def _windows(kernel: list[int]) -> torch.Tensor:
    """A filter for each place of a window, which is 1 there."""
    count = kernel[0] * kernel[1]
    return torch.eye(count).view(count, 1, *kernel)


def _im2col(
    x: torch.Tensor, kernel: list[int], dilation: Any, padding: Any, stride: Any
) -> torch.Tensor:
    """`unfold` of images: a convolution of each channel, one filter for each place of a window."""
    channels = x.shape[1]
    filters = _windows(kernel).to(x.dtype).repeat(channels, 1, 1, 1)
    return F.conv2d(x, filters, None, stride, padding, dilation, channels).flatten(2)


def _col2im(
    x: torch.Tensor, size: list[int], kernel: list[int], dilation: Any, padding: Any, stride: Any
) -> torch.Tensor:
    """`fold`: the transposed convolution by the same filters."""
    channels = x.shape[1] // (kernel[0] * kernel[1])
    each = _windows(kernel).to(x.dtype)
    own = torch.eye(channels, dtype=x.dtype)
    filters = own[:, None, :, None, None] * each[None, :]
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    counts = [
        (s + 2 * p - span) // by + 1
        for s, p, span, by in zip(size, padding, spans, stride, strict=True)
    ]
    image = x.reshape(*x.shape[:2], *counts)
    ends = [
        s - ((n - 1) * by - 2 * p + span)
        for s, n, by, p, span in zip(size, counts, stride, padding, spans, strict=True)
    ]
    return F.conv_transpose2d(
        image, filters.flatten(0, 1), None, stride, padding, ends, 1, dilation
    )


def _nansum(
    x: torch.Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> torch.Tensor:
    return torch.where(x.isnan(), 0.0, x).sum(dim, keepdim, dtype=dtype)


# Of cells, PyTorch's own decompositions hold for the example's number of samples alone; of the
# others, it has none.
_OWN: dict[str, Callable[..., Any]] = {
    "_weight_norm": _weight_norm,
    "all": _holds(True),
    "aminmax": _aminmax,
    "any": _holds(False),
    "argmax": _argmax,
    "argmin": _argmin,
    "bilinear": _bilinear,
    "conv3d": conv3d,
    "max_pool3d": max_pool3d,
    "cdist": _cdist,
    "cummax": _cumulated(True),
    "cummin": _cumulated(False),
    "cumprod": _cumprod,
    "col2im": _col2im,
    "dot": _dot,
    "gru_cell": _gru_cell,
    "im2col": _im2col,
    "lstm": _projected_lstm,
    "lstm_cell": _lstm_cell,
    "mv": _dot,
    "nansum": _nansum,
    "one_hot": _one_hot,
    "prod": _prod,
    "slice_scatter": _slice_scatter,
    "std_mean": _with_mean(torch.std),
    "var_mean": _with_mean(torch.var),
    "vdot": _dot,
}


def is_decomposed(name: str, args: list[Any]) -> bool:
    """Whether an operation is read as those that PyTorch makes of it."""
    if name == "lstm":  # only where it projects its states, which no operator does
        return _projects(args)
    if name == "repeat_interleave":  # over rows, it belongs to mixtures of experts
        return len(args) > 2 and args[2] not in (None, 0) and isinstance(args[1], int)
    return name in _NAMES or name in _OWN


def _projects(args: list[Any]) -> bool:
    """Whether an LSTM's layers have a matrix for their states, beside kernels and biases."""
    params, has_biases, layers = args[2], args[3], args[4]
    if not isinstance(params, list | tuple) or not isinstance(has_biases, bool):
        return False  # of packed sequences
    return len(params) % (5 if has_biases else 3) == 0 and len(params) != layers * (
        4 if has_biases else 2
    ) * (1 + bool(args[7]))


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

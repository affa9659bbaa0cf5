"""From the internal form to our operators: one function an operation, a file a family."""

from __future__ import annotations

import difflib
from typing import Any

from flexlegion.errors import UserError
from flexlegion.importers.lower import (
    attention,
    elementwise,
    experts,
    gathering,
    images,
    normalization,
    products,
    reductions,
    resizing,
    sequences,
    shapes,
)
from flexlegion.importers.lower.base import LOWERINGS, Lowerer, Unsupported
from flexlegion.importers.program import SAMPLES, Node, Program
from flexlegion.importers.views import Axis, Value, plain
from flexlegion.importers.weights import Origin
from flexlegion.model import Model
from flexlegion.tensor import MAX_RANK, Tensor

__all__ = [
    "attention",
    "elementwise",
    "experts",
    "gathering",
    "images",
    "lower",
    "normalization",
    "products",
    "reductions",
    "resizing",
    "sequences",
    "shapes",
]

SOURCES = ("input", "parameter", "buffer", "constant")
_CHANNELS_SECOND = (
    "conv_transpose2d",
    "conv2d",
    "conv1d",
    "max_pool2d",
    "avg_pool2d",
    "max_pool1d",
    "avg_pool1d",
)


def lower(program: Program, model: Model) -> Origin:
    """Add a program's operators to a model, whose outputs become the program's.

    Raises
    ------
    UserError
        If there are operations that cannot be lowered; all of them are named.
    """
    users = program.users()
    lowerer = Lowerer(model, users)
    problems: dict[str, None] = {}
    for node in program.nodes:
        if node.op not in SOURCES and node.op not in LOWERINGS:
            problems[_unknown(node)] = None
            continue
        if any(source not in lowerer.results for source in node.inputs):
            continue  # it stands behind a problem that is known
        try:
            lowerer.results[node] = _lower(lowerer, node, users)
        except (Unsupported, UserError) as e:
            problems[f"{_where(node)}: {e}"] = None
    if problems:
        raise UserError(
            f"{len(problems)} of the network's operations cannot be imported: "
            + "; ".join(list(problems)[:20])
            + (f"; and {len(problems) - 20} more" if len(problems) > 20 else "")
        )
    outputs = [_checked_output(lowerer, name, node) for name, node in program.outputs]
    model.set_outputs(outputs)
    lowerer.origin.aliases, lowerer.origin.buffers = program.aliases, program.buffers
    lowerer.origin.notes = program.notes + lowerer.origin.notes
    return lowerer.origin


def _lower(lowerer: Lowerer, node: Node, users: dict[Node, list[Node]]) -> Any:
    if node.op == "input":
        return _input(lowerer, node, users)
    if node.op == "constant":
        assert node.value is not None
        if len(node.value.shape) != len(node.shape) or any(
            e not in (1, s) for e, s in zip(node.value.shape, node.shape, strict=True)
        ):
            return _PerSample(node)
        return plain(node, node.value.shape)
    if node.op in SOURCES:
        return plain(node, node.shape)
    return LOWERINGS[node.op](lowerer, node)


class _PerSample:
    """A constant that differs from sample to sample: it can be an index alone."""

    def __init__(self, node: Node) -> None:
        self.node = node


def _input(lowerer: Lowerer, node: Node, users: dict[Node, list[Node]]) -> Value:
    """An input; where images are read, the channels come last."""
    rank = len(node.shape)
    order = list(range(rank))
    if rank > 2 and _is_image(node, users):
        order = [0, *range(2, rank), 1]
    if node.shape[:1] != (SAMPLES,) or SAMPLES in node.shape[1:] or rank > MAX_RANK:
        raise Unsupported("its first dimension alone has to be the samples'")
    dtype = "float32" if node.type.is_float else "int32"
    shape = [node.shape[d] for d in order[1:]] or [1]
    tensor = lowerer.model.input(shape, dtype, node.name)  # type: ignore[arg-type]
    axes = tuple((Axis(e),) if e > 1 else () for e in node.shape)
    lowerer.origin.inputs[node.name] = tuple(order)
    return Value(tensor, tuple(axes[d] for d in order), axes)


def _is_image(node: Node, users: dict[Node, list[Node]]) -> bool:
    """Whether what reads a value, first of all, has its channels in the second dimension."""
    for user in users[node]:
        if user.op in _CHANNELS_SECOND or (user.op == "batch_norm" and len(node.shape) > 2):
            return True
        if user.op in ("expression", "dropout") and len(user.shape) == len(node.shape):
            return _is_image(user, users)
    return False


def _checked_output(lowerer: Lowerer, name: str, node: Node) -> Tensor:
    if node.op in ("parameter", "buffer"):
        raise UserError(
            f"output '{name}' is the {node.op} '{node.name}' itself, which has no samples; leave "
            "it out of the outputs: get_weights and to_torch return it"
        )
    try:
        return _output(lowerer, name, node)
    except Unsupported as e:
        raise UserError(f"output '{name}' cannot be imported: {e}") from None


def _output(lowerer: Lowerer, name: str, node: Node) -> Tensor:
    """An output's tensor: its dimensions in the order in which they lie, the samples first.

    Samples that are merged with positions, as (n T, classes), stand apart from them here.
    """
    value = lowerer.value(node)
    for d, run in enumerate(value.seen):
        if len(run) > 1 and all(axis.extent != SAMPLES for axis in run):
            value = lowerer.fused(value, d)
    value = lowerer.in_graph(value)
    if any(axis.repeated for run in value.seen for axis in run):
        raise UserError(f"output '{name}' repeats elements; leave out the expansion")
    runs: list[tuple[Axis, ...]] = [(axis,) for axis in value.axes if axis.extent != SAMPLES]
    tensor = lowerer.arranged(value, [value.stored[0], *runs])
    place = {axis: d for d, run in enumerate(value.seen) for axis in run}
    seen = [place[run[0]] for run in (value.stored[0], *runs) if run]
    whole = sorted(seen) == list(range(len(value.seen)))
    lowerer.origin.outputs[name] = tuple(seen if whole else range(len(tensor.shape)))
    return lowerer.over_samples(tensor)


def _where(node: Node) -> str:
    at = f" at '{node.path}'" if node.path else ""
    layer = f" ({node.layer.rsplit('.', 1)[-1]})" if node.layer else ""
    return f"'{node.op}'{at}{layer}"


def _unknown(node: Node) -> str:
    near = difflib.get_close_matches(node.op, LOWERINGS, 3, 0.5)
    hint = f"; near it are {', '.join(near)}" if near else ""
    return f"{_where(node)} is not known{hint}"

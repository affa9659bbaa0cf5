"""A network's inputs and outputs: the module's dimensions, in the module's order.

Images are the exception: their channels come last. A value is an image by what the module does with
it, not by how it happens to lie: an input that a convolution or the like reads first of all, an
output that one computes, with nothing behind it but what keeps an image's dimensions.
"""

from __future__ import annotations

from flexlegion.base.errors import UserError
from flexlegion.graph.tensor import MAX_RANK, Tensor
from flexlegion.importers.lower.base import Lowerer, Unsupported
from flexlegion.importers.program import SAMPLES, Node
from flexlegion.importers.views import Axis, Run, Value, explicit
from flexlegion.layers.arrangement import Arrangement
from flexlegion.ops.shape import Reshape

# Operations on images, sequences among them: (n, channels, positions...).
_ON_IMAGES = frozenset(
    [
        "adaptive_avg_pool1d",
        "adaptive_avg_pool2d",
        "adaptive_max_pool1d",
        "adaptive_max_pool2d",
        "avg_pool1d",
        "avg_pool2d",
        "batch_norm",
        "conv1d",
        "conv2d",
        "conv_transpose1d",
        "conv_transpose2d",
        "convolution",
        "group_norm",
        "instance_norm",
        "max_pool1d",
        "max_pool2d",
        "mean_positions",
        "upsample_bicubic2d",
        "upsample_bilinear2d",
        "upsample_linear1d",
        "upsample_nearest1d",
        "upsample_nearest2d",
    ]
)
# Operations whose result is an image if an operand of that rank is one.
_KEEP_IMAGES = frozenset(
    [
        "_log_softmax",
        "_prelu_kernel",
        "_softmax",
        "cat",
        "channel_shuffle",
        "chunk",
        "constant_pad_nd",
        "drop_path",
        "dropout",
        "expression",
        "feature_dropout",
        "flip",
        "fliplr",
        "getitem",
        "index_select",
        "log_softmax",
        "narrow",
        "pad",
        "prelu",
        "roll",
        "slice",
        "softmax",
        "split",
        "split_with_sizes",
        "tensor_split",
    ]
)


def lower_input(lowerer: Lowerer, node: Node, users: dict[Node, list[Node]]) -> Value:
    """An input's tensor, with an axis for each of its dimensions."""
    rank = len(node.shape)
    order = list(range(rank))
    if rank > 2 and _is_read_as_image(node, users):
        order = [0, *range(2, rank), 1]
    if node.shape[:1] != (SAMPLES,) or SAMPLES in node.shape[1:]:
        raise Unsupported("its first dimension alone has to be the samples'")
    if rank > MAX_RANK:
        raise Unsupported(f"it has {rank} dimensions, but {MAX_RANK} are the most that can be")
    dtype = "float32" if node.type.is_float else "int32"
    shape, name = [node.shape[d] for d in order[1:]], lowerer.unique(node.name)
    tensor = lowerer.model.input(shape, dtype, name)  # type: ignore[arg-type]
    lowerer.origin.input_names.append(name)
    _arrange(lowerer, f"input '{node.name}'", tensor, Arrangement.in_order(order))
    axes = tuple((Axis(e),) if e > 1 else () for e in node.shape)
    return Value(tensor, tuple(axes[d] for d in order), axes)


def lower_output(lowerer: Lowerer, name: str, node: Node) -> Tensor:
    """An output's tensor.

    Samples come first. Those that are merged with positions, as (n t, classes), stand apart. What
    is expanded is stored as often as it is seen.

    Raises
    ------
    UserError
        If it is a parameter itself, or has more dimensions than a tensor can have.
    """
    if node.op in ("parameter", "buffer"):
        raise UserError(
            f"output '{name}' is the {node.op} '{node.name}' itself, which has no samples; leave "
            "it out of the outputs: get_weights and to_torch return it"
        )
    value = lowerer.in_graph(explicit(_with_samples(lowerer.value(node)), node.shape))
    value = _with_samples(value)
    samples: Run = ()
    pieces: list[Run] = []
    dims: list[list[int]] = []
    for run in value.seen:
        places: list[int] = []
        if not run:
            pieces.append(())
            places.append(len(pieces))
        open_piece = False
        for axis in run:
            if axis.extent == SAMPLES:
                samples = () if axis.repeated else (axis,)
                places.append(0)
                open_piece = False
            elif open_piece:
                pieces[-1] = (*pieces[-1], axis)
            else:
                pieces.append((axis,))
                places.append(len(pieces))
                open_piece = True
        dims.append(places)
    pieces, dims = _few(name, pieces, dims)
    if len(dims) > 2 and dims[0] == [0] and len(dims[1]) == 1 and _is_made_as_image(lowerer, node):
        # Channels last.
        place = dims[1][0]
        pieces = [*pieces[: place - 1], *pieces[place:], pieces[place - 1]]
        dims = [[_after_move(d, place, len(pieces)) for d in run] for run in dims]
    tensor = lowerer.over_samples(lowerer.arranged(value, [samples, *pieces]))
    shape = tensor.shape[1:] if pieces else ()
    is_taken = tensor.producer is None or tensor.name in lowerer.origin.arrangements
    if is_taken or shape != tensor.shape[1:]:
        # An output is computed by a layer of its own: not an input, nor another output.
        of = tensor.name if tensor.producer is None else tensor.producer.name
        layer = lowerer.unique(f"{of}_{name}" if is_taken else f"{of}.reshape")
        tensor = lowerer.model.graph.add(Reshape(shape), [tensor], layer)
    if not any(0 in run for run in dims):
        lowerer.origin.notes.append(
            f"output '{name}' is the same for all samples; it is returned once for each"
        )
    lowerer.origin.output_names[name] = tensor.name
    _arrange(lowerer, f"output '{name}'", tensor, Arrangement(tuple(map(tuple, dims))))
    return tensor


def _arrange(lowerer: Lowerer, what: str, tensor: Tensor, its: Arrangement) -> None:
    """Note how a tensor is arranged, and if its shape does not tell it from the module's."""
    lowerer.origin.arrangements[tensor.name] = its
    if its.moves(tensor.shape) and its.shape(tensor.shape) == tensor.shape:
        lowerer.origin.notes.append(
            f"{what} has as many channels as positions; arrays of shape "
            f"{its.described(tensor.shape)} are taken and returned with the channels last"
        )


def _with_samples(value: Value) -> Value:
    """With an axis of their own for samples that an axis has merged with positions."""
    for axis in [axis for run in value.seen for axis in run]:
        if axis.extent > SAMPLES and axis.extent % SAMPLES == 0:
            value, _ = value.split(axis, (SAMPLES, axis.extent // SAMPLES))
    return value


def _few(name: str, pieces: list[Run], dims: list[list[int]]) -> tuple[list[Run], list[list[int]]]:
    """At most as many as a tensor can have: extents of 1 are left out first."""
    while len(pieces) >= MAX_RANK:
        place = next((i + 1 for i, run in enumerate(pieces) if not run), None)
        if place is None:
            raise UserError(
                f"output '{name}' has {len(pieces) + 1} dimensions, but {MAX_RANK} are the most "
                "that can be"
            )
        pieces = [*pieces[: place - 1], *pieces[place:]]
        dims = [[d - (d > place) for d in run if d != place] for run in dims]
    return pieces, dims


def _after_move(d: int, place: int, last: int) -> int:
    """The number of a dimension after the one at `place` became the last one."""
    return last if d == place else d - (d > place)


def _is_read_as_image(node: Node, users: dict[Node, list[Node]]) -> bool:
    """Whether what reads a value, first of all, has its channels in the second dimension."""
    for user in users[node]:
        if user.op in _ON_IMAGES:
            return True
        if user.op in ("expression", "dropout", "feature_dropout") and len(user.shape) == len(
            node.shape
        ):
            return _is_read_as_image(user, users)
    return False


def _is_made_as_image(lowerer: Lowerer, node: Node) -> bool:
    """Whether a value, of at least three dimensions, comes from an image without a change."""
    rank = len(node.shape)
    seen, left = {node}, [node]
    while left:
        node = left.pop()
        if node.op in _ON_IMAGES:
            return True
        if node.op == "input":
            name = lowerer.tensor(lowerer.value(node)).name
            if not lowerer.origin.arrangements[name].is_plain:
                return True
        if node.op in _KEEP_IMAGES:
            for operand in node.inputs:
                if _rank(operand) == rank and operand not in seen:
                    seen.add(operand)
                    left.append(operand)
    return False


def _rank(node: Node) -> int:
    """Dimensions of a value; of an operation of several results, of the first."""
    its = node.type[0] if isinstance(node.type, tuple) else node.type
    return 0 if its is None else len(its.shape)

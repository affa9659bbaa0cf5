"""Dense layers, and products of matrices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from flexlegion.graph.initializers import Zeros
from flexlegion.graph.tensor import MAX_RANK, Tensor
from flexlegion.importers.lower.base import Lowerer, Unsupported, lowers
from flexlegion.importers.program import SAMPLES, Array, Node, Type
from flexlegion.importers.views import Axis, Run, Value, explicit, extent_of, plain, refined
from flexlegion.ops.attention import MatMul
from flexlegion.ops.dense import Dense

WEIGHTS = ("parameter", "constant")
_MOST_SUMS = 4096  # positions that `cumsum` adds up: a product's matrix has the square of it


@lowers("linear")
def linear(lowerer: Lowerer, node: Node) -> Value:
    value = lowerer.value(node["weight"])
    return _dense(lowerer, node, lowerer.value(node["input"]), value, node["bias"])


@lowers("addmm")
def addmm(lowerer: Lowerer, node: Node) -> Value:
    if node["alpha"] != 1 or node["beta"] != 1:
        raise Unsupported("it scales its terms")
    kernel = lowerer.value(node["mat2"])
    transposed = kernel.with_seen(reversed(kernel.seen))
    return _dense(lowerer, node, lowerer.value(node["mat1"]), transposed, node["self"])


@lowers("matmul", "mm", "bmm")
def matmul(lowerer: Lowerer, node: Node) -> Value:
    """A product of samples' matrices; a dense layer where the second factor is a weight."""
    left = lowerer.value(node["self"])
    right = lowerer.value(node.get("other", node.get("mat2")))
    if _is_weight(right, 2):
        return _dense(lowerer, node, left, right.with_seen(reversed(right.seen)), None)
    if _is_weight(right, 1):
        product = _dense(lowerer, node, left, right.with_seen(((), *right.seen)), None)
        return product.with_seen(product.seen[:-1])
    if _is_weight(left, 2) and len(right.seen) > 2:  # the transposed product of what is transposed
        product = _dense(lowerer, node, _turned(right), left, None)
        return _turned(product)
    if min(len(left.seen), len(right.seen)) < 2:
        raise Unsupported("one of its factors is a vector of each sample's")
    rank = max(len(left.seen), len(right.seen))
    left, right = (v.with_seen(((),) * (rank - len(v.seen)) + v.seen) for v in (left, right))
    shapes = ((*node.shape[:-2], *factor.shape[-2:]) for factor in node.inputs)
    left, right = map(lowerer.with_samples, (left, right), shapes)
    return _products(lowerer, node, left, right)


def product(lowerer: Lowerer, node: Node, left: Value, right: Value) -> Value:
    """A product of each sample's matrices (n, ..., i, k) and (n, ..., k, j)."""
    return _products(lowerer, node, left, right)


def by_kernel(lowerer: Lowerer, node: Node, x: Value, kernel: Value) -> Value:
    """A dense layer without a bias: x (..., in) by a weight that is seen as (out, in)."""
    return _dense(lowerer, node, x, kernel, None)


def _is_weight(value: Value, rank: int) -> bool:
    """Whether a factor is a matrix or vector without samples: a parameter, or computed of some."""
    has_samples = any(axis.extent % SAMPLES == 0 for run in value.seen for axis in run)
    return len(value.seen) == rank and not has_samples


def _turned(value: Value) -> Value:
    """With the last two dimensions exchanged."""
    return value.with_seen((*value.seen[:-2], value.seen[-1], value.seen[-2]))


@lowers("cumsum")
def cumsum(lowerer: Lowerer, node: Node) -> Value:
    """A product with a triangle of ones, which makes NaN of all sums beside an infinite element.

    ONNX's can be of later elements (`reverse`), and without the element itself (`exclusive`).
    """
    source, d = node["self"], node["dim"] % max(len(node.shape), 1)
    extent = node.shape[d] if node.shape else 1
    if extent % SAMPLES == 0:
        raise Unsupported("it adds up samples")
    real = node.type.is_float and source.type.is_float
    if not real and not node.get("counts"):
        raise Unsupported("it adds up whole numbers other than truth values")
    if extent > _MOST_SUMS:
        raise Unsupported(f"it adds up {extent} positions; {_MOST_SUMS} are the most that can be")
    value = explicit(lowerer.value(source), source.shape)
    exclusive, reverse = (node.get(name, False) for name in ("exclusive", "reverse"))
    if extent == 1 and not exclusive:
        return value
    triangle = np.tri(extent, k=-int(exclusive), dtype=np.float32)
    return multiplied(lowerer, node, value, d, triangle.T if reverse else triangle)


def multiplied(lowerer: Lowerer, node: Node, value: Value, d: int, matrix: Array) -> Value:
    """A product along one dimension with a constant matrix (out, in): a dense layer."""
    kernel = Node("constant", {}, Type(matrix.shape, "float32"), node.path, value=matrix)
    others = (*value.seen[:d], *value.seen[d + 1 :])
    x = value.with_seen((*others, value.seen[d]))
    sums = _dense(lowerer, node, x, plain(kernel, matrix.shape), None)
    return sums.with_seen((*sums.seen[:d], sums.seen[-1], *sums.seen[d:-1]))


def _dense(lowerer: Lowerer, node: Node, x: Value, kernel: Value, bias: Node | None) -> Value:
    """x (..., in) by a weight that is seen as (out, in)."""
    source = kernel.source
    is_computed = not isinstance(source, Node) or source.op not in WEIGHTS
    if isinstance(source, Node):
        is_computed |= _is_read_as_tensor(source, lowerer.users)
    if any(axis.repeated for run in kernel.seen for axis in run):
        raise Unsupported("its weight is expanded")
    x = _with_repeated_channels(lowerer, lowerer.in_graph(x))
    both = refined([x.with_seen(((), *x.seen)), kernel.with_seen(_at_ends(kernel, len(x.seen)))])
    if both is None:
        raise Unsupported("its input's channels are merged otherwise than its weight's columns")
    x, kernel = both[0].with_seen(both[0].seen[1:]), both[1]
    columns = dict(zip(x.seen[-1], kernel.seen[-1], strict=True)) if x.seen[-1] else {}
    tensor, outer, inner = _channels_last(lowerer, x)
    out = kernel.seen[0]
    rows = (out, tuple(columns[a] for a in inner))
    biased = _is_vector(lowerer, bias)
    units = (Axis(extent_of(out)),) if extent_of(out) > 1 else ()
    if is_computed:
        kind = Dense(max(extent_of(out), 1), biased, node.get("activation", "none"))
        tensors = [lowerer.as_weight(kernel, rows)]
        if biased:
            vector = lowerer.value(bias)
            tensors.append(lowerer.as_weight(vector, vector.seen))
        output = lowerer.apply_given(kind, [tensor], lowerer.name(node), tensors).output
        result = Value(output, (*outer, units), (*x.seen[:-1], units))
        return result if biased else _with_bias(lowerer, node, result, bias)
    given, layout = lowerer.weight(source, rows, kernel)
    kind = Dense(max(extent_of(out), 1), biased, node.get("activation", "none"), given, Zeros())
    weights = [(source, layout)]
    if biased:
        assert bias is not None
        vector = lowerer.value(bias)
        values, bias_layout = lowerer.weight(vector.source, vector.seen, vector)
        kind = replace(kind, bias_initializer=values)
        weights.append((vector.source, bias_layout))
    operator = lowerer.apply(kind, [tensor], lowerer.name(node), weights)
    result = Value(operator.output, (*outer, units), (*x.seen[:-1], units))
    return result if biased else _with_bias(lowerer, node, result, bias)


def _is_read_as_tensor(node: Node, users: dict[Node, list[Node]]) -> bool:
    """Whether others compute with a parameter, which a layer's own weight could not be then."""
    for user in users.get(node, ()):
        is_turned = user.op in ("t", "transpose", "permute") and _is_read_as_tensor(user, users)
        is_factor = user.op in ("matmul", "mm", "bmm") and user["self"] is node
        if is_turned or is_factor or user.op in _OPERATIONS:
            return True
    return False


_OPERATIONS = ("expression", "sum", "mean", "amax", "softmax", "log_softmax", "cat", "stack")


def _with_bias(lowerer: Lowerer, node: Node, result: Value, bias: Node | None) -> Value:
    """With what is no layer's own bias: it is added, and the activation is taken of the sum."""
    from flexlegion.importers.lower.elementwise import apply

    if bias is None:
        return result
    operands = [result, lowerer.value(bias)]
    return apply(lowerer, "(x0 + x1)", operands, lowerer.name(node, suffix="bias"))


def _at_ends(kernel: Value, rank: int) -> tuple[Run, ...]:
    """The kernel's two dimensions, with as many between them as an input has before its last."""
    return (kernel.seen[0], *(() for _ in range(rank - 1)), kernel.seen[1])


def _is_vector(lowerer: Lowerer, bias: Node | None) -> bool:
    if bias is None:
        return False
    source = lowerer.value(bias).source
    return isinstance(source, Node) and source.op in WEIGHTS and len(bias.shape) == 1


def _with_repeated_channels(lowerer: Lowerer, x: Value) -> Value:
    """With channels that are expanded there as often as they are seen."""
    channels = x.seen[-1]
    if not any(axis.repeated for axis in channels):
        return x
    others = [tuple(a for a in run if a not in channels) for run in x.stored[1:]]
    return lowerer.stored_as(x, [x.stored[0], *(run for run in others if run), channels])


def _channels_last(lowerer: Lowerer, x: Value) -> tuple[Tensor, tuple[Run, ...], Run]:
    """A tensor whose last dimension holds the axes that are seen last, in the order of storage."""
    channels = set(x.seen[-1])
    inner = tuple(axis for axis in x.axes if axis in channels)
    outer: list[Run] = []
    for i, run in enumerate(x.stored):
        left = tuple(axis for axis in run if axis not in channels)
        if left or i == 0:
            outer.append(left)
    while len(outer) >= MAX_RANK:
        last = outer.pop()
        outer[-1] = (*outer[-1], *last)
    return lowerer.arranged(x, [*outer, inner]), tuple(outer), inner


def _products(lowerer: Lowerer, node: Node, left: Value, right: Value) -> Value:
    values = [lowerer.in_graph(value) for value in (left, right)]
    batches = refined([v.with_seen((*v.seen[:-2], (), ())) for v in values])
    if batches is None:
        raise Unsupported("its factors are merged from dimensions that do not fit together")
    a, b = (
        lowerer_value.with_seen((*lowerer_value.seen[:-2], *v.seen[-2:]))
        for lowerer_value, v in zip(batches, values, strict=True)
    )
    inner = refined([a.with_seen([a.seen[-1]]), b.with_seen([b.seen[-2]])])
    if inner is None:
        raise Unsupported("its factors are merged from dimensions that do not fit together")
    a = inner[0].with_seen((*a.seen[:-1], inner[0].seen[0]))
    b = inner[1].with_seen((*b.seen[:-2], inner[1].seen[0], b.seen[-1]))
    pairs = [
        (p, q)
        for x, y in zip(a.seen[:-2], b.seen[:-2], strict=True)
        for p, q in zip(x, y, strict=True)
    ]
    samples = [pair for pair in pairs if pair[0].extent == SAMPLES]
    if len(samples) != 1 or any(axis.repeated for axis in samples[0]):
        raise Unsupported("it is not a product of each sample's matrices")
    others = [(p, q) for p, q in pairs if p.extent != SAMPLES]
    runs: Sequence[tuple[Run, Run]] = [((p,), (q,)) for p, q in others]
    if len(runs) > MAX_RANK - 3:
        runs = [(tuple(p for p, _ in others), tuple(q for _, q in others))]
    first = a.stored[0], b.stored[0]
    tensors = [
        lowerer.arranged(a, [first[0], *(p for p, _ in runs), a.seen[-2], a.seen[-1]]),
        lowerer.arranged(b, [first[1], *(q for _, q in runs), b.seen[-2], b.seen[-1]]),
    ]
    tensor = lowerer.model.graph.add(MatMul(), tensors, lowerer.name(node))
    # Axes of their own: of x x^T, rows and columns are the same axes of x; and what one factor
    # repeats is stored in the product.
    columns = tuple(Axis(axis.extent) for axis in b.seen[-1])
    own = {p: Axis(p.extent) if p.repeated else p for p in (*a.seen[-2], *(p for p, _ in pairs))}
    stored = (first[0], *(tuple(own[a] for a in p) for p, _ in runs), *_renamed(a.seen[-2:-1], own))
    return Value(tensor, (*stored, columns), (*_renamed(a.seen[:-1], own), columns))


def _renamed(runs: Iterable[Run], names: dict[Axis, Axis]) -> tuple[Run, ...]:
    return tuple(tuple(names[axis] for axis in run) for run in runs)

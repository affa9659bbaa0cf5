"""The analytic cost model: a roofline, for every machine that has a file.

A task takes as long as its arithmetic at the rate that the device reaches for it, or as its memory
traffic, whichever is longer, and a launch's overhead. Two effects that matter for choosing how to
split an operator come with the rates (`flexlegion.machine.efficiency`): small tasks do not fill a
device; and a matrix product of few rows is slow however many columns it has, so that splitting the
channels is cheaper than splitting the samples (FlexFlow, section 8.2.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from flexlegion.base.errors import UserError
from flexlegion.cost.efficiency import efficiency_of
from flexlegion.cost.kernels import (
    FUSED,
    Kernels,
    apart_bytes,
    launches,
    passes_of_scores,
    picking,
)
from flexlegion.cost.model import (
    ANALYTIC,
    Cost,
    CostModel,
    Costs,
    Linear,
    Shapes,
    wanted_gradients,
)
from flexlegion.cost.products import Product, aligned_share, product_share
from flexlegion.graph.graph import Operator
from flexlegion.graph.operator_type import Family
from flexlegion.graph.tensor import NARROW
from flexlegion.machine.efficiency import Efficiency
from flexlegion.machine.parts import Device
from flexlegion.ops.attention import MatMul, MultiHeadAttention
from flexlegion.ops.conv2d import Conv2D
from flexlegion.ops.cosine import Cosine
from flexlegion.ops.dense import Dense
from flexlegion.ops.elementwise import Dropout
from flexlegion.ops.experts import Experts

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Extents = npt.NDArray[np.int64]  # (task, operand, dimension)
    Numbers = Any  # a number, or an array of one for each task

PRODUCTS = ("convolution", "matmul")
_LONGEST = float(1 << 62)  # ns

# Memory traffic of a byte of `CostModel.linear`: an update's bytes are its traffic; a sum reads two
# values or more to write one; a loaded batch is copied from the host's array into a staging tensor,
# and from there, each read and written.
_TRAFFIC = {"update": 1.0, "sum": 1.5, "load": 4.0}


class AnalyticCosts(CostModel):
    """Estimates from FLOPs, bytes, and the device's rates.

    Parameters
    ----------
    precision
        Of matrix products and convolutions: ``"float32"``, which is what the runtime computes in,
        or for machines to come another of a device's peaks (``"tfloat32"``). Devices without it
        use float32. What is stored as bfloat16 or float16 is computed with at the rate of that.
    kernels
        Which kernels there are; by default those of the runtime.
    """

    name = ANALYTIC

    def __init__(self, precision: str = "float32", kernels: Kernels = FUSED) -> None:
        self.precision = precision
        self.kernels = kernels
        self._works: dict[tuple[Operator, str], _Work] = {}
        self._costs: dict[tuple[Operator, str, Shapes, Device], Cost] = {}

    def exe_time(self, operator: Operator, pass_: str, shapes: Shapes, device: Device) -> Cost:
        import numpy as np

        key = (operator, pass_, shapes, device)
        cost = self._costs.get(key)
        if cost is None:
            extents = np.zeros((1, len(shapes), max(map(len, shapes), default=0)), np.int64)
            for row, shape in zip(extents[0], shapes, strict=True):
                row[: len(shape)] = shape
            time_ns = int(self.exe_times(operator, pass_, extents, device).times_ns[0])
            cost = self._costs[key] = Cost(time_ns, ANALYTIC)
        return cost

    def linear(self, pass_: str, device: Device) -> tuple[Linear, str]:
        if pass_ not in _TRAFFIC:
            raise UserError(f"no pass '{pass_}'; the choices are {', '.join(_TRAFFIC)}")
        efficiency = efficiency_of(device)
        rate = device.memory_bandwidth * efficiency.memory / _TRAFFIC[pass_]
        if pass_ == "load" and efficiency.load_bandwidth:
            rate = min(rate, efficiency.load_bandwidth)
        return Linear(efficiency.launch_ns, max(1, int(rate))), ANALYTIC

    def exe_times(self, operator: Operator, pass_: str, extents: Extents, device: Device) -> Costs:
        import numpy as np

        work = self._works.get((operator, pass_))
        if work is None:
            work = self._works[operator, pass_] = _Work.of(operator, pass_ == "backward")
        ranks = [len(tensor.shape) for _, tensor, _ in operator.operands]
        volumes = [extents[:, i, :rank].prod(axis=1) for i, rank in enumerate(ranks)]
        outputs = volumes[work.primary]
        columns = extents[:, work.primary, ranks[work.primary] - 1]
        efficiency = efficiency_of(device)
        peak, precision = device.peak_flops["float32"], self.precision
        if work.family in PRODUCTS:
            stored = operator.output.dtype
            precision = stored if stored in NARROW else self.precision
            if self.kernels.dense and isinstance(operator.kind, Dense | Cosine):
                precision = self.kernels.dense
            if precision in device.peak_flops:
                peak = device.peak_flops[precision]
                efficiency = efficiency.at(precision)
        reduced = work.reduced(extents)
        depth = np.maximum(1.0, work.depth * reduced)
        if work.family == "matmul" and not (work.products_kind and efficiency.attention):
            share = _products_share(work, operator, extents, depth, efficiency, precision)
        else:
            share = _share(work, np.maximum(1, outputs), depth, efficiency)
        size = sum(volumes[i] * element for i, element in work.traffic)
        bandwidth = (
            device.memory_bandwidth * efficiency.memory * efficiency.memory_by_family[work.family]
        )
        flops = outputs * reduced * work.before(extents) * work.flops
        classes = columns / operator.output.shape[-1]
        apart = apart_bytes(self.kernels, operator, pass_, volumes, classes, precision)
        if isinstance(operator.kind, MultiHeadAttention) and self.kernels.attention != "fused":
            width = np.maximum(1, extents[:, 0, ranks[0] - 1])
            queries, keys = np.maximum(1, extents[:, 0, 1]), np.maximum(1, extents[:, 1, 1])
            scores = volumes[0] // width * keys
            element = operator.output.element_bytes
            beside, by_themselves = passes_of_scores(self.kernels, operator.kind, pass_)
            size = size + scores * element * beside
            apart = apart + scores * element * by_themselves
            flops = scores * width * (8 if work.backward else 4)
            # Half of the work are products whose sums are as long as a head is wide, half those
            # that have as many columns.
            count = np.maximum(1, volumes[0] // (width * queries))
            best = efficiency.matmul_backward if work.backward else efficiency.matmul
            into = product_share(Product(queries, keys, width, count), efficiency, best)
            out = product_share(Product(queries, width, keys, count), efficiency, best)
            share = 2 / (1 / into + 1 / out) * aligned_share(keys, width, efficiency, precision)
        if work.family in PRODUCTS:
            share = share * efficiency.sustained
        if isinstance(operator.kind, Dropout) and self.kernels.dropout == "fused":
            size = outputs  # the mask
        seconds = np.maximum(flops / (peak * share), size / bandwidth) + apart / bandwidth
        if picked := picking(self.kernels, operator, pass_, extents):
            rows = np.maximum(1, picked.rows)
            product = Product(rows, picked.columns, picked.terms, picked.count)
            reached = product_share(product, efficiency, efficiency.matmul) * efficiency.sustained
            seconds = seconds + np.maximum(picked.flops / (peak * reached), picked.size / bandwidth)
        launch_ns = work.kernels * efficiency.launch_ns
        if self.kernels.issued_ns:
            launch_ns += launches(self.kernels, operator, pass_) * self.kernels.issued_ns
        times = launch_ns + np.rint(np.minimum(seconds * 1e9, _LONGEST))
        return Costs(np.maximum(1, times).astype(np.int64), (ANALYTIC,))


@dataclass(frozen=True)
class _Work:
    """What is the same for all tasks of an operator's pass.

    Parameters
    ----------
    family
        The operator type's.
    backward
        Whether it is the backward pass.
    primary
        The position of the primary output among the operands.
    flops
        Operations an element of the primary output: a task's share of the work is its share of
        that, and of what it reduces.
    depth
        Multiply-adds of the forward pass for such an element.
    reductions
        Of each dimension that is reduced: an operand that has it, as which dimension, and its
        extent.
    prefixes
        Of each dimension of the output before whose end something is read: that dimension, the
        operand that is read and as which dimension, and how much a whole output reads on average.
    traffic
        (operand, the bytes of an element of its part that are read and written).
    kernels
        How many are launched.
    products_kind
        Of products, whether they are "attention", a convolution by "small filters", or neither.
    gradients
        Of matrix products backward, whether those of the first and the second operand are wanted.
    share_of_an_expert
        The share of the rows that go to one of the experts, if these are such.
    """

    family: Family
    backward: bool
    primary: int
    flops: float
    depth: float
    reductions: tuple[tuple[int, int, int], ...]
    prefixes: tuple[tuple[int, int, int, float], ...]
    traffic: tuple[tuple[int, int], ...]
    kernels: int
    products_kind: Literal["attention", "small filters", ""] = ""
    gradients: tuple[bool, bool] = (True, True)
    share_of_an_expert: float = 1.0

    @classmethod
    def of(cls, operator: Operator, backward: bool) -> _Work:
        kind, inputs = operator.kind, operator.input_shapes
        wanted, trained = wanted_gradients(operator), operator.trained_weights
        elements = max(1, prod(operator.output.shape))
        forward_flops = kind.flops(inputs)
        flops = float(kind.backward_flops(inputs) if backward else forward_flops)
        if backward and kind.family in PRODUCTS and operator.weights:
            # One of the two products is the input's gradient, the other the weights'.
            flops *= (any(wanted) + bool(trained)) / 2
        primary = len(operator.inputs) + len(operator.weights)
        traffic = []
        for i, (role, tensor, access) in enumerate(operator.operands):
            size = tensor.element_bytes
            if backward:  # saved values are read; gradients are read or written
                gradient = wanted[i] if role == "input" else role == "output" or tensor in trained
                size = access.saved * tensor.element_bytes + gradient * tensor.gradient_bytes
            # Of what is looked up in, a table or logits: as much as the output.
            found = kind.family == "embedding" and role != "output" and tensor.dtype != "int32"
            traffic.append((primary if found else i, size))
        kernels = any(wanted) + bool(trained) if backward else 1
        return cls(
            kind.family,
            backward,
            primary,
            flops / elements,
            max(1.0, forward_flops / elements / 2),
            _reductions(operator),
            _prefixes(operator),
            tuple(traffic),
            max(1, kernels),
            _products_kind(operator),
            _gradients(operator),
            kind.load / operator.inputs[1].shape[-1] if isinstance(kind, Experts) else 1.0,
        )

    def reduced(self, extents: Extents) -> Numbers:
        """The share that tasks have of what the operator reduces."""
        return prod(extents[:, i, d] / extent for i, d, extent in self.reductions)

    def before(self, extents: Extents) -> Numbers:
        """What tasks read before their elements, beside what a whole output reads on average."""
        return prod(
            mean_prefix(extents[:, self.primary, out], extents[:, i, d]) / mean
            for out, i, d, mean in self.prefixes
        )


def _products_kind(operator: Operator) -> Literal["attention", "small filters", ""]:
    """`_Work.products_kind`."""
    kind = operator.kind
    if isinstance(kind, MultiHeadAttention):
        return "attention"
    if isinstance(kind, Conv2D) and (kind.kernel_h, kind.kernel_w) == (3, 3):
        return "small filters" if (kind.stride_h, kind.stride_w) == (1, 1) else ""
    return ""


def _gradients(operator: Operator) -> tuple[bool, bool]:
    """`_Work.gradients`; both, where there are none to compute."""
    wanted, trained = wanted_gradients(operator), bool(operator.trained_weights)
    its = (any(wanted), trained) if operator.weights else (wanted[0], wanted[-1])
    return its if any(its) else (True, True)


def _reductions(operator: Operator) -> tuple[tuple[int, int, int], ...]:
    """`_Work.reductions`."""
    first = len(operator.output.shape)
    found: dict[int, tuple[int, int, int]] = {}
    for i, (_, _, access) in enumerate(operator.operands):
        for d, entry in enumerate(access.map):
            if entry.out_dim >= first and entry.is_along and not access.once:
                found.setdefault(entry.out_dim, (i, d, operator.space[entry.out_dim]))
    return tuple(found.values())


def _prefixes(operator: Operator) -> tuple[tuple[int, int, int, float], ...]:
    """`_Work.prefixes`."""
    found: dict[int, tuple[int, int, int, float]] = {}
    for i, (_, tensor, access) in enumerate(operator.operands):
        for d, entry in enumerate(access.map):
            if entry.prefix:
                extent = operator.space[entry.out_dim]
                mean = mean_prefix(extent, min(extent, tensor.shape[d]))
                found.setdefault(entry.out_dim, (entry.out_dim, i, d, mean))
    return tuple(found.values())


def mean_prefix(extent: Numbers, last: Numbers) -> Numbers:
    """The mean length of so many prefixes, each longer by one, the last of which has `last`.

    There are none shorter than 1; where the tensor ends before, all others have `last`.
    """
    import numpy as np

    growing = np.minimum(extent, last)
    return last - growing * (growing - 1) / (2 * np.maximum(1, extent))


def _share(work: _Work, outputs: Numbers, depth: Numbers, efficiency: Efficiency) -> Numbers:
    """The share of its peak that the device reaches in tasks that are no matrix products.

    They have that many output elements, of so many multiply-adds each. Attention in one kernel
    counts as no product.
    """
    if work.products_kind == "attention":
        best = efficiency.attention_backward if work.backward else efficiency.attention
        return best / (1 + efficiency.half_outputs / outputs)
    if work.family == "convolution":
        half_depth = efficiency.half_depth
        best = efficiency.convolution_backward if work.backward else efficiency.convolution
        if work.products_kind == "small filters" and efficiency.small_filters:
            half_depth = efficiency.small_filters_half_depth
            best = efficiency.small_filters
            if work.backward:
                best = efficiency.small_filters_backward
        fills = 1 + efficiency.half_outputs / outputs
        return best / ((1 + half_depth / depth) * fills)
    return efficiency.compute_by_family[work.family]


def _products_share(
    work: _Work,
    operator: Operator,
    extents: Extents,
    depth: Numbers,
    efficiency: Efficiency,
    precision: str,
) -> Numbers:
    """The same of tasks that are matrix products, with these `extents`; `depth` as of `_share`.

    Of several products in turn, as of recurrent layers, sums are taken to be one after the other.
    """
    import numpy as np

    ranks = [len(tensor.shape) for _, tensor, _ in operator.operands]
    output = extents[:, work.primary, : ranks[work.primary]]
    columns = np.maximum(1, output[:, -1])
    rows = np.maximum(1, output[:, :-1].prod(axis=1))
    terms = np.maximum(1, extents[:, 0, ranks[0] - 1])
    aligned = aligned_share(columns, terms, efficiency, precision)
    best = efficiency.matmul_backward if work.backward else efficiency.matmul
    share = work.share_of_an_expert  # each has a product, of the rows that go to it
    product = Product(rows * share, columns, depth)
    if efficiency.multiprocessors and isinstance(operator.kind, Experts):
        count = np.maximum(1, extents[:, 1, ranks[1] - 1])
        product = Product(rows * share, columns, depth / (count * share), count)
    elif efficiency.multiprocessors and isinstance(operator.kind, MatMul):
        count = np.maximum(1, output[:, :-2].prod(axis=1))
        product = Product(np.maximum(1, output[:, -2]), columns, depth, count)
    if not (efficiency.multiprocessors and work.backward):
        # The curve of other devices was fitted to both passes by the forward pass's sizes.
        return aligned * product_share(product, efficiency, best)
    shares = [
        product_share(its, efficiency, best)
        for its, wanted in zip(product.gradients(), work.gradients, strict=True)
        if wanted
    ]
    return aligned * len(shares) / sum(1 / share for share in shares)

"""What systems lack kernels for passes memory more often: by hand, and counted in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.cost.kernels import Kernels
from flexlegion.graph.graph import Graph, Operator
from flexlegion.graph.operator_type import OperatorType
from flexlegion.machine.parts import Device
from flexlegion.ops.attention import MultiHeadAttention
from flexlegion.ops.cosine import AngularMargin, Cosine
from flexlegion.ops.dense import Dense
from flexlegion.ops.elementwise import Dropout, Gelu
from flexlegion.ops.experts import Experts
from flexlegion.ops.expression import Expression
from flexlegion.ops.logits import LogitStatistics
from flexlegion.ops.normalization import BatchNorm, LayerNorm

Pass = Literal["forward", "backward"]
PASSES: tuple[Pass, Pass] = ("forward", "backward")
# Memory at 0.82 TB/s, for normalizations at 0.85 of that; products as a V100's.
DEVICE = Device("gpu:0", "gpu", "V100", 0, "gpu:0", 1 << 34, {"float32": 10**13}, 10**12)
RATE = {"normalization": 0.82e3 * 0.85}  # bytes a ns
USUAL = 0.82e3
ROWS, COLUMNS = 256, 4096
PRELU = Expression("where(x0 > 0, x0, x1 * x0)")


def _operator(kind: OperatorType, *shapes: tuple[int, ...], dtypes: str = "f") -> Operator:
    graph = Graph()
    names = {"f": "float32", "i": "int32"}
    inputs = [
        graph.add_input(f"x{n}", shape, names[dtypes[n % len(dtypes)]], dtypes == "f")  # type: ignore[arg-type]
        for n, shape in enumerate(shapes)
    ]
    graph.add(kind, inputs, "it")
    return graph.operators[0]


def _more_ns(
    operator: Operator, kernels: Kernels, pass_: Pass, shapes: Any = None
) -> tuple[int, int]:
    """What a task takes longer with these kernels than with the runtime's; and with those."""
    shapes = shapes or tuple(tensor.shape for _, tensor, _ in operator.operands)
    fused, its = (
        AnalyticCosts("float32", k).exe_time(operator, pass_, shapes, DEVICE).time_ns
        for k in (Kernels(), kernels)
    )
    return its - fused, fused


# How often a dense layer's or a normalization's outputs pass memory in kernels of their own: a bias
# is read and written, its gradient read; an activation is, its derivative reads two and writes one;
# a residual's sum reads and writes once more than in the normalization's kernel, and its gradients
# are added up by a kernel that reads two and writes one, where that would have written one.
@pytest.mark.parametrize(
    ("kind", "shapes", "kernels", "times"),
    [
        (Dense(COLUMNS), [(ROWS, 64)], Kernels(bias="separate"), (2, 1)),
        (Dense(COLUMNS, False, "relu"), [(ROWS, 64)], Kernels(bias="separate"), (2, 3)),
        (Dense(COLUMNS, False), [(ROWS, 64)], Kernels(bias="separate"), (0, 0)),
        (
            BatchNorm(1e-5, "relu"),
            [(ROWS, COLUMNS), (1, 2, COLUMNS)],
            Kernels(normalized="separate"),
            (2, 3),
        ),
        (
            BatchNorm(1e-5, "relu"),
            [(ROWS, COLUMNS), (1, 2, COLUMNS), (ROWS, COLUMNS)],
            Kernels(normalized="separate"),
            (4, 5),
        ),
        (Dropout(0.1, 0), [(ROWS, COLUMNS)], Kernels(formulas="by steps"), (10, 2.5)),
        (Dropout(0.1, 0), [(ROWS, COLUMNS)], Kernels(formulas="gelu by steps"), (0, 0)),
        # The gradient of a slope is written whole, and read to be summed.
        (PRELU, [(ROWS, COLUMNS), (1, COLUMNS)], Kernels(repeated="separate"), (0, 2)),
        (PRELU, [(ROWS, COLUMNS), (ROWS, COLUMNS)], Kernels(repeated="separate"), (0, 0)),
    ],
)
def test_kernels_of_their_own(
    kind: OperatorType, shapes: list[tuple[int, ...]], kernels: Kernels, times: tuple[float, float]
) -> None:
    operator = _operator(kind, *shapes)
    for pass_, passes in zip(PASSES, times, strict=True):
        expected = passes * ROWS * COLUMNS * 4 / RATE.get(kind.family, USUAL)
        assert _more_ns(operator, kernels, pass_)[0] == pytest.approx(expected, abs=2)


def _elements(tensor: torch.Tensor) -> int:
    """Of a tensor those that are in memory: of one that was expanded, those that it repeats."""
    return min(tensor.numel(), tensor.untyped_storage().nbytes() // tensor.element_size())


class _Counted(TorchDispatchMode):
    """How often so many elements pass memory, if each operation of PyTorch is a kernel."""

    free = ("view", "_unsafe_view", "t", "expand", "slice", "alias", "detach", "unbind", "nonzero")
    made = ("zeros", "new_zeros", "zeros_like", "full_like", "scalar_tensor")  # nothing is read
    touched = ("index_put", "index_put_", "index", "scatter_")  # of what they change, that alone

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.elements = elements
        self.passes = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in self.free:
            return result
        tensors = [its for its in tree_leaves((args, kwargs)) if isinstance(its, torch.Tensor)]
        read = {its.data_ptr(): _elements(its) for its in tensors if its.is_floating_point()}
        wrote = result.numel() if isinstance(result, torch.Tensor) else 0
        moved = wrote if name in self.made else wrote + sum(read.values())
        if name in self.touched:
            rows = min((its.numel() for its in tensors if its.is_floating_point()), default=0)
            smallest = min(rows, wrote)
            copied = 0 if name in ("index", "index_put_", "scatter_") else 2 * wrote
            moved = 2 * smallest + copied
        self.passes += moved / self.elements
        return result


def _counted(
    compute: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
) -> tuple[float, float]:
    """The passes of a formula of x, forward and backward."""
    x.requires_grad_()
    with _Counted(x.numel()) as forward:
        y = compute(x)
    gradient = torch.ones_like(y)
    with _Counted(x.numel()) as backward:
        y.backward(gradient)
    return forward.passes, backward.passes


def _gelu(x: torch.Tensor) -> torch.Tensor:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))
    return x * (0.5 * (1.0 + torch.tanh(inner)))


def _layer_norm(x: torch.Tensor) -> torch.Tensor:
    gamma, beta = (torch.ones(x.shape[-1], requires_grad=True) for _ in range(2))
    mean = x.mean(-1, keepdim=True)
    factor = torch.rsqrt(torch.pow(x - mean, 2).mean(-1, keepdim=True) + 1e-5) * gamma
    return x * factor + (beta - mean * factor)


@pytest.mark.parametrize(
    ("kind", "compute"), [(Gelu(), _gelu), (LayerNorm(), _layer_norm)], ids=["gelu", "layer_norm"]
)
def test_formulas_by_steps_as_pytorch_computes_them(
    kind: OperatorType, compute: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    operator = _operator(kind, (ROWS, COLUMNS))
    counted = _counted(compute, torch.rand(ROWS, COLUMNS))
    for pass_, passes in zip(PASSES, counted, strict=True):
        more, _ = _more_ns(operator, Kernels(formulas="by steps"), pass_)
        only_gelu, _ = _more_ns(operator, Kernels(formulas="gelu by steps"), pass_)
        assert only_gelu == (more if isinstance(kind, Gelu) else 0)
        fused = 2 if pass_ == "forward" else 3  # reads and writes; reads two, and writes
        rate = RATE.get(kind.family, USUAL)
        assert more * rate / (4 * ROWS * COLUMNS) + fused == pytest.approx(passes, rel=0.15)


@pytest.mark.parametrize("parts", [1, 8])
def test_margins_by_steps_as_pytorch_computes_them(parts: int) -> None:
    """Where classes are split over devices, a device has few of the samples' own classes."""
    own = ROWS // parts
    labels = torch.full((ROWS,), -1)
    labels[:own] = torch.arange(own)

    def margin(x: torch.Tensor) -> torch.Tensor:
        cosine = x * 1.0  # so that it may be changed in place; two passes that are not counted
        rows = torch.arange(own)
        margins = torch.zeros(own, COLUMNS)
        margins.scatter_(1, labels[rows, None], 0.5)
        cosine.acos_()
        cosine[rows] += margins
        cosine.cos_().mul_(64.0)
        return cosine

    operator = _operator(
        AngularMargin(64.0, 0.5, True), (ROWS, parts * COLUMNS), (ROWS,), dtypes="fi"
    )
    shapes = ((ROWS, COLUMNS), (ROWS,), (ROWS, COLUMNS))
    counted = _counted(margin, torch.rand(ROWS, COLUMNS) * 0.9)
    graph_costs = AnalyticCosts("float32", Kernels(loss="by steps"))
    plain = AnalyticCosts("float32", Kernels())
    for pass_, passes in zip(PASSES, counted, strict=True):
        size = 4 * ROWS * COLUMNS
        times = [c.exe_time(operator, pass_, shapes, DEVICE).time_ns for c in (graph_costs, plain)]
        more = (times[0] - times[1]) * USUAL / size
        fused = 2 if pass_ == "forward" else 3
        assert more + fused == pytest.approx(passes - 2, rel=0.15)


def test_lengths_by_steps_as_pytorch_computes_them() -> None:
    classes, width = ROWS, COLUMNS
    operator = _operator(Cosine(classes), (2, width))
    counted = _counted(torch.nn.functional.normalize, torch.rand(classes, width))
    for pass_, passes in zip(PASSES, counted, strict=True):
        more, _ = _more_ns(operator, Kernels(loss="by steps"), pass_)
        assert more * USUAL / (4 * classes * width) == pytest.approx(passes, rel=0.2)


def test_vectors_of_sampled_classes_are_copied() -> None:
    """With their momenta: both are read and written before, and after."""
    operator = _operator(Cosine(ROWS), (2, COLUMNS))
    for pass_ in PASSES:
        more, _ = _more_ns(operator, Kernels(sampled=True), pass_)
        assert more * USUAL == pytest.approx(4 * 4 * ROWS * COLUMNS, rel=1e-3)


def test_a_loss_that_changes_its_copy_of_the_logits() -> None:
    """36 and 12 bytes a logit beside what is read and written anyway, where others take 14 and 22.

    Forward the copy is written, and read for the maximum; three times it is read and written, and
    once it is read; backward it is read and written, and read to be rounded.
    """
    operator = _operator(LogitStatistics(), (ROWS, COLUMNS), (ROWS,), (ROWS,), dtypes="fif")
    for pass_, sizes in zip(PASSES, ((4 + 4 + 3 * 8 + 4, 14), (8 + 4, 22)), strict=True):
        its, usual = (
            _more_ns(operator, Kernels(loss=loss), pass_)[0] for loss in ("in place", "by steps")
        )
        assert its / usual == pytest.approx(sizes[0] / sizes[1], rel=1e-3)


@pytest.mark.parametrize("attention", ["fused", "unfused", "by steps"])
def test_kernels_that_are_waited_for(attention: Literal["fused", "unfused", "by steps"]) -> None:
    """Each takes what the host does to issue it: of a dense layer one, and one a gradient."""
    dense = _operator(Dense(COLUMNS), (ROWS, 64))
    attends = _operator(MultiHeadAttention(True, 0.125), *[(2, 128, 4, 64)] * 3)
    kernels = Kernels(attention=attention)
    waiting = replace(kernels, issued_ns=1000)
    expected = {"fused": (1, 1), "unfused": (5, 7), "by steps": (10, 12)}[attention]
    for operator, counts in ((dense, (1, 3)), (attends, expected)):
        for pass_, count in zip(PASSES, counts, strict=True):
            its = _more_ns(operator, waiting, pass_)[0] - _more_ns(operator, kernels, pass_)[0]
            assert its == 1000 * count


def test_experts_pick_rows_by_products() -> None:
    """Of 8 experts with 2 a row, groups of 512 rows have 1024 places: so many products more."""
    rows, width, group = 2048, 1024, 512
    x = (rows // group, group)
    operator = _operator(Experts(4096, "relu", False, 2.0), (*x, width), (*x, 8))
    shapes = [tensor.shape for _, tensor, _ in operator.operands]
    kernels = Kernels(one_hot=group)
    places = 2 * group
    # 4 groups of 1024 x 1024 by sums of 512: 1024 tiles of 64 x 64 are 13 waves of 80, each a bit
    # slower than larger ones would be.
    slower = (1 + 4 / 64 + 4 / 64) / (1 + 4 / 256 + 4 / 128)
    share = 0.92 * 1024 / (13 * 80) / slower / (1 + 70 / group)
    for pass_, products in zip(PASSES, (2, 3), strict=True):
        more, _ = _more_ns(operator, kernels, pass_)
        expected = products * 2 * rows * places * width / (10**4 * share)
        assert more == pytest.approx(expected, rel=1e-3)
    # A device with half of the experts has half of the places.
    gates = (*shapes[1][:-1], 4)
    half = (shapes[0], gates, (4, *shapes[2][1:]), (4, *shapes[3][1:]), shapes[4])
    more, _ = _more_ns(operator, kernels, "forward", half)
    share = 0.92 * 512 / (7 * 80) / slower / (1 + 70 / group)
    assert more == pytest.approx(2 * rows * places * width / (10**4 * share), rel=1e-3)
    assert _more_ns(operator, Kernels(), "forward")[0] == 0

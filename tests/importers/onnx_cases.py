"""ONNX models of one operator each, with every kind of attribute, and what ONNX says they compute.

The reference is ONNX's own evaluator. Inputs have a first dimension of any extent, the samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from onnx import ModelProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

BATCH, SAMPLES = 4, 3  # of the imported model, and those that are computed
NEWEST = 23
RNG = np.random.default_rng(5)
CORNERS = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.5, -2.5, 3.0, -3.0, 6.0, 40.0, -40.0, 1e-6]


@dataclass(frozen=True)
class Case:
    """A model, and what it is given."""

    name: str
    model: ModelProto
    inputs: dict[str, Any]

    def expected(self) -> dict[str, Any]:
        """What ONNX's evaluator computes, by output."""
        names = [value.name for value in self.model.graph.output]
        with np.errstate(all="ignore"):
            values = ReferenceEvaluator(self.model).run(None, self.inputs)
        return dict(zip(names, map(np.asarray, values), strict=True))


def given(*shape: int, kind: str = "normal") -> Any:
    """Values of an input, for `SAMPLES` samples."""
    shape = (SAMPLES, *shape)
    size = int(np.prod(shape))
    if kind == "corners":
        return np.resize(np.array(CORNERS, np.float32), size).reshape(shape)
    if kind == "positive":
        return (RNG.random(shape) + 0.1).astype(np.float32)
    if kind == "int":
        return RNG.integers(-9, 10, shape).astype(np.int64)
    if kind == "count":
        return RNG.integers(1, 5, shape).astype(np.int64)
    if kind == "bool":
        return RNG.integers(0, 2, shape).astype(bool)
    return RNG.standard_normal(shape).astype(np.float32)


def const(*shape: int, kind: str = "normal") -> Any:
    """An initializer's values."""
    return given(*shape, kind=kind)[0]


class Init:
    """An initializer among a case's inputs."""

    def __init__(self, values: Any, dtype: Any = None) -> None:
        self.values = np.asarray(values, dtype)


def case(op: str, *inputs: Any, outputs: int = 1, opset: int = NEWEST, **attributes: Any) -> Case:
    """Arrays are inputs of the model; `Init` are initializers; None is left out.

    Results that are no real numbers are made such.
    """
    names, given_, initializers = [], {}, []
    for i, value in enumerate(inputs):
        name = "" if value is None else f"in{i}"
        names.append(name)
        if isinstance(value, Init):
            initializers.append(numpy_helper.from_array(value.values, name))
        elif value is not None:
            given_[name] = value
    results = [f"raw{i}" for i in range(outputs)]
    nodes = [helper.make_node(op, names, results, name="layer", **attributes)]
    initializers.append(numpy_helper.from_array(np.float32(0.5), "half"))
    for i, raw in enumerate(results):  # what is computed by no layer could be no output
        nodes.append(helper.make_node("Cast", [raw], [f"real{i}"], to=1))
        nodes.append(helper.make_node("Add", [f"real{i}", "half"], [f"out{i}"]))
    values = [
        helper.make_tensor_value_info(
            n, helper.np_dtype_to_tensor_dtype(a.dtype), ["n", *a.shape[1:]]
        )
        for n, a in given_.items()
    ]
    ends = [helper.make_empty_tensor_value_info(f"out{i}") for i in range(outputs)]
    for end in ends:
        end.type.tensor_type.elem_type = 1
    graph = helper.make_graph(nodes, "g", values, ends, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    shapes = [i.values.shape if isinstance(i, Init) else getattr(i, "shape", None) for i in inputs]
    shown = ", ".join(f"{k}={v}" for k, v in attributes.items())
    kinds = "".join("w" if isinstance(i, Init) else "-" if i is None else "x" for i in inputs)
    return Case(f"{op} {kinds} {shapes} opset {opset} {shown}", model, given_)


def elementwise() -> Iterator[Case]:
    """Of one and of two operands."""
    x, n = given(7, kind="corners"), given(7, kind="int")
    for op in [
        "Relu",
        "Sigmoid",
        "Tanh",
        "Exp",
        "Sin",
        "Cos",
        "Erf",
        "Neg",
        "Abs",
        "HardSwish",
        "Softplus",
        "Softsign",
        "Identity",
        "Sign",
        "Floor",
        "Ceil",
        "Round",
        "Mish",
        "Tan",
        "Sinh",
        "Cosh",
        "Atan",
        "Asinh",
    ]:
        yield case(op, x, opset=22)
    for op in ("Log", "Sqrt", "Reciprocal"):
        yield case(op, given(7, kind="positive"))
    for op in ("Acos", "Asin", "Atanh"):
        yield case(op, np.tanh(given(7)))
    for op in ("Neg", "Abs", "Sign", "Identity", "Relu"):
        yield case(op, n)
    yield case("Not", given(7, kind="bool"))
    for attributes in ({}, {"alpha": 0.3}, {"alpha": 1.0}, {"alpha": 2.5}):
        yield case("LeakyRelu", x, **attributes)
        yield case("Elu", x, **attributes)
        yield case("Celu", x, **attributes)
        yield case("ThresholdedRelu", x, **attributes)
        yield case("Swish", x, opset=24, **attributes)
    for attributes in ({}, {"alpha": 2.0, "gamma": 3.0}, {"alpha": 1.5}, {"gamma": 0.5}):
        yield case("Selu", x, **attributes)
    for attributes in ({}, {"alpha": 1 / 6}, {"alpha": 0.3, "beta": 0.2}, {"beta": 0.7}):
        yield case("HardSigmoid", x, **attributes)
    for attributes in ({}, {"approximate": "tanh"}, {"approximate": "none"}):
        yield case("Gelu", x, **attributes)
    for attributes in ({}, {"lambd": 1.5}, {"bias": 0.5, "lambd": 0.3}):
        yield case("Shrink", x, **attributes)
    for slope in ((), (1,), (4,), (3, 1, 1), (1, 3, 1, 1), (3, 5, 4), (5, 1), (1, 4), (1, 1, 4)):
        yield case("PRelu", given(3, 5, 4), Init(const(*slope)))
    for slope in ((1,), (6,), (1, 6)):
        yield case("PRelu", given(6), Init(const(*slope)))
    yield case("PRelu", given(6), given(6))
    for low, high in product((None, -1.0), (None, 2.0)):
        bounds = [None if b is None else Init(b, np.float32) for b in (low, high)]
        yield case("Clip", x, *bounds)
    yield case("Clip", x, Init(3.0, np.float32), Init(1.0, np.float32))
    yield case("Clip", n, Init(-3), Init(4))
    yield case("IsNaN", np.where(x > 2, np.float32(np.nan), x))
    yield case("IsInf", np.where(x > 2, np.float32(np.inf), x))
    for to, value in product((1, 6, 7, 9, 11), (x, n, given(7, kind="bool"))):
        yield case("Cast", value, to=to)


def binary() -> Iterator[Case]:
    """Of two operands, real or whole, that broadcast."""
    ops = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Mod")
    compares = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
    logic = ("And", "Or", "Xor")
    for op in (*ops, *compares):
        more = {"fmod": 1} if op == "Mod" else {}
        x = given(3, 5, kind="positive" if op == "Pow" else "normal")
        for shape in ((), (1,), (5,), (3, 1), (3, 5)):
            yield case(op, x, Init(const(*shape)), **more)
            yield case(op, Init(const(*shape, kind="positive")), x, **more)
        yield case(op, x, given(3, 5), **more)
        yield case(op, x, given(3, 1), **more)
        yield case(op, given(1, 5, kind="positive"), given(3, 1), **more)
    for op in (*ops, *compares):
        n, m = given(5, kind="int"), given(5, kind="count")
        yield case(op, n, m)
        yield case(op, n, Init(2))
        yield case(op, n, Init([-3, 2, 5, 1, 4]))
        yield case(op, Init(7), m)
        yield case(op, n.astype(np.int32), m.astype(np.int32))
    yield case("Mod", given(5, kind="int"), Init(3), fmod=1)
    for exponent in (0.0, 0.5, -0.5, 1.0, -1.0, 1.7, 2.0, 3.0, 4.0, 5.0, -2.0):
        yield case("Pow", given(5, kind="positive"), Init(exponent, np.float32))
    for exponent in (2, 3, 5):
        yield case("Pow", given(5), Init(exponent, np.int64))
        yield case("Pow", given(5), Init(exponent, np.float32))
    for op in logic:
        yield case(op, given(5, kind="bool"), given(5, kind="bool"))
    for op in ("Max", "Min", "Sum", "Mean"):
        yield case(op, given(5))
        yield case(op, given(5), given(5), given(5))
        yield case(op, given(5), given(1), Init(const(5)))
    c = given(5, kind="bool")
    yield case("Where", c, given(5), given(5))
    yield case("Where", c, Init(0.0, np.float32), given(5))
    yield case("Where", c, given(5), Init(-1e9, np.float32))
    yield case("Where", c, given(5, kind="int"), given(5, kind="int"))
    yield case("Where", given(1, kind="bool"), given(5), given(5))


def reductions() -> Iterator[Case]:
    """Over every choice of dimensions but the samples'."""
    ops = ["Mean", "Sum", "Max", "Min", "L1", "L2", "LogSum", "LogSumExp", "Prod", "SumSquare"]
    for op, axes, keep in product(ops, ([1], [-1], [1, 2], [2, 3], [-1, -2]), (0, 1)):
        x = given(3, 4, 2, kind="positive" if op == "LogSum" else "normal")
        yield case(f"Reduce{op}", x, Init(axes, np.int64), opset=20, keepdims=keep)
        if op != "Sum":
            yield case(f"Reduce{op}", x, opset=13, axes=axes, keepdims=keep)
    for op in ops:
        x = given(3, kind="positive")
        yield case(f"Reduce{op}", x, opset=20, noop_with_empty_axes=1)
        yield case(f"Reduce{op}", x, Init(np.zeros(0), np.int64), opset=20, noop_with_empty_axes=1)
        yield case(f"Reduce{op}", given(3, 4), Init([2], np.int64), opset=20)
        yield case(f"Reduce{op}", given(3, 4), Init([0], np.int64), opset=20)
        yield case(f"Reduce{op}", given(3, 4), opset=20)
    for op in ("Sum", "Max", "Min", "Mean"):
        yield case(f"Reduce{op}", given(5, 3, kind="int"), Init([1], np.int64), opset=20)
    for op, axis in product(("Softmax", "LogSoftmax", "Hardmax"), (None, 1, 2, -1, 3, -2)):
        yield case(op, given(3, 4, 2), **({} if axis is None else {"axis": axis}))
    for op, axis, keep in product(("ArgMax", "ArgMin"), (1, -1), (0, 1)):
        yield case(op, given(4, 3), axis=axis, keepdims=keep)
    for p, axis in product((1, 2), (1, -1, 2)):
        yield case("LpNormalization", given(3, 4), p=p, axis=axis)
    yield case("LpNormalization", given(3, 4))
    yield case("LpNormalization", np.zeros((SAMPLES, 4), np.float32))
    for exclusive, reverse in product((0, 1), (0, 1)):
        ways = {"exclusive": exclusive, "reverse": reverse}
        yield case("CumSum", given(4), Init(1), **ways)
        yield case("CumSum", given(3, 4, 2), Init(-2), **ways)
        yield case("CumSum", given(1, 3), Init(1), **ways)
        yield case("CumSum", given(3, kind="int"), Init(1), **ways)
    for op in ("GlobalAveragePool", "GlobalMaxPool"):
        yield case(op, given(3, 4, 5))
        if op != "GlobalMaxPool":  # of which ONNX's evaluator knows images alone
            yield case(op, given(3, 4))
    yield case("GlobalLpPool", given(3, 4, 5))


def matrices() -> Iterator[Case]:
    """Matrix products."""
    for a, b in ((0, 0), (0, 1)):
        w = const(4, 5) if not b else const(5, 4)
        for more in ({}, {"alpha": 0.5}, {"beta": 0.3}, {"alpha": 2.0, "beta": 0.0}):
            for c in ((), (1,), (5,), (1, 5), None):
                third = [] if c is None else [Init(const(*c))]
                yield case("Gemm", given(4), Init(w), *third, transA=a, transB=b, **more)
    yield case("Gemm", given(4), Init(const(4, 5)), given(5))
    yield case("Gemm", given(4), Init(const(4, 5)), given(1))
    yield case("Gemm", Init(const(6, 5)), given(5), transB=1)
    yield case("MatMul", given(4), Init(const(4, 5)))
    yield case("MatMul", given(3, 4), Init(const(4, 5)))
    yield case("MatMul", given(3, 4), Init(const(4)))
    yield case("MatMul", given(3, 4), given(4, 5))
    yield case("MatMul", given(2, 3, 4), given(2, 4, 5))
    yield case("MatMul", given(2, 3, 4), Init(const(2, 4, 5)))
    yield case("MatMul", given(2, 3, 4), Init(const(1, 4, 5)))
    yield case("MatMul", Init(const(5, 3)), given(3, 4))
    yield case("MatMul", Init(const(3)), given(3, 4))
    for equation in ("bij,bjk->bik", "bij,bkj->bik", "bij->bji", "bij,bij->b", "bij->bi"):
        operands = [given(3, 4), given(4, 4) if "jk" in equation else given(3, 4)]
        yield case("Einsum", *operands[: equation.count(",") + 1], equation=equation)


def windows() -> Iterator[Case]:
    """Convolutions and poolings."""
    x, line, w = given(4, 7, 8), given(4, 9), Init(const(6, 4, 3, 3))
    bias = Init(const(6))
    pads = ({}, {"pads": [1, 1, 1, 1]}, {"pads": [0, 1, 2, 1]}, {"pads": [1, 2, 0, 1]})
    autos = tuple({"auto_pad": a} for a in ("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"))
    for pad, stride in product((*pads, *autos), ([1, 1], [2, 1], [2, 3])):
        yield case("Conv", x, w, bias, strides=stride, **pad)
    yield case("Conv", x, w, kernel_shape=[3, 3])
    yield case("Conv", x, w, bias, dilations=[2, 1], pads=[2, 1, 2, 1])
    yield case("Conv", x, w, bias, dilations=[2, 2], auto_pad="SAME_UPPER")
    yield case("Conv", x, Init(const(6, 2, 3, 3)), bias, group=2)
    yield case("Conv", x, Init(const(4, 1, 3, 3)), group=4, pads=[1, 1, 1, 1])
    yield case("Conv", x, Init(const(8, 1, 3, 3)), group=4, pads=[1, 1, 1, 1])
    for pad in ({}, {"pads": [1, 1]}, {"pads": [0, 2]}, {"auto_pad": "SAME_LOWER"}):
        yield case("Conv", line, Init(const(6, 4, 3)), bias, strides=[2], **pad)
    yield case("Conv", line, Init(const(6, 2, 3)), bias, group=2)
    yield case("Conv", line, Init(const(6, 4, 3)), bias, dilations=[2])
    yield case("Conv", given(2, 4, 4, 4), Init(const(3, 2, 2, 2, 2)))
    yield case("Conv", x, given(1))
    t, tb = Init(const(4, 6, 3, 3)), Init(const(6))
    for attributes in (
        {},
        {"strides": [2, 2]},
        {"strides": [2, 2], "pads": [1, 1, 1, 1]},
        {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]},
        {"strides": [2, 3], "pads": [1, 0, 0, 1]},
        {"strides": [2, 2], "pads": [0, 0, 1, 1]},
        {"strides": [2, 2], "output_shape": [14, 16]},
        {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"strides": [2, 2], "auto_pad": "SAME_LOWER"},
        {"strides": [2, 2], "auto_pad": "VALID"},
        {"dilations": [2, 2]},
    ):
        yield case("ConvTranspose", x, t, tb, **attributes)
    yield case("ConvTranspose", x, Init(const(4, 3, 3, 3)), group=2)
    yield case("ConvTranspose", line, Init(const(4, 3, 3)), strides=[2])
    yield case("ConvTranspose", line, Init(const(4, 3, 3)), strides=[2], pads=[1, 0])
    yield case("ConvTranspose", line, Init(const(4, 3, 3)), dilations=[2], pads=[1, 1])
    for op, pad, stride in product(("MaxPool", "AveragePool"), (*pads, *autos), ([1, 1], [2, 3])):
        yield case(op, x, kernel_shape=[3, 3], strides=stride, **pad)
    for op, size in product(("MaxPool", "AveragePool"), (7, 8, 9)):
        y = given(2, size, size)
        yield case(op, y, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
        yield case(op, y, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1, pads=[1, 1, 1, 1])
        yield case(op, y, kernel_shape=[2, 2])
        yield case(op, y, kernel_shape=[2, 2], strides=[2, 2])
        yield case(op, y[:, :, 0], kernel_shape=[3], strides=[2], pads=[1, 1])
        yield case(op, y, kernel_shape=[2, 2], dilations=[2, 2])
    for include, ceil in product((0, 1), (0, 1)):
        more = {"count_include_pad": include, "ceil_mode": ceil}
        yield case("AveragePool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], **more)
        yield case("AveragePool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4, **more)
    yield case("MaxPool", x, kernel_shape=[3, 3], storage_order=1)
    yield case("MaxPool", x, kernel_shape=[2, 2], outputs=2)
    yield case("LpPool", x, kernel_shape=[2, 2], p=2)
    yield case("LRN", x, size=3)
    for block, mode in product((2,), ("DCR", "CRD")):
        yield case("DepthToSpace", given(8, 3, 2), blocksize=block, mode=mode)
    yield case("DepthToSpace", given(8, 3, 2), blocksize=2)
    yield case("SpaceToDepth", given(2, 4, 6), blocksize=2)


MODES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)
ROUNDINGS = (None, "floor", "ceil", "round_prefer_floor", "round_prefer_ceil")


def resizes() -> Iterator[Case]:
    """Every mode, place and rounding, by scales and by sizes, up and down."""
    x, roi = given(2, 4, 6), Init([0, 0, 0.1, 0.2, 1, 1, 0.9, 0.8], np.float32)
    targets: list[tuple[list[float] | None, list[int] | None]] = [
        ([1, 1, 2, 2], None),
        ([1, 1, 3, 2], None),
        ([1, 1, 1.5, 1], None),
        ([1, 1, 0.5, 0.5], None),
        (None, [8, 12]),
        (None, [5, 7]),
    ]
    for mode, place, (scales, sizes) in product(("nearest", "linear", "cubic"), MODES, targets):
        for rounding in ROUNDINGS if mode == "nearest" else (None,):
            more = {} if rounding is None else {"nearest_mode": rounding}
            if place == "tf_crop_and_resize" and rounding not in (None, "floor"):
                continue
            by = (
                [None, Init([*x.shape[:2], *sizes], np.int64)]
                if sizes
                else [Init(scales, np.float32)]
            )
            if sizes:
                more["axes"] = [2, 3]
                by[1] = Init(sizes, np.int64)
            where = [roi if place.startswith("tf") else None]
            if sizes and place.startswith("tf"):
                where = [Init([0.1, 0.2, 0.9, 0.8], np.float32)]
            yield case(
                "Resize", x, *where, *by, mode=mode, coordinate_transformation_mode=place, **more
            )
    yield case("Resize", x, None, Init([1, 1, 2, 2], np.float32))
    for mode in ("nearest", "linear"):
        yield case("Resize", given(2, 5), None, Init([1, 1, 2], np.float32), mode=mode)
        yield case("Resize", x, None, Init([1, 1, 0.5, 0.5], np.float32), mode=mode, antialias=1)
        yield case("Resize", x, None, Init([1, 2, 2, 2], np.float32), mode=mode)
    for policy in ("stretch", "not_larger", "not_smaller"):
        more = {"axes": [2, 3], "keep_aspect_ratio_policy": policy}
        yield case("Resize", x, None, None, Init([8, 8], np.int64), **more)


def norms() -> Iterator[Case]:
    """Normalisations."""
    x, four = given(6, 4, 5), [Init(const(6)) for _ in range(3)]
    variance = Init(const(6, kind="positive"))
    for more in ({}, {"epsilon": 0.1}, {"momentum": 0.5}):
        yield case("BatchNormalization", x, *four, variance, **more)
        yield case("BatchNormalization", given(6), *four, variance, **more)
    yield case("InstanceNormalization", x, *four[:2], epsilon=0.1)
    yield case("InstanceNormalization", given(6, 5), *four[:2])
    y = given(4, 6)
    for op, axis in product(("LayerNormalization", "RMSNormalization"), (-1, 2, 1, -2)):
        shape = y.shape[axis:]
        second = [Init(const(*shape))] if op.startswith("L") else []
        yield case(op, y, Init(const(*shape)), *second, axis=axis)
        yield case(op, y, Init(const(*shape)), axis=axis, epsilon=0.2)
    yield case("LayerNormalization", y, Init(const(6)), Init(const(6)), axis=-1, stash_type=1)
    yield case("LayerNormalization", y, Init(const(6)), axis=-1, outputs=3)
    yield case("LayerNormalization", y, Init(const(4, 6)), axis=-1)
    yield case("LayerNormalization", y, Init(const(1)), axis=-1)
    for groups, more in product((1, 2, 3, 6), ({}, {"epsilon": 0.2})):
        weights = [Init(const(6)), Init(const(6))]
        yield case("GroupNormalization", x, *weights, num_groups=groups, opset=21, **more)
        weights = [Init(const(groups)), Init(const(groups))]
        yield case("GroupNormalization", x, *weights, num_groups=groups, opset=18, **more)
    yield case("MeanVarianceNormalization", x, axes=[1, 2, 3])
    yield case("Dropout", x)
    yield case("Dropout", x, Init(0.3, np.float32))
    yield case("Dropout", x, Init(0.3, np.float32), Init(False))


def moves() -> Iterator[Case]:
    """What moves or picks elements."""
    x = given(4, 6)
    for shape in ([0, -1], [0, 0, -1], [-1, 24], [0, 6, 4], [0, 2, 2, 6], [-1, 4, 3, 2], [0, 24]):
        yield case("Reshape", x, Init(shape, np.int64))
    yield case("Reshape", x, Init([-1, 0, 6], np.int64), allowzero=0)
    for axis in (1, 2, -1, 0, 3):
        yield case("Flatten", x, axis=axis)
    yield case("Flatten", x)
    for perm in ([0, 2, 1], [0, 1, 2], [1, 0, 2], [2, 1, 0]):
        yield case("Transpose", x, perm=perm)
    yield case("Transpose", x)
    for axes in ([1], [-1], [1, 3]):
        yield case("Unsqueeze", x, Init(axes, np.int64))
    yield case("Squeeze", given(1, 4, 1), Init([1], np.int64))
    yield case("Squeeze", given(1, 4, 1), Init([-1, 1], np.int64))
    yield case("Squeeze", given(1, 4, 1))
    for shape in ([1, 4, 6], [1, 1, 1], [2, 1, 4, 6], [4, 6], [1]):
        yield case("Expand", x, Init(shape, np.int64))
    yield case("Expand", given(1, 6), Init([1, 4, 1], np.int64))
    for repeats in ([1, 2, 1], [1, 1, 3], [1, 2, 2], [2, 1, 1]):
        yield case("Tile", x, Init(repeats, np.int64))
    for axis in (1, 2, -1):
        yield case("Concat", x, x * 2, axis=axis)
        yield case("Split", x, axis=axis, num_outputs=2, outputs=2)
    yield case("Split", x, Init([1, 3], np.int64), axis=1, outputs=2)
    yield case("Split", given(5), axis=1, num_outputs=2, outputs=2)
    yield case("Split", given(5), axis=1, num_outputs=3, outputs=3)
    yield case("Concat", x, Init(np.zeros((1, 4, 6), np.float32)), axis=1)
    for starts, ends, axes, steps in (
        ([1], [3], [1], None),
        ([0], [4], [2], [2]),
        ([1], [100], [-1], [2]),
        ([-3], [-1], [2], None),
        ([1, 2], [3, 5], [1, 2], [1, 2]),
        ([5], [0], [2], [-1]),
        ([-1], [-100], [2], [-2]),
        ([0, 1], [100, 3], None, None),
        ([0], [2], [0], None),
        ([3], [2], [1], None),
    ):
        more = [] if axes is None and steps is None else [None if axes is None else Init(axes)]
        more += [] if steps is None else [Init(steps)]
        yield case("Slice", x, Init(starts), Init(ends), *more)
    for axis, picked in product((1, 2, -1), (2, [1], [0, 2], [[0, 1], [2, 3]], -1, [-1, 0])):
        yield case("Gather", x, Init(picked, np.int64), axis=axis)
    yield case("Gather", Init(const(9, 5)), np.abs(given(3, kind="count")))
    yield case("Gather", Init(const(9, 5)), given(3, kind="count"), axis=1)
    yield case("Gather", Init(const(9, 5, 2)), given(3, kind="count"))
    yield case("Gather", x, Init([0], np.int64), axis=0)
    yield case("GatherElements", x, Init(np.zeros((SAMPLES, 4, 2), np.int64)), axis=2)
    for mode, amounts in product(
        ("constant", "reflect", "edge", "wrap"),
        ([0, 1, 1, 0, 1, 1], [0, 0, 2, 0, 1, 0], [0, 0, 0, 0, 0, 3], [0, 0, -1, 0, 0, -1]),
    ):
        yield case("Pad", x, Init(amounts), mode=mode)
    for mode in ("constant", "reflect", "edge"):
        yield case("Pad", given(2, 4, 6), Init([0, 0, 1, 2, 0, 0, 2, 1]), mode=mode)
    yield case("Pad", x, Init([0, 1, 0, 0, 1, 0]), Init(1.5, np.float32))
    yield case("Pad", x, Init([1, 2]), None, Init([2]))
    yield case("Pad", x, Init([1, 2]), Init(2.0, np.float32), Init([-1]))
    yield case("Pad", x, Init([1, 0, 0, 0, 0, 0]))
    for upper, k in product((0, 1), (None, 0, 1, -1)):
        yield case("Trilu", given(4, 5), *([] if k is None else [Init(k)]), upper=upper)
    yield case("OneHot", given(3, kind="count"), Init(6), Init([0.0, 1.0], np.float32))
    yield case("OneHot", given(3, kind="count"), Init(6), Init([2.0, 5.0], np.float32), axis=1)
    yield case("TopK", given(6), Init([2]), axis=-1, outputs=2)
    yield case("Shape", x)
    yield case("Size", x)


def recurrents() -> Iterator[Case]:
    """Cells, in every direction, with and without biases and states."""
    hidden, width = 3, 5
    for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
        for direction in ("forward", "reverse", "bidirectional"):
            d = 1 + (direction == "bidirectional")
            w, r = Init(const(d, gates * hidden, width)), Init(const(d, gates * hidden, hidden))
            b = Init(const(d, 2 * gates * hidden))
            more = {"hidden_size": hidden, "direction": direction, "outputs": 2}
            for reset in (0, 1) if op == "GRU" else (None,):
                if reset is not None:
                    more["linear_before_reset"] = reset
                yield batch_second(op, [w, r, b], **more)
                yield batch_second(op, [w, r], **more)
        w, r = Init(const(1, gates * hidden, width)), Init(const(1, gates * hidden, hidden))
        b = Init(const(1, 2 * gates * hidden))
        yield batch_second(op, [w, r, b], hidden_size=hidden, clip=0.2)
        yield batch_second(op, [w, r, b], hidden_size=hidden, layout=1)
        names = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
        own = {"LSTM": ["Sigmoid", "Relu", "Tanh"], "GRU": ["Sigmoid", "Relu"], "RNN": ["Relu"]}
        more = {"linear_before_reset": 1} if op == "GRU" else {}
        yield batch_second(op, [w, r, b], hidden_size=hidden, activations=names[op], **more)
        yield batch_second(op, [w, r, b], hidden_size=hidden, activations=own[op], **more)
        start = Init(np.zeros((1, SAMPLES, hidden), np.float32))
        yield batch_second(op, [w, r, b, None, start], hidden_size=hidden, **more)
        start = Init(np.ones((1, SAMPLES, hidden), np.float32))
        yield batch_second(op, [w, r, b, None, start], hidden_size=hidden, **more)
    w, r = Init(const(1, 4 * hidden, width)), Init(const(1, 4 * hidden, hidden))
    b, p = Init(const(1, 8 * hidden)), Init(const(1, 3 * hidden))
    yield batch_second("LSTM", [w, r, b, None, None, None, p], hidden_size=hidden)
    yield batch_second("LSTM", [w, r, b], hidden_size=hidden, input_forget=1)


def batch_second(op: str, weights: Sequence[Any], outputs: int = 1, **attributes: Any) -> Case:
    """A cell over (n, steps, width), whose steps ONNX wants first."""
    made = case(op, given(4, 5), *weights, outputs=outputs, opset=20, **attributes)
    if attributes.get("layout"):
        return made
    graph = made.model.graph
    cell = graph.node[0]
    cell.input[0] = "turned"
    turn = helper.make_node("Transpose", ["in0"], ["turned"], perm=[1, 0, 2])
    nodes = [turn, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    back = ([2, 0, 1, 3], [1, 0, 2])
    for i in range(outputs):
        end = graph.output[i].name
        graph.output[i].name = f"{end} back"
        graph.node.append(helper.make_node("Transpose", [end], [f"{end} back"], perm=back[i]))
    return made


def attentions() -> Iterator[Case]:
    """Opset 23's, and 24's."""
    q, k, v = given(4, 3, 8), given(4, 5, 8), given(4, 5, 8)
    for more in (
        {},
        {"is_causal": 1},
        {"scale": 0.3},
        {"softcap": 2.0},
        {"is_causal": 1, "scale": 1.0},
    ):
        yield case("Attention", q, k, v, **more)
        yield case("Attention", q, q, q, **more)
    yield case("Attention", q, k, v, Init(const(3, 5)))
    yield case("Attention", q, k, v, Init(const(1, 1, 3, 5)))
    yield case("Attention", q, k, v, Init(np.tril(np.ones((3, 5), bool))))
    yield case("Attention", q, k, v, given(1, 3, 5))
    yield case("Attention", q, k, v, given(4, 3, 5))
    yield case("Attention", q, k, given(4, 5, 6))
    yield case("Attention", q, given(2, 5, 8), given(2, 5, 8))
    flat = {"q_num_heads": 4, "kv_num_heads": 4}
    q3, k3 = given(3, 32), given(5, 32)
    for more in ({}, {"is_causal": 1}, {"scale": 0.3}):
        yield case("Attention", q3, k3, k3, **flat, **more)
    half = {"q_num_heads": 4, "kv_num_heads": 2}
    yield case("Attention", q3, given(5, 16), given(5, 16), **half)
    yield case("Attention", q, k, v, qk_matmul_output_mode=1)
    yield case("Attention", q, k, v, Init(np.tril(np.ones((3, 5), bool))), is_causal=1)


def all_cases() -> Iterator[Case]:
    """All of them."""
    for family in (
        elementwise,
        binary,
        reductions,
        matrices,
        windows,
        resizes,
        norms,
        moves,
        recurrents,
        attentions,
    ):
        yield from family()

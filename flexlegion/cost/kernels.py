"""Which kernels a system has, and what passes memory more where it lacks one.

The runtime's kernels, and those of compiled programs, join what can be joined: attention is one
kernel, a bias belongs to its product, a loss reads its logits once. Others do it step by step, and
each step reads and writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from flexlegion.cost.model import ELEMENT_BYTES
from flexlegion.graph.graph import Operator
from flexlegion.graph.operator_type import OperatorType
from flexlegion.graph.tensor import NARROW
from flexlegion.ops.attention import MultiHeadAttention
from flexlegion.ops.conv2d import Conv2D
from flexlegion.ops.cosine import AngularMargin, Cosine
from flexlegion.ops.dense import Dense
from flexlegion.ops.elementwise import Dropout, Gelu
from flexlegion.ops.experts import Experts
from flexlegion.ops.expression import Expression
from flexlegion.ops.logits import LogitStatistics
from flexlegion.ops.normalization import BatchNorm, LayerNorm

Attention = Literal["fused", "unfused", "by steps"]
Loss = Literal["fused", "by steps", "in place"]
Formulas = Literal["fused", "gelu by steps", "by steps"]
Numbers = Any  # a number, or an array of one for each task


@dataclass(frozen=True)
class Kernels:
    """What a system has kernels for.

    Parameters
    ----------
    attention
        ``"fused"``: attention is one kernel, which keeps no scores. ``"unfused"``: it is two
        products with a softmax between them, whose scores are written and read, and dropout. ``"by
        steps"``: the mask, the scale, and the steps of the softmax are kernels of their own.
    bias
        Whether a dense layer's bias and activation are the product's kernel's to compute, or have
        one of their own each.
    channels
        Whether images lie with their channels "last", as tensor cores want them, or "first": then
        convolutions on tensor cores turn their operands, and batch normalization of two-byte values
        reads them one by one, at half the memory's rate.
    dropout
        Whether dropout outside attention is done by the kernel of what follows, but for its mask.
    loss
        Whether a softmax and its loss read logits once, or go "by steps" over a copy of them in
        single precision; and before it an angular margin, and rows that are divided by their
        lengths. ``"in place"``: by steps, each of which changes that copy, as Megatron-LM's.
    dense
        In which precision products of dense layers are, if in another one: "float8".
    normalized
        Whether an activation and a sum behind batch normalization are its kernel's to compute, or
        have one of their own each.
    formulas
        Whether GELU, layer normalization and dropout are a kernel each, or one for each operation
        of their formulas; or GELU alone has no kernel.
    one_hot
        Among how many rows experts pick theirs by products with one-hot matrices; 0: rows are
        copied to where their experts are.
    repeated
        Whether gradients of what an expression repeats, as PReLU's slopes, are summed by the kernel
        that computes them, or are whole first, and "separate" kernels sum them.
    sampled
        Whether classes of a margin softmax are a choice out of more, which changes in each
        iteration: their vectors and momenta are copied out of a larger table, and back.
    issued_ns
        What the host takes to issue a kernel, if it waits for each before it issues the next
        (``CUDA_LAUNCH_BLOCKING=1``); 0: it does not.
    """

    attention: Attention = "fused"
    bias: Literal["fused", "separate"] = "fused"
    channels: Literal["last", "first"] = "last"
    dropout: Literal["fused", "separate"] = "separate"
    loss: Loss = "fused"
    dense: str = ""
    normalized: Literal["fused", "separate"] = "fused"
    formulas: Formulas = "fused"
    one_hot: int = 0
    repeated: Literal["fused", "separate"] = "fused"
    sampled: bool = False
    issued_ns: int = 0


FUSED = Kernels()

# How often scores of attention pass memory, forward and backward, where they are kept: as products
# read them; as one writes them, whose sums are so short that it does nothing else meanwhile (on an
# A100 64 products of 2048 x 2048 by sums of 256 reach 130 TFLOP/s, but of 2048 x 256 by sums of
# 2048, 219: EleutherAI/cookbook, benchmarks/sizing/sample_results); in the softmax's kernel, with
# the mask and the scale; in dropout's, whose mask is a byte; and how much more often by steps.
_READ = {"forward": 1.0, "backward": 3.0}
_WRITTEN = {"forward": 1.0, "backward": 1.0}
_IN_SOFTMAX = {"forward": 2.0, "backward": 3.0}
_IN_DROPOUT = {"forward": 2.5, "backward": 2.5}
_BY_STEPS = {"forward": 6.0, "backward": 5.0}
# How often queries, and as many keys, values and results, do to lie head by head and back: by steps
# all four are copied; kernels that scores are kept for take them as they are, but for results.
_HEADS = {"fused": 0.0, "unfused": 2.0, "by steps": 8.0}
# How often outputs of a dense layer do, where the bias, or its gradient, has a kernel of its own;
# and its activation.
_BIAS = {"forward": 2.0, "backward": 1.0}
_ACTIVATION = {"forward": 2.0, "backward": 3.0}
# How much more often they do behind batch normalization, where a sum with a residual has a kernel;
# its gradients are added up by another one.
_SUM = {"forward": 2.0, "backward": 2.0}
# How much more often elements do if each operation of a formula is a kernel: of GELU, x times
# (1 + tanh(a (x + b x^3))) / 2, and its derivative; of layer normalization: the mean, the squares
# of differences, their mean, factors and summands for each element, and nearly thrice as much for
# its derivative; of dropout: numbers are drawn, scaled, compared, and made factors.
_GELU_BY_STEPS = {"forward": 16.0, "backward": 23.0}
_LAYER_NORM_BY_STEPS = {"forward": 13.0, "backward": 37.0}
_DROPOUT_BY_STEPS = {"forward": 10.0, "backward": 2.5}
# Bytes a logit that a loss by steps takes more: the copy is written and read, the logarithm of the
# softmax written and read; its gradient written, read with the logarithm, written, and rounded.
_LOGITS = {"forward": 14.0, "backward": 22.0}
# The same of Megatron-LM's (mpu/cross_entropy.py): the copy is written; its maximum is found and
# subtracted, it becomes exponentials, which are summed and divided by their sum; backward it is
# multiplied, and rounded, which writes what is counted as the gradient already.
_LOGITS_IN_PLACE = {"forward": 36.0, "backward": 12.0}
# The same of an angular margin in single precision, which is added in place: forward, cosines are
# copied, made angles, copied, made cosines, and scaled; backward come the derivatives of all that.
_MARGIN = {"forward": 32.0, "backward": 104.0}
# And of samples whose own class the device has: their rows are picked, a matrix with the margins is
# made and added, and they are put back.
_MARGIN_OF_OWN = {"forward": 32.0, "backward": 28.0}
# How often vectors of classes pass memory to be divided by their lengths: their squares are summed,
# and each is divided; and the derivative of a quotient, of a root and of that sum.
_LENGTHS = {"forward": 3.0, "backward": 17.0}
# And to be copied with their momenta, out of the table of all classes, and back.
_SAMPLED = {"forward": 4.0, "backward": 4.0}
# How often outputs do whose share of a repeated operand's gradient is written, and summed then.
_REPEATED = {"forward": 0.0, "backward": 2.0}
# How often operands of a convolution do that are turned: written and read, one of both in strides,
# where two bytes at a time reach half the memory's rate.
_TURNED = {2: 4.0, 4: 2.0}
_BATCH_NORM = ("batch_norm", "batch_norm_statistics")


def passes_of_scores(kernels: Kernels, kind: MultiHeadAttention, pass_: str) -> tuple[float, float]:
    """How often scores pass memory while products compute, and while nothing does."""
    own = _WRITTEN[pass_] + _IN_SOFTMAX[pass_]
    if kernels.attention == "by steps":
        own += _BY_STEPS[pass_]
    if kind.dropout > 0:
        own += _IN_DROPOUT[pass_]
        if kernels.formulas == "by steps":
            own += _DROPOUT_BY_STEPS[pass_]
    return _READ[pass_], own


def apart_bytes(
    kernels: Kernels,
    operator: Operator,
    pass_: str,
    volumes: Sequence[Numbers],
    share: Numbers,
    precision: str,
) -> Numbers:
    """Bytes that pass memory in kernels beside the operator's main one; scores are not counted.

    Parameters
    ----------
    kernels
        What there is.
    operator, pass_
        What is computed.
    volumes
        Elements of the part of each operand, in the order of `Operator.operands`.
    share
        Of the output's columns, which that part has.
    precision
        Of products.
    """
    kind, element = operator.kind, operator.output.element_bytes
    inputs, outputs = volumes[0], volumes[len(operator.inputs) + len(operator.weights)]
    size = 0 * outputs
    if isinstance(kind, Dense):
        size = size + outputs * element * _beside_a_product(kernels, kind, pass_)
    if isinstance(kind, MultiHeadAttention):
        size = size + inputs * element * _HEADS[kernels.attention]
    if isinstance(kind, BatchNorm) and kernels.normalized == "separate":
        passes = _ACTIVATION[pass_] if kind.activation != "none" else 0.0
        passes += _SUM[pass_] if len(operator.inputs) > 2 else 0.0
        size = size + outputs * element * passes
    if kernels.loss != "fused":
        if isinstance(kind, LogitStatistics):
            logits = _LOGITS if kernels.loss == "by steps" else _LOGITS_IN_PLACE
            size = size + inputs * logits[pass_]
        elif isinstance(kind, AngularMargin):
            size = size + outputs * (_MARGIN[pass_] + share * _MARGIN_OF_OWN[pass_])
        elif isinstance(kind, Cosine):
            size = size + volumes[1] * ELEMENT_BYTES * _LENGTHS[pass_]
    if kernels.sampled and isinstance(kind, Cosine):
        size = size + volumes[1] * ELEMENT_BYTES * _SAMPLED[pass_]
    if kernels.repeated == "separate" and isinstance(kind, Expression):
        count = prod(operator.output.shape)
        repeated = sum(prod(its.shape) < count for its in operator.inputs if its.requires_gradient)
        size = size + outputs * element * repeated * _REPEATED[pass_]
    if kernels.formulas != "fused":
        size = size + outputs * element * _by_steps(kind, pass_, kernels.formulas)
    if kernels.channels == "first":
        twice = 2 if pass_ == "backward" else 1
        if kind.type in _BATCH_NORM and element == 2:
            size = size + inputs * element * twice
        if isinstance(kind, Conv2D) and precision in (*NARROW, "tfloat32"):
            size = size + (inputs + outputs) * twice * element * _TURNED[element]
    return size


def _beside_a_product(kernels: Kernels, kind: Dense, pass_: str) -> float:
    """How often a dense layer's outputs pass memory in kernels beside that of the product."""
    if kernels.bias == "fused":
        return 0.0
    passes = _BIAS[pass_] if kind.use_bias else 0.0
    return passes + (_ACTIVATION[pass_] if kind.activation != "none" else 0.0)


def _by_steps(kind: OperatorType, pass_: str, formulas: Formulas) -> float:
    """How much more often outputs pass memory where operations of formulas are a kernel each."""
    if isinstance(kind, Gelu) or (isinstance(kind, Dense) and kind.activation == "gelu"):
        return _GELU_BY_STEPS[pass_]
    if formulas != "by steps":
        return 0.0
    if isinstance(kind, LayerNorm):
        return _LAYER_NORM_BY_STEPS[pass_]
    return _DROPOUT_BY_STEPS[pass_] if isinstance(kind, Dropout) else 0.0


# Kernels of attention whose scores are kept: two products, a softmax, dropout, and a copy of the
# results' heads; backward four products, the two derivatives, and a copy.
_OF_ATTENTION = {"forward": 5, "backward": 7}
# Further ones where its steps are kernels of their own: a mask, a scale, and copies of heads.
_OF_ATTENTION_BY_STEPS = {"forward": 5, "backward": 5}


def launches(kernels: Kernels, operator: Operator, pass_: str) -> int:
    """How many kernels are launched, at least, for a pass of an operator."""
    if isinstance(operator.kind, MultiHeadAttention) and kernels.attention != "fused":
        more = _OF_ATTENTION_BY_STEPS[pass_] if kernels.attention == "by steps" else 0
        return _OF_ATTENTION[pass_] + more
    # A weight's gradient is a product of its own, that of a bias a sum; inputs have one together.
    return 1 + len(operator.trained_weights) if pass_ == "backward" else 1


@dataclass(frozen=True)
class Picking:
    """Products with one-hot matrices that bring rows to experts, and results back.

    Parameters
    ----------
    rows, columns, terms
        Of a group's product.
    count
        Of groups.
    flops
        Of all.
    size
        Bytes of the matrices, as often as they pass memory.
    """

    rows: Numbers
    columns: Numbers
    terms: int
    count: Numbers
    flops: Numbers
    size: Numbers


# Rows go to experts, results come back; backward both once more, and there are derivatives of what
# results are multiplied with (Lepikhin et al. 2021, algorithm 2: einsum "GSEC,GSM->EGCM").
_PICKING = {"forward": 2, "backward": 3}


def picking(kernels: Kernels, operator: Operator, pass_: str, extents: Any) -> Picking | None:
    """What experts take to pick their rows; None: they do not by products.

    An expert has places for as many rows of each group as it gets if all get as many.

    Parameters
    ----------
    kernels, operator, pass_
        As of `apart_bytes`.
    extents
        As of `CostModel.exe_times`.
    """
    kind = operator.kind
    if not kernels.one_hot or not isinstance(kind, Experts):
        return None
    x, gates = operator.input_shapes
    rows = extents[:, 0, : len(x) - 1].prod(axis=1)
    columns = extents[:, 0, len(x) - 1]
    group = min(kernels.one_hot, prod(x[:-1]))
    places = group * kind.load * extents[:, 1, len(gates) - 1] / gates[-1]
    products = _PICKING[pass_]
    matrices = 2 * products * rows * places * operator.output.element_bytes
    flops = 2.0 * products * rows * places * columns
    return Picking(places, columns, group, -(-rows // group), flops, matrices)

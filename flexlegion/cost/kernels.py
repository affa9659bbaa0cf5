"""Which kernels a system has, and what passes memory more where it lacks one.

The runtime's kernels, and those of compiled programs, join what can be joined: attention is one
kernel, a bias belongs to its product, a loss reads its logits once. Others do it step by step, and
each step reads and writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flexlegion.graph.graph import Operator
from flexlegion.graph.tensor import NARROW
from flexlegion.ops.attention import MultiHeadAttention
from flexlegion.ops.conv2d import Conv2D
from flexlegion.ops.cosine import AngularMargin
from flexlegion.ops.dense import Dense
from flexlegion.ops.logits import LogitStatistics

Attention = Literal["fused", "unfused", "by steps"]
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
        Whether a dense layer's bias is added by the product's kernel, or by one of its own.
    channels
        Whether images lie with their channels "last", as tensor cores want them, or "first": then
        convolutions on tensor cores turn their operands, and batch normalization of two-byte values
        reads them one by one, at half the memory's rate.
    dropout
        Whether dropout outside attention is done by the kernel of what follows, but for its mask.
    loss
        Whether a softmax and its loss read logits once, or go "by steps" over a copy of them in
        single precision.
    dense
        In which precision products of dense layers are, if in another one: "float8".
    """

    attention: Attention = "fused"
    bias: Literal["fused", "separate"] = "fused"
    channels: Literal["last", "first"] = "last"
    dropout: Literal["fused", "separate"] = "separate"
    loss: Literal["fused", "by steps"] = "fused"
    dense: str = ""


FUSED = Kernels()

# How often scores of attention pass memory, forward and backward, where they are kept: in the
# products' kernels; in that of the softmax, with the mask and the scale; in dropout's, whose mask
# is a byte; and how much more often by steps.
_IN_PRODUCTS = {"forward": 2.0, "backward": 4.0}
_IN_SOFTMAX = {"forward": 2.0, "backward": 3.0}
_IN_DROPOUT = {"forward": 2.5, "backward": 2.5}
_BY_STEPS = {"forward": 6.0, "backward": 5.0}
# How often outputs of a dense layer do, where the bias, or its gradient, has a kernel of its own.
_BIAS = {"forward": 2.0, "backward": 1.0}
# Bytes a logit that a loss by steps takes more: the copy is written and read, the logarithm of the
# softmax written and read; its gradient written, read with the logarithm, written, and rounded.
_LOGITS = {"forward": 14.0, "backward": 22.0}
# The same of an angular margin in single precision: the angle, a sum with a matrix of margins,
# which is made, the cosine, and a product, each written and read.
_MARGIN = 44.0
# How often operands of a convolution do that are turned: written and read, one of both in strides,
# where two bytes at a time reach half the memory's rate.
_TURNED = {2: 4.0, 4: 2.0}
_BATCH_NORM = ("batch_norm", "batch_norm_statistics")


def passes_of_scores(kernels: Kernels, kind: MultiHeadAttention, pass_: str) -> tuple[float, float]:
    """How often scores pass memory in the products' kernels, and in kernels of their own."""
    own = _IN_SOFTMAX[pass_]
    if kernels.attention == "by steps":
        own += _BY_STEPS[pass_]
    if kind.dropout > 0:
        own += _IN_DROPOUT[pass_]
    return _IN_PRODUCTS[pass_], own


def apart_bytes(
    kernels: Kernels, operator: Operator, pass_: str, volumes: Sequence[Numbers], precision: str
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
    precision
        Of products.
    """
    kind, element = operator.kind, operator.output.element_bytes
    inputs, outputs = volumes[0], volumes[len(operator.inputs) + len(operator.weights)]
    size = 0 * outputs
    if isinstance(kind, Dense) and kind.use_bias and kernels.bias == "separate":
        size = size + outputs * element * _BIAS[pass_]
    if kernels.loss == "by steps":
        if isinstance(kind, LogitStatistics):
            size = size + inputs * _LOGITS[pass_]
        elif isinstance(kind, AngularMargin):
            size = size + outputs * _MARGIN
    if kernels.channels == "first":
        twice = 2 if pass_ == "backward" else 1
        if kind.type in _BATCH_NORM and element == 2:
            size = size + inputs * element * twice
        if isinstance(kind, Conv2D) and precision in (*NARROW, "tfloat32"):
            size = size + (inputs + outputs) * twice * element * _TURNED[element]
    return size

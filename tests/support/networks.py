"""Small networks that together cover every operator, with odd extents so that splits are uneven."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from flexlegion import SGD, Adam, AdamW, Model
from flexlegion.graph.graph import Graph
from flexlegion.graph.tensor import Tensor
from flexlegion.layers.layers import Layers
from flexlegion.objective.losses import Huber, Losses, SparseCategoricalCrossentropy, labels_of
from flexlegion.objective.optimizers import Optimizer
from flexlegion.ops.shape import Slice
from flexlegion.transforms.losses import add_losses

BATCH = 7


@dataclass(frozen=True)
class Network:
    """A network, how to train it, and the form of its labels.

    With a vocabulary, samples are tokens below it, and each step has a label, some of which do not
    count. With several outputs, it says their losses and weights by name, and the labels follow
    from these.
    """

    build: Callable[[Model], None]
    input_shape: tuple[int, ...]
    loss: Losses
    label_shape: tuple[int, ...]
    optimizer: Optimizer
    vocabulary: int = 0
    iterations: int = 3
    loss_weights: Any = None
    batch_size: int = BATCH

    def model(self) -> Model:
        """The network, not yet compiled."""
        model = Model(self.batch_size, seed=3)
        self.build(model)
        return model

    def graph(self) -> Graph:
        """Its graph with the losses."""
        model = self.model()
        return add_losses(model.graph, model.outputs, self.loss, self.loss_weights)

    def data(self, rows: int) -> tuple[np.ndarray, Any]:
        """Samples and labels."""
        rng = np.random.default_rng(17)
        if not isinstance(self.loss, str):
            x = rng.normal(size=(rows, *self.input_shape)).astype(np.float32)
            return x, {
                name: rng.integers(-1, 5, (rows, *labels.shape[1:]))
                if labels.dtype == "int32"
                else rng.random((rows, *labels.shape[1:]))
                for name, labels in labels_of(self.graph()).items()
            }
        if self.vocabulary:
            x = rng.integers(0, self.vocabulary, (rows, *self.input_shape)).astype(np.int32)
            return x, rng.integers(-1, 5, (rows, *self.label_shape)).astype(np.int32)
        x = rng.normal(size=(rows, *self.input_shape)).astype(np.float32)
        if self.loss.startswith("sparse"):
            return x, rng.integers(0, 5, rows).astype(np.int32)
        y = rng.random((rows, *self.label_shape)).astype(np.float32)
        if self.loss.startswith("categorical"):
            y /= y.sum(-1, keepdims=True)
        return x, y


def _images(m: Model) -> None:
    """Convolutions and poolings with halos, strides and padding; dropout; fused activations."""
    x = m.input((11, 9, 3), requires_gradient=True)
    x = m.conv2d(x, 5, (3, 2), padding=(1, 1), activation="relu")
    x = m.pool2d(x, 3, stride=2, padding=1)
    x = m.conv2d(x, 6, 3, stride=(2, 1), padding=1, activation="tanh", use_bias=False)
    x = m.pool2d(x, 2, stride=1, kind="average")
    x = m.dropout(x, 0.3)
    x = m.flatten(x)
    x = m.dense(x, 13, activation="sigmoid")
    x = m.dense(x, 5)
    m.softmax(x)


def _skipping(m: Model) -> None:
    """A stride beyond the kernel leaves pixels without a gradient; average without padding."""
    x = m.input((13, 10, 2), requires_gradient=True)
    x = m.conv2d(x, 4, 2, stride=3)
    x = m.relu(x)
    x = m.pool2d(x, 2, stride=1, padding=1, kind="average", count_include_pad=False)
    x = m.conv2d(x, 3, 1, activation="gelu")
    x = m.flatten(x)
    m.dense(x, 5)


def _activations(m: Model) -> None:
    """Every element-wise layer, and one-hot cross-entropy on logits."""
    x = m.input((10,), requires_gradient=True)
    x = m.dense(x, 12, activation="gelu")
    x = m.tanh(x)
    x = m.dense(x, 9)
    x = m.relu(x)
    x = m.sigmoid(x)
    x = m.dense(x, 11, use_bias=False)
    x = m.gelu(x)
    x = m.dropout(x, 0.2)
    m.dense(x, 5)


def _tables(m: Model) -> None:
    """Look-ups that share a table, of constant tokens, and in a frozen table."""
    tokens = m.input((6,), "int32")
    x = m.embedding(tokens, 9, 7)
    y = m.embedding(tokens, 9, 7, start=1, share=x)
    places = m.embedding(m.constant(np.arange(6)), 8, 7)
    frozen = m.embedding(tokens, 9, 7, trainable=False)
    x = m.concat([m.add([x, places, frozen]), y], axis=1)
    m.dense(m.flatten(x), 5)


def _sequences(m: Model) -> None:
    """Three dimensions, and a softmax in the middle, whose Jacobian counts."""
    x = m.input((5, 6), requires_gradient=True)
    x = m.dense(x, 7, activation="tanh")
    x = m.softmax(x)
    x = m.dense(x, 4, activation="relu")
    x = m.softmax(x)
    x = m.flatten(x)
    m.dense(x, 3)


def _branches(m: Model) -> None:
    """Tensors that several operators read, the same one twice, and their sums and joints."""
    x = m.input((9, 8, 2), requires_gradient=True)
    a = m.conv2d(x, 4, 3, padding=1, activation="tanh")
    b = m.conv2d(x, 4, 1)
    c = m.add([a, b])
    d = m.concat([c, a, x])
    e = m.concat([m.pool2d(d, 2), m.pool2d(d, 2, kind="average")], axis=1)
    f = m.add([e, m.relu(e), e])
    m.dense(m.flatten(f), 5)


def _sentences(m: Model) -> None:
    """Tokens, and a label for each step; part of the steps in two ways."""
    tokens = m.input((6,), "int32")
    x = m.embedding(tokens, 9, 7, start=1)
    x = m.position_embedding(x)
    y = m.embedding(tokens, 9, 7, start=0, steps=5)
    x = m.position_embedding(m.add([x, y, x]))
    m.softmax(m.dense(x, 5))


def _normalized(m: Model) -> None:
    """Normalisations, whose inputs have several readers, and residuals: another tensor, the same.

    What goes into batch normalisation has no bias, or a ReLU after it: otherwise the bias would
    have no gradient.
    """
    x = m.input((9, 7, 2), requires_gradient=True)
    a = m.conv2d(x, 6, 3, padding=1, use_bias=False)
    b = m.batch_norm(a, "relu")
    c = m.conv2d(b, 6, 3, stride=2, use_bias=False)
    d = m.layer_norm(m.pool2d(a, 3, 2))
    c = m.batch_norm(c, "relu", momentum=0.4, residual=d)
    c = m.tanh(c)
    c = m.batch_norm(c, residual=c)
    e = m.dense(m.flatten(m.relu(m.add([c, d]))), 10, use_bias=False)
    m.dense(m.batch_norm(e, "relu", 1e-2), 5)


def _moves(m: Model) -> None:
    """Elements that move, grouped convolutions, windows over sequences; an input without gradient.

    The first concat's input has no gradient, the others have several readers each.
    """
    x = m.input((6, 5, 4))
    a = m.conv2d(x, 6, 3, padding=1, groups=2, activation="relu")
    a = m.concat([x, a])
    a = m.conv2d(a, 10, 3, padding=1, groups=10)
    s = m.reshape(a, (30, 10))
    t = m.conv1d(s, 7, 3, stride=2, padding=1, activation="tanh")
    u, v = m.split(t, (4, 11), axis=1)
    s = m.concat([m.multiply([t, m.tanh(t)]), v, u], axis=1)
    s = m.pool1d(s, 3, stride=2, padding=1)
    s = m.transpose(s, (0, 2, 1))
    s = m.add([m.softmax(s), m.dropout(s, 0.2), s])
    m.dense(m.flatten(m.reshape(s, (5, 3, 7))), 5)


def _attention(m: Model) -> None:
    """Heads that attend to one tensor and to another; products of matrices."""
    x = m.input((7, 3, 4), requires_gradient=True)
    keys = m.dense(x, 4, use_bias=False)  # softmax does not see a bias of theirs
    y = m.multi_head_attention(m.dense(x, 4), keys, m.dense(x, 6), causal=True)
    y = m.multi_head_attention(m.dense(y, 4, activation="gelu"), x, y)
    y = m.matmul(m.dense(y, 3), m.add([y, m.dense(x, 6)]))
    m.dense(m.flatten(y), 5)


def _grouped(m: Model) -> None:
    """Heads that share keys, turned by angles that come with the samples; biases; dropped weights.

    The first bias has all extents, and the second one is the same for all heads and queries.
    """
    x = m.input((6, 3, 4))
    cos, sin, z = m.split(x, (1, 1, 1), axis=2)
    q = m.rotary(m.reshape(m.dense(z, 24), (6, 6, 4)), cos, sin)
    k = m.rotary(m.reshape(m.dense(z, 12), (6, 3, 4)), cos, sin, interleaved=True)
    v = m.reshape(m.dense(z, 15), (6, 3, 5))
    bias = m.transpose(m.reshape(m.dense(z, 36), (6, 6, 6)), (0, 2, 1, 3))
    y = m.attention(q, k, v, bias=bias, scale=0.4, dropout=0.2)
    few, _ = m.split(y, (4, 2), axis=1)
    k = m.reshape(m.dense(z, 10, use_bias=False), (6, 2, 5))
    bias = m.reshape(m.dense(m.flatten(z), 6), (1, 1, 6))
    y = m.attention(few, k, m.tanh(k), bias=bias, causal=True)
    m.dense(m.flatten(y), 5)


def _recurrent(m: Model) -> None:
    """Two unrolled LSTM layers, by one step an operator and by two, and attention, all shared."""
    x = m.input((1, 18), requires_gradient=True)
    a = m.lstm(x, 18, bias_initializer="normal")
    b = m.lstm(a.y, 18, a.state, share=a.y)
    c = m.lstm(m.concat([a.y, b.y], axis=1), 5)
    d = m.lstm(m.concat([b.y, a.y], axis=1), 5, c.state, share=c.y)
    memory = m.concat([c.y, d.y], axis=1)
    e = m.luong_attention(c.y, memory, 7)
    f = m.luong_attention(d.y, memory, 7, share=e)
    m.dense(m.flatten(m.concat([e, f], axis=1)), 3)


def _frozen(m: Model) -> None:
    """Frozen layers before, between and after trained ones: nothing changes their weights."""
    x = m.input((9, 7, 2))
    x = m.conv2d(x, 6, 3, padding=1, trainable=False)
    x = m.conv2d(x, 5, 3, activation="tanh")
    x = m.layer_norm(x, trainable=False)
    x = m.flatten(m.relu(x))
    x = m.dense(x, 11, trainable=False)
    m.dense(m.tanh(x), 5)


def _arithmetic(m: Model) -> None:
    """Formulas over what is broadcast: weights, constants, what belongs to all samples."""
    x = m.input((6, 5, 4), requires_gradient=True)
    scale, rows, one = m.parameter((4,)), m.parameter((6, 1, 1)), m.parameter((), "ones")
    a = m.elementwise("x0 * x1 + sigmoid(x2)", [x, scale, rows])
    plane = m.elementwise("x0 * tanh(x1)", [m.parameter((5, 4)), m.constant(np.eye(5, 4))])
    b = m.conv2d(m.multiply([a, one]), 4, 3, padding=1, activation="silu")
    c = m.add([b, plane, m.dense(m.flatten(x), 4)])
    token = m.expand(plane, (3, 5, 4))
    c = m.concat([m.divide(c, 2.0), m.subtract(token, scale)], axis=1)
    m.dense(m.flatten(m.unary(c, "mish")), 5)


def _frozen_sequences(m: Model) -> None:
    """Frozen tables, and frozen layers of sequences before and after trained ones."""
    tokens = m.input((6,), "int32")
    x = m.embedding(tokens, 9, 7, trainable=False)
    x = m.position_embedding(x, trainable=False)
    x = m.conv1d(m.dense(x, 6, activation="tanh"), 6, 3, padding=1, trainable=False)
    x = m.batch_norm(x, trainable=False)
    y = m.lstm(x, 16, trainable=False).y
    y = m.luong_attention(y, x, 6, trainable=False)
    m.dense(m.add([x, y]), 5)


def _shared(m: Model) -> None:
    """Layers of every kind that share another's weights; one of them reads another shape."""
    x = m.input((8, 6, 4), requires_gradient=True)
    a = m.conv2d(x, 4, 3, padding=1, activation="gelu")
    b = m.conv2d(m.pool2d(a, 2), 4, 3, padding=1, share=a)
    a = m.batch_norm(m.reshape(a, (48, 4)), "relu")
    b = m.batch_norm(m.reshape(b, (12, 4)), share=a)
    a = m.conv1d(m.pool1d(a, 4), 4, 3, padding=1, activation="tanh")
    b = m.conv1d(b, 4, 3, padding=1, share=a)
    a = m.position_embedding(m.layer_norm(a))
    b = m.position_embedding(m.layer_norm(b, share=a.producer.inputs[0]), share=a)
    m.dense(m.flatten(m.concat([a, b])), 5)


def _weighted_error(m: Layers, output: Tensor, labels: Tensor) -> Tensor:
    """A loss written with layers, some of which have weights of their own."""
    return m.multiply([m.tanh(output), m.dense(labels, 7, name="judge")])


def _several(m: Model) -> None:
    """Outputs of one trunk, each with a loss of its own kind; one has none, one is read on."""
    x = m.input((9, 7, 2), requires_gradient=True)
    x = m.conv2d(x, 6, 3, activation="tanh", name="trunk")
    image = m.conv2d(x, 3, 2, name="image")
    flat = m.flatten(m.pool2d(x, 2))
    steps = m.dense(m.reshape(m.dense(flat, 24), (4, 6)), 5, name="steps")
    tags = m.sigmoid(m.dense(flat, 4), name="tags")
    shares = m.dense(flat, 3, activation="sigmoid", name="shares")
    value = m.dense(m.concat([flat, tags]), 2, name="value")
    extra = m.dense(flat, 7, name="extra")
    unseen = m.dense(m.relu(extra), 3, name="unseen")
    m.set_outputs([image, steps, tags, shares, value, extra, unseen])


def _reductions(m: Model) -> None:
    """Reductions over all kinds of dimensions, normalisations made of them, dropped samples."""
    x = m.input((6, 5, 4), requires_gradient=True)
    a = m.conv2d(x, 6, 3, padding=1, activation="tanh")
    b = m.rms_norm(m.drop_path(m.layer_norm(a, use_bias=False), 0.3))
    c = m.divide(m.subtract(b, m.reduce(b, "mean", (1, 2), keepdims=True)), 2)
    d = m.add([m.group_norm(c, 3), m.reduce(a, "max", -1, keepdims=True)])
    e = m.concat([m.reduce(d, "max", (1, 2)), m.reduce(m.group_norm(x, 4), "sum", (2, 3))])
    m.dense(e, 5)


def _enlarged(m: Model) -> None:
    """Images enlarged, padded, turned, shuffled, and cut; a kernel that reads apart; a take."""
    x = m.input((6, 5, 3), requires_gradient=True)
    a = m.conv2d(x, 4, 3, padding=2, activation="tanh", dilation=2)
    b = m.conv2d_transpose(a, 5, 3, stride=2, padding=1, extra=1)
    c = m.pad(m.upsample2d(x), ((0, 0), (0, 0), (1, 1)))
    d = m.roll(m.add([b, c]), 3, axis=1)
    d = m.rearrange(d, (2, 6, 10, 5), (1, 0, 2, 3), (12, 10, 5))
    e = m.concat([d, m.upsample2d(a, 2, "bilinear")])
    e = m.take(e, (8, 0, 8, 3, 1), axis=3)
    f = m.pool2d(m.conv2d_transpose(e, 3, 2, stride=2, use_bias=False), 4, kind="average")
    (g,) = m.apply(Slice(1, 1, 3, 2), [f])
    m.dense(m.flatten(m.l2_normalize(m.prelu(m.elu(g, 0.7)))), 5)


def _gated(m: Model) -> None:
    """Gated recurrent layers, one of which goes on from another's state, with its weights."""
    x = m.input((4, 5), requires_gradient=True)
    a = m.gru(x, 5, bias_initializer="normal")
    b = m.gru(m.leaky_relu(a.y, 0.3), 5, a.h, share=a.y)
    m.dense(m.concat([m.flatten(b.y), b.h]), 3)


NETWORKS = {
    "enlarged": Network(
        _enlarged, (6, 5, 3), "sparse_categorical_crossentropy", (), SGD(0.05, 0.5)
    ),
    "gated": Network(_gated, (4, 5), "mean_squared_error", (3,), SGD(0.1)),
    "reductions": Network(
        _reductions, (6, 5, 4), "sparse_categorical_crossentropy", (), SGD(0.05, 0.5)
    ),
    "arithmetic": Network(
        _arithmetic, (6, 5, 4), "sparse_categorical_crossentropy", (), SGD(0.05, 0.5)
    ),
    "several": Network(
        _several,
        (9, 7, 2),
        {
            "image": "mean_absolute_error",
            "steps": SparseCategoricalCrossentropy(label_smoothing=0.1),
            "tags": "binary_crossentropy",
            "shares": "binary_crossentropy",
            "value": Huber(0.3),
            "extra": _weighted_error,
        },
        (),
        SGD(0.05, 0.5),
        loss_weights={"image": 2.0, "value": 0.25, "extra": -0.5},
    ),
    "shared": Network(_shared, (8, 6, 4), "sparse_categorical_crossentropy", (), SGD(0.05, 0.5)),
    "frozen_sequences": Network(
        _frozen_sequences,
        (6,),
        "sparse_categorical_crossentropy",
        (6,),
        SGD(0.3, 0.5),
        vocabulary=9,
    ),
    "tables": Network(
        _tables, (6,), "sparse_categorical_crossentropy", (), SGD(0.3, 0.5), vocabulary=9
    ),
    "frozen": Network(_frozen, (9, 7, 2), "sparse_categorical_crossentropy", (), SGD(0.05, 0.5)),
    "normalized": Network(
        _normalized, (9, 7, 2), "sparse_categorical_crossentropy", (), SGD(0.05, 0.5)
    ),
    "images": Network(
        _images,
        (11, 9, 3),
        "sparse_categorical_crossentropy",
        (),
        SGD(0.1, 0.9, True, 1e-3, clip_norm=0.1),
    ),
    "skipping": Network(
        _skipping, (13, 10, 2), "sparse_categorical_crossentropy", (), Adam(1e-3, epsilon=1e-4)
    ),
    "activations": Network(
        _activations, (10,), "categorical_crossentropy", (5,), AdamW(1e-3, epsilon=1e-4)
    ),
    "branches": Network(
        _branches, (9, 8, 2), "sparse_categorical_crossentropy", (), SGD(0.05, 0.5)
    ),
    "sentences": Network(
        _sentences,
        (6,),
        "sparse_categorical_crossentropy",
        (5,),
        SGD(0.3, 0.5, clip_norm=0.1),
        vocabulary=9,
    ),
    "moves": Network(_moves, (6, 5, 4), "sparse_categorical_crossentropy", (), SGD(0.05, 0.5)),
    "attention": Network(
        _attention, (7, 3, 4), "sparse_categorical_crossentropy", (), Adam(1e-3, epsilon=1e-4)
    ),
    "grouped": Network(
        _grouped, (6, 3, 4), "sparse_categorical_crossentropy", (), Adam(1e-3, epsilon=1e-4)
    ),
    "sequences": Network(_sequences, (5, 6), "mean_squared_error", (3,), SGD(0.1)),
    "recurrent": Network(_recurrent, (1, 18), "mean_squared_error", (3,), SGD(0.1)),
}

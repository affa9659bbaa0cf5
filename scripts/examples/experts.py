"""A mixture of experts between two dense layers: two of eight networks compute each row.

Devices that have experts of their own (expert parallelism) move rows to them, not weights.
"""

from __future__ import annotations

import flexlegion as fl


def model(
    batch_size: int = 1024, width: int = 1024, units: int = 4096, experts: int = 8, chosen: int = 2
) -> fl.Model:
    """Rows of numbers in, one of ten classes out."""
    net = fl.Model(batch_size)
    x = net.dense(net.input((width,), name="rows"), width, activation="relu", name="first")
    scores = net.softmax(net.dense(x, experts, use_bias=False, name="router"), name="shares")
    shares = net.top_k(scores, chosen, name="chosen")
    gates = net.divide(shares, net.reduce(shares, "sum", -1, keepdims=True), name="gates")
    y = net.experts(x, gates, units, load=chosen, name="experts")
    net.softmax(net.dense(net.add([x, y]), 10, name="classes"), name="class")
    net.loss = "sparse_categorical_crossentropy"
    return net

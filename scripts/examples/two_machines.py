"""A wide MLP, for two machines whose network is slow beside the links inside of each."""

from __future__ import annotations

import flexlegion as fl


def model(batch_size: int = 512, width: int = 4096, layers: int = 6) -> fl.Model:
    """Rows of numbers in, one of 1,000 classes out."""
    net = fl.Model(batch_size)
    x = net.input((width,), name="rows")
    for layer in range(layers):
        x = net.dense(x, width, activation="relu", name=f"layer{layer}")
    net.softmax(net.dense(x, 1000, name="classes"), name="class")
    net.loss = "sparse_categorical_crossentropy"
    return net

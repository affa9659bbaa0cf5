"""Recommendation (DLRM, Naumov et al. 2019): large tables of categories beside small dense layers.

    flexlegion search --model scripts/examples/dlrm.py:dlrm --machine p100x4 --budget 30s

What looks rows up runs where the columns of its table live. So each iteration moves the rows that
its batch looks up, and their gradients, and never a table.
"""

from __future__ import annotations

import flexlegion as fl

FEATURES = 13


def dlrm(
    batch_size: int = 32,
    rows: int = 1_000_000,
    columns: int = 64,
    tables: int = 4,
    hidden: int = 128,
    seed: int = 0,
) -> fl.Model:
    """Features and categories of a sample in, logits of its two classes out.

    Parameters
    ----------
    batch_size
        Samples an iteration.
    rows, columns
        Of each table.
    tables
        How many there are; each sample has one category of each.
    hidden
        Units of the dense layers.
    seed
        Of initial weights and of the order of samples.

    Returns
    -------
    Model
        With inputs ``features`` (n, 13) and ``category0``, ... (n).
    """
    model = fl.Model(batch_size, seed)
    x = model.input((FEATURES,), name="features")
    x = model.dense(x, hidden, activation="relu", name="bottom0")
    x = model.dense(x, columns, activation="relu", name="bottom1")
    vectors = [x]
    for i in range(tables):
        category = model.input((), "int32", name=f"category{i}")
        vectors.append(model.embedding(category, rows, columns, name=f"embed{i}"))
    # The products of all pairs of vectors.
    stack = model.reshape(model.concat(vectors, name="vectors"), (tables + 1, columns))
    products = model.matmul(stack, model.transpose(stack, (0, 2, 1)), name="products")
    x = model.concat([x, model.flatten(products)], name="interactions")
    x = model.dense(x, hidden, activation="relu", name="top0")
    model.softmax(model.dense(x, 2, name="top1"))
    model.loss = "sparse_categorical_crossentropy"
    return model

"""DLRM (Naumov et al. 2019), which estimates how likely a link is to be clicked, as in MLPerf.

Numbers go through dense layers to a vector, categories are looked up as vectors of the same width;
the products of all pairs of these vectors, and the numbers' vector again, go through more dense
layers to a probability. Layers are those of MLPerf's training benchmark of Criteo's terabyte (v0.7
to v2.1), whose tables have from 3 rows to 40 million; here, all tables have as many rows unless
`tables` says otherwise. Of the products, both halves of the square are computed, and one is used.
"""

from __future__ import annotations

import numpy as np

from flexlegion.base.errors import UserError
from flexlegion.graph.initializers import Normal
from flexlegion.graph.tensor import Tensor
from flexlegion.model.model import Model
from flexlegion.zoo.unrolled import positive

SMALL = Normal(stddev=0.01)


def dlrm(
    model: Model,
    *,
    numbers: int = 13,
    fields: int = 26,
    rows: int = 1_000_000,
    tables: tuple[int, ...] | None = None,
    bottom: tuple[int, ...] = (512, 256, 128),
    top: tuple[int, ...] = (1024, 1024, 512, 256),
) -> None:
    """Add the layers; inputs are numbers (numbers) and categories (fields).

    The output is a probability (1). Categories are rows of tables, a table a field.

    Parameters
    ----------
    model
        Where to.
    numbers, fields
        Numbers and categories of a sample; Criteo's data have 13 and 26.
    rows
        Of each table.
    tables
        The rows of each table, one after the other, in the place of `rows`.
    bottom
        Units of the layers over the numbers; tables have as many columns as the last has units.
    top
        Units of the layers over the products, before the one of the output.
    """
    positive("dlrm", numbers=numbers, fields=fields, rows=rows)
    tables = (rows,) * fields if tables is None else tables
    if len(tables) != fields:
        raise UserError(
            f"dlrm: tables has to say the rows of {fields} tables, one for each of the fields, but "
            f"says those of {len(tables)}"
        )
    if not bottom:
        raise UserError("dlrm: bottom has to have a layer, whose units are the tables' columns")
    for name, sizes in (("tables", tables), ("bottom", bottom), ("top", top)):
        positive("dlrm", **{f"{name}[{i}]": size for i, size in enumerate(sizes)})
    x = model.input((numbers,), name="numbers")
    categories = model.input((fields,), "int32", name="categories")
    x = _layers(model, x, bottom, "bottom")
    vectors = [model.reshape(x, (1, bottom[-1]), name="vector")]
    for field, count in enumerate(tables):
        name = f"embed{field + 1}"
        vectors.append(
            model.embedding(
                categories, count, bottom[-1], field, 1, embedding_initializer=SMALL, name=name
            )
        )
    y = _pairs(model, vectors)
    x = model.concat([x, y], axis=1, name="top.input")
    x = _layers(model, x, top, "top")
    model.sigmoid(model.dense(x, 1, name="output"), name="clicked")


def _layers(model: Model, x: Tensor, units: tuple[int, ...], name: str) -> Tensor:
    for layer, count in enumerate(units, 1):
        x = model.dense(x, count, "relu", kernel_initializer="he_normal", name=f"{name}{layer}")
    return x


def _pairs(model: Model, vectors: list[Tensor]) -> Tensor:
    """Products of each vector with those before it: of (n, 1, columns) each, (n, pairs)."""
    count = len(vectors)
    x = model.concat(vectors, axis=1, name="vectors")
    turned = model.transpose(x, (0, 2, 1), name="vectors.turned")
    y = model.flatten(model.matmul(x, turned, name="products"), name="products.flatten")
    row, column = np.tril_indices(count, -1)
    return model.take(y, [int(i) for i in count * row + column], axis=1, name="pairs")

"""Wide & Deep (Cheng et al. 2016), which estimates how likely a link is to be clicked.

The wide part is linear in numbers and categories, the deep part a network of dense layers over the
numbers and the categories' embeddings; their sum is the logit. The wide part has the deep part's
categories, or some of its own, which may be cross-products: they are an input, and not computed.
The sizes are those with which HugeCTR and OneFlow (section 6.3.2) are measured: embeddings of 16,
and seven dense layers of 1024 units, behind each of which theirs have a dropout of 0.5.
"""

from __future__ import annotations

from flexlegion.base.errors import UserError
from flexlegion.graph.initializers import Normal
from flexlegion.graph.tensor import Tensor
from flexlegion.model.model import Model
from flexlegion.zoo.blocks import dropped
from flexlegion.zoo.unrolled import positive

SMALL = Normal(stddev=0.01)


def wide_deep(
    model: Model,
    *,
    numbers: int = 13,
    fields: int = 26,
    rows: int = 100_000,
    tables: int = 26,
    wide_fields: int | None = None,
    wide_rows: int | None = None,
    embedding: int = 16,
    layers: int = 7,
    hidden: int = 1024,
    dropout: float = 0.0,
) -> None:
    """Add the layers; inputs are numbers (numbers) and categories (fields).

    The output is a probability (1). Categories are rows of tables, below `rows`. With `wide_fields`
    there is a third input, crosses (wide_fields), of rows below `wide_rows`.

    Parameters
    ----------
    model
        Where to.
    numbers, fields
        Numbers and categories of a sample; Criteo's data have 13 and 26.
    rows
        Of each table, which has `embedding` columns; another one with a single column belongs to
        the wide part.
    tables
        Among which the fields are dealt out, as many to each: a table a field, or 1 for all.
    wide_fields, wide_rows
        Categories of the wide part alone, and the rows of their tables: one for all of them if
        `tables` is 1, else one for each. Unless given, the wide part has the other categories, and
        as many rows.
    embedding
        Width of an embedding.
    layers, hidden
        Dense layers of the deep part, and their units.
    dropout
        Share of these units that is dropped in training.
    """
    positive(
        "wide_deep",
        numbers=numbers,
        fields=fields,
        rows=rows,
        tables=tables,
        embedding=embedding,
        layers=layers,
        hidden=hidden,
    )
    if fields % tables != 0:
        raise UserError(
            f"wide_deep: fields has to be a multiple of tables, but {tables} does not divide "
            f"{fields}"
        )
    values = model.input((numbers,), name="numbers")
    categories = model.input((fields,), "int32", name="categories")
    wide_rows = rows if wide_rows is None else wide_rows
    positive("wide_deep", wide_rows=wide_rows)
    if wide_fields is None:
        wide = _looked_up(model, categories, tables, wide_rows, 1, "wide")
    else:
        positive("wide_deep", wide_fields=wide_fields)
        crosses = model.input((wide_fields,), "int32", name="crosses")
        wide = _looked_up(model, crosses, 1 if tables == 1 else wide_fields, wide_rows, 1, "wide")
    wide = model.reduce(wide, "sum", 1, name="wide.categories")
    linear = model.dense(values, 1, use_bias=False, name="wide.numbers")
    x = _looked_up(model, categories, tables, rows, embedding, "deep")
    x = model.flatten(x, name="deep.flatten")
    x = model.concat([x, values], axis=1, name="deep.input")
    for layer in range(1, layers + 1):
        x = model.dense(x, hidden, "relu", kernel_initializer="he_normal", name=f"deep{layer}")
        x = dropped(model, x, dropout, f"deep{layer}.dropout")
    deep = model.dense(x, 1, name="deep.output")
    model.sigmoid(model.add([wide, linear, deep], name="logit"), name="clicked")


def _looked_up(
    model: Model, categories: Tensor, tables: int, rows: int, columns: int, part: str
) -> Tensor:
    """The categories' rows of one table or several: (n, fields, columns)."""
    each = categories.shape[1] // tables
    pieces = [
        model.embedding(
            categories,
            rows,
            columns,
            table * each,
            each,
            embedding_initializer=SMALL,
            name=f"{part}.embed{table + 1}",
        )
        for table in range(tables)
    ]
    return model.concat(pieces, axis=1, name=f"{part}.embed") if tables > 1 else pieces[0]

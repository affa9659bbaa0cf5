"""What share of its peak a device reaches in matrix products.

GPUs compute a product in tiles, each on one multiprocessor, as many at a time as there are
multiprocessors: a *wave*. A last wave that is partly empty takes as long as a full one, and so does
a tile at an edge that is partly outside (NVIDIA, Matrix Multiplication Background, chapter 3). A
large tile reads fewer operands for each multiplication; a small one wastes less at the edges. A
product of fewer tiles than multiprocessors may split its sums among several of these; others would
have to add up too many partial results. Libraries choose what is fastest, and so does this model,
from a few tiles and splits.

Devices whose multiprocessors are not known have a curve instead (`Efficiency.half_extent`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flexlegion.machine.efficiency import Efficiency

if TYPE_CHECKING:
    Numbers = Any  # a number, or an array of one for each task

# Rows and columns of tiles, and among how many multiprocessors a tile's sums are split.
_TILES = ((256, 128), (128, 256), (128, 128), (64, 64), (32, 32))
_SPLITS = (1, 4, 16)
# Bytes of an element of the operands, by precision; of all others 4.
_ELEMENT_BYTES = {"float16": 2, "bfloat16": 2, "float8": 1}


@dataclass(frozen=True)
class Product:
    """Matrix products of the same sizes that one kernel computes.

    Parameters
    ----------
    rows, columns, terms
        Of the result, and of each of its sums.
    count
        How many there are.
    """

    rows: Numbers
    columns: Numbers
    terms: Numbers
    count: Numbers = 1

    def gradients(self) -> tuple[Product, Product]:
        """The products of the backward pass: the gradients of both operands."""
        return (
            Product(self.rows, self.terms, self.columns, self.count),
            Product(self.columns, self.terms, self.rows, self.count),
        )


def product_share(product: Product, efficiency: Efficiency, best: float) -> Numbers:
    """The share of its peak that a device reaches.

    Parameters
    ----------
    product
        What it computes.
    efficiency
        The device's figures, in that precision.
    best
        The share that a large product reaches: `Efficiency.matmul`, or its backward pass's.
    """
    if efficiency.multiprocessors:
        return best * _filled(product, efficiency)
    half = efficiency.half_extent
    fills = (1 + half / product.rows) * (1 + half / product.columns)
    return best / (fills * (1 + efficiency.half_inner / product.terms))


def _filled(product: Product, efficiency: Efficiency) -> Numbers:
    """What is computed for the result, of all that the multiprocessors could in that time."""
    import numpy as np

    # All choices of a tile and a split, one a row; tasks are along the other dimension.
    choices = [(*tile, split) for tile in _TILES for split in _SPLITS]
    rows, columns, split = np.array(choices, np.float64).T[:, :, None]
    tiles = np.ceil(product.rows / rows) * np.ceil(product.columns / columns) * product.count
    at_once = efficiency.multiprocessors
    split = np.where(tiles < at_once, split, 1.0)
    waves = np.ceil(tiles * split / at_once)
    slower = _operands(rows, columns, efficiency) / _operands(*_TILES[0], efficiency)
    terms = product.terms / split + efficiency.half_inner
    spent = (waves * rows * columns * slower * terms).min(axis=0) * at_once
    return product.count * product.rows * product.columns * product.terms / spent


def _operands(rows: Numbers, columns: Numbers, efficiency: Efficiency) -> Numbers:
    """How much longer a multiplication takes in such a tile for the operands that it reads."""
    return 1 + efficiency.half_tile / rows + efficiency.half_tile / columns


def aligned_share(
    columns: Numbers, terms: Numbers, efficiency: Efficiency, precision: str
) -> Numbers:
    """The share of its rate that a product keeps, by where rows of its matrices begin.

    Parameters
    ----------
    columns, terms
        Of the result, and of each of its sums, as integers: the lengths of all rows in memory.
    efficiency, precision
        As of `product_share`.
    """
    import numpy as np

    row_bytes = np.gcd(columns, terms) * _ELEMENT_BYTES.get(precision, 4)
    by_step = [efficiency.aligned_2, efficiency.aligned_4, efficiency.aligned_8]
    return np.select([row_bytes % step != 0 for step in (4, 8, 16)], by_step, 1.0)

"""Matrix products in waves of tiles: by hand, beside measured ones, and for all sizes."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexlegion.cost.efficiency import efficiency_of
from flexlegion.cost.products import Product, aligned_share, product_share
from flexlegion.machine.files import described_machine

# Round figures. For its operands, a tile of 256 x 128 takes 1 + 64 / 256 + 64 / 128 = 1.75 times as
# long, one of 128 x 128 twice, of 64 x 64 three times, of 32 x 32 five times.
PLAIN = replace(
    efficiency_of(described_machine("v100x1").devices[0]),
    multiprocessors=100,
    half_tile=64,
    half_inner=0,
)


def _share(rows: int, columns: int, terms: int, count: int = 1) -> float:
    sizes = (np.array([its]) for its in (rows, columns, terms, count))
    return float(product_share(Product(*sizes), PLAIN, 1.0)[0])


# The same where it does not pay to split sums.
WHOLE = replace(PLAIN, half_inner=1 << 40)


def _of_a_full_wave(rows: int, columns: int) -> float:
    its, full = (
        Product(*(np.array([size]) for size in (*sizes, 4096)))
        for sizes in ((rows, columns), (1280, 2560))
    )
    return float((product_share(its, WHOLE, 1.0) / product_share(full, WHOLE, 1.0))[0])


def test_waves() -> None:
    """100 tiles of 256 x 128 are one wave, 110 are two.

    As 220 of 128 x 128 these are three waves, each half as long, and a bit for the operands.
    """
    assert _of_a_full_wave(1280, 2816) == pytest.approx(110 / (3 * 50 * 2 / 1.75))


def test_edges() -> None:
    """Of 5 x 20 tiles, 20 are half outside, and take as long."""
    assert _of_a_full_wave(1280 - 128, 2560) == pytest.approx(0.9)


def test_few_tiles_split_their_sums() -> None:
    """4 tiles of 32 x 32 with a sixteenth of each sum on 64 of 100 multiprocessors.

    25 such products are 100 quarters of tiles of 64 x 64.
    """
    assert _share(64, 64, 4096) == pytest.approx(0.64 * 1.75 / 5)
    assert _share(64, 64, 4096, 25) == pytest.approx(1.75 / 3)


def test_gradients() -> None:
    """What is as long as a sum forward is a side of the result of both products backward."""
    first, second = Product(1, 2, 3, 4).gradients()
    assert (first.rows, first.columns, first.terms, first.count) == (1, 3, 2, 4)
    assert (second.rows, second.columns, second.terms, second.count) == (2, 3, 1, 4)


# DeepBench's times of products (rows, columns, terms) in us: of each kind a few, large and small.
V100 = {
    "float32": [
        ((1760, 128, 1760), 88),
        ((1760, 7000, 1760), 3376),
        ((4096, 7133, 4096), 16512),
        ((35, 8457, 2560), 260),
        ((1024, 48000, 2048), 15462),
        ((512, 32, 512), 14),
    ],
    "float16": [
        ((1760, 128, 1760), 31),
        ((1760, 7000, 1760), 485),
        ((2560, 7133, 2560), 889),
        ((4096, 7133, 4096), 2199),
    ],
}


@pytest.mark.parametrize("precision", V100)
def test_beside_deepbench(precision: str) -> None:
    """A V100's figures describe what was measured, to 15 % on average."""
    device = described_machine("v100x1").devices[0]
    its = efficiency_of(device).at(precision)
    errors = []
    for (rows, columns, terms), took in V100[precision]:
        product = Product(*(np.array([size]) for size in (rows, columns, terms)))
        share = product_share(product, its, its.matmul)
        time_us = 2e6 * rows * columns * terms / (device.peak_flops[precision] * float(share[0]))
        errors.append(abs(time_us + 5 - took) / took)
    assert mean(errors) < 0.15


def test_rows_that_begin_anywhere() -> None:
    """Elements of two bytes: 50,257 columns are odd, 30,522 even, 50,304 many times eight."""
    its = efficiency_of(described_machine("h100x1").devices[0]).at("bfloat16")
    columns = np.array([50257, 30522, 30524, 50304])
    left = aligned_share(columns, np.array([1024] * 4), its, "bfloat16")
    assert left.tolist() == [its.aligned_2, its.aligned_4, its.aligned_8, 1.0]
    swapped = aligned_share(np.array([1024] * 4), columns, its, "bfloat16")
    assert swapped.tolist() == left.tolist()
    # Elements of four bytes begin at multiples of four.
    assert aligned_share(columns, np.array([1024] * 4), its, "float32")[0] == its.aligned_4


SIZES = st.integers(1, 20_000)


@given(SIZES, SIZES, SIZES, st.integers(0, 2), st.integers(1, 500), st.sampled_from([1, 7, 300]))
def test_larger_products_take_longer(
    rows: int, columns: int, terms: int, which: int, more: int, count: int
) -> None:
    sizes = [rows, columns, terms]
    larger = [size + more * (n == which) for n, size in enumerate(sizes)]

    def took(its: list[int]) -> float:
        return its[0] * its[1] * its[2] * count / _share(its[0], its[1], its[2], count)

    assert took(sizes) <= took(larger) * (1 + 1e-9)
    assert 0 < _share(rows, columns, terms, count) <= 1 + 1e-9

"""Records of clicks: numbers, hashed categories, labels, and what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from flexlegion.base.errors import UserError
from flexlegion.data.clicks import load_clicks

RECORDS = "1\t3\t\ta\tb\n0\t-2\t0\t\tb\n0\t\t7\ta\ta\n"


def test_records(tmp_path: Path) -> None:
    path = tmp_path / "clicks.tsv"
    path.write_text(RECORDS)
    train, test = load_clicks(path, 2, 2, 50)
    assert test is None
    numbers, categories = train.inputs
    np.testing.assert_allclose(np.expm1(numbers), [[3, 0], [0, 0], [0, 7]], rtol=1e-6)
    assert (numbers.dtype, categories.dtype) == (np.float32, np.int32)
    assert train.y.tolist() == [[1], [0], [0]]
    assert categories.min() >= 0
    assert categories.max() < 50
    same = categories[:, None] == categories[None]
    # A text is the same row in one field, another one in another; one that is missing has a row.
    assert same[0, 2].tolist() == [True, False]
    assert same[0, 1].tolist() == [False, True]
    assert categories[2, 0] != categories[2, 1]


def test_a_folder_has_a_test_set(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text(RECORDS)
    (tmp_path / "test.tsv.gz").write_bytes(gzip.compress(RECORDS[:9].encode()))
    train, test = load_clicks(tmp_path, 2, 2, 50)
    assert test is not None
    assert (len(train), len(test)) == (3, 1)
    np.testing.assert_array_equal(test.inputs[1], train.inputs[1][:1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there are no records in this file"),
        ("1\t2\t3\ta\tb\n1\t2\n", "line 2 has 2 values with tabs between them, but a label, 2 num"),
        ("2\t2\t3\ta\tb\n", "line 1 has the label '2', which is not 0 or 1"),
        ("1\t2\t3\ta\tb\n0\t1\tx\t\t\n", "line 2 has the number 'x', which is not a whole numbe"),
        ("0\t1.5\t1\t\t\n", "line 1 has the number '1.5', which is not a whole number, or missing"),
    ],
)
def test_refuses_other_records(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "clicks.tsv"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        load_clicks(path, 2, 2, 50)


def test_refuses_a_folder_without_records(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no train\.tsv in this folder"):
        load_clicks(tmp_path, 2, 2, 50)

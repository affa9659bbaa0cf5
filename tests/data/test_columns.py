"""Columns of Parquet, Hugging Face's data sets and WebDatasets, as their libraries write them."""

from __future__ import annotations

import importlib
import io
import json
import pickle
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
import webdataset
from PIL import Image
from pyarrow import parquet

from flexlegion import Model, UserError
from flexlegion.data.images import BYTE_VALUES
from flexlegion.data.named import NamedArrays, load_named
from flexlegion.data.packages import required
from flexlegion.data.predictions import save_predictions
from flexlegion.graph.graph import Graph
from flexlegion.transforms.losses import add_losses

ROWS = 12
X = np.arange(ROWS * 6, dtype=np.float32).reshape(ROWS, 6) / 7
Y = (np.arange(ROWS) % 3).astype(np.int64)
PIXELS = np.random.default_rng(0).integers(256, size=(ROWS, 5, 4, 3), dtype=np.uint8)


def graph(shape: tuple[int, ...] = (6,), dtype: Any = "float32") -> Graph:
    model = Model(4)
    x = model.input(shape, dtype, name="a")
    if dtype == "int32":
        x = model.embedding(x, 100, 2)
    out = model.dense(model.flatten(x) if len(x.shape) > 2 else x, 3, name="out")
    return add_losses(model.graph, [out], "sparse_categorical_crossentropy")


def table(x: Any, **more: Any) -> pa.Table:
    return pa.table({"a": x, "labels": Y} | more)


def fixed(x: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), x.shape[1])


@pytest.mark.parametrize(
    "column",
    [
        fixed(X),
        X.tolist(),
        pa.array(X.tolist(), pa.large_list(pa.float64())),
        pa.FixedShapeTensorArray.from_numpy_ndarray(X),
        pa.array(X.reshape(ROWS, 3, 2).tolist()),
        pa.array(X.astype(np.float16).tolist(), pa.list_(pa.float16())),
    ],
)
def test_lists_of_numbers(tmp_path: Path, column: Any) -> None:
    parquet.write_table(table(column), tmp_path / "d.parquet", row_group_size=5)
    train, test = load_named(str(tmp_path / "d.parquet"), graph())
    assert test is None
    assert train.y is not None
    tolerance = 1e-3 if "halffloat" in str(getattr(column, "type", "")) else 1e-6
    assert np.allclose(train.x["a"].reshape(ROWS, 6), X, rtol=tolerance)
    assert np.array_equal(train.y["labels"], Y)
    rest, held = train.split(0.25, 3)
    assert (rest.samples, held.samples) == (9, 3)


def test_tokens_and_columns_of_other_names(tmp_path: Path) -> None:
    tokens = np.arange(ROWS * 6).reshape(ROWS, 6)
    written = pa.table({"ids": tokens.tolist(), "class": Y, "text": ["one"] * ROWS})
    parquet.write_table(written, tmp_path / "d.parquet")
    columns = {"a": "ids", "labels": "class"}
    train, _ = load_named(str(tmp_path / "d.parquet"), graph((6,), "int32"), columns=columns)
    assert np.array_equal(train.x["a"], tokens)
    renamed = written.rename_columns(["x", "y", "text"])
    parquet.write_table(renamed, tmp_path / "d.parquet")
    train, _ = load_named(str(tmp_path / "d.parquet"), graph((6,), "int32"))
    assert np.array_equal(train.x["a"], tokens)


def test_folder_of_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of their names; by parts, as data sets lie on the Hub."""
    for number, rows in enumerate((slice(0, 5), slice(5, ROWS))):
        part = table(X.tolist()).slice(rows.start, rows.stop - rows.start)
        parquet.write_table(part, tmp_path / f"{number}.parquet")
    train, test = load_named(str(tmp_path), graph())
    assert test is None
    assert np.allclose(train.x["a"], X)
    for number in (0, 1):
        name = f"train-0000{number}-of-00002.parquet"
        (tmp_path / f"{number}.parquet").rename(tmp_path / name)
    parquet.write_table(table(X.tolist()).slice(0, 3), tmp_path / "test-0.parquet")
    parquet.write_table(table(X.tolist()), tmp_path / "validation-0.parquet")
    train, test = load_named(str(tmp_path), graph())
    assert test is not None
    assert (train.samples, test.samples) == (ROWS, 3)
    assert "parts 'train' and 'test' are used, and not validation" in capsys.readouterr().err


def hugging_face(folder: Path) -> datasets.Dataset:
    features = datasets.Features(
        {
            "a": datasets.Array2D((3, 2), "float32"),
            "labels": datasets.ClassLabel(3),
            "image": datasets.Image(),
        }
    )
    pictures = [Image.fromarray(one) for one in PIXELS]
    values = {"a": X.reshape(ROWS, 3, 2).tolist(), "labels": Y, "image": pictures}
    made = datasets.Dataset.from_dict(values, features=features)
    made.save_to_disk(str(folder))
    return made


def test_hugging_face(tmp_path: Path) -> None:
    """A shuffled one, one of parts, and images, as those of folders are read."""
    made = hugging_face(tmp_path / "d")
    train, _ = load_named(str(tmp_path / "d"), graph((3, 2)))
    assert np.allclose(train.x["a"], X.reshape(ROWS, 3, 2))
    shuffled = made.shuffle(seed=1)
    parts = datasets.DatasetDict({"train": shuffled, "test": made.select(range(4))})
    parts.save_to_disk(str(tmp_path / "parts"))
    train, test = load_named(str(tmp_path / "parts"), graph((3, 2)))
    assert test is not None
    assert test.samples == 4
    assert train.y is not None
    assert np.array_equal(train.y["labels"], shuffled["labels"])
    assert not np.array_equal(train.y["labels"], Y)
    train, _ = load_named(str(tmp_path / "d"), graph((5, 4, 3)), columns={"a": "image"})
    assert np.array_equal(train.x["a"], BYTE_VALUES[PIXELS])
    train, _ = load_named(str(tmp_path / "d"), graph((4, 4, 1)), columns={"a": "image"})
    assert train.x["a"].shape == (ROWS, 4, 4, 1)


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def shards(pattern: str, first: int = 0, last: int = ROWS, **more: Callable[[int], Any]) -> None:
    with webdataset.ShardWriter(pattern, maxcount=5, verbose=0) as writer:
        for i in range(first, last):
            sample = {"__key__": f"s{i:03}", "npy": X[i], "cls": int(Y[i]), "png": png(PIXELS[i])}
            sample |= {"json": X[i].tolist(), "txt": "one"}
            writer.write(sample | {key: make(i) for key, make in more.items()})


def test_webdataset(tmp_path: Path) -> None:
    """Several shards: a sample's files by their extensions."""
    shards(f"{tmp_path}/train-%02d.tar")
    several = str(tmp_path / "train-{00..02}.tar")
    for column, shape, wanted in (
        ("npy", (6,), X),
        ("json", (6,), X),
        ("png", (5, 4, 3), BYTE_VALUES[PIXELS]),
    ):
        columns = {"a": column, "labels": "cls"}
        for source in (several, str(tmp_path)):
            train, test = load_named(source, graph(shape), columns=columns)
            assert test is None
            assert np.allclose(train.x["a"], wanted)
            assert train.y is not None
            assert np.array_equal(train.y["labels"], Y)
    alone, _ = load_named(str(tmp_path / "train-01.tar"), graph(), columns={"a": "npy"} | CLS)
    assert alone.samples == 5
    shards(f"{tmp_path}/test-%02d.tar", 0, 3)
    _, test = load_named(str(tmp_path), graph(), columns={"a": "npy"} | CLS)
    assert test is not None
    assert test.samples == 3


CLS = {"labels": "cls"}


def refusal(source: Path, its: Graph | None = None, **columns: str) -> str:
    with pytest.raises(UserError) as caught:
        load_named(str(source), its or graph(), columns=columns)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_columns_that_do_not_map(tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    ragged = [[1.0] * (1 + i % 2) for i in range(ROWS)]
    for column, sentence in (
        (ragged, "its rows have from 1 to 2 values, but an input takes one length; cut or pad"),
        (["text"] * ROWS, "is of the type string, and has to be numbers, lists of them"),
        ([1.0, None] * (ROWS // 2), "6 of its values are missing; fill them in"),
        ([[1.0, None]] * ROWS, "12 of its values are missing"),
        ([{"b": 1}] * ROWS, "is of the type struct<b: int64>, and has to be numbers"),
        ([png(one) for one in PIXELS], "has images, but 'a' takes [6], and not height, width, and"),
    ):
        parquet.write_table(table(column), path)
        assert f"{path}: column 'a'" in refusal(path)
        assert sentence in refusal(path)
    parquet.write_table(table([b"no image"] * ROWS), path)
    said = refusal(path, graph((5, 4, 3)))
    assert said.startswith(f"{path}: column 'a', row 0: this cannot be read as an image (")
    parquet.write_table(table(X.tolist(), other=Y), path)
    assert refusal(path, a="b").startswith(
        f"{path}: this file holds a, labels, other, but the model needs a column 'b'"
    )
    assert "--columns names 'b', but the model has a, labels" in refusal(path, b="a")
    path.write_bytes(path.read_bytes()[:-50])
    assert refusal(path).startswith(f"{path}: this cannot be read as a Parquet file (")
    assert refusal(tmp_path / "no.parquet") == f"{tmp_path}/no.parquet: there is no such file"
    folder = tmp_path / "parts"
    folder.mkdir()
    parquet.write_table(table(X.tolist()), folder / "test-0.parquet")
    assert "it has the parts test, and none is called 'train'" in refusal(folder)


def test_webdatasets_that_do_not_map(tmp_path: Path) -> None:
    shards(f"{tmp_path}/%d.tar", pyd=lambda i: X[i])
    columns = {"a": "npy"} | CLS
    path = tmp_path / "0.tar"
    assert "'txt' cannot be read; samples have npy, cls, json, png" in refusal(path, a="txt", **CLS)
    # Pickles, which could run any code, are not read.
    assert "'pyd' cannot be read" in refusal(path, a="pyd", **CLS)
    assert "but the model needs a column 'jpg'" in refusal(path, a="jpg", **CLS)
    with tarfile.open(tmp_path / "9.tar", "w") as file:
        entry = tarfile.TarInfo("s9.npy")
        content = io.BytesIO(pickle.dumps(X))
        entry.size = len(content.getvalue())
        file.addfile(entry, content)
    said = refusal(tmp_path / "9.tar", a="npy", labels="npy")
    assert "9.tar: this cannot be read as a WebDataset's npy (" in said
    assert f"{tmp_path}/9.tar: the sample s9 has no 'cls'" in refusal(tmp_path, a="cls", **CLS)
    (tmp_path / "8.tar").write_bytes(b"nothing")
    assert refusal(tmp_path / "8.tar", **columns).startswith(f"{tmp_path}/8.tar: ")
    said = refusal(tmp_path / "{0..7}.tar", **columns)
    assert said == f"{tmp_path}/3.tar: there is no such file"


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """What makes a package seem not to be installed."""

    def remove(name: str) -> None:
        found = importlib.import_module

        def imports(module: str, package: str | None = None) -> ModuleType:
            if module == name:
                raise ImportError(name)
            return found(module, package)

        monkeypatch.setattr("flexlegion.data.packages.importlib.import_module", imports)

    return remove


@pytest.mark.parametrize("name", ["pyarrow", "datasets", "webdataset"])
def test_missing_packages(name: str, tmp_path: Path, without: Callable[[str], None]) -> None:
    source = {"pyarrow": "d.parquet", "datasets": "d", "webdataset": "d.tar"}[name]
    hugging_face(tmp_path / "d")
    without(name)
    said = refusal(tmp_path / source, graph((3, 2)))
    assert said.endswith(f" needs the package {name}: pip install {name}")
    if name == "pyarrow":
        with pytest.raises(UserError, match="writing Parquet needs the package pyarrow"):
            save_predictions(tmp_path / "p.parquet", {"out": X})
    assert required("json", "") is json
    assert sys.modules


def test_predictions_of_further_dimensions(tmp_path: Path) -> None:
    """Numbers, lists and tensors, which are read back as they were."""
    arrays = {"one": X[:, 0], "row": X, "map": X.reshape(ROWS, 3, 2)}
    save_predictions(tmp_path / "p.parquet", arrays)
    read = parquet.read_table(tmp_path / "p.parquet")
    assert np.array_equal(read["one"].to_numpy(), arrays["one"])
    assert np.array_equal(np.stack(read["row"].to_numpy()), arrays["row"])
    assert np.array_equal(read["map"].combine_chunks().to_numpy_ndarray(), arrays["map"])


def test_growth(tmp_path: Path) -> None:
    """A small file that states a great number of values."""
    path = tmp_path / "d.parquet"
    zeros = pa.array(np.zeros(17 << 20, np.float32))
    parquet.write_table(pa.table({"a": zeros, "labels": zeros}), path, compression="zstd")
    assert "the column a states 71,303,168 bytes, of which the file has" in refusal(path)


def test_taken(tmp_path: Path) -> None:
    parquet.write_table(table(X.tolist()), tmp_path / "d.parquet")
    train, _ = load_named(str(tmp_path / "d.parquet"), graph(), labelled=False)
    assert isinstance(train, NamedArrays)
    assert train.y is None

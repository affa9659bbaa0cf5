"""MNIST's IDX files, written here byte by byte, plain and compressed."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from flexlegion.base.errors import UserError
from flexlegion.data import load

IMAGES = np.arange(3 * 2 * 2, dtype=np.uint8).reshape(3, 2, 2) * 20
LABELS = np.array([2, 0, 1], np.uint8)


def idx(values: np.ndarray, code: int = 0x08) -> bytes:
    extents = struct.pack(f">{values.ndim}I", *values.shape)
    return bytes([0, 0, code, values.ndim]) + extents + values.tobytes()


def write(directory: Path, name: str, content: bytes) -> Path:
    path = directory / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


@pytest.mark.parametrize("zipped", ["", ".gz"])
@pytest.mark.parametrize("mark", ["-", "."])
def test_directory_with_both_parts(tmp_path: Path, mark: str, zipped: str) -> None:
    write(tmp_path, f"train-images{mark}idx3-ubyte{zipped}", idx(IMAGES))
    write(tmp_path, f"train-labels{mark}idx1-ubyte{zipped}", idx(LABELS))
    write(tmp_path, f"t10k-images{mark}idx3-ubyte{zipped}", idx(IMAGES[:2]))
    write(tmp_path, f"t10k-labels{mark}idx1-ubyte{zipped}", idx(LABELS[1:]))
    train, test = load(str(tmp_path))
    assert (train.x.dtype, train.x.shape, train.y.dtype) == (np.float32, (3, 2, 2, 1), np.int32)
    np.testing.assert_allclose(train.x[..., 0], IMAGES / 255, rtol=1e-6)
    assert train.y.tolist() == [2, 0, 1]
    assert test is not None
    np.testing.assert_allclose(test.x[..., 0], IMAGES[:2] / 255, rtol=1e-6)
    assert test.y.tolist() == [0, 1]
    assert train.n_classes == test.n_classes == 3  # the test labels alone would say 2


def test_directory_without_test_part(tmp_path: Path) -> None:
    write(tmp_path, "train-images-idx3-ubyte", idx(IMAGES))
    write(tmp_path, "train-labels-idx1-ubyte.gz", idx(LABELS))
    assert load(str(tmp_path)).test is None


@pytest.mark.parametrize("labels_name", ["t10k-labels-idx1-ubyte", "t10k-labels-idx1-ubyte.gz"])
@pytest.mark.parametrize("images_name", ["t10k-images-idx3-ubyte", "t10k-images-idx3-ubyte.gz"])
def test_one_file_finds_its_labels(tmp_path: Path, images_name: str, labels_name: str) -> None:
    images = write(tmp_path, images_name, idx(IMAGES))
    write(tmp_path, labels_name, idx(LABELS))
    assert load(str(images)).train.y.tolist() == [2, 0, 1]


def test_one_file_with_labels_named(tmp_path: Path) -> None:
    images = write(tmp_path, "some.idx", idx(IMAGES))
    labels = write(tmp_path, "classes", idx(LABELS))
    assert load(str(images), labels=str(labels)).train.y.tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("code", "dtype"), [(0x09, "i1"), (0x0B, ">i2"), (0x0C, ">i4"), (0x0D, ">f4"), (0x0E, ">f8")]
)
def test_other_types_are_big_endian_and_unscaled(tmp_path: Path, code: int, dtype: str) -> None:
    values = np.array([[1, -2], [100, 3]])
    images = write(tmp_path, "x.idx", idx(values.astype(dtype), code))
    labels = write(tmp_path, "y.idx", idx(LABELS[:2]))
    assert load(str(images), labels=str(labels)).train.x.tolist() == values.tolist()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"no IDX file, because it starts with the bytes \(none\) where"),
        (b"PK\x03\x04 and so on", "no IDX file, because it starts with the bytes 50 4b 03 04"),
        (b"\0\0\x07\x03" + bytes(20), "starts with the bytes 00 00 07 03 where"),
        (idx(IMAGES)[:9], "truncated, it has 9 bytes where the header alone needs 16"),
        (idx(IMAGES)[:-1], r"truncated, it has 27 bytes where the shape \(3, 2, 2\) in its h.* 28"),
        (idx(IMAGES) + b"!", r"too long, it has 29 bytes where the shape \(3, 2, 2\) .* makes 28"),
        (bytes([0, 0, 8, 3]) + b"\xff" * 12, "truncated, it has 16 bytes"),
        (gzip.compress(idx(IMAGES), mtime=0)[:-9], "cannot be read as an IDX file"),
        (b"\x1f\x8b\x08\x00" + bytes(30), "cannot be read as an IDX file"),
    ],
)
def test_refuses_damaged_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    write(tmp_path, "train-labels-idx1-ubyte", idx(LABELS))
    for source in (path, tmp_path):
        with pytest.raises(UserError, match=message) as caught:
            load(str(source))
        assert str(caught.value).startswith(f"{path}: ")


def test_refuses_a_label_too_few(tmp_path: Path) -> None:
    images = write(tmp_path, "train-images-idx3-ubyte", idx(IMAGES))
    write(tmp_path, "train-labels-idx1-ubyte", idx(LABELS[:2]))
    with pytest.raises(UserError, match=f"^{images}: there are 3 samples but 2 labels"):
        load(str(images))


def test_refuses_incomplete_directories(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="lacks MNIST's train-images-idx3-ubyte and train-labels"):
        load(str(tmp_path))
    write(tmp_path, "train-images-idx3-ubyte", idx(IMAGES))
    with pytest.raises(
        UserError, match="there is train-images-idx3-ubyte but no train-labels-idx1-ubyte"
    ):
        load(str(tmp_path))
    write(tmp_path, "train-labels-idx1-ubyte", idx(LABELS))
    write(tmp_path, "t10k-labels-idx1-ubyte", idx(LABELS))
    with pytest.raises(UserError, match="t10k-labels-idx1-ubyte but no t10k-images-idx3-ubyte"):
        load(str(tmp_path))


def test_refuses_images_without_labels(tmp_path: Path) -> None:
    images = write(tmp_path, "train-images-idx3-ubyte.gz", idx(IMAGES))
    with pytest.raises(UserError, match=r"there is no train-labels-idx1-ubyte \(.gz or not\)"):
        load(str(images))
    with pytest.raises(UserError, match="nowhere: there is no such file, and the labels are to"):
        load(str(images), labels="nowhere")
    with pytest.raises(UserError, match="is a directory, where labels are found by their usual"):
        load(str(tmp_path), labels="nowhere")


def test_refuses_test_images_of_another_size(tmp_path: Path) -> None:
    write(tmp_path, "train-images-idx3-ubyte", idx(IMAGES))
    write(tmp_path, "train-labels-idx1-ubyte", idx(LABELS))
    write(tmp_path, "t10k-images-idx3-ubyte", idx(IMAGES[:, :1]))
    write(tmp_path, "t10k-labels-idx1-ubyte", idx(LABELS))
    with pytest.raises(UserError, match=r"shape \(2, 2, 1\), one to test with \(1, 2, 1\)"):
        load(str(tmp_path))

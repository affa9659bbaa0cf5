"""load: .npz, .npy and HDF5 files, and the sentence for each way to get a source wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from flexlegion.base.errors import UserError
from flexlegion.data import load

X = np.array([[0.5, -1], [2, 3], [4, 5]])
Y = np.array([0, 2, 1])


def write_npz(path: Path, **arrays: Any) -> str:
    np.savez(path.with_suffix(".npz"), **arrays)
    return str(path.with_suffix(".npz"))


def write_hdf5(path: Path, **arrays: Any) -> str:
    path = path.with_suffix(".h5")
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return str(path)


Write = Callable[..., str]
both_formats = pytest.mark.parametrize("write", [write_npz, write_hdf5])


@both_formats
def test_x_and_y(tmp_path: Path, write: Write) -> None:
    source = write(tmp_path / "d", x=X, y=Y)
    train, test = load(source)
    assert test is None
    assert (train.x.dtype, train.y.dtype, train.name) == (np.float32, np.int32, source)
    assert train.x.tolist() == X.tolist()
    assert train.y.tolist() == [0, 2, 1]


@both_formats
def test_own_test_part(tmp_path: Path, write: Write) -> None:
    train, test = load(
        write(tmp_path / "d", x_train=X, y_train=Y, x_test=X[:1] + 1, y_test=np.array([5]))
    )
    assert train.x.tolist() == X.tolist()
    assert test is not None
    assert (test.x.tolist(), test.y.tolist()) == ([[1.5, 0]], [5])
    assert train.n_classes == test.n_classes == 6


@both_formats
def test_images(tmp_path: Path, write: Write) -> None:
    grey = np.array([[[0, 51]], [[255, 102]]], np.uint8)
    train = load(write(tmp_path / "grey", x=grey, y=np.zeros((2, 1), np.uint8))).train
    assert train.x.shape == (2, 1, 2, 1)
    np.testing.assert_allclose(train.x.ravel(), [0, 0.2, 1, 0.4], rtol=1e-6)
    assert (train.y.shape, train.y.dtype) == ((2,), np.int32)
    colour = np.full((2, 4, 5, 3), 255, np.uint8)
    assert load(write(tmp_path / "colour", x=colour, y=Y[:2])).train.x.shape == (2, 4, 5, 3)


@both_formats
def test_real_labels_stay_real(tmp_path: Path, write: Write) -> None:
    train = load(write(tmp_path / "d", x=X, y=np.array([[0.5], [-1], [2]]))).train
    assert (train.y.dtype, train.y.tolist()) == (np.float32, [[0.5], [-1], [2]])


def test_hdf5_by_its_long_name(tmp_path: Path) -> None:
    path = Path(write_hdf5(tmp_path / "d", x=X, y=Y)).rename(tmp_path / "d.hdf5")
    assert len(load(str(path)).train) == 3


def test_npy(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y.astype(np.uint8))
    train = load(str(tmp_path / "x.npy"), labels=str(tmp_path / "y.npy")).train
    assert (train.x.tolist(), train.y.tolist(), train.y.dtype) == (X.tolist(), [0, 2, 1], np.int32)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": X, "y": Y}, "holds images, y, and the arrays x and y, or x_train and y_train"),
        ({"x": X, "y": Y, "x_test": X}, "holds x, x_test, y, and of x_test and y_test either both"),
        ({"x": X, "y": Y[:2]}, "there are 3 samples but 2 labels"),
        ({"x": X, "y": -Y}, "the label -2 is negative, and class numbers start at 0"),
        ({"x": X, "y": Y - 2**32 - 1}, "the label -4294967297 is negative"),
        ({"x": X, "y": Y + 2**31}, "the label 2147483650 is too large, and class numbers must"),
        ({"x": X[:, 0], "y": Y}, r"the samples have the shape \(3,\), and need a first dimension"),
        ({"x": X, "y": np.int64(3)}, "the labels are a single number"),
        ({"x": X * np.inf, "y": Y}, "a sample holds NaN or infinity"),
        ({"x": X * 1e300, "y": Y}, "a sample holds NaN or infinity"),
        ({"x": X, "y": Y * np.nan}, "a label is NaN or infinity"),
        ({"x": X[:0], "y": Y[:0]}, "there are no samples"),
        ({"x": X * 1j, "y": Y}, "the samples are of type complex128, and must be numbers"),
        ({"x": X, "y": np.array([b"a", b"b", b"c"])}, "the labels are of type .*, and must be"),
        ({"x": X, "y": Y, "x_test": X[:, :1], "y_test": Y}, r"shape \(2,\), one to test with \(1,"),
        (
            {"x": X, "y": Y, "x_test": X, "y_test": Y * 0.5},
            r"labels to train on are int32 of shape \(n\), those to test with float32 of shape",
        ),
    ],
)
@both_formats
def test_refuses_wrong_arrays(
    tmp_path: Path, write: Write, arrays: dict[str, Any], message: str
) -> None:
    source = write(tmp_path / "d", **arrays)
    refused(message, source)


def refused(message: str, source: str, labels: str | None = None) -> None:
    """Check that loading fails with one sentence that begins with the source and has `message`."""
    with pytest.raises(UserError, match=message) as caught:
        load(source, labels)
    text = str(caught.value)
    assert text.startswith(source), text
    assert text.endswith("."), text
    assert "\n" not in text
    assert ". " not in text.removeprefix(source).replace("(. ", "")


def test_refuses_a_missing_source(tmp_path: Path) -> None:
    refused("there is no such file or directory; use the name digits, a", str(tmp_path / "no.npz"))


@pytest.mark.parametrize(
    ("name", "message"),
    [("d.csv", "the extension .csv tells of no known"), ("d", "a name without an extension tells")],
)
def test_refuses_an_unknown_format(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / name).write_text("1,2,3")
    refused(message, str(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("d.npz", "no .npz archive, or a truncated one"),
        ("d.h5", "cannot be read as an HDF5 file"),
        ("d.hdf5", "cannot be read as an HDF5 file"),
    ],
)
def test_refuses_damaged_files(tmp_path: Path, name: str, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"not what the name says")
    refused(message, str(path))


@both_formats
def test_refuses_truncated_files(tmp_path: Path, write: Write) -> None:
    path = Path(write(tmp_path / "d", x=np.zeros((100, 10)), y=np.zeros(100, int)))
    path.write_bytes(path.read_bytes()[:4000])
    refused("truncated|cannot be read", str(path))


def test_refuses_a_corrupt_member_of_npz(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    np.savez_compressed(path, x=X, y=Y)
    content = bytearray(path.read_bytes())
    content[60:90] = bytes(30)
    path.write_bytes(content)
    refused("cannot be read as an .npz file", str(path))


def test_refuses_pickled_objects(tmp_path: Path) -> None:
    source = write_npz(tmp_path / "d", x=np.array([{}, {}]), y=np.zeros(2, int))
    refused("cannot be read as an .npz file .*Object arrays", source)


def test_refuses_a_broken_link_in_hdf5(tmp_path: Path) -> None:
    path = tmp_path / "d.h5"
    with h5py.File(path, "w") as file:
        file["x"] = h5py.ExternalLink("elsewhere.h5", "/x")
    refused("the array x lies in another file", str(path))


def test_refuses_npy_without_whole_labels(tmp_path: Path) -> None:
    samples, labels = tmp_path / "x.npy", tmp_path / "y.npy"
    np.save(samples, X)
    refused("name the .npy file with the labels with `labels`", str(samples))
    with pytest.raises(UserError, match=r"y\.npy: there is no such file, and the labels are to"):
        load(str(samples), str(labels))
    np.save(labels, Y)
    labels.write_bytes(labels.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"y\.npy: this cannot be read as a .npy file"):
        load(str(samples), str(labels))
    samples.write_bytes(b"not what the name says")
    refused("cannot be read as a .npy file", str(samples), str(labels))


def test_refuses_labels_where_the_source_has_them(tmp_path: Path) -> None:
    refused("brings its own labels, so leave out the separate labels", "digits", "y.npy")
    source = write_npz(tmp_path / "d", x=X, y=Y)
    refused("holds its labels itself, as y or y_train, so leave out", source, "y.npy")

"""``load``: a data set from the name of a shipped one or from files in the usual formats.

All formats give the same arrays: samples float32, images NHWC, uint8 values scaled to [0, 1], class
numbers int32. Files are read whole: a data set has to fit in memory.
"""

from __future__ import annotations

import dataclasses
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from flexlegion.base.errors import UserError
from flexlegion.base.files import check_regular, open_file
from flexlegion.base.suggestions import did_you_mean
from flexlegion.data.dataset import Dataset, Labels, Samples, Splits
from flexlegion.data.digits import load_digits
from flexlegion.data.idx import Pair, is_idx_name, labels_beside, read_idx, read_idx_directory
from flexlegion.data.reading import check_growth, check_members, reading

if TYPE_CHECKING:
    import h5py

Chosen = TypeVar("Chosen")

_TRAIN_NAMES = (("x_train", "y_train"), ("x", "y"))
_TEST_NAMES = ("x_test", "y_test")
ARRAYS = (".npz", ".npy", ".h5", ".hdf5")  # what files of arrays are called
_CHOICES = (
    "the name digits, a directory with MNIST's IDX files, an IDX file (*-idx3-ubyte, .gz or not), "
    ".npz, .npy, .h5 or .hdf5"
)


def load(source: str, labels: str | None = None) -> Splits[Dataset]:
    """Load a data set.

    Parameters
    ----------
    source : str
        One of

        - ``"digits"``: the shipped handwritten digits, at 32x32 pixels (see `load_digits`);
        - a directory with MNIST's files ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``
          and, if there is a test set, ``t10k-...``; ``.idx3-ubyte`` and ``.gz`` will do too;
        - one such file of images; its labels are found beside it by the usual name;
        - ``.npz`` or ``.h5``/``.hdf5`` with arrays x and y or x_train and y_train, and, if there is
          a test set, x_test and y_test;
        - ``.npy`` with the samples, and `labels`.
    labels : str, optional
        The file with the labels, for sources of one file of samples: ``.npy`` for ``.npy``, IDX for
        IDX.

    Returns
    -------
    Splits
        `train`, and `test` if the source brings its own. Samples are float32: (n, height, width)
        becomes (n, height, width, 1), and uint8 is divided by 255. Integer labels become int32
        ((n, 1) becomes (n,)), real ones float32. Both parts agree on the number of classes.

    Raises
    ------
    UserError
        If the source is missing, unknown, damaged, or does not hold samples with labels; the
        sentence names the file, the fault and what would be right.
    """
    if source == "digits":
        _refuse_labels(source, labels, "brings its own labels")
        return Splits(load_digits(), None)
    path = Path(source)
    if not path.exists():
        hint = did_you_mean(source, ("digits", "sample", "synthetic"))
        raise UserError(f"{source}: there is no such file or directory{hint}; use {_CHOICES}.")
    if path.is_dir():
        _refuse_labels(source, labels, "is a directory, where labels are found by their usual name")
        train, test = read_idx_directory(path)
        return _splits(source, train, test)
    if is_idx_name(path):
        beside = _existing_labels(labels) if labels is not None else labels_beside(path)
        return _splits(source, (read_idx(path), read_idx(beside)), None)
    if path.suffix == ".npy":  # which has no labels
        return _splits(source, _load_npy_pair(path, labels), None)
    if path.suffix not in ARRAYS:
        ending = f"the extension {path.suffix}" if path.suffix else "a name without an extension"
        raise UserError(f"{source}: {ending} tells of no known format; use {_CHOICES}.")
    _refuse_labels(source, labels, "holds its labels itself, as y or y_train")
    train, test = (_load_npz if path.suffix == ".npz" else _load_hdf5)(path)
    return _splits(source, train, test)


def _refuse_labels(source: str, labels: str | None, why: str) -> None:
    if labels is not None:
        raise UserError(
            f"{source}: this source {why}, so leave out the separate labels file {labels}."
        )


def _existing_labels(labels: str) -> Path:
    path = Path(labels)
    if not path.is_file():
        raise UserError(f"{labels}: there is no such file, and the labels are to come from it.")
    return path


def _load_npy_pair(path: Path, labels: str | None) -> Pair:
    if labels is None:
        raise UserError(
            f"{path}: a .npy file holds the samples only, so name the .npy file with the labels "
            "with `labels`."
        )
    return _load_npy(path), _load_npy(_existing_labels(labels))


def _load_npy(path: Path) -> npt.NDArray[Any]:
    with reading(path, "a .npy file"), open_file(path) as file:
        # np.load would read an .npz or a pickle under this name too.
        array: npt.NDArray[Any] = np.lib.format.read_array(  # type: ignore[no-untyped-call]
            file, allow_pickle=False
        )
    return array


def _load_npz(path: Path) -> tuple[Pair, Pair | None]:
    return load_npz(path, lambda arrays: _named_pairs(path, arrays))


def load_npz(path: Path, chosen: Callable[[Mapping[str, Any]], Chosen]) -> Chosen:
    """What a function makes of the arrays, by name, of an ``.npz`` file.

    Raises
    ------
    UserError
        If it cannot be read.
    """
    with reading(path, "an .npz file"), open_file(path) as file:
        # A bare .npy array renamed to .npz loads as an array, so the archive is asked for by name.
        if not zipfile.is_zipfile(file):
            raise UserError(
                f"{path}: this is no .npz archive, or a truncated one, and a whole one as "
                "numpy.savez writes it is needed."
            )
        check_members(path, file)
        with np.load(file, allow_pickle=False) as arrays:
            return chosen(arrays)


def _load_hdf5(path: Path) -> tuple[Pair, Pair | None]:
    import h5py

    with reading(path, "an HDF5 file"):
        check_regular(path)
        with h5py.File(path, "r") as file:
            nodes = {key: file[key] for key in file if _is_inside(path, file, key)}
            arrays = {key: node for key, node in nodes.items() if isinstance(node, h5py.Dataset)}
            for key, array in arrays.items():
                if array.external or array.is_virtual:
                    raise _elsewhere(path, key)
                check_growth(path, f"the array {key}", array.id.get_storage_size(), array.nbytes)
            return _named_pairs(path, arrays)


def _is_inside(path: Path, file: h5py.File, key: str) -> bool:
    import h5py

    if isinstance(file.get(key, getlink=True), h5py.ExternalLink):
        raise _elsewhere(path, key)
    return True


def _elsewhere(path: Path, key: str) -> UserError:
    # Any file could be meant, a pipe as well.
    return UserError(f"{path}: the array {key} lies in another file; copy it into this one.")


def _named_pairs(path: Path, arrays: Mapping[str, Any]) -> tuple[Pair, Pair | None]:
    """Return the pairs of arrays that an .npz or HDF5 file holds under the usual names."""
    there = ", ".join(sorted(arrays)) or "nothing"
    for x_name, y_name in _TRAIN_NAMES:
        if x_name in arrays and y_name in arrays:
            break
    else:
        raise UserError(
            f"{path}: this file holds {there}, and the arrays x and y, or x_train and y_train, are "
            "needed."
        )
    train = np.asarray(arrays[x_name]), np.asarray(arrays[y_name])
    present = [name for name in _TEST_NAMES if name in arrays]
    if len(present) == 1:
        raise UserError(
            f"{path}: this file holds {there}, and of x_test and y_test either both or none are "
            "needed."
        )
    if not present:
        return train, None
    return train, (np.asarray(arrays["x_test"]), np.asarray(arrays["y_test"]))


def _splits(source: str, train: Pair, test: Pair | None) -> Splits[Dataset]:
    """Bring raw arrays into the form that all data sets have."""
    train_set = _dataset(source, *train)
    if test is None:
        return Splits(train_set, None)
    test_set = _dataset(f"{source} (test)", *test)
    shapes = tuple(part.inputs[0].shape[1:] for part in (train_set, test_set))
    if shapes[0] != shapes[1]:
        raise UserError(
            f"{source}: a sample to train on has the shape {shapes[0]}, one to test "
            f"with {shapes[1]}, and they must agree."
        )
    if train_set.y.dtype != test_set.y.dtype or train_set.y.shape[1:] != test_set.y.shape[1:]:
        raise UserError(
            f"{source}: the labels to train on are {_describe(train_set.y)}, those to test with "
            f"{_describe(test_set.y)}, and they must agree."
        )
    if train_set.y.dtype == np.int32:
        # The networks' last layer fits both parts only if they agree on the number of classes.
        classes = max(train_set.n_classes, test_set.n_classes)
        train_set = dataclasses.replace(train_set, classes=classes)
        test_set = dataclasses.replace(test_set, classes=classes)
    return Splits(train_set, test_set)


def _describe(labels: Labels) -> str:
    extents = ", ".join(["n", *map(str, labels.shape[1:])])
    return f"{labels.dtype} of shape ({extents})"


def _dataset(name: str, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> Dataset:
    return Dataset(_as_samples(name, x), _as_labels(name, y), name)


def _as_samples(name: str, x: npt.NDArray[Any]) -> Samples:
    if x.dtype.kind not in "buif":
        raise UserError(f"{name}: the samples are of type {x.dtype}, and must be numbers.")
    if x.ndim < 2:
        raise UserError(
            f"{name}: the samples have the shape {x.shape}, and need a first dimension that counts "
            "them and at least one more."
        )
    with np.errstate(over="ignore"):
        samples = x.astype(np.float32)
    if x.dtype.kind == "f" and not np.isfinite(samples).all():
        raise UserError(
            f"{name}: a sample holds NaN or infinity, and all values must be finite 32-bit numbers."
        )
    if x.dtype == np.uint8:
        samples /= 255
    return samples[..., np.newaxis] if x.ndim == 3 else samples


def _as_labels(name: str, y: npt.NDArray[Any]) -> Labels:
    if y.dtype.kind not in "buif":
        raise UserError(f"{name}: the labels are of type {y.dtype}, and must be numbers.")
    if y.ndim == 0:
        raise UserError(f"{name}: the labels are a single number, and each sample needs one.")
    if y.dtype.kind == "f":
        with np.errstate(over="ignore"):
            values = y.astype(np.float32)
        if not np.isfinite(values).all():
            raise UserError(
                f"{name}: a label is NaN or infinity, and all must be finite 32-bit numbers."
            )
        return values
    if y.size and int(y.max()) > np.iinfo(np.int32).max:
        raise UserError(
            f"{name}: the label {int(y.max())} is too large, and class numbers must fit 32 bits."
        )
    if y.size and int(y.min()) < 0:
        # Before the conversion, where a very negative number could wrap round to a class.
        raise UserError(
            f"{name}: the label {int(y.min())} is negative, and class numbers start at 0."
        )
    # Keras' CIFAR files and others keep a last dimension of one.
    return y.reshape(-1).astype(np.int32) if y.shape[1:] == (1,) else y.astype(np.int32)

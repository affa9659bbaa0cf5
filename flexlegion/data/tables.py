"""Data as columns by name: ``.npz`` files, Parquet, Hugging Face's data sets, WebDatasets.

All are read into memory, and of their columns those alone that are asked for. No format is read
that could run code: neither pickles, nor scripts, nor a WebDataset's commands.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from flexlegion.base.errors import UserError
from flexlegion.base.files import check_regular
from flexlegion.base.quoting import note, printable
from flexlegion.data.arrow import array_of_column, images
from flexlegion.data.packages import required
from flexlegion.data.reading import check_growth, reading
from flexlegion.graph.tensor import Tensor
from flexlegion.process.together import rank

Array = npt.NDArray[Any]

_TEST = "_test"  # behind the names of an .npz file's arrays to test with
_IMAGES = ("png", "jpg", "jpeg")
_SAVED = ("dataset_info.json", "dataset_dict.json")  # of Hugging Face's data sets on disk
_SEVERAL = re.compile(r"\{(\d+)\.\.(\d+)\}")
KINDS = (
    "an .npz file, a .parquet file or a folder of them, a data set of Hugging Face's saved to "
    "disk, or a WebDataset's .tar"
)


class Columns(Protocol):
    """Samples, a row each, as named columns."""

    @property
    def names(self) -> Sequence[str]:
        """Of the columns."""

    def read(self, name: str, tensor: Tensor, /) -> Array:
        """A column (rows, ...) for an input or for labels.

        Raises
        ------
        UserError
            If it is damaged, or does not map to an array.
        """


class Parts(NamedTuple):
    """What to train on, and what to test with, if the data have that."""

    train: Columns
    test: Columns | None


def is_table(source: str) -> bool:
    """Whether it is one of the formats that only this module reads: all but ``.npz``."""
    path = Path(source)
    if path.suffix in (".parquet", ".tar"):
        return True
    return path.is_dir() and any(
        child.name in _SAVED or child.suffix in (".parquet", ".tar") for child in path.iterdir()
    )


def open_table(path: Path, arrays: Callable[[Path], Mapping[str, Array]]) -> Parts:
    """Columns to train on and, if there are some, to test with.

    Parameters
    ----------
    path
        Of the data.
    arrays
        Reads an ``.npz`` file.

    Raises
    ------
    UserError
        If there are no such data, or a package is missing that reads them.
    """
    if path.suffix == ".npz":
        its = arrays(path)
        tested = any(name.endswith(_TEST) for name in its)
        return Parts(_Arrays(its), _Arrays(its, _TEST) if tested else None)
    if path.is_dir() and any((path / name).exists() for name in _SAVED):
        return _saved(path)
    if path.suffix == ".parquet" or (path.is_dir() and any(path.glob("*.parquet"))):
        required("pyarrow", f"{path}: reading Parquet")
        return _of_files(path, ".parquet", _Parquet)
    required("webdataset", f"{path}: reading a WebDataset")
    return _of_files(path, ".tar", _Tar)


class _Arrays:
    """Those of an ``.npz`` file with the same ending."""

    def __init__(self, arrays: Mapping[str, Array], ending: str = "") -> None:
        self._arrays, self._ending = arrays, ending
        self.names = [n.removesuffix(ending) for n in arrays if n.endswith(ending)]

    def read(self, name: str, _tensor: Tensor) -> Array:
        """See `Columns`."""
        return self._arrays[name + self._ending]


class _Parquet:
    """Files of one schema, one after the other."""

    def __init__(self, paths: Sequence[Path]) -> None:
        from pyarrow import parquet

        self._paths = paths
        with reading(paths[0], "a Parquet file"):
            check_regular(paths[0])
            self.names: Sequence[str] = parquet.read_schema(paths[0]).names

    def read(self, name: str, tensor: Tensor) -> Array:
        """See `Columns`."""
        import pyarrow
        from pyarrow import parquet

        parts = []
        for path in self._paths:
            with reading(path, "a Parquet file"):
                check_regular(path)
                file = parquet.ParquetFile(path)
                if name not in file.schema_arrow.names:
                    raise UserError(f"{path}: it has no column '{printable(name)}', as others have")
                _check_column(path, file.metadata, name)
                parts.append(file.read(columns=[name]).column(0))
        where = f"{self._paths[0]}: column '{printable(name)}'"
        if len({part.type for part in parts}) > 1:
            raise UserError(f"{where} is of another type than in the other files")
        chunks = [chunk for part in parts for chunk in part.chunks]
        return array_of_column(pyarrow.chunked_array(chunks, parts[0].type), tensor, where)


def _check_column(path: Path, metadata: Any, name: str) -> None:
    """Raise `UserError` if a column of a Parquet file takes far more memory than the file."""
    stored = stated = 0
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(number)
            if chunk.path_in_schema.split(".")[0] == name:
                stored += chunk.total_compressed_size
                stated += max(chunk.total_uncompressed_size, 4 * chunk.num_values)
    check_growth(path, f"the column {printable(name)}", stored, stated)


class _Saved:
    """A data set of Hugging Face's `datasets`, as `save_to_disk` has written it."""

    def __init__(self, path: Path, data: Any) -> None:
        self._path, self._data = path, data
        self.names: Sequence[str] = data.column_names

    def read(self, name: str, tensor: Tensor) -> Array:
        """See `Columns`."""
        with reading(self._path, "a data set of Hugging Face's"):
            column = self._data.select_columns([name]).with_format("arrow")[:].column(name)
        return array_of_column(column, tensor, f"{self._path}: column '{printable(name)}'")


def _saved(path: Path) -> Parts:
    datasets = required("datasets", f"{path}: reading a data set of Hugging Face's")
    with reading(path, "a data set of Hugging Face's"):
        loaded = datasets.load_from_disk(str(path))
    if not isinstance(loaded, Mapping):
        return Parts(_Saved(path, loaded), None)
    parts: dict[str, Columns] = {name: _Saved(path / name, its) for name, its in loaded.items()}
    return _train_and_test(path, parts)


class _Tar:
    """A WebDataset's shards: of a sample, files of one name, whose extensions name the columns."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        for path in paths:
            with reading(path, "a WebDataset"):
                check_regular(path)
                status = path.stat()
            check_growth(path, "it", 512 * status.st_blocks, status.st_size)

    @cached_property
    def _samples(self) -> list[dict[str, Any]]:
        import webdataset

        # As paths, of which none is a command; and all of them on every rank.
        files = [f"file:{path.resolve()}" for path in self._paths]
        with reading(self._paths[0], "a WebDataset"):
            read: Iterable[dict[str, Any]] = webdataset.WebDataset(
                files, shardshuffle=False, nodesplitter=None, workersplitter=None, empty_check=False
            )
            samples = list(read)
        if not samples:
            raise UserError(f"{self._paths[0]}: there are no samples in it")
        return samples

    @property
    def names(self) -> Sequence[str]:
        """See `Columns`."""
        return [key for key in self._samples[0] if not key.startswith("__")]

    def read(self, name: str, tensor: Tensor) -> Array:
        """See `Columns`."""
        for sample in self._samples:
            if name not in sample:
                raise UserError(
                    f"{_shard(sample)}: the sample {printable(sample['__key__'])} has no "
                    f"'{printable(name)}'"
                )
        where = f"{self._paths[0]}: '{printable(name)}'"
        contents = [sample[name] for sample in self._samples]
        ending = name.rpartition(".")[2].lower()
        if ending in _IMAGES:
            return images(contents, tensor, where)
        decode = _DECODERS.get(ending)
        if decode is None:
            raise UserError(
                f"{where} cannot be read; samples have {', '.join((*_DECODERS, *_IMAGES))}"
            )
        arrays = []
        for sample in self._samples:
            with reading(_shard(sample), f"a WebDataset's {ending}"):
                arrays.append(np.asarray(decode(sample[name])))
        if len({array.shape for array in arrays}) > 1:
            raise UserError(
                f"{where}: samples have different shapes, but an input takes one; cut or pad them"
            )
        return np.stack(arrays)


def _shard(sample: Mapping[str, Any]) -> str:
    """The file that a sample is from."""
    return str(sample["__url__"]).removeprefix("file:")


def _npy(content: bytes) -> Array:
    array: Array = np.lib.format.read_array(  # type: ignore[no-untyped-call]
        io.BytesIO(content), allow_pickle=False
    )
    return array


_DECODERS: dict[str, Callable[[bytes], Any]] = {"npy": _npy, "cls": int, "json": json.loads}


def _of_files(path: Path, ending: str, open_them: Callable[[list[Path]], Columns]) -> Parts:
    """One file; several by a name with ``{000..012}``; or a folder's, by parts."""
    if path.is_dir():
        parts: dict[str, list[Path]] = {}
        for file in sorted(path.glob(f"*{ending}")):
            found = re.match("(train|test|validation|valid|val)(?![a-z])", file.name)
            parts.setdefault(found[1] if found else "", []).append(file)
        if list(parts) == [""]:
            return Parts(open_them(parts[""]), None)
        return _train_and_test(path, {name: open_them(files) for name, files in parts.items()})
    files = [path]
    if found := _SEVERAL.search(path.name):
        first, last = found.groups()
        numbers = [f"{i:0{len(first)}}" for i in range(int(first), int(last) + 1)]
        files = [path.with_name(_SEVERAL.sub(number, path.name, count=1)) for number in numbers]
    for file in files:
        if not file.is_file():
            raise UserError(f"{file}: there is no such file")
    if not files:
        raise UserError(f"{path}: it names no file")
    return Parts(open_them(files), None)


def _train_and_test(path: Path, parts: Mapping[str, Columns]) -> Parts:
    """The parts of these names; others are left out, and that is told."""
    if "train" not in parts:
        there = ", ".join(printable(name) or "others" for name in parts)
        raise UserError(f"{path}: it has the parts {there}, and none is called 'train'")
    others = [printable(name) or "others" for name in parts if name not in ("train", "test")]
    if others and rank() == 0:
        note(f"{path}: its parts 'train' and 'test' are used, and not {', '.join(others)}")
    return Parts(parts["train"], parts.get("test"))

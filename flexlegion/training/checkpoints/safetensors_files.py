"""Safetensors files of PyTorch and Hugging Face: one file, or shards that an index lists."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flexlegion.base.documents import Section, read_json
from flexlegion.base.errors import UserError
from flexlegion.base.files import check_regular
from flexlegion.base.quoting import printable

Array = npt.NDArray[Any]

# What `save_pretrained` calls its files; the second one lists the shards of a large network.
NAMES = ("model.safetensors", "model.safetensors.index.json")
INDEX_SUFFIX = ".safetensors.index.json"

_TYPES: dict[str, type[np.generic]] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U64": np.uint64,
    "U32": np.uint32,
    "U16": np.uint16,
    "U8": np.uint8,
    "BOOL": np.bool_,
}
# NumPy has no such type. The two bytes are the upper half of a float32.
_BFLOAT16 = "BF16"


def read_safetensors(path: Path) -> Iterator[tuple[str, Array]]:
    """The arrays of a file by name; real numbers become float32.

    Raises
    ------
    UserError
        If an array has a type that is not known here.
    ValueError
        If it is no such file.
    """
    import safetensors
    from safetensors import SafetensorError, safe_open

    deserialize: Any = safetensors.deserialize
    check_regular(path)
    try:
        with safe_open(str(path), framework="numpy") as file:
            types = {key: file.get_slice(key).get_dtype() for key in file.keys()}  # noqa: SIM118
            for key, type_ in types.items():
                if type_ not in _TYPES and type_ != _BFLOAT16:
                    raise UserError(
                        f"{printable(str(path))}: '{printable(key)}' is of type "
                        f"{printable(type_)}, which weights cannot be read from; save it as "
                        f"float32, float16 or bfloat16"
                    )
            if _BFLOAT16 not in types.values():
                for key in types:
                    yield key, _as_ours(file.get_tensor(key))
                return
        for key, its in deserialize(path.read_bytes()):
            if its["dtype"] == _BFLOAT16:
                halves = np.frombuffer(its["data"], np.uint16).astype(np.uint32)
                yield key, (halves << 16).view(np.float32).reshape(its["shape"])
            else:
                array = np.frombuffer(its["data"], _TYPES[its["dtype"]])
                yield key, _as_ours(array.reshape(its["shape"]))
    except SafetensorError as e:
        raise ValueError(str(e)) from None


def read_shards(index: Path) -> dict[str, Array]:
    """The arrays of all the files that an index lists, by name.

    Parameters
    ----------
    index
        A ``.safetensors.index.json``; the files are beside it.

    Raises
    ------
    UserError
        If the index or a file cannot be read, or a file lacks an array that the index has there.
    ValueError
        If one of the files is no safetensors file.
    """
    shown = printable(str(index))
    like = "as Hugging Face's save_pretrained writes it"
    document = read_json(index, "weights' index", "give the file, or its folder", like)
    section = Section.of(document, shown, ("weight_map",), ("metadata",))
    files: dict[str, list[str]] = {}
    for key, file in section.entries("weight_map").items():
        if not isinstance(file, str) or Path(file).name != file:
            raise UserError(
                f"{shown}: '{printable(key)}' has to be in a file of the same folder, by its name"
            )
        files.setdefault(file, []).append(key)
    arrays: dict[str, Array] = {}
    for file, keys in files.items():
        path = index.parent / file
        if not os.path.exists(path):
            raise UserError(f"{shown}: its file {printable(file)} is missing")
        there = dict(read_safetensors(path))
        for key in keys:
            if key not in there:
                raise UserError(
                    f"{shown}: its file {printable(file)} has no '{printable(key)}', which the "
                    "index says is there"
                )
            arrays[key] = there[key]
    return arrays


def in_folder(folder: Path) -> Path | None:
    """The file or index that a folder of Hugging Face's has its weights in; None: neither."""
    return next((folder / name for name in NAMES if os.path.exists(folder / name)), None)


def _as_ours(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype.kind == "f" else array

"""Weights alone: files of ours, checkpoints, and safetensors files of PyTorch and Hugging Face.

A weight is never taken because it happens to have as many elements: its shape has to be the
module's, or ours.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flexlegion.base.errors import UserError
from flexlegion.base.files import (
    PICKLES,
    check_regular,
    check_weights_name,
    replacing,
    write_arrays,
)
from flexlegion.base.quoting import printable
from flexlegion.data.loaders import load_npz
from flexlegion.objective.optimizers import EMA
from flexlegion.training.checkpoints.files import (
    Array,
    Checkpoint,
    folders,
    newest_whole,
    tensor_file,
)
from flexlegion.training.checkpoints.safetensors_files import (
    INDEX_SUFFIX,
    in_folder,
    read_safetensors,
    read_shards,
)

if TYPE_CHECKING:
    from flexlegion.layers.origin import Origin

_SHOWN = 3  # names in a message
_EMA = f"/{EMA}"  # behind a weight's name, that of its moving average


class Unmatched(NamedTuple):
    """In what a file of weights and a model differ, by names.

    Attributes
    ----------
    missing : list of str
        Weights that the file does not have: they stay as they are.
    unexpected : list of str
        What the file has, and the model does not: it is not used.
    """

    missing: list[str]
    unexpected: list[str]


def save_weights(path: str | Path, weights: Mapping[str, Array]) -> None:
    """Write weights by name: as safetensors if the file's name ends so, else as ``.npz``.

    Raises
    ------
    UserError
        If the file cannot be written, or is called as another library's.
    """
    check_weights_name(path)
    if Path(path).suffix != ".safetensors":
        write_arrays(path, weights, "weights")
        return
    with replacing(path, "weights") as file:
        for part in tensor_file(weights):
            file.write(part)


def read_weights(path: str | Path, averages: bool = False) -> dict[str, Array]:
    """The arrays of a file, or the weights of a checkpoint, by name.

    Parameters
    ----------
    path
        A ``.npz`` or ``.safetensors`` file; the index of several (``.safetensors.index.json``), or
        the folder that has it or a ``model.safetensors``; a checkpoint's folder, or a folder of
        checkpoints, of which the newest is taken.
    averages
        Whether to take the moving averages that a checkpoint has, in place of the weights.

    Raises
    ------
    UserError
        If it cannot be read.
    """
    path = Path(path)
    shown = printable(str(path))
    if os.path.isdir(path):
        file = in_folder(path)
        if file is None:
            return _of_checkpoint(path, averages)
        path, shown = file, printable(str(file))
    if averages:
        raise UserError(
            f"{shown}: moving averages are in checkpoints; a file has weights of one kind, maybe "
            "averages, and is taken as it is"
        )
    if path.suffix in PICKLES:
        raise UserError(
            f"{shown}: reading a pickle could run any code; save the module's state_dict by "
            "safetensors.torch.save_file"
        )
    try:
        if path.name.endswith(INDEX_SUFFIX):
            return read_shards(path)
        check_regular(path)
        if not zipfile.is_zipfile(path):
            return dict(read_safetensors(path))
        return dict(load_npz(path, dict))
    except UserError:
        raise
    except OSError as e:
        reason = e.strerror or "it is damaged"
        raise UserError(f"{shown}: the weights cannot be read ({reason})") from None
    except (ValueError, TypeError, AttributeError, KeyError, MemoryError) as e:
        raise UserError(
            f"{shown}: neither an .npz nor a .safetensors file of weights ({printable(str(e))})"
        ) from None


def fitted(
    arrays: Mapping[str, Array],
    shapes: Mapping[str, tuple[int, ...]],
    needed: set[str],
    origin: Origin | None,
    source: str,
) -> dict[str, Array]:
    """The arrays as a model's weights.

    Parameters
    ----------
    arrays
        By names of the model's weights or, if it was imported, of the module's parameters.
    shapes
        Of the model's weights.
    needed
        Which of them have to be there.
    origin
        Where the module's parameters are, of an imported model.
    source
        For messages.

    Raises
    ------
    UserError
        If they do not fit, with what is missing or differs.
    """
    ours = arrays.keys() <= shapes.keys() and all(
        name in arrays and arrays[name].shape == shapes[name] for name in needed
    )
    if origin is not None and not ours:
        arrays, unmatched = _from_module(arrays, origin, source)
        for name in unmatched.missing[:1]:
            raise UserError(
                f"{source}: the weights are those of another model: it has no '{printable(name)}'"
            )
    missing, extra = needed - arrays.keys(), arrays.keys() - shapes.keys()
    if missing or extra:
        parts = [f"it has no {_some(missing)}"] if missing else []
        parts += [f"the model has no {_some(extra)}"] if extra else []
        raise UserError(f"{source}: the weights are those of another model: {'; '.join(parts)}")
    _check_shapes(arrays, shapes, source)
    return dict(arrays)


def matched(
    arrays: Mapping[str, Array],
    shapes: Mapping[str, tuple[int, ...]],
    needed: set[str],
    origin: Origin | None,
    source: str,
) -> tuple[dict[str, Array], Unmatched]:
    """Those of the arrays that are a model's weights, and what does not match.

    An imported model's are read by the module's names or by ours, whichever the file has more of.

    Parameters
    ----------
    arrays, shapes, needed, origin, source
        As `fitted` takes them.

    Raises
    ------
    UserError
        If no array is a weight of the model, one has another shape, or names do not tell whether
        the arrays are stored as the module's or as ours.
    """
    found = {name: array for name, array in arrays.items() if name in shapes}
    unmatched = Unmatched(sorted(needed - found.keys()), sorted(arrays.keys() - shapes.keys()))
    known = set() if origin is None else _known(arrays, origin)
    if origin is not None and known and len(known) >= len(found):
        of_module, their = _from_module(arrays, origin, source)
        if (
            len(known) == len(found)
            and found.keys() == known
            and not _same_arrays(found, of_module)
        ):
            raise UserError(
                f"{source}: the names of its weights, as {_some(known)}, are the module's and "
                "ours, and do not tell as which of both they are stored"
            )
        missing = {place.weight for name in their.missing for place in origin.places[name]}
        others = needed - of_module.keys() - missing
        found, unmatched = of_module, their._replace(missing=sorted({*their.missing, *others}))
    if not found:
        raise UserError(
            f"{source}: the weights are those of another model: the model has no "
            f"{_some(arrays.keys())}"
        )
    _check_shapes(found, shapes, source)
    return found, unmatched


def _known(arrays: Mapping[str, Array], origin: Origin) -> set[str]:
    """The names in a file that are those of the module's parameters."""
    names = {alias for name in origin.places for alias in (name, *origin.aliases.get(name, ()))}
    prefix = _prefix(arrays, names)
    return {prefix(name) for name in names} & arrays.keys()


def _same_arrays(a: Mapping[str, Array], b: Mapping[str, Array]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def _check_shapes(
    arrays: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]], source: str
) -> None:
    for name, array in arrays.items():
        if array.shape != shapes[name]:
            raise UserError(
                f"{source}: '{name}' has shape {list(array.shape)}, but the model's has "
                f"{list(shapes[name])}"
            )


def _from_module(
    arrays: Mapping[str, Array], origin: Origin, source: str
) -> tuple[dict[str, Array], Unmatched]:
    """Our weights of arrays by the names of the module's parameters, whose shapes they have."""
    names = {name: {name, *origin.aliases.get(name, ())} for name in origin.places}
    prefix = _prefix(arrays, set().union(*names.values()))
    weights: dict[str, Array] = {}
    missing: list[str] = []
    known = {prefix(name) for name in origin.buffers}
    for name, places in origin.places.items():
        found = sorted(prefix(alias) for alias in names[name] if prefix(alias) in arrays)
        known.update(found)
        if not found:
            missing.append(name)
            continue
        array = arrays[found[0]]
        if array.shape != origin.shapes[name]:
            raise UserError(
                f"{source}: '{printable(found[0])}' has shape {list(array.shape)}, but the "
                f"module's parameter '{printable(name)}' has {list(origin.shapes[name])}"
            )
        for other in found[1:]:
            if not np.array_equal(array, arrays[other]):
                raise UserError(
                    f"{source}: '{printable(found[0])}' and '{printable(other)}' are one weight of "
                    "the model, but differ in the file"
                )
        weights |= {place.weight: place.layout.of(array) for place in places}
    for name, value in origin.buffers.items():
        there = arrays.get(prefix(name))
        if there is not None and not _same(there, value):
            raise UserError(
                f"{source}: the buffer '{printable(name)}' has other values than the module had, "
                "and what was computed of them is part of the model; import the module with these"
            )
    # Batch normalisation counts its batches, which nothing reads that can be imported.
    others = {key for key in arrays if not key.endswith("num_batches_tracked")}
    return weights, Unmatched(missing, sorted(others - known))


def _same(array: Array, buffer: Array) -> bool:
    """Whether a buffer's values are those of the module, up to the precision of the file."""
    if array.shape != buffer.shape:
        return False
    if buffer.dtype.kind != "f":
        return np.array_equal(array, buffer)
    return bool(np.allclose(array, buffer, rtol=2**-8, atol=1e-30, equal_nan=True))


def _prefix(arrays: Mapping[str, Array], names: set[str]) -> Callable[[str], str]:
    """How the file calls what the module calls by these names.

    A network and the same one with a head differ in a prefix: ``encoder.weight`` is
    ``bert.encoder.weight``.
    """
    if names & arrays.keys():
        return lambda name: name
    longest = max(names, key=len, default="")
    for key in arrays:
        if key.endswith(f".{longest}"):
            longer = key.removesuffix(longest)
            return lambda name: longer + name
        if longest.endswith(f".{key}"):
            shorter = longest.removesuffix(key)
            return lambda name: name.removeprefix(shorter)
    return lambda name: name


def _of_checkpoint(path: Path, averages: bool) -> dict[str, Array]:
    checkpoint = newest_whole(path) if folders(path) else Checkpoint(path)
    assert checkpoint is not None
    checkpoint.check_all()
    weights = {name: name for name in checkpoint if "/" not in name}
    if averages:
        found = {name.removesuffix(_EMA): name for name in checkpoint if name.endswith(_EMA)}
        if not found:
            raise UserError(
                f"{printable(str(checkpoint.folder))}: it has no moving averages of weights; it "
                "would, if it was trained with ema (--ema)"
            )
        weights |= found
    return {name: checkpoint.read(key) for name, key in weights.items()}


def _some(names: Set[str]) -> str:
    shown = ", ".join(f"'{printable(name, 80)}'" for name in sorted(names)[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"

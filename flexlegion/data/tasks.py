"""Data for a network: its task decides how a source is read, and its sizes how that is cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flexlegion.base.errors import UserError
from flexlegion.base.suggestions import did_you_mean
from flexlegion.data.classification import is_table, load_classification
from flexlegion.data.clicks import load_clicks
from flexlegion.data.dataset import Dataset, Labels, Splits, TokenDataset
from flexlegion.data.digits import load_digits
from flexlegion.data.idx import is_idx_directory
from flexlegion.data.images import ImageFolder, load_images
from flexlegion.data.language_model import is_running_text, load_language_model
from flexlegion.data.loaders import ARRAYS, load
from flexlegion.data.masked import load_masked
from flexlegion.data.parallel import load_parallel

# What a network does: it classifies images (or other arrays of numbers) or texts, predicts the next
# token of a text, masked ones, the tokens of a translation, or whether links are clicked.
TASKS = ("images", "text", "language", "masked", "translation", "clicks")

SAMPLE = "sample"
_SAMPLES = Path(__file__).with_name("samples")
_SAMPLE_OF = {
    "text": "chapters",
    "language": "manual",
    "masked": "manual",
    "translation": "interface/train",
    "clicks": "clicks",
}
SAMPLE_LANGUAGES = ("en", "de")
_ARRAYS = "arrays of tokens and labels (.npz, .npy, .h5)"
_SOURCES = {
    "text": f"a .tsv or .csv file of labels and texts, a folder a class of .txt files, {_ARRAYS}",
    "language": f"a .txt file, a folder with NAME.train.txt, {_ARRAYS}",
    "masked": "a .txt file, a folder with NAME.train.txt",
    "clicks": "a .tsv file of records, a folder with train.tsv",
}
# Sizes that have to be the data's; others may be larger.
_EXACT = ("input_shape", "steps")


@dataclass(frozen=True)
class Request:
    """Which data are wanted.

    Parameters
    ----------
    source
        "sample", "digits", or a path; see `load_for`.
    labels
        The labels' file, for sources that need one.
    augment
        Whether images to train on are cropped and mirrored at random.
    languages
        Of a parallel corpus: its files' endings.
    seed
        Decides what is random.
    """

    source: str
    labels: str | None = None
    augment: bool = False
    languages: tuple[str, str] = SAMPLE_LANGUAGES
    seed: int = 0


def load_for(
    task: str, sizes: Mapping[str, Any], request: Request
) -> Splits[Dataset] | Splits[ImageFolder]:
    """Load data for a network.

    Parameters
    ----------
    task
        One of `TASKS`.
    sizes
        The network's: images get its "input_shape", texts its "steps" and at most its "vocabulary",
        records of clicks its "numbers", "fields" and "rows". Arrays from files are as they are.
    request
        Which data.

    Raises
    ------
    UserError
        If they are missing or damaged, or are no data for that task.
    """
    if request.augment and task != "images":
        raise UserError("--augment goes with folders of images")
    if task == "images":
        return _images(sizes, request)
    return _clicks(sizes, request) if task == "clicks" else _sequences(task, sizes, request)


def network_sizes(
    task: str, data: Dataset | ImageFolder, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Sizes of a network that fit data: those given, and for the rest what the data need.

    Raises
    ------
    UserError
        If a given size does not fit the data.
    """
    needed = {} if task == "clicks" else _needed(task, data)  # these are cut to any sizes
    for name, value in needed.items():
        chosen = given.get(name, value)
        if (chosen != value) if name in _EXACT else (chosen < value):
            least = "" if name in _EXACT else "at least "
            raise UserError(
                f"{data.name}: these data need a network of {name} {least}{_text(value)}, but it "
                f"is given as {_text(chosen)}"
            )
    return needed | dict(given)


def _needed(task: str, data: Dataset | ImageFolder) -> dict[str, Any]:
    if isinstance(data, ImageFolder):
        return {"input_shape": data.shape, "classes": data.n_classes}
    shape = data.inputs[0].shape[1:]
    if not isinstance(data, TokenDataset):
        return {"input_shape": shape, "classes": data.n_classes}
    sizes = {"steps": shape[0], "vocabulary": data.vocabulary}
    return sizes | {"classes": data.n_classes} if task == "text" else sizes


def _images(sizes: Mapping[str, Any], request: Request) -> Splits[Dataset] | Splits[ImageFolder]:
    path, shape = Path(request.source), sizes["input_shape"]
    sample = request.source in (SAMPLE, "digits")
    folders = not sample and path.is_dir() and any(child.is_dir() for child in path.iterdir())
    if folders and not is_idx_directory(path):
        if request.labels is not None:
            raise UserError(f"{path}: the labels of images are their folders' names")
        return load_images(path, shape, augment=request.augment, seed=request.seed)
    if request.augment:
        raise UserError(f"{request.source}: --augment goes with folders of images")
    if not sample or request.labels is not None:
        return load("digits" if sample else request.source, request.labels)
    if len(shape) != 3 or shape[2] != 1:
        raise UserError(
            "the digits are images of the shape (height, width, 1), but the network's input_shape "
            f"is {_text(shape)}"
        )
    return Splits(load_digits(shape[:2]), None)


def _clicks(sizes: Mapping[str, Any], request: Request) -> Splits[Dataset]:
    sample = request.source == SAMPLE
    path = _SAMPLES / _SAMPLE_OF["clicks"] if sample else Path(request.source)
    if request.labels is not None:
        raise UserError(f"{path}: the labels of records are their first values")
    if not path.exists():
        raise _missing("clicks", request.source)
    return load_clicks(path, sizes["numbers"], sizes["fields"], sizes["rows"])


def _missing(task: str, source: str) -> UserError:
    return UserError(
        f"{source}: there is no such file or directory"
        f"{did_you_mean(source, ('sample', 'synthetic'))}; use sample, synthetic, or "
        f"{_SOURCES[task]}"
    )


def _sequences(task: str, sizes: Mapping[str, Any], request: Request) -> Splits[Dataset]:
    sample = request.source == SAMPLE
    source = str(_SAMPLES / _SAMPLE_OF[task]) if sample else request.source
    path, arrays = Path(source), request.labels is not None
    cut = sizes["steps"], sizes["vocabulary"]
    if cut[0] < 1:
        raise UserError(f"the size steps has to be at least 1, but is {cut[0]}")
    if task == "translation" and not arrays:
        return load_parallel(source, SAMPLE_LANGUAGES if sample else request.languages, *cut)
    if not path.exists():
        raise _missing(task, source)
    if task == "text" and not arrays and (path.is_dir() or is_table(path)):
        return load_classification(path, *cut)
    if task in ("language", "masked") and not arrays and (path.is_dir() or is_running_text(path)):
        if task == "masked":
            return load_masked(path, *cut, request.seed)
        return load_language_model(path, *cut)
    if path.suffix not in ARRAYS and not arrays and not path.is_dir():
        raise UserError(f"{source}: of no known format; use {_SOURCES[task]}")
    return _tokens(task, load(source, request.labels))


def _tokens(task: str, arrays: Splits[Dataset]) -> Splits[Dataset]:
    """Arrays from files as tokens."""
    if task == "translation":
        raise UserError("translation takes a parallel corpus, as in --data corpus/train")
    if task == "masked":
        raise UserError(f"a masked language model takes {_SOURCES[task]}")
    parts = [part for part in arrays if part is not None]
    for part in parts:
        x = part.inputs[0]
        if x.ndim != 2 or x.min() < 0 or np.any(x != np.trunc(x)):
            raise UserError(
                f"{part.name}: tokens are whole numbers from 0 of the shape (n, steps), but these "
                f"samples have the shape {list(x.shape)} and values from {x.min()} to {x.max()}"
            )
    vocabulary = 1 + max(int(part.inputs[0].max()) for part in parts)
    if task == "language":
        vocabulary = max(vocabulary, *(part.n_classes for part in parts))
    sets = [_token_dataset(task, part, vocabulary) for part in parts]
    return Splits(sets[0], sets[1] if len(sets) > 1 else None)


def _token_dataset(task: str, part: Dataset, vocabulary: int) -> TokenDataset:
    x, y = part.inputs[0].astype(np.int32), part.y
    wanted = x.shape if task == "language" else x.shape[:1]
    if y.shape != wanted:
        raise UserError(
            f"{part.name}: the labels have the shape {list(y.shape)}, but the network needs "
            f"{list(wanted)}"
        )
    labels: Labels = y
    classes = vocabulary if task == "language" else part.n_classes
    return TokenDataset(x, labels, part.name, classes, vocabulary)


def _text(size: Any) -> str:
    return "x".join(map(str, size)) if isinstance(size, tuple) else str(size)

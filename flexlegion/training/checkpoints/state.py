"""What ``state.json`` of a checkpoint says: all of it is checked when it is read, and only then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from flexlegion.base.documents import Section
from flexlegion.objective.metrics import MetricSums

_MOST = 1 << 62
_LARGEST = 1.7e308  # of numbers; JSON's may be larger than any float
_COUNTS = ("labels", "samples", "overflows")  # those of `MetricSums` that are whole numbers
_KEYS = (
    *("training", "seed", "batch_size", "model", "optimizer", "learning_rate", "fingerprint"),
    *("operators", "strategy", "devices", "ranks", "versions"),
)
_TRAINING = ("position", "began", "samples", "seconds", "total", "history", "callbacks")
_LARGEST_SCALE = 2.0**100


def checked_state(document: Any, path: Path) -> dict[str, Any]:
    """The document, if everything in it is of the kind that its readers take for granted.

    Raises
    ------
    UserError
        If something is missing or of another kind, with its place.
    """
    state = Section.of(document, str(path), _KEYS)
    state.integer("seed", -_MOST, _MOST)
    state.integer("batch_size", 1, _MOST)
    state.integer("ranks", 1, _MOST)
    state.text("fingerprint")
    _check(state, "model", lambda its: its is None or isinstance(its, str), "a name or null")
    _check(state, "learning_rate", _is_number, "a number")
    _check(state, "devices", lambda its: _all(its, list, _is_text), "a list of names")
    for key in ("operators", "versions"):
        _check(state, key, lambda its: _all(its, dict, _is_text), "an object of texts")
    _check(state, "strategy", lambda its: _all(its, dict, _is_split), "degrees and devices by name")
    _check(state, "optimizer", _is_optimizer, "an optimizer's 'type' and its numbers")
    _check_training(state.values["training"], f"{path}: 'training'")
    return state.values


def _check_training(value: Any, where: str) -> None:
    training = Section.of(value, where, _TRAINING, ("loss_scale",))
    position = Section.of(value["position"], f"{where}: 'position'", ("epoch", "batch", "step"))
    for key in position.values:
        position.integer(key, 0, _MOST)
    training.integer("began", 0, _MOST)
    training.integer("samples", 0, _MOST)
    _check(training, "seconds", _is_number, "a number")
    _check(training, "history", lambda its: _all(its, list, _are_values), "a list of epochs")
    _check(training, "callbacks", lambda its: _all(its, dict, _is_object), "objects by name")
    if value.get("loss_scale") is not None:
        scale = Section.of(value["loss_scale"], f"{where}: 'loss_scale'", ("value", "good"))
        scale.number("value", _LARGEST_SCALE)
        scale.integer("good", 0, _MOST)
    total = Section.of(value["total"], f"{where}: 'total'", ("losses", "samples", "batches"))
    total.integer("samples", 0, _MOST)
    total.integer("batches", 0, _MOST)
    for sums in total.items("losses"):
        names = [each.name for each in fields(MetricSums)]
        newer = ("overflows",)  # than some checkpoints
        known = [name for name in names if name not in newer]
        its = Section.of(sums, f"{where}: 'total': 'losses'", known, newer)
        for name in its.values:
            if name in _COUNTS:
                its.integer(name, 0, _MOST)
            else:
                _check(its, name, _is_value, "a number or null")


def _check(section: Section, key: str, right: Callable[[Any], bool], what: str) -> None:
    if not right(section.values[key]):
        raise section.fail(key, what)


def _all(value: Any, kind: type, right: Callable[[Any], bool]) -> bool:
    """Whether it is a list or an object whose values are all right."""
    if not isinstance(value, kind):
        return False
    ones: Any = value.values() if isinstance(value, Mapping) else value
    return all(map(right, ones))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and -_LARGEST <= value <= _LARGEST


def _is_value(value: Any) -> bool:
    """A number; null was not finite."""
    return value is None or _is_number(value)


def _are_values(value: Any) -> bool:
    return _all(value, dict, _is_value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_split(value: Any) -> bool:
    return (
        _is_object(value)
        and _all(value.get("degrees"), list, lambda degree: type(degree) is int)
        and _all(value.get("devices"), list, _is_text)
    )


def _are_groups(value: Any) -> bool:
    """Whether they are parameter groups; `ParameterGroup.of_document` looks at the rest."""
    return _all(value, list, _is_object)


def _is_optimizer(value: Any) -> bool:
    return (
        _is_object(value)
        and _is_text(value.get("type"))
        and all(
            isinstance(its, bool) or _is_value(its) or (key == "groups" and _are_groups(its))
            for key, its in value.items()
            if key != "type"
        )
    )

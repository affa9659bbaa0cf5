"""Losses by name, with their options, as commands, files and `compile` name them."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from flexlegion.base.errors import UserError
from flexlegion.base.quoting import shown
from flexlegion.base.suggestions import did_you_mean, unknown
from flexlegion.objective.losses import LOSSES, Loss

OPTIONS_HELP = "options follow a colon, as in huber:delta=0.5"
_FLAGS = {"true": True, "false": False}
_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Sequence: "numbers with x between them, as in 1x0.5x2",
}


def named_loss(text: str) -> Loss:
    """The loss of a name with options: ``sparse_categorical_crossentropy:ignore_index=0``.

    Parameters
    ----------
    text
        A name of `LOSSES`; or one, a colon, and options with commas between, which are the
        loss's arguments. Lists of numbers have x between them: ``class_weights=1x0.5x2``.

    Raises
    ------
    UserError
        If there is no such loss or option, or its value is none.

    Examples
    --------
    >>> named_loss("huber:delta=0.5")
    Huber(weighted=False, delta=0.5)
    """
    name, colon, options = text.partition(":")
    if name not in LOSSES:
        raise unknown("loss", name, LOSSES)
    loss = LOSSES[name]
    if not colon:
        return loss()
    hints = typing.get_type_hints(loss)
    kinds = {field.name: _kind(hints[field.name]) for field in fields(loss)}
    given: dict[str, Any] = {}
    for option in options.split(","):
        key, equals, value = option.partition("=")
        if not equals:
            raise UserError(
                f"loss {shown(text)}: {shown(option)} is no option; write NAME=VALUE, with commas "
                "between several"
            )
        if key not in kinds:
            raise UserError(
                f"loss {shown(text)}: {name} has no option {shown(key)}{did_you_mean(key, kinds)}; "
                f"it has {', '.join(kinds)}"
            )
        if key in given:
            raise UserError(f"loss {shown(text)}: {key} is given twice; give it once")
        given[key] = _value(value, kinds[key], f"loss {shown(text)}: {key}")
    return loss(**given)


def _kind(hint: Any) -> type:
    """What a text is read as: int, float, bool, or Sequence for a list of numbers."""
    kinds: list[type] = [typing.get_origin(one) or one for one in (hint, *typing.get_args(hint))]
    return next(kind for kind in kinds if kind in _WORDS)


def _value(text: str, kind: type, where: str) -> Any:
    try:
        if kind is bool:
            return _FLAGS[text]
        if kind is int:
            return int(text)
        return float(text) if kind is float else [float(part) for part in text.split("x")]
    except (ValueError, KeyError):
        raise UserError(f"{where} has to be {_WORDS[kind]}, but is {shown(text)}") from None

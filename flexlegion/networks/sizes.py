"""Sizes: the keywords of a function that builds a model, as options and files write them."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from flexlegion.base.arguments import is_number
from flexlegion.base.errors import UserError
from flexlegion.base.quoting import described
from flexlegion.graph.tensor import MAX_EXTENT

REQUIRED = inspect.Parameter.empty

_WHOLE = re.compile(r"-?[0-9]{1,18}")
_KINDS = {int: "a whole number", float: "a number", bool: "True or False", str: "text"}
_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True)
class Size:
    """A size that a model's builder takes.

    Parameters
    ----------
    name
        The keyword.
    kind
        One of int, float, bool, str and tuple (of whole numbers).
    default
        What it is unless somebody says otherwise; `REQUIRED`: there is none.
    """

    name: str
    kind: type
    default: Any = REQUIRED

    def parse(self, text: str, where: str) -> Any:
        """The value that a text means, for example ``64x64x3``.

        Parameters
        ----------
        text
            As an option has it.
        where
            For messages: ``--size steps``.

        Raises
        ------
        UserError
            If it is none of this kind.
        """
        if self.kind is str:
            return text
        if self.kind is tuple:
            parts = re.split("[x,]", text)
            if all(_WHOLE.fullmatch(part) for part in parts):
                return tuple(_bounded(int(part), where) for part in parts)
            like = size_text(self.default) if isinstance(self.default, tuple) else "64x64x3"
            what = f"whole numbers with x between them, as in {like}"
        elif self.kind is bool:
            if text.lower() in _FLAGS:
                return _FLAGS[text.lower()]
            what = "true or false"
        elif self.kind is float:
            try:
                return float(text)
            except ValueError:
                what = "a number"
        elif _WHOLE.fullmatch(text):
            return _bounded(int(text), where)
        else:
            what = "a whole number"
        raise UserError(f"{where} has to be {what}, but is '{text[:60]}'")

    def checked(self, value: Any, where: str) -> Any:
        """A value that is no text, as the builder takes it: lists become tuples.

        Raises
        ------
        UserError
            If it is none of this kind.
        """
        if value is None or value is self.default:
            return value
        if self.kind is tuple:
            if isinstance(value, list | tuple) and all(is_number(one, int) for one in value):
                return tuple(_bounded(int(one), where) for one in value)
            what = "a list of whole numbers, as in (64, 64, 3)"
        elif self.kind is int and is_number(value, int):
            return _bounded(int(value), where)
        elif self.kind in (float, bool) and is_number(value, self.kind):
            return value
        else:
            what = _KINDS[self.kind]
        raise UserError(f"{where} has to be {what}, but is {described(value)}")


def _bounded(value: int, where: str) -> int:
    if abs(value) > MAX_EXTENT:
        raise UserError(f"{where} has to be at most {MAX_EXTENT}, but is {value}")
    return value


def sizes_of(build: Callable[..., Any], without: Collection[str] = ()) -> dict[str, Size]:
    """The sizes that a builder takes by keyword, in its order.

    A size's kind is its annotation's, else its default's, else a whole number.

    Parameters
    ----------
    build
        A function.
    without
        Parameters that are no sizes.
    """
    try:
        hints = typing.get_type_hints(build)
    except Exception:  # annotations may name what only a type checker imports
        hints = {}
    sizes = {}
    for parameter in inspect.signature(build).parameters.values():
        keyword = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if keyword and parameter.name not in without:
            kind = _kind_of(hints.get(parameter.name), parameter.default)
            sizes[parameter.name] = Size(parameter.name, kind, parameter.default)
    return sizes


def size_text(value: Any) -> str:
    """A size as options write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _kind_of(hint: Any, default: Any) -> type:
    hints = [hint]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hints = [one for one in typing.get_args(hint) if one is not type(None)]
    for one in hints:
        kind = typing.get_origin(one) or one
        if kind in (list, tuple) or getattr(kind, "__name__", "") == "Sequence":
            return tuple
        if kind in (int, float, bool, str):
            return typing.cast(type, kind)
    if isinstance(default, list | tuple):
        return tuple
    return type(default) if isinstance(default, bool | float | str) else int

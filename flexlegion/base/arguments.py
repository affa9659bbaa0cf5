"""Arguments of public functions: their types are checked against the annotations.

An argument of another type would otherwise end in a traceback somewhere inside, or be taken for
something else without a word: a number for a flag, one callback for a list of them.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import numbers
import os
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, TypeVar, Union

from flexlegion.base.errors import UserError
from flexlegion.base.quoting import described
from flexlegion.base.suggestions import did_you_mean

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

# What NumPy's types count as, too; a truth value is no number.
_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "text",
    type(None): "None",
}
_MOST = 10**100
_LISTS = (collections.abc.Sequence, collections.abc.Collection, list)


def typed(function: F) -> F:
    """A function that raises `UserError` where an argument has another type than it says.

    Annotations are looked at when the function is first called. What they name of modules that are
    not imported yet is not checked; neither is `Any`. A call costs a few microseconds more.

    Of a function that ends in ``**options: Unpack[Options]``, help shows the options of that
    `TypedDict` one by one, and each is checked.
    """

    return _checked(function, function.__name__)


def typed_methods(cls: C) -> C:
    """A class whose constructor and public methods are `typed`."""
    for name, member in list(vars(cls).items()):
        if isinstance(member, types.FunctionType) and (
            name == "__init__" or not name.startswith("_")
        ):
            setattr(cls, name, _checked(member, cls.__name__ if name == "__init__" else name))
    return cls


def _checked(function: F, called: str) -> F:
    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> Any:
        names, hints, known = _hints(function)
        for name in options:
            if known is not None and name not in known:
                raise TypeError(
                    f"{called}() got an unexpected keyword argument '{name}'"
                    f"{did_you_mean(name, known)}; its arguments are {', '.join(known)}"
                )
        args = (
            tuple(
                _taken(called, name, value, hints) for name, value in zip(names, args, strict=False)
            )
            + args[len(names) :]
        )
        options = {name: _taken(called, name, its, hints) for name, its in options.items()}
        return function(*args, **options)

    if function.__code__.co_flags & inspect.CO_VARKEYWORDS:
        # `inspect.signature`, and so `help`, reads it; mypy does not know it of functions.
        checked.__signature__ = _unpacked(function)  # type: ignore[attr-defined]
    return typing.cast(F, checked)


def _unpacked(function: Callable[..., Any]) -> inspect.Signature:
    """A function's signature with the options that its last parameter unpacks."""
    signature = inspect.signature(function)
    *parameters, last = signature.parameters.values()
    options = _unpacked_options(last, function)
    if options is None:
        return signature
    for name, hint in options.__annotations__.items():
        text = getattr(hint, "__forward_arg__", hint)
        parameters.append(inspect.Parameter(name, last.KEYWORD_ONLY, default=None, annotation=text))
    return signature.replace(parameters=parameters)


def _unpacked_options(parameter: inspect.Parameter, function: Callable[..., Any]) -> Any:
    """The `TypedDict` that a parameter unpacks; None: it does not."""
    hint = parameter.annotation
    if parameter.kind is not parameter.VAR_KEYWORD or "Unpack" not in str(hint):
        return None
    hint = eval(hint, function.__globals__) if isinstance(hint, str) else hint
    return typing.get_args(hint)[0]


def _taken(function: str, name: str, value: Any, hints: Mapping[str, Any]) -> Any:
    """An argument of the type that was asked for, where NumPy's numbers are Python's."""
    hint = hints.get(name, Any)
    if not fits(value, hint):
        raise wrong_type(function, name, hint, value)
    if hint is not Any and type(value).__module__ == "numpy":
        if not hasattr(value, "__len__") and is_number(value):
            return value.item()
        if _asks_for_list(hint):
            return value.tolist()
    return value


def _asks_for_list(hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(map(_asks_for_list, typing.get_args(hint)))
    return origin in _LISTS or origin is tuple


def wrong_type(function: str, name: str, hint: Any, value: Any) -> UserError:
    """The error that an argument of a function is of another type than the hint."""
    words = _words(hint)
    of_torch = any(kind.__module__.startswith("torch.") for kind in type(value).__mro__)
    more = "; flexlegion.from_torch imports it" if of_torch and "a Model" in words else ""
    return UserError(f"{function}: '{name}' has to be {words}, but is {described(value)}{more}")


@functools.lru_cache(maxsize=64)
def takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a function can be called with so many arguments; True where that cannot be told."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # of one that is not written in Python
        return True
    return True


def is_number(value: Any, kind: type = float) -> bool:
    """Whether a value is a number, NumPy's included; `kind` is int, float, or bool for a truth."""
    is_bool = isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")
    if kind is bool or is_bool:
        return kind is bool and is_bool
    if not isinstance(value, numbers.Integral if kind is int else numbers.Real):
        return False
    # No size, count or factor is larger, and Python does not even print some that are.
    return not isinstance(value, int) or abs(value) < _MOST


@functools.cache
def _hints(
    function: Callable[..., Any],
) -> tuple[list[str], dict[str, Any], Collection[str] | None]:
    """Names of the arguments that can be given by position, and what can be told of all types.

    Then the names of all arguments that can be given by name; None: any.
    """
    names: list[str] = []
    hints: dict[str, Any] = {}
    signature = _unpacked(function)
    takes_any = any(its.kind is its.VAR_KEYWORD for its in signature.parameters.values())
    known = (
        None
        if takes_any
        else [
            its.name
            for its in signature.parameters.values()
            if its.kind in (its.POSITIONAL_OR_KEYWORD, its.KEYWORD_ONLY) and its.name != "self"
        ]
    )
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
        hint = parameter.annotation
        if (options := _unpacked_options(parameter, function)) is not None:
            hints |= typing.get_type_hints(options)
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if isinstance(hint, str):
            try:
                hint = eval(hint, function.__globals__, _Public())
            except NameError:  # of a module that only type checkers import
                continue
        if hint is not parameter.empty:
            hints[parameter.name] = hint
    return names, hints, known


class _Public(dict[str, Any]):
    """The package's public names, which annotations may use without an import."""

    def __missing__(self, name: str) -> Any:
        import flexlegion

        if name not in flexlegion.__all__:
            raise KeyError(name)
        return getattr(flexlegion, name)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the type that a hint says; True where that cannot be told."""
    if hint in (Any, object):
        return True
    if hint in (None, type(None)):
        return value is None
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, one) for one in args)
    if origin is Literal:
        return any(isinstance(value, type(one)) for one in args)
    if hint in (int, float, bool):
        return is_number(value, hint)
    if origin is tuple:
        if args[-1:] == (...,):
            return _is_list(value) and all(fits(one, args[0]) for one in value)
        return _is_list(value) and len(value) == len(args) and all(map(fits, value, args))
    if origin in _LISTS or hint in _LISTS:
        return _is_list(value) and all(fits(one, args[0]) for one in value if args)
    kind: Any = origin or hint
    if not isinstance(kind, type):
        return True
    if getattr(kind, "_is_protocol", False) and not getattr(kind, "_is_runtime_protocol", False):
        return True
    if kind is collections.abc.Callable:
        return callable(value)
    if issubclass(kind, os.PathLike):
        return isinstance(value, os.PathLike)
    if kind is collections.abc.Mapping or kind is dict:
        return isinstance(value, collections.abc.Mapping) and all(
            fits(key, args[0]) and fits(its, args[1]) for key, its in value.items() if args
        )
    return isinstance(value, kind)


def _is_list(value: Any) -> bool:
    """A list, tuple or array: what can be gone through again, and is no text and no mapping."""
    return (
        not isinstance(value, str | bytes | collections.abc.Mapping)
        and hasattr(value, "__len__")
        and hasattr(value, "__getitem__")
        and hasattr(value, "__iter__")
    )


def _words(hint: Any) -> str:
    """What a hint asks for, in words."""
    if hint is None:
        return "None"
    if hint in _WORDS:
        return _WORDS[hint]
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(_words, args)))
    if origin is Literal:
        return " or ".join(map(repr, args))
    kind = origin or hint
    if kind in _LISTS or kind is tuple:
        of = " and ".join(dict.fromkeys(_words(arg) for arg in args if arg is not ...))
        number = f" of {len(args)}" if kind is tuple and args[-1:] != (...,) else ""
        return f"a list{number}, each of it {of}" if of else "a list"
    if kind is collections.abc.Callable:
        return "a function"
    if kind in (collections.abc.Mapping, dict):
        return "a dict"
    name = getattr(kind, "__name__", str(kind))
    if name == "Path":
        return "a path"
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"

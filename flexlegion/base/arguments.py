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
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, Union

from flexlegion.base.errors import CallError, UserError
from flexlegion.base.quoting import described
from flexlegion.base.suggestions import did_you_mean

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

# What NumPy's types count as, too; a truth value is no number.
_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "text",
    type(None): "None",
}
_MOST = 10**100
_NUMBER = r"[-+]?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?"
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
        its = _parameters(function)
        if its.known is not None and not its.known.keys() >= options.keys():
            its.check_names(called, options)
        args = (
            tuple(
                _taken(called, name, value, its.hints)
                for name, value in zip(its.names, args, strict=False)
            )
            + args[len(its.names) :]
        )
        if options:
            its.check_twice(called, len(args), options)
            options = {
                name: _taken(called, name, value, its.hints) for name, value in options.items()
            }
        if len(args) > len(its.names) or not its.required <= {*its.names[: len(args)], *options}:
            its.check_count(called, args, options)
        return function(*args, **options)

    if function.__code__.co_flags & inspect.CO_VARKEYWORDS:
        # `inspect.signature`, and so `help`, reads it; mypy does not know it of functions.
        checked.__signature__ = _unpacked(function)  # type: ignore[attr-defined]
    return typing.cast(F, checked)


def _unpacked(function: Callable[..., Any]) -> inspect.Signature:
    """A function's signature with the options that its last parameter unpacks."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    options = _unpacked_options(parameters[-1], function) if parameters else None
    if options is None:
        return signature
    last = parameters.pop()
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
    where, part, asked = _wrong_part(hint, value)
    what = f"its {where} is {_described(part, words)}" if where else f"is {_described(part, words)}"
    if where and part is value:  # a list of another length
        what = where
    return UserError(
        f"{function}: '{name}' has to be {words}, but {what}{_remedy(name, asked, part)}"
    )


def _wrong_part(hint: Any, value: Any) -> tuple[str, Any, Any]:
    """Where in a value what is wrong lies, that part, and what it has to be.

    Where is empty if the value as a whole is wrong. Of a list of another length than is asked for,
    it says the length.
    """
    for one in _members(hint):
        origin, args = typing.get_origin(one), typing.get_args(one)
        if origin is tuple and args[-1:] != (...,) and _is_list(value):
            if len(value) != len(args):
                return f"has {len(value)} element{'s' * (len(value) != 1)}", value, one
            pairs = [
                (f"element {i}", its, arg)
                for i, (its, arg) in enumerate(zip(value, args, strict=True))
            ]
        elif (origin in _LISTS or origin is tuple) and args and _is_list(value):
            pairs = [(f"element {i}", its, args[0]) for i, its in enumerate(value)]
        elif origin in (collections.abc.Mapping, dict) and isinstance(
            value, collections.abc.Mapping
        ):
            pairs = [(f"key {described(key)}", key, args[0]) for key in value]
            pairs += [(f"value of {described(key)}", its, args[1]) for key, its in value.items()]
        else:
            continue
        for where, its, asked in pairs:
            if not fits(its, asked):
                inner, part, wanted = _wrong_part(asked, its)
                if inner and part is not its:
                    return f"{where}'s {inner}", part, wanted
                return where, its, asked
    return "", value, hint


def _members(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)


def _described(value: Any, words: str) -> str:
    """A value, and of which library its type is, if what is asked for is called alike."""
    name = type(value).__name__
    if isinstance(value, type) or not re.search(rf"\b{re.escape(name)}\b", words):
        return described(value)
    return f"{described(value)} of {type(value).__module__.partition('.')[0]}"


def _remedy(name: str, hint: Any, value: Any) -> str:
    """What to write in place of a value of the wrong type, where that can be told."""
    members = _members(hint)
    for one in members:
        origin, args = typing.get_origin(one), typing.get_args(one)
        many = origin in _LISTS or (origin is tuple and args[-1:] == (...,))
        if many and args and not isinstance(value, str) and fits(value, args[0]):
            return f"; put it into a list: {name}=[...]"
        if many and isinstance(value, str) and str in _members(args[0]):
            return f"; put it into a list: {name}=[{described(value)}]"
        if isinstance(value, type) and isinstance(one, type) and issubclass(value, one):
            return f"; make one: {value.__name__}(...)"
        instead_of = getattr(one, "_instead_of", None)
        if instead_of is not None and (instead := instead_of(value)):
            return f"; {instead}"
    if int in members and isinstance(value, float) and value.is_integer() and abs(value) < _MOST:
        return f"; write {int(value)}"
    if bool in members and type(value) is int and value in (0, 1):
        return f"; write {bool(value)}"
    if isinstance(value, str) and {int, float} & {*members} and re.fullmatch(_NUMBER, value):
        return "; leave out the quotes" if float in members or value.isdigit() else ""
    return ""


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


@dataclass(frozen=True)
class _Parameters:
    """What a function can be called with.

    Parameters
    ----------
    names
        Of the arguments that can be given by position.
    hints
        What can be told of all types.
    known
        All that can be given by name, in order; None: any.
    required
        What has to be given.
    method
        Whether the first is the object.
    takes_any_number
        Whether there may be more by position.
    """

    names: tuple[str, ...]
    hints: Mapping[str, Any]
    known: Mapping[str, None] | None
    required: frozenset[str]
    method: bool
    takes_any_number: bool

    def check_count(self, called: str, args: Sequence[Any], options: Mapping[str, Any]) -> None:
        """Raise `CallError` if arguments are missing, or more than there can be."""
        given = {*self.names[: len(args)], *options}
        if missing := [name for name in self._listed() if name in self.required - given]:
            raise CallError(f"{called}() lacks {' and '.join(missing)}; {self._arguments()}")
        most = len(self.names) - self.method
        if len(args) > len(self.names) and not self.takes_any_number:
            others = [name for name in self._listed() if name not in self.names]
            more = f"; give {', '.join(others)} by name" if others else ""
            raise CallError(
                f"{called}() takes {most} argument{'s' * (most != 1)} by position at most, but got "
                f"{len(args) - self.method}{more}; {self._arguments()}"
            )

    def check_names(self, called: str, options: Mapping[str, Any]) -> None:
        """Raise `CallError` if there is no argument of such a name."""
        for name in options:
            if self.known is not None and name not in self.known:
                raise CallError(
                    f"{called}() got an unexpected keyword argument '{name}'"
                    f"{did_you_mean(name, self.known)}; {self._arguments()}"
                )

    def check_twice(self, called: str, count: int, options: Mapping[str, Any]) -> None:
        """Raise `CallError` if an argument is given by position and by name."""
        for name in self.names[:count]:
            if name in options:
                raise CallError(
                    f"{called}() got {name} twice, by position and by name; {self._arguments()}"
                )

    def _listed(self) -> Sequence[str]:
        return [*(self.known if self.known is not None else self.names[self.method :])]

    def _arguments(self) -> str:
        listed = self._listed()
        return f"its arguments are {', '.join(listed)}" if listed else "it has no arguments"


@functools.cache
def _parameters(function: Callable[..., Any]) -> _Parameters:
    """A function's parameters; with those that it unpacks."""
    names: list[str] = []
    hints: dict[str, Any] = {}
    unpacked = _unpacked(function).parameters.values()
    parameters = inspect.signature(function).parameters.values()
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = {its.name: None for its in unpacked if its.kind in by_name and its.name != "self"}
    for parameter in parameters:
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
    variable = {its.kind for its in unpacked}
    return _Parameters(
        tuple(names),
        hints,
        None if inspect.Parameter.VAR_KEYWORD in variable else known,
        frozenset(
            its.name
            for its in parameters
            if its.default is its.empty and its.kind in (its.POSITIONAL_ONLY, *by_name)
        ),
        names[:1] == ["self"],
        inspect.Parameter.VAR_POSITIONAL in variable,
    )


class _Public(dict[str, Any]):
    """The package's public names, which annotations may use without an import."""

    def __missing__(self, name: str) -> Any:
        import flexlegion

        if name not in flexlegion.__all__:
            raise KeyError(name)
        return getattr(flexlegion, name)


def said_as(words: str) -> Callable[[C], C]:
    """Have messages say `words` of a class in place of its name, which users do not know."""

    def register(cls: C) -> C:
        _WORDS[cls] = words
        return cls

    return register


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

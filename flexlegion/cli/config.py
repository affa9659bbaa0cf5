"""``--config`` and ``--save-config``: the options of commands in a TOML file, a table for each.

What a file says comes before the words of the command line, which win. So it goes through the
same parser, and means the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from flexlegion.base.errors import UserError
from flexlegion.base.quoting import printable
from flexlegion.base.suggestions import did_you_mean
from flexlegion.cli.outputs import output

_OWN = ("config", "save_config", "help")
_MOST_BYTES = 1 << 20


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """``--config`` and ``--save-config``, of a command and of each that it consists of."""
    commands = _commands_of(parser)
    for command in commands.values():
        add_config_options(command)
    if commands:
        return
    group = parser.add_argument_group("options in a file")
    group.add_argument(
        "--config",
        metavar="FILE",
        help="take options from a TOML file, but for those that are given here",
    )
    group.add_argument(
        "--save-config",
        metavar="FILE",
        type=output("configuration"),
        help="write all options that are in force there, for --config",
    )


def with_config(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> list[str]:
    """The arguments of a command line, with those of the file that ``--config`` names.

    Parameters
    ----------
    parser
        Of all of the command line.
    arguments
        Its words.

    Raises
    ------
    UserError
        If the file cannot be read, or does not have options of this command.
    """
    first = _First(add_help=False, allow_abbrev=False)
    first.add_argument("--config")
    path = first.parse_known_args(list(arguments))[0].config
    if path is None:
        return list(arguments)
    words, command = _command(parser, arguments)
    rest = list(arguments[len(words) :])
    table = _table(path, " ".join(words))
    return [*words, *_options(path, command, table, rest), *rest]


class _First(argparse.ArgumentParser):
    """Reads ``--config`` alone, ahead of all other options."""

    def error(self, message: str) -> NoReturn:
        """End with a sentence."""
        raise UserError(f"{message}; --config takes a file")


def save_config(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Write the options in force as the command's table of ``--save-config``'s file.

    Tables of other commands that the file has stay.

    Raises
    ------
    UserError
        If there is such a file that is not TOML, or it cannot be written.
    """
    import tomli_w

    from flexlegion.base.files import write_text

    path = args.save_config
    words, command = _command(parser, args.arguments)
    document = _document(path) if Path(path).is_file() else {}
    values = {
        _name(action): value
        for action in _options_of(command)
        if (value := getattr(args, action.dest)) not in (None, [])
    }
    document[" ".join(words)] = values
    write_text(path, tomli_w.dumps(document), "configuration")


def check_config(args: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Raise `UserError` if ``--config`` was abbreviated, and so has not been read."""
    asked = getattr(args, "config", None)
    written = any(word.partition("=")[0] == "--config" for word in arguments)
    if asked is not None and not written:
        raise UserError("--config has to be written in full")


def _commands_of(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _command(
    parser: argparse.ArgumentParser, arguments: Sequence[str]
) -> tuple[list[str], argparse.ArgumentParser]:
    """The words that name a command, ``machine measure``, and its parser."""
    words: list[str] = []
    while commands := _commands_of(parser):
        word = arguments[len(words)] if len(words) < len(arguments) else ""
        if word not in commands:
            break  # a mistake that the parser tells
        words.append(word)
        parser = commands[word]
    return words, parser


def _options_of(command: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in command._actions:
        if action.option_strings and action.dest not in _OWN:
            yield action


def _name(action: argparse.Action) -> str:
    """An option as a file has it: ``batch-size``."""
    return action.option_strings[0].removeprefix("--")


def _document(path: str) -> dict[str, Any]:
    """A TOML file of tables."""
    import tomllib

    from flexlegion.base.files import open_file, read_at_most

    try:
        with open_file(path) as file:
            content = read_at_most(file, _MOST_BYTES)
        if content is None:
            raise UserError(f"{printable(path)}: too large for a file of options")
        document = tomllib.loads(content.decode())
    except OSError as e:
        raise UserError(
            f"{printable(path)}: this file of options cannot be read ({e.strerror or e})"
        ) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as e:
        raise UserError(f"{printable(path)}: this is not TOML ({printable(str(e), 200)})") from None
    for name, table in document.items():
        if not isinstance(table, dict):
            raise UserError(
                f"{printable(path)}: '{printable(name, 60)}' stands outside of a command's table; "
                "options belong under the command's name, as in [train]"
            )
    return document


def _table(path: str, command: str) -> dict[str, Any]:
    """The options that a file has for a command."""
    document = _document(path)
    if command not in document:
        there = ", ".join(f"[{printable(name, 60)}]" for name in document) or "nothing"
        raise UserError(f"{printable(path)}: it has {there}, and no options of [{command}]")
    its: dict[str, Any] = document[command]
    return its


def _options(
    path: str, command: argparse.ArgumentParser, table: Mapping[str, Any], given: Sequence[str]
) -> Iterator[str]:
    """The words that say what a table does, without options that are given."""
    known = {_name(action): action for action in _options_of(command)}
    found = _given(command, given)
    for name, value in table.items():
        where = f"{printable(path)}: the option '{printable(name, 60)}'"
        if name not in known:
            raise UserError(f"{where} does not exist{did_you_mean(name, known)}")
        action = known[name]
        if not found.isdisjoint(action.option_strings):
            continue
        if action.nargs == 0:
            if not isinstance(value, bool):
                raise UserError(f"{where} is true or false, and not {_shown(value)}")
            yield from [action.option_strings[0]] * value
            continue
        several = isinstance(action, argparse._AppendAction)
        if isinstance(value, list) != several:
            kind = "a list of texts" if several else "one value"
            raise UserError(f"{where} takes {kind}, and not {_shown(value)}")
        for one in value if several else [value]:
            yield f"{action.option_strings[0]}={_text(action, one, where)}"


def _text(action: argparse.Action, value: Any, where: str) -> str:
    """A value as it stands on a command line."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UserError(f"{where} takes a text or a number, and not {_shown(value)}")
    kind: Any = action.type or str
    try:
        parsed = kind(str(value))
    except argparse.ArgumentTypeError as e:
        raise UserError(f"{where} {e}") from None
    except (TypeError, ValueError):
        what = {int: "a whole number", float: "a number"}.get(kind, "another value")
        raise UserError(f"{where} takes {what}, and not {_shown(value)}") from None
    if action.choices is not None and parsed not in action.choices:
        raise UserError(
            f"{where} is one of {', '.join(map(str, action.choices))}, and not {_shown(value)}"
        )
    return str(value)


def _given(command: argparse.ArgumentParser, words: Sequence[str]) -> set[str]:
    """The options among the words of a command line, by their full names."""
    known = [option for action in _options_of(command) for option in action.option_strings]
    found: set[str] = set()
    for word in (word.partition("=")[0] for word in words if word.startswith("--")):
        # An abbreviation is of one option alone, or the parser refuses it.
        found.update([word] if word in known else [o for o in known if o.startswith(word)])
    return found


def _shown(value: Any) -> str:
    return printable(repr(value), 60)

"""Options in a file: each option of each command is written and read back; mistakes are named."""

from __future__ import annotations

import argparse
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from commands import Capture, error_of, json_of, text_of
from options import BASES, ROWS, Given, words_of
from options_of_training import RUNS

from flexlegion.base.errors import UserError
from flexlegion.cli.command import parser_of
from flexlegion.cli.config import save_config, with_config
from flexlegion.cli.main import MODULES
from flexlegion.cli.outputs import Output

OF_ROWS = [(command, row.given) for command in ROWS for row in ROWS[command].values()]
CASES = [(command, dict(BASES[command]) | dict(given)) for command, given in OF_ROWS]
CASES += [(run.command, dict(run.given)) for run in RUNS.values()]


def parsed(words: list[str]) -> argparse.Namespace:
    parser = parser_of(MODULES, words[0])
    return parser.parse_args(with_config(parser, words))


def values(args: argparse.Namespace) -> dict[str, Any]:
    others = ("config", "save_config", "arguments", "run")
    return {name: value for name, value in vars(args).items() if name not in others}


def read_back(command: str, given: Given, folder: Path) -> bool:
    """Whether a command's options were written and mean the same; not, if they are a mistake."""
    words, file = words_of(command, given, folder), folder / "c.toml"
    try:
        args = parsed([*words, "--save-config", str(file)])
    except UserError:
        return False
    args.arguments = words
    save_config(parser_of(MODULES, words[0]), args)
    positional = words_of(command, {"": given[""]} if given.get("") else {}, folder)
    again = parsed([*positional, "--config", str(file)])
    assert values(again) == values(args)
    assert all(
        isinstance(its, Output) == isinstance(values(again)[name], Output)
        for name, its in values(args).items()
    )
    return True


def test_every_option_is_read_back(tmp_path: Path) -> None:
    done = {command for command, given in CASES if read_back(command, given, tmp_path)}
    assert done == {command for command, _ in CASES}
    # Tables of other commands stay.
    assert tomllib.loads((tmp_path / "c.toml").read_text()).keys() == done


def test_what_is_given_wins(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        '[train]\nmodel = "mlp"\nsize = ["hidden=4", "classes=7"]\nlr = 1\nvalidate = true\n'
    )
    read = ["train", f"--config={file}"]
    args = parsed(read)
    assert (args.model, args.size, args.lr, args.validate) == (
        "mlp",
        ["hidden=4", "classes=7"],
        1.0,
        True,
    )
    args = parsed(["train", "--size", "hidden=5", "--mod", "lenet", "--config", str(file)])
    assert (args.model, args.size, args.lr) == ("lenet", ["hidden=5"], 1.0)
    # The name of one option begins that of another.
    file.write_text("[train]\nschedule = 'step'\ndecay = 0.5\ndecay-after = 3\n")
    args = parsed(["train", "--decay", "0.1", "--config", str(file)])
    assert (args.schedule, args.decay, args.decay_after) == ("step", 0.1, 3)


def test_a_command(tmp_path: Path, capsys: Capture) -> None:
    """It does the same by the file, and says the same."""
    file = tmp_path / "c.toml"
    words = ["--model", "mlp", "--machine", "p100x2", "--strategy", "model", "--optimizer", "adam"]
    first = json_of(capsys, "simulate", *words, "--save-config", str(file))
    assert json_of(capsys, "simulate", "--config", str(file)) == first
    other = json_of(capsys, "simulate", "--config", str(file), "--strategy", "single")
    assert other["iteration_time_ns"] != first["iteration_time_ns"]
    out, _ = text_of(capsys, "machine", "list", "--save-config", str(file))
    assert "p100" in out
    assert {"simulate", "machine list"} == tomllib.loads(file.read_text()).keys()
    assert json.dumps(first)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[train", "c.toml: this is not TOML ("),
        ("model = 'mlp'", "c.toml: 'model' stands outside of a command's table; options belong un"),
        ("[search]", "c.toml: it has [search], and no options of [train]"),
        ("", "c.toml: it has nothing, and no options of [train]"),
        ("[train]\nepoch = 1", "the option 'epoch' does not exist (did you mean 'epochs'?)"),
        ("[train]\nbatch_size = 1", "the option 'batch_size' does not exist (did you mean 'batch-"),
        ("[train]\nconfig = 'x'", "the option 'config' does not exist"),
        ("[train]\nepochs = 'x'", "the option 'epochs' takes a whole number, and not 'x'"),
        ("[train]\nepochs = 1.5", "the option 'epochs' takes a whole number, and not 1.5"),
        ("[train]\nepochs = true", "the option 'epochs' takes a text or a number, and not True"),
        ("[train]\nepochs = [1]", "the option 'epochs' takes one value, and not [1]"),
        ("[train]\nlr = 'high'", "the option 'lr' takes a number, and not 'high'"),
        ("[train]\nsize = 'a=1'", "the option 'size' takes a list of texts, and not 'a=1'"),
        ("[train]\nvalidate = 1", "the option 'validate' is true or false, and not 1"),
        ("[train]\nbatch-size = 0", "the option 'batch-size' has to be a whole number from 1 to"),
        ("[train]\nmodel = 1979-05-27", "the option 'model' takes a text or a number, and not"),
        ("[train]\nranks = 2\nhosts = 'x'", "not allowed with argument"),
    ],
)  # fmt: skip
def test_mistakes(tmp_path: Path, capsys: Capture, text: str, sentence: str) -> None:
    (tmp_path / "c.toml").write_text(text)
    assert sentence in error_of(capsys, "train", "--config", str(tmp_path / "c.toml"))


def test_files(tmp_path: Path, capsys: Capture) -> None:
    file = str(tmp_path / "c.toml")
    assert f"{file}: this file of options cannot be read (No such file" in error_of(
        capsys, "models", "--config", file
    )
    assert "expected one argument; --config takes a file" in error_of(capsys, "models", "--config")
    text_of(capsys, "models", "--save-config", file)
    assert "--config has to be written in full" in error_of(capsys, "models", "--conf", file)
    same = error_of(capsys, "models", "--config", file, "--save-config", file)
    assert "--config and --save-config are the same file" in same
    (tmp_path / "c.toml").write_text("no table")
    assert f"{file}: this is not TOML" in error_of(capsys, "models", "--save-config", file)
    choice = tmp_path / "d.toml"
    choice.write_text("[evaluate]\npart = 'some'")
    said = error_of(capsys, "evaluate", "--config", str(choice))
    assert "the option 'part' is one of test, train, all, and not 'some'" in said

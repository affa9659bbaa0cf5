"""Files that commands write: what cannot be, or would be lost, is refused before any work."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flexlegion as fl
from flexlegion.base.files import check_writable, write_text
from flexlegion.cli.command import parser_of
from flexlegion.cli.main import MODULES, main
from flexlegion.cli.outputs import Output, check_outputs, output
from flexlegion.training.callbacks import BestWeights


def options(parser: argparse.ArgumentParser, command: str = "") -> Any:
    """Every option of every command, with the command's words."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, its in action.choices.items():
                yield from options(its, f"{command} {name}".strip())
        elif action.option_strings:
            yield command, action


def written(action: argparse.Action) -> bool:
    return isinstance(action.type, type(output(""))) and action.type.__qualname__.startswith(
        "output."
    )


PARSER = parser_of(MODULES)


def test_every_option_that_names_a_file_to_write_is_known_as_one() -> None:
    known = {(command, action.dest) for command, action in options(PARSER) if written(action)}
    for command, action in options(PARSER):
        text = str(action.help)
        if action.metavar == "FILE" and "write" in text and "wrote" not in text:
            assert (command, action.dest) in known, (command, action.dest)
    assert len(known) > 15


@pytest.mark.parametrize(
    "arguments",
    [
        ["search", "--model", "lenet", "--machine", "p100x2", "--budget", "1h", "--out"],
        ["train", "--epochs", "1000", "--save-weights"],
        ["train", "--epochs", "1000", "--json"],
        ["simulate", "--model", "lenet", "--machine", "p100x2", "--trace"],
        ["report", "data", "--model", "lenet", "--machine", "p100x2", "--svg"],
        ["machine", "measure", "--cpus", "1", "--out"],
    ],
)
@pytest.mark.parametrize("path", ["", "folder/", "folder", "none/file"])
def test_paths_that_name_no_file(
    arguments: list[str], path: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    assert main([*arguments, path]) == 2
    error = capsys.readouterr().err
    assert "the name of the file is empty" in error if not path else "cannot be written" in error
    assert sorted(os.listdir()) == ["folder"]
    assert not os.listdir("folder")


def parsed(*arguments: str) -> argparse.Namespace:
    return PARSER.parse_args(list(arguments))


TRAIN = ("train", "--model", "lenet")


def test_two_outputs_are_two_files(tmp_path: Path, monkeypatch: Any) -> None:
    """Whatever they are called, and whatever links lead there."""
    monkeypatch.chdir(tmp_path)
    Path("a").write_text("")
    os.symlink("a", "soft")
    os.link("a", "hard")
    os.symlink("new", "ahead")
    (tmp_path / "sub").mkdir()
    os.symlink(".", "folder")
    for first, second in (
        ("a", "a"),
        ("a", "./a"),
        ("a", str(tmp_path / "a")),
        ("a", "sub/../a"),
        ("a", "soft"),
        ("hard", "soft"),
        ("new", "new"),
        ("new", "ahead"),
        ("new", "folder/new"),
    ):
        args = parsed(*TRAIN, "--json", first, "--save-weights", second)
        with pytest.raises(fl.UserError, match="--json and --save-weights are the same file"):
            check_outputs(args)
    check_outputs(parsed(*TRAIN, "--json", "a", "--save-weights", "b", "--log", "c"))
    check_outputs(parsed(*TRAIN, "--json", "/dev/null", "--save-weights", "/dev/null"))
    assert Path("a").read_text() == ""


def test_no_output_is_an_input(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("s.json", "net.py", "w.npz", "x.npy", "m.json"):
        Path(name).write_text("kept")
    os.symlink("s.json", "link.json")
    search = ("search", "--model", "net.py:model", "--machine", "m.json", "--start", "data,s.json")
    for arguments, options_ in (
        ((*TRAIN, "--strategy", "s.json", "--json", "link.json"), "--strategy and --json"),
        ((*TRAIN, "--weights", "w.npz", "--save-weights", "w.npz"), "--weights and --save-weights"),
        ((*TRAIN, "--data", "x.npy", "--labels", "w.npz", "--log", "w.npz"), "--labels and --log"),
        ((*search, "--out", "s.json"), "--start and --out"),
        ((*search, "--out", "net.py"), "--model and --out"),
        ((*search, "--out", "m.json"), "--machine and --out"),
        (("export", "s.json", "--to", "jax", "--out", "s.json"), "--strategy and --out"),
    ):
        with pytest.raises(fl.UserError, match=f"{options_} are the same file"):
            check_outputs(parsed(*arguments))
    # Names are no files, though files may be called so.
    Path("lenet").write_text("")
    check_outputs(parsed("search", "--model", "lenet", "--machine", "p100x2", "--out", "lenet"))
    assert {path.read_text() for path in tmp_path.glob("*.*")} == {"kept"}


def test_a_command_says_it_and_leaves_the_file(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "both"
    path.write_text("kept")
    assert main([*TRAIN, "--save-weights", str(path), "--json", str(path)]) == 2
    assert "are the same file" in capsys.readouterr().err
    assert path.read_text() == "kept"


@pytest.mark.parametrize("path", ["", "\0", "a\0b", "folder/", "."])
def test_functions_refuse_the_same_names(path: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for write in (
        lambda: check_writable(path, "text"),
        lambda: write_text(path, "a", "text"),
    ):
        with pytest.raises(fl.UserError, match="cannot be written"):
            write()
    assert not os.listdir()


def test_outputs_keep_their_text() -> None:
    args = parsed("search", "--model", "a", "--machine", "b", "--out", "s.json")
    assert isinstance(args.out, Output)
    assert args.out == "s.json"
    assert json.dumps(args.out) == '"s.json"'
    assert np.array(args.out).dtype.kind == "U"
    assert BestWeights(args.out).path == Path("s.json")

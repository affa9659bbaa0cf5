"""Blocks that no test runs: their commands and options exist, and so does what their Python names.

Blocks that are run need no more installed than their page says.
"""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import PAGES, ROOT, Block, blocks

import flexlegion
from flexlegion.base.errors import UserError
from flexlegion.cli.command import parser_of
from flexlegion.cli.config import with_config
from flexlegion.cli.main import MODULES

ALL = [*PAGES, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*/*.md"))]
BLOCKS = [block for page in ALL for block in blocks(page)]
# What stands for something of the reader's.
PLACEHOLDER = re.compile(r"\.\.\.|[<>]|\$\{?[A-Z]")


def commands(block: Block) -> Iterator[list[str]]:
    """The words of each call of ``flexlegion`` in a block of a shell."""
    for line in block.text.replace("\\\n", " ").splitlines():
        for part in re.split(r"\s(?:&&|\|\|?|;|&)\s?", line.partition(" # ")[0]):
            if "flexlegion " not in part or PLACEHOLDER.search(part):
                continue
            words = shlex.split(part)
            if "flexlegion" in words:
                yield words[words.index("flexlegion") + 1 :]


@pytest.mark.parametrize(
    "block", [b for b in BLOCKS if b.kind == "sh" and not b.runs], ids=lambda block: block.where
)
def test_commands_exist(block: Block) -> None:
    for words in commands(block):
        if not words or words[0].startswith("-"):
            continue
        try:
            parser_of(MODULES, words[0]).parse_args(words)
        except UserError as error:
            pytest.fail(f"{block.where}: flexlegion {' '.join(words)}: {error}")
    for path in re.findall(r"(?<![\w/.])(?:scripts|tests)/[\w/.]+\.(?:sh|py)\b", block.text):
        assert (ROOT / path).is_file(), f"{block.where}: {path}"


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.kind == "toml"], ids=lambda b: b.where)
def test_options_in_files_exist(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "options.toml"
    file.write_text(block.text)
    for name in tomllib.loads(block.text):
        parser = parser_of(MODULES, name.split()[0])
        with_config(parser, [*name.split(), "--config", str(file)])  # refuses what is unknown


@pytest.mark.parametrize(
    "block", [b for b in BLOCKS if b.kind == "python" and not b.runs], ids=lambda block: block.where
)
def test_names_exist(block: Block) -> None:
    for node in ast.walk(ast.parse(textwrap.dedent(block.text))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flexlegion"):
            module = importlib.import_module(node.module or "")
            for name in node.names:
                assert hasattr(module, name.name), f"{block.where}: {name.name}"
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "fl":
            assert hasattr(flexlegion, node.attr), f"{block.where}: fl.{node.attr}"


# What comes with flexlegion: its own dependencies, by the names that are imported.
INSTALLED = {"flexlegion", "numpy", "PIL", "legate", "cupynumeric", "h5py", "safetensors", "jinja2"}


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.stem)
def test_what_is_imported_is_installed_or_said(page: Path) -> None:
    files = {Path(b.marked("file:") or "").stem for b in BLOCKS}
    text = page.read_text()
    for block in blocks(page):
        if block.kind != "python":
            continue
        for name in imported(block) - sys.stdlib_module_names - INSTALLED - files:
            said = re.search(rf"pip install [^`\n]*\b{name}\b|\b{name}\.py\b", text)
            assert said or name in brought(text), (
                f"{block.where}: {page.name} does not say that {name} has to be there"
            )


def brought(text: str) -> set[str]:
    """The packages of the extras that a page's text names."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    named = {word for line in re.findall(r"setup\.sh run (.*)", text) for word in line.split()}
    named |= {
        w for line in re.findall(r"\[extras?\]\S+ (.*)", text) for w in re.findall(r"`(\w+)`", line)
    }
    packages = [package for name in named & set(extras) for package in extras[name]]
    return {re.split(r"[<>=]", package)[0] for package in packages}


def imported(block: Block) -> set[str]:
    """The packages that a block's Python imports."""
    names = set()
    for node in ast.walk(ast.parse(textwrap.dedent(block.text))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names

"""Every command and line of code of README and docs/ runs as it stands, or says why it does not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from launch import ROOT, legate_environment, run_checked
from pages import MARKS, PAGES, RUN, SHOWN, Block, blocks, follow

LONGEST_README = 200  # lines
ON_LEGION = ("train", "tune", "evaluate", "predict", "accuracy", "machine measure", "legate ")


def on_legion(page: Path) -> bool:
    """Whether something of the page starts Legion."""
    return any(
        block.marked("legate") is not None
        or any(word in line for line in block.commands() for word in ON_LEGION)
        for block in blocks(page)
        if block.runs
    )


def with_runs(page: Path) -> bool:
    """Whether anything of it is run."""
    return any(block.runs for block in blocks(page))


RUNS = [
    pytest.param(page, id=page.stem, marks=[pytest.mark.legion] if on_legion(page) else [])
    for page in PAGES
    if with_runs(page)
]


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= LONGEST_README


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_block_is_run_or_says_why_not(page: Path) -> None:
    for block in blocks(page):
        assert not block.mark or block.mark.startswith(MARKS), f"{block.where}: {block.mark}"
        accounted = block.kind in RUN | SHOWN or block.mark
        tested = block.marked("run by:")
        assert tested is None or (ROOT / tested).is_file(), f"{block.where}: {tested}"
        assert accounted, f"{block.where}: neither run, nor marked as not run"


def test_files_of_the_pages_are_the_examples() -> None:
    examples = ROOT / "scripts" / "examples"
    named = {block.marked("file:"): block for page in PAGES for block in blocks(page)}
    for name in ("my_net.py", "torch_net.py"):
        assert named[name].text == (examples / name).read_text()


class Here:
    """A reader with this environment, in a folder of the page's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # The variable LEGATE_CONFIG is the tests', not a reader's.
        environment = {k: v for k, v in legate_environment().items() if k != "LEGATE_CONFIG"}
        environment |= {"FLEXLEGION_PROFILE_DB": str(folder / "profile.db"), "ROOT": str(ROOT)}
        found = [str(ROOT / "tests" / "support" / "vision"), environment["PYTHONPATH"]]
        self.environment = environment | {"PYTHONPATH": os.pathsep.join(found)}

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def shell(self, block: Block, line: str) -> str:
        there = ["bash", "-c", f"cd {self.folder} && {line}"]
        try:
            return run_checked(there, environment=self.environment, timeout=400).stdout
        except AssertionError as error:
            raise AssertionError(f"{block.where}\n{error}") from None

    def wrong(self, message: str) -> None:
        pytest.fail(message)


@pytest.mark.parametrize("page", RUNS)
def test_runs(page: Path, tmp_path: Path) -> None:
    follow(page, Here(tmp_path))

"""Every section of docs/gallery.md runs, in a folder of its own, and prints what it shows."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from launch import ROOT, run_checked
from pages import Block, blocks

PAGE = ROOT / "docs" / "gallery.md"
HERE = "tests/docs/test_gallery.py"


def sections() -> dict[str, list[Block]]:
    """The blocks that are run here, and what they print, by the heading above them."""
    lines = PAGE.read_text().splitlines()
    headings = [(n, line[3:]) for n, line in enumerate(lines, 1) if line.startswith("## ")]
    found: dict[str, list[Block]] = {}
    for block in blocks(PAGE):
        if block.marked("run by:") == HERE or block.mark == "output":
            name = [title for n, title in headings if n < block.line][-1]
            found.setdefault(name, []).append(block)
    return found


SECTIONS = sections()


def test_every_example_is_in_the_gallery_or_on_another_page() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    for example in (ROOT / "scripts" / "examples").iterdir():
        if example.is_file():
            assert re.search(rf"\b{re.escape(example.name)}", pages), example.name


@pytest.mark.parametrize("name", SECTIONS)
def test_runs(name: str, tmp_path: Path) -> None:
    environment = dict(os.environ) | {"ROOT": str(ROOT)}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    printed = ""
    for block in SECTIONS[name]:
        if block.mark == "output":
            at = 0
            for line in block.text.splitlines():
                at = printed.find(line + "\n", at)
                assert at >= 0, f"{block.where}: not printed: {line}\n{printed}"
            continue
        printed = ""
        for line in block.commands():
            command = ["bash", "-c", f"cd {tmp_path} && {line}"]
            printed += run_checked(command, environment=environment, timeout=400).stdout

"""Pages as sequences of blocks: what of README and docs/ is run, and how.

An HTML comment directly before a block, which readers do not see, says what is done with it:

``<!-- not run: REASON -->``
    It is not run, for this reason.
``<!-- run by: PATH -->``
    That test or script runs it.
``<!-- file: NAME -->``
    The reader is told to save it under that name.
``<!-- run with: OLD -> NEW; ... -->``
    It is run with these replacements, as a shorter search.
``<!-- output -->``
    Its lines are among those that the commands before it print, in this order.
``<!-- legate -->``, ``<!-- legate, after: CODE -->``
    The page's Python is run by the legate command; before this block comes that code.

Without one, lines of ``sh`` are run in a folder of the page's own, all ``python`` blocks of a page
are one script, which is run in the end, and ``text`` and C++ are not run.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>(?:(?!-->).)*?)\s*-->\n+)?^```(?P<kind>[\w{}-]*)[^\n]*\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
MARKS = ("not run: ", "run by: ", "file: ", "run with: ", "output", "legate")
RUN = {"sh", "python"}
SHOWN = {"text", "cpp", "{image}", "{toctree}"}


@dataclass(frozen=True)
class Block:
    """A fenced block with the comment before it."""

    page: str
    line: int
    kind: str
    text: str
    mark: str

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.page}:{self.line}"

    def marked(self, name: str) -> str | None:
        """What follows this word in the comment, if it is there."""
        return self.mark[len(name) :].strip() if self.mark.startswith(name) else None

    @property
    def runs(self) -> bool:
        """Whether it is run with its page."""
        return self.kind in RUN and not self.mark.startswith(("not run: ", "run by: "))

    def commands(self) -> list[str]:
        """Lines of a shell, as they are run."""
        text = self.text.replace("\\\n", "")
        for change in filter(None, (self.marked("run with:") or "").split(";")):
            old, new = (part.strip() for part in change.split(" -> "))
            assert old in text, f"{self.where}: there is no '{old}'"
            text = text.replace(old, new)
        return [line for line in text.splitlines() if line.strip() and line[0] != "#"]


def blocks(page: Path) -> list[Block]:
    """All blocks of a page, in order."""
    text = page.read_text()
    found = []
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("kind")) + 1
        found.append(
            Block(page.name, line, match["kind"], match["text"], (match["mark"] or "").strip())
        )
    return found


class Reader(Protocol):
    """Somebody who does what a page says."""

    def write(self, name: str, text: str) -> None:
        """Save a file."""

    def shell(self, block: Block, line: str) -> str:
        """Type a line; what it prints."""

    def wrong(self, message: str) -> None:
        """Be told something that is not so."""


def follow(page: Path, reader: Reader, also: Collection[str] = ()) -> None:
    """Do what a page says, block by block; `also` what these tests run of it."""
    printed, script, command, last = "", "", "python script.py", None
    for block in blocks(page):
        name = block.marked("file:")
        if name is not None:
            reader.write(name, block.text)
        elif block.mark == "output":
            expect(block, printed, reader)
        elif not (block.runs or block.marked("run by:") in also):
            continue
        elif block.kind == "sh":
            printed = "".join(reader.shell(block, line) for line in block.commands())
        elif block.kind == "python":
            if block.marked("legate") is not None:
                command = "legate --cpus 2 --gpus 0 script.py"
            script += (block.marked("legate, after:") or "") + "\n"
            script += block.text
            last = block
    if last is not None:
        reader.write("script.py", script)
        reader.shell(last, command)


def expect(block: Block, printed: str, reader: Reader) -> None:
    """Whether the lines of the block are printed, in this order."""
    at = 0
    for line in block.text.splitlines():
        at = printed.find(line + "\n", at)
        if at < 0:
            reader.wrong(f"{block.where}: not printed, or not there: {line}\n{printed}")
            return

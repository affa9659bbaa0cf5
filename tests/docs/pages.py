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
from dataclasses import dataclass
from pathlib import Path

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

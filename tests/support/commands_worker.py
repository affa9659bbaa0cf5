"""Runs many commands on Legion, which starts once; `commands_on_legion` starts it.

Of several ranks, each keeps what it printed in a folder of its own.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from flexlegion.cli.main import main
from flexlegion.process.together import rank


def run(words: list[str], folder: Path) -> dict[str, object]:
    """One command: its status, and what it printed, by libraries as well."""
    kept = [os.dup(1), os.dup(2)]
    names = [folder / "out", folder / "err"]
    for number, name in enumerate(names, 1):
        with name.open("w") as file:
            os.dup2(file.fileno(), number)
    try:
        status = main(words)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, file in enumerate(kept, 1):
            os.dup2(file, number)
            os.close(file)
    out, err = (name.read_text() for name in names)
    return {"words": words, "status": status, "out": out, "err": err}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    commands = json.loads((folder / "commands.json").read_text())
    mine = folder / f"rank-{rank()}"
    mine.mkdir(exist_ok=True)
    done = [run(words, mine) for words in commands]
    (mine / "done.json").write_text(json.dumps(done))

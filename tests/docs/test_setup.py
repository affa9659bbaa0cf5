"""What scripts/setup.sh is asked for is known, and what pages say of its extras."""

from __future__ import annotations

import re
import subprocess
import tomllib

from pages import ROOT

with (ROOT / "pyproject.toml").open("rb") as file:
    EXTRAS = tomllib.load(file)["project"]["optional-dependencies"]


def test_an_unknown_extra_is_named_before_anything_is_done() -> None:
    """Together with those that there are, which the script reads from the file's lines."""
    command = ["bash", str(ROOT / "scripts" / "setup.sh"), "run", "torch", "jaxx"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert not done.stdout
    known = ", ".join(EXTRAS)
    assert done.stderr == f"setup: there is no extra 'jaxx'; the extras are {known}.\n"


def test_the_pages_table_has_all_extras() -> None:
    text = (ROOT / "docs" / "start.md").read_text()
    table = text[text.index("## Extras") : text.index("## Install without")]
    named = {
        w for row in re.findall(r"^\| (`.*?) \|", table, re.M) for w in re.findall(r"`(\w+)`", row)
    }
    assert named == set(EXTRAS) - {"dev"}

"""The patch that docs/adding-a-pass.md explains fits the repository, compiles, and is small."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATCH = ROOT / "docs" / "examples" / "adding-a-pass.patch"
MOST_FILES, MOST_LINES = 10, 150


def test_the_patch_applies(tmp_path: Path) -> None:
    """Git checks it against a copy of what it changes, which need not be a repository."""
    text = PATCH.read_text()
    for name in re.findall(r"^--- a/(.*)$", text, re.MULTILINE):
        copy = tmp_path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((ROOT / name).read_bytes())
    command = ["git", "apply", "--check", "--verbose", str(PATCH)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_patch_is_small() -> None:
    lines = PATCH.read_text().splitlines()
    changed = [x for x in lines if x[:1] in ("+", "-") and not x.startswith(("+++", "---"))]
    assert sum(x.startswith("diff --git") for x in lines) <= MOST_FILES
    assert len(changed) <= MOST_LINES


def test_what_the_patch_makes_compiles(tmp_path: Path) -> None:
    """The tables of the plan: names that a hunk uses are there, and each table has as many rows.

    Git finds a patch to fit whose names another change has taken away.
    """
    shutil.copytree(ROOT / "native", tmp_path / "native")
    native = ["git", "apply", "--include=native/*", str(PATCH)]
    subprocess.run(native, cwd=tmp_path, check=True)
    for name in ("passes", "places", "schedule"):
        command = ["g++", "-std=c++17", "-fsyntax-only", "-Inative", "-Inative/include"]
        done = subprocess.run(
            [*command, f"native/plan/{name}.cc"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

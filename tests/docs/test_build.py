"""The pages build without a warning, which links inside of them would be, too."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import flexlegion

ROOT = Path(__file__).resolve().parents[2]


def test_pages_build(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-j", "auto"]
    built = subprocess.run(
        [*command, "-d", tmp_path / "doctrees", ROOT / "docs", tmp_path / "html"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not built.returncode, built.stderr
    assert (tmp_path / "html" / "api" / "flexlegion.Model.html").is_file()


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_of_pages_outside(name: str) -> None:
    """Those that sphinx does not build: files that they link to exist, and have that heading."""
    for target in re.findall(r"\]\((?!https?://)([^)\s]+)\)", (ROOT / name).read_text()):
        file, _, heading = target.partition("#")
        path = ROOT / (file or name)
        assert path.is_file(), f"{name}: {target}"
        headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE) if heading else []
        slugs = {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings}
        assert not heading or heading in slugs, f"{name}: {target}"


def test_picture_is_what_its_script_draws() -> None:
    drawn = subprocess.run(
        [sys.executable, "-c", "import overview; print(overview.picture(), end='')"],
        cwd=ROOT / "docs",
        capture_output=True,
        text=True,
        check=True,
    )
    assert drawn.stdout == (ROOT / "docs" / "overview.svg").read_text()


def test_everything_public_is_described() -> None:
    page = (ROOT / "docs" / "api.rst").read_text().split()
    assert set(flexlegion.__all__) <= set(page)

"""Builds the image of scripts/Dockerfile where no registry of images is reached; trains in it.

    python tests/long/image.py [--folder FOLDER]

A Debian system with nothing installed (tests/support/bare_system.py; as root, with debootstrap)
becomes the base, by buildah, which needs no daemon (apt-get install debootstrap buildah). Then
tests/docs/test_image.py does what it does with Debian's own image. FOLDER keeps the system, as of
tests/long/new_users.py. Ten minutes, and 15 GB while it runs. Exits with 2 where it cannot be done.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import bare_system

ROOT = Path(__file__).resolve().parents[2]
BASE = "localhost/flexlegion-test-base"


def buildah(*words: object) -> str:
    """What buildah prints."""
    done = subprocess.run(
        ["buildah", *map(str, words)], check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout.strip()


def main() -> int:
    """Make the base, run the test, remove the base."""
    arguments = argparse.ArgumentParser(description="Builds the image on a base of its own.")
    arguments.add_argument("--folder", type=Path)
    given = arguments.parse_args()
    reason = bare_system.why_not()
    if not reason and shutil.which("buildah") is None:
        reason = "there is no buildah"
    if reason:
        print(f"image.py: {reason}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        base = (given.folder or Path(temporary)) / "base"
        base.parent.mkdir(parents=True, exist_ok=True)
        bare_system.make(base)
        container = buildah("from", "scratch")
        buildah("add", "-q", container, base, "/")
        buildah("commit", "-q", "--rm", container, BASE)
        os.environ["FLEXLEGION_IMAGE_BASE"] = BASE
        os.environ["FLEXLEGION_IMAGE_FOLDERS"] = " ".join(map(str, bare_system.package_folders()))
        test = [sys.executable, "-m", "pytest", "-rs", "tests/docs/test_image.py"]
        try:
            return subprocess.run(test, cwd=ROOT, check=False).returncode
        finally:
            buildah("rmi", "-f", BASE)


if __name__ == "__main__":
    sys.exit(main())

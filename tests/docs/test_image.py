"""The image of scripts/Dockerfile is built, and trains, where Docker, podman or buildah can be had.

Where Debian's image cannot be fetched, FLEXLEGION_IMAGE_BASE names one that is there, and
FLEXLEGION_IMAGE_FOLDERS folders of this machine that the build may read; tests/long/image.py makes
such a base, and runs this.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from pages import ROOT

IMAGE = "localhost/flexlegion-test"
BASE = os.environ.get("FLEXLEGION_IMAGE_BASE", "docker.io/library/debian:12")
FOLDERS = os.environ.get("FLEXLEGION_IMAGE_FOLDERS", "").split()


def says(*command: object) -> str | None:
    """What is wrong with a command; None if nothing is."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    return (done.stderr.strip() or "it fails").splitlines()[-1]


def builder() -> str:
    """The command that builds images here, and has the base; else, the test is skipped."""
    why = []
    for name in ("docker", "podman", "buildah"):
        if shutil.which(name) is None:
            why.append(f"there is no {name}")
        elif wrong := says(name, "info"):
            why.append(f"{name} does not work: {wrong}")
        elif says(name, "inspect", BASE) and (wrong := says(name, "pull", BASE)):
            why.append(f"{name} cannot fetch {BASE}: {wrong}")
        else:
            return name
    pytest.skip("; ".join(why))


def run(*command: object) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def build(program: str, folder: Path) -> None:
    """The image, of what `folder` has."""
    options = ["--build-arg", f"BASE={BASE}", "-t", IMAGE, "-f", str(ROOT / "scripts/Dockerfile")]
    if program == "buildah":  # without a daemon, also inside of a container
        options += ["--isolation", "chroot", "--network", "host", "--pull-never"]
    for mounted in FOLDERS:
        options += ["-v", f"{mounted}:{mounted}:ro"]
    run(program, "build", *options, folder)


def inside(program: str, folder: Path, words: Sequence[object]) -> str:
    """What `flexlegion WORDS...` prints in a container of the image."""
    if program != "buildah":
        return run(program, "run", "--rm", "-v", f"{folder}:/work", IMAGE, *words)
    # buildah runs commands in a container that is there, without the image's entry point.
    container = run(program, "from", "--pull-never", IMAGE).strip()
    here = ["run", "--isolation", "chroot", "-v", f"{folder}:/work", container, "--", "flexlegion"]
    try:
        return run(program, *here, *words)
    finally:
        run(program, "rm", container)


def test_image_searches_and_trains(tmp_path: Path) -> None:
    program = builder()
    run(ROOT / "scripts" / "wheel.sh", "--unchecked", tmp_path / "dist")
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "image.sh", tmp_path / "scripts")
    build(program, tmp_path)
    try:
        assert inside(program, tmp_path, ["--version"]).startswith("flexlegion ")
        of = ["search", "--model", "lenet", "--machine", "p100x4", "--budget", "1s"]
        inside(program, tmp_path, [*of, "--out", "lenet.json"])
        assert (tmp_path / "lenet.json").is_file()
        of = ["train", "--model", "lenet", "--cpus", 1, "--epochs", 1]
        assert "epoch 1" in inside(program, tmp_path, of)
    finally:
        run(program, "rmi", "-f", IMAGE)


@pytest.mark.parametrize("name", ["Dockerfile", "flexlegion.def"])
def test_images_are_made_by_one_script(name: str) -> None:
    """What is installed is said once, and what is copied is there."""
    text = (ROOT / "scripts" / name).read_text()
    steps = [line for line in text.splitlines() if not line.startswith("#")]
    assert sum("bash /opt/image.sh /opt/dist" in line for line in steps) == 1
    assert not any("apt-get" in line or "pip install" in line for line in steps)
    assert (ROOT / "scripts" / "image.sh").is_file()

"""The image of scripts/Dockerfile is built and run, where Docker or podman can be had."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from pages import ROOT

IMAGE = "flexlegion-test"


def builder() -> str:
    """The command that builds and runs images here; the test is skipped where there is none."""
    why = []
    for name in ("docker", "podman"):
        if shutil.which(name) is None:
            why.append(f"there is no {name}")
            continue
        asked = subprocess.run([name, "info"], capture_output=True, text=True, check=False)
        if asked.returncode == 0:
            return name
        why.append(f"{name} does not work: {(asked.stderr.strip() or 'it fails').splitlines()[-1]}")
    pytest.skip("; ".join(why))


def test_image_searches_and_trains(tmp_path: Path) -> None:
    docker = builder()

    def run(*command: object) -> str:
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    run(ROOT / "scripts" / "wheel.sh", "--unchecked", tmp_path / "dist")
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "image.sh", tmp_path / "scripts")
    run(docker, "build", "-t", IMAGE, "-f", ROOT / "scripts" / "Dockerfile", tmp_path)
    here = [docker, "run", "--rm", "-v", f"{tmp_path}:/work", IMAGE]
    try:
        of = ["search", "--model", "lenet", "--machine", "p100x4", "--budget", "1s"]
        run(*here, *of, "--out", "lenet.json")
        assert (tmp_path / "lenet.json").is_file()
        assert "epoch 1" in run(*here, "train", "--model", "lenet", "--cpus", 1, "--epochs", 1)
    finally:
        run(docker, "rmi", "-f", IMAGE)


@pytest.mark.parametrize("name", ["Dockerfile", "flexlegion.def"])
def test_images_are_made_by_one_script(name: str) -> None:
    """What is installed is said once, and what is copied is there."""
    text = (ROOT / "scripts" / name).read_text()
    steps = [line for line in text.splitlines() if not line.startswith("#")]
    assert sum("bash /opt/image.sh /opt/dist" in line for line in steps) == 1
    assert not any("apt-get" in line or "pip install" in line for line in steps)
    assert (ROOT / "scripts" / "image.sh").is_file()

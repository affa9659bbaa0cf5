"""``flexlegion train`` on several ranks, as a user starts it."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from launch import BIN, ROOT, is_quiet, legate_environment, run_checked

TRAIN = [sys.executable, "-m", "flexlegion", "train", "--model", "lenet"]
LEGATE = [str(BIN / "legate"), "--launcher", "mpirun", "--launcher-extra=--quiet --oversubscribe"]
LEGATE += ["--nodes", "1", "--ranks-per-node", "2", "--cpus", "1", "--gpus", "0"]
LEGATE += [str(ROOT / "scripts" / "train.py")]
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # or in vain
pytestmark = pytest.mark.legion


def environment(**more: str) -> dict[str, str]:
    """A user's, who is in no legate."""
    return {k: v for k, v in legate_environment().items() if k != "LEGATE_CONFIG"} | more


@pytest.mark.parametrize("how", ["--ranks", "--hosts"])
def test_two_ranks(how: str, tmp_path: Path) -> None:
    """They train together; every line comes once, and plainly; nothing is said beside."""
    hosts, out = tmp_path / "hosts", tmp_path / "metrics.json"
    hosts.write_text("localhost slots=2\n")
    options = [how, "2" if how == "--ranks" else str(hosts), "--cpus", "1"]
    command = [*TRAIN, *options, "--epochs", "2", "--json", str(out)]
    done = run_checked(command, environment=environment(), timeout=300)
    metrics = json.loads(out.read_text())
    assert (metrics["ranks"], metrics["processors"]) == (2, 2)
    lines = [re.split(r"[;,] | {2}", line)[0] for line in done.stdout.splitlines()]
    assert lines == ["lenet: 1438 samples to train", "memory", "epoch 1/2", "epoch 2/2", "test"]
    assert "\x1b" not in done.stdout
    assert is_quiet(done.stderr), done.stderr


def test_another_machine(tmp_path: Path) -> None:
    """What ranks need of the environment goes along: here to a host reached without any of it."""
    hosts, out, shell = tmp_path / "hosts", tmp_path / "metrics.json", tmp_path / "shell"
    hosts.write_text(f"{os.uname().nodename} slots=1\nelsewhere slots=1\n")
    shell.write_text('#!/bin/sh\nshift\nexec env -i HOME="$HOME" PATH=/usr/bin:/bin sh -c "$*"\n')
    shell.chmod(0o755)
    command = [*TRAIN, "--hosts", str(hosts), "--cpus", "1", "--legate", "--sysmem 2000"]
    command += ["--epochs", "1", "--json", str(out)]
    # In the place of ssh; options of mpirun's are in the environment, too.
    done = run_checked(
        command, environment=environment(OMPI_MCA_plm_rsh_agent=str(shell)), timeout=300
    )
    metrics = json.loads(out.read_text())
    assert (metrics["ranks"], metrics["processors"]) == (2, 2)
    assert is_quiet(done.stderr), done.stderr


def test_legate_by_hand() -> None:
    """Ranks that legate is told to start take their shares of the machine, and are as quiet."""
    done = run_checked([*LEGATE, "--epochs", "1"], environment=environment(**AS_ROOT), timeout=300)
    assert "2 processors on 2 ranks" in done.stdout
    assert is_quiet(done.stderr), done.stderr


@pytest.mark.parametrize(
    ("options", "more", "message"),
    [
        (["--ranks", "2"], {}, "--ranks says how to start legate, which runs already"),
        # As where ranks do not find each other, and would train apart.
        (
            [],
            {"FLEXLEGION_RANKS": "3"},
            "this is one of 3 processes that were started together, but",
        ),
    ],
)
def test_mistakes_by_hand(options: list[str], more: dict[str, str], message: str) -> None:
    rank_environment = environment(**AS_ROOT, **more)
    done = run_checked([*LEGATE, *options], environment=rank_environment, timeout=300, status=2)
    assert done.stderr.count(f"error: {message}") == 1
    assert done.stderr.count("error: ") == 1


def test_one_process_is_quiet() -> None:
    done = run_checked([*TRAIN, "--epochs", "1"], environment=environment(), timeout=300)
    assert done.stderr == ""


def test_a_mistake_is_said_once() -> None:
    command = [*TRAIN, "--ranks", "2", "--data", "/none"]
    done = run_checked(command, environment=environment(), timeout=300, status=2)
    assert done.stderr.startswith("error: /none: there is no such file or directory")
    assert done.stderr.count("\n") == 1


def test_each_by_itself_is_refused() -> None:
    command = ["mpirun", "--quiet", "--oversubscribe", "-n", "2", *TRAIN]
    done = run_checked(command, environment=environment(**AS_ROOT), timeout=300, status=2)
    assert done.stderr.count("error: this is one of 2 processes that were started together") == 1

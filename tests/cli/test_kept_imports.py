"""Imports that are kept: read again as they were, and only where nothing can have changed."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from commands import Capture, text_of
from torch import nn

import flexlegion as fl
from flexlegion.analysis import what_fits as what_fits_room
from flexlegion.analysis.what_fits import what_fits
from flexlegion.base.cache import cache_folder
from flexlegion.networks import kept
from flexlegion.networks.kept import reads, store
from flexlegion.networks.kept.reads import Reads
from flexlegion.networks.network import Network
from flexlegion.networks.references import load_model
from flexlegion.objective.training import TrainingSpec

NET = """
import os
import torch
from torch import nn
from its_sizes import WIDTH

def model(batch_size: int = 8, depth: int = 1):
    open("runs", "a").write("x")
    {more}
    layers = [nn.Linear(4, WIDTH), nn.ReLU(), *(nn.Linear(WIDTH, WIDTH) for _ in range(depth))]
    return nn.Sequential(*layers), (torch.zeros(batch_size, 4),)
"""
GIVEN = ["--machine", "p100x2", "--loss", "mean_squared_error"]
KEPT = "was imported at"


class Folder:
    """A folder with a network, from which commands are started as by new processes."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
        self.path, self._monkeypatch, self._capsys = path, monkeypatch, capsys

    def write(self, name: str, text: str) -> None:
        """A file that was there before a command starts."""
        (self.path / name).write_text(text)
        time.sleep(0.05)  # what is as new as the start counts as changed meanwhile

    def run(self, *more: str, model: str = "net.py") -> tuple[dict[str, Any], str]:
        """What `simulate` answers and says."""
        for name in ("its_sizes", "flexlegion_model_net"):
            sys.modules.pop(name, None)
        self._monkeypatch.setattr(kept, "READS", Reads())
        arguments = ["--strategy", "data", "--model", model, *GIVEN, *more, "--json"]
        with patch.dict(os.environ):  # libraries set variables for their process
            out, err = text_of(self._capsys, "simulate", *arguments)
        return json.loads(out), err

    @property
    def imports(self) -> int:
        """How often the network's function ran."""
        return len((self.path / "runs").read_text())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Folder:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FLEXLEGION_PROFILE_DB", str(tmp_path / "profiles.sqlite"))
    monkeypatch.chdir(tmp_path)
    its = Folder(tmp_path, monkeypatch, capsys)
    its.write("its_sizes.py", "WIDTH = 6\n")
    its.write("net.py", NET.format(more=""))
    return its


def test_what_is_kept_answers_the_same(folder: Folder) -> None:
    first, said = folder.run()
    assert KEPT not in said
    again, said = folder.run()
    assert KEPT in said
    assert "--no-kept-import" in said
    assert again == first
    assert folder.imports == 1
    anew, said = folder.run("--no-kept-import")
    assert KEPT not in said
    assert anew == first
    assert folder.imports == 2


def test_options_that_reach_the_model_have_imports_of_their_own(folder: Folder) -> None:
    first, _ = folder.run()
    other, _ = folder.run("--batch-size", "16")
    deep, _ = folder.run("--size", "depth=2")
    assert folder.imports == 3
    assert len({first["fingerprint"], deep["fingerprint"]}) == 2
    assert (other["batch_size"], deep["batch_size"]) == (16, 8)
    assert folder.run("--size", "depth=2")[0] == deep
    assert folder.run("--batch-size", "16")[0] == other
    assert folder.imports == 3


READS_SOMETHING: dict[str, tuple[str, Callable[[Folder], None]]] = {
    "the module": ("", lambda its: its.write("net.py", NET.format(more="pass"))),
    "what it imports": ("", lambda its: its.write("its_sizes.py", "WIDTH = 7\n")),
    "a file": (
        "open('width.txt').read()",
        lambda its: its.write("width.txt", "two"),
    ),
    "a file that is not there": (
        "try: open('late.txt')\n    except OSError: pass",
        lambda its: its.write("late.txt", ""),
    ),
    "a folder": (
        "os.listdir('some')",
        lambda its: its.write("some/more", ""),
    ),
    "a variable": (
        "os.environ.get('ITS_WIDTH')",
        lambda _: os.environ.update(ITS_WIDTH="5"),
    ),
    "all variables": (
        "dict(os.environ)",
        lambda _: os.environ.update(ITS_OTHER="5"),
    ),
    "a module that comes before another": (
        "",
        lambda its: its.write("inspect_this.py", ""),
    ),
    "the folder": ("", lambda its: os.chdir(its.path / "some")),
    "the path": ("", lambda its: sys.path.append(str(its.path / "some"))),
    "an installed package": ("", lambda its: (its.path / "new-1.0.dist-info").mkdir()),
}


@pytest.mark.parametrize("what", READS_SOMETHING)
def test_what_an_import_depends_on_is_looked_at_again(
    folder: Folder, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder.path)])
    monkeypatch.delenv("ITS_WIDTH", raising=False)
    monkeypatch.delenv("ITS_OTHER", raising=False)
    (folder.path / "some").mkdir()
    folder.write("width.txt", "one")
    more, change = READS_SOMETHING[what]
    folder.write("net.py", NET.format(more=more))
    net = str(folder.path / "net.py")
    folder.run(model=net)
    assert KEPT in folder.run(model=net)[1]
    change(folder)
    try:
        assert KEPT not in folder.run(model=net)[1]
    finally:
        for name in ("ITS_WIDTH", "ITS_OTHER"):
            os.environ.pop(name, None)


def test_large_files_are_not_read_again(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "_LARGE", 100)
    folder.write("weights", "0" * 101)
    folder.write("net.py", NET.format(more="open('weights').read()"))
    folder.run()
    assert KEPT in folder.run()[1]
    folder.write("weights", "1" * 101)
    assert KEPT not in folder.run()[1]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("import socket; socket.socket().connect_ex(('127.0.0.1', 9))", "it used a network"),
        ("os.system('true')", "it started another program"),
        ("import subprocess; subprocess.run(['true'])", "it started another program"),
        ("open('its_sizes.py', 'a').write('\\n')", "its_sizes.py changed meanwhile"),
        (
            "import flexlegion as fl\n    fl.register_strategy('mine')(lambda *_: None)",
            "it registers the strategy 'mine'",
        ),
    ],
)
def test_what_cannot_be_looked_at_again_is_not_kept(
    folder: Folder, more: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept.STRATEGIES, "_entries", dict(kept.STRATEGIES._entries))
    folder.write("net.py", NET.format(more=more))
    assert why in folder.run()[1]
    assert KEPT not in folder.run()[1]
    assert folder.imports == 2


def test_values_of_weights_are_imported_when_they_are_read(folder: Folder) -> None:
    seeded = "torch.manual_seed(3)"
    folder.write("net.py", NET.format(more=seeded))
    folder.run()
    model = kept.kept_target_of("net.py").load(None, {}, None)
    assert folder.imports == 1
    weight = model.graph.weights[0]
    torch.manual_seed(3)
    expected = nn.Linear(4, 6).weight.detach().numpy()
    np.testing.assert_array_equal(np.asarray(weight.initializer.array), expected)
    assert folder.imports == 2
    np.asarray(model.graph.weights[1].initializer.array)
    assert folder.imports == 2


def test_values_of_another_model_than_was_kept_are_refused(folder: Folder) -> None:
    by_chance = "global WIDTH; WIDTH = 6 + len(open('runs').read()) % 2; open('runs', 'a')"
    folder.write("net.py", NET.format(more=by_chance))
    folder.run()
    model = kept.kept_target_of("net.py").load(None, {}, None)
    with pytest.raises(fl.UserError, match="is not what was imported at"):
        np.asarray(model.graph.weights[0].initializer.array)


def test_damaged_entries_are_none(folder: Folder) -> None:
    first, _ = folder.run()
    for path in (cache_folder() / "imports").iterdir():
        content = path.read_bytes()
        for wrong in (content[: len(content) // 2], b"", content.replace(b"relu", b"tanh") + b" "):
            before = folder.imports
            path.write_bytes(wrong)
            assert folder.run()[0] == first
            assert folder.imports == before + (b'"model":' in content)
            assert KEPT in folder.run()[1]


def _no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)


def _full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)


def _too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_MOST_OF_ONE", 200)


@pytest.mark.parametrize(
    ("hinder", "why"),
    [(_no_folder, "Not a directory"), (_full_disk, "No space left"), (_too_large, "too large")],
)
def test_what_cannot_be_written_is_said(
    folder: Folder,
    hinder: Callable[[pytest.MonkeyPatch], None],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, _ = folder.run("--no-kept-import")
    hinder(monkeypatch)
    again, said = folder.run()
    assert again == first
    assert re.search(f"note: the import of net.py:model is not kept, because .*{why}", said)
    assert not list(folder.path.glob("cache/flexlegion/imports/*"))


def test_what_was_not_used_for_long_goes(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.run()
    entries = list((cache_folder() / "imports").iterdir())
    size = max(path.stat().st_size for path in entries)
    monkeypatch.setattr(store, "MOST_BYTES", 4 * size)
    for batch in range(1, 8):
        folder.run("--batch-size", str(batch))
    left = list((cache_folder() / "imports").iterdir())
    assert sum(path.stat().st_size for path in left) <= 4 * size
    assert KEPT in folder.run("--batch-size", "7")[1]
    assert KEPT not in folder.run("--batch-size", "1")[1]


@pytest.mark.parametrize("more", ["", "depth = 1 if batch_size < 300_000 else 3"])
def test_a_batch_is_searched_with_few_imports(
    folder: Folder, more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the network is another one for another batch: then each is imported."""
    folder.write("net.py", NET.format(more=more))
    network = Network.of(load_model("net.py", batch_size=1 << 16), TrainingSpec.of(loss="huber"))
    found = what_fits(network, "p100x2", most_micro_batches=1)
    assert (folder.imports <= 3) == (not more)
    monkeypatch.setattr(what_fits_room, "_is_resized", lambda *_: False)
    assert what_fits(network, "p100x2", most_micro_batches=1).facts() == found.facts()


def test_two_processes_at_once(folder: Folder) -> None:
    command = [sys.executable, "-m", "flexlegion", "simulate", "--strategy", "data"]
    command += ["--model", "net.py", *GIVEN, "--json"]
    running = [
        subprocess.Popen(command, cwd=folder.path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=300) for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert answers[0][0] == answers[1][0]
    done = subprocess.run(command, cwd=folder.path, capture_output=True, check=True)
    assert KEPT in done.stderr.decode()
    assert done.stdout == answers[0][0]

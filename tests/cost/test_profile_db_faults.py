"""What stands in a profile data base that nobody measured: named, left out, measured anew."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from flexlegion import UserError
from flexlegion.cost import profile_db
from flexlegion.cost.profile_db import ProfileDB
from flexlegion.cost.records import DeviceRates, LinkRates, Sample, TaskKey

KEY = TaskKey("dense", "units=1", "1x1", "forward", "1", "float32")


def changed(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(statement)
    connection.close()


@pytest.mark.parametrize("value", ["'text'", "1.5", "9223372036854775807", "-1", "x'00ff'"])
def test_a_bad_row_is_left_out_and_measured_anew(
    value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.sqlite"
    with ProfileDB(path) as db:
        db.add_task("gpu", "lib", KEY, Sample(1, 2, 3))
        db.add_link("path", "a", "b", LinkRates(1, 2))
    changed(path, f"UPDATE tasks SET time_ns = {value}")
    changed(path, "UPDATE links SET bytes_per_second = 0")
    with ProfileDB(path) as db:
        assert db.task("gpu", "lib", KEY) is None
        assert db.tasks("gpu", "lib") == {}
        assert db.link("path", "a", "b") is None
        said = capsys.readouterr().err.splitlines()
        assert len(said) == 2
        assert said[0].startswith(f"warning: {path}: time_ns is ")
        assert "tasks gpu lib dense units=1" in said[0]
        db.add_task("gpu", "lib", KEY, Sample(4, 5, 6))
        assert db.task("gpu", "lib", KEY) == Sample(4, 5, 6)


def test_views(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    ProfileDB(path).close()
    changed(path, "DROP TABLE devices")
    changed(path, "CREATE VIEW devices AS SELECT * FROM links")
    with pytest.raises(UserError, match="tables alone"):
        ProfileDB(path)


def test_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p.sqlite")
    with pytest.raises(UserError, match="it is a pipe, not a file"):
        ProfileDB(tmp_path / "p.sqlite")


def test_a_locked_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.sqlite"
    monkeypatch.setattr(profile_db, "_PATIENCE", 0.3)
    monkeypatch.setattr(profile_db, "_SAID_AFTER", 0.1)
    with ProfileDB(path) as db:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UserError, match="another program has locked"):
            db.add_device("gpu", "lib", DeviceRates(1, 2))
        other.close()
        assert "another program has locked it; waiting" in capsys.readouterr().err

"""The profile data base: what it keeps, several writers, and files that are none."""

from __future__ import annotations

import multiprocessing
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from flexlegion import UserError
from flexlegion.cost.analytic import AnalyticCosts
from flexlegion.cost.measured import Calibration, MeasuredCosts, task_key
from flexlegion.cost.model import Cost, Linear, RuntimeCosts, Shapes
from flexlegion.cost.profile_db import SCHEMA_VERSION, ProfileDB, default_path
from flexlegion.cost.records import DeviceRates, LinkRates, Sample, TaskKey, Times
from flexlegion.graph.graph import Graph, Operator
from flexlegion.machine.parts import Device
from flexlegion.ops.dense import Dense

KEY = TaskKey("dense", "units=8", "4x8 8x8 8 4x8", "backward", "1", "float32")


def test_what_it_keeps(tmp_path: Path) -> None:
    """Everything that is added, after the file is opened again."""
    path = tmp_path / "folder" / "p.sqlite"
    with ProfileDB(path) as db:
        assert db.task("A", "lib 1", KEY) is None
        assert db.newest_library("A") is None
        db.add_task("A", "lib 1", KEY, Sample(100, 5, 7, 80))
        db.add_linear("A", "lib 1", "update", Linear(3, 400, 0.125), "adam")
        db.add_link("nodes", "A", "B", LinkRates(10, 20))
        db.add_device("A", "lib 1", DeviceRates(30, 40))
    with ProfileDB(path) as db:
        assert db.task("A", "lib 1", KEY) == Sample(100, 5, 7, 80)
        assert db.tasks("A", "lib 1") == {KEY: Times(100, 80)}
        assert db.tasks("A", "lib 2") == db.tasks("B", "lib 1") == {}
        assert db.linear("A", "lib 1", "update", "adam") == Linear(3, 400, 0.125)
        assert db.linear("A", "lib 1", "update") is None
        assert db.link("nodes", "A", "B") == LinkRates(10, 20)
        assert db.link("nodes", "B", "A") is None
        assert db.links() == ["nodes"]
        assert db.device("A", "lib 1") == DeviceRates(30, 40)
        assert db.newest_library("A") == "lib 1"


def test_the_first_value_stays(tmp_path: Path) -> None:
    with ProfileDB(tmp_path / "p") as db:
        for time in (100, 200):
            db.add_task("A", "lib", KEY, Sample(time, 1, 0))
        assert db.task("A", "lib", KEY) == Sample(100, 1, 0)


def write_many(path: Path, writer: int) -> None:
    """Rows of its own, and rows that all writers write; opening and closing in between."""
    for block in range(4):
        with ProfileDB(path) as db:
            for i in range(25):
                row = 25 * block + i
                db.add_task("A", f"own {writer}", replaced(row), Sample(row + 1, writer, 0))
                db.add_task("A", "all", replaced(row), Sample(row + 1, writer, 0))


def replaced(row: int) -> TaskKey:
    return TaskKey("dense", str(row), "", "forward", "", "float32")


def test_several_writers(tmp_path: Path) -> None:
    """Six processes, which also make the file at the same time: nothing is lost or damaged."""
    path = tmp_path / "p"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=write_many, args=(path, w)) for w in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    with ProfileDB(path) as db:
        expected = {replaced(row): Times(row + 1) for row in range(100)}
        for library in ("all", *(f"own {w}" for w in range(6))):
            assert db.tasks("A", library) == expected
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names the file; else it is in the user's cache."""
    monkeypatch.setenv("FLEXLEGION_PROFILE_DB", str(tmp_path / "mine"))
    with ProfileDB() as db:
        assert db.path == tmp_path / "mine"
    monkeypatch.delenv("FLEXLEGION_PROFILE_DB")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    name = f"profiles-{SCHEMA_VERSION}.sqlite"
    assert default_path() == tmp_path / "cache" / "flexlegion" / name
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert default_path() == tmp_path / ".cache" / "flexlegion" / name
    monkeypatch.setattr("sys.platform", "darwin")
    assert default_path() == tmp_path / "Library" / "Caches" / "flexlegion" / name


# Files that are no such data base: one sentence that names the file.


def refused(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        ProfileDB(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    assert "FLEXLEGION_PROFILE_DB" in text
    return text


def test_not_a_data_base(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_bytes(b"times of tasks, as I remember them\n" * 100)
    assert "file is not a database" in refused(path)


def test_another_programs(tmp_path: Path) -> None:
    path = tmp_path / "p"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE tasks (a)")
    connection.close()
    assert "an SQLite file of another program" in refused(path)


def test_another_version(tmp_path: Path) -> None:
    path = tmp_path / "p"
    ProfileDB(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 7")
    connection.close()
    assert f"version 7, but this program uses {SCHEMA_VERSION}" in refused(path)


def test_cut_short(tmp_path: Path) -> None:
    """Damage that opening does not find is found by the query, in one sentence as well."""
    path = tmp_path / "p"
    with ProfileDB(path) as db:
        for row in range(200):
            db.add_task("A", "lib", replaced(row), Sample(1, 1, 0))
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\x55" * (len(content) - 4096))
    with pytest.raises(UserError, match="cannot be used as the profile data base") as caught:
        ProfileDB(path).tasks("A", "lib")
    assert str(caught.value).startswith(f"{path}: ")


def test_a_folder(tmp_path: Path) -> None:
    assert "it is a folder" in refused(tmp_path)


def test_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot be made" in refused(tmp_path / "file" / "p")


# The cost model that reads it.

DEVICE = Device("gpu:0", "gpu", "P100", 0, "gpu:0", 1 << 34, {"float32": 10**13}, 10**12)


def dense(inner: bool = True) -> Operator:
    graph = Graph()
    graph.add(Dense(8), [graph.add_input("x", (4, 16), "float32", inner)], "it")
    return graph.operators[0]


WHOLE: Shapes = ((4, 16), (8, 16), (8,), (4, 8))
HALF: Shapes = ((2, 16), (8, 16), (8,), (2, 8))


def test_measured_or_else_analytic(tmp_path: Path) -> None:
    """Task by task, each with its source; the key tells stages, shapes and gradients apart."""
    analytic = AnalyticCosts()
    operator = dense()
    with ProfileDB(tmp_path / "p") as db:
        db.add_task("P100", "lib", task_key(operator, "forward", WHOLE), Sample(123, 1, 0))
        db.add_task("P100", "lib", task_key(operator, "backward", WHOLE), Sample(456, 1, 0))
        costs = MeasuredCosts(db, analytic)
        assert costs.exe_time(dense(), "forward", WHOLE, DEVICE) == Cost(123, "measured")
        assert costs.exe_time(dense(), "backward", WHOLE, DEVICE) == Cost(456, "measured")
        for other, pass_, shapes in (
            (operator, "forward", HALF),
            (dense(inner=False), "backward", WHOLE),
        ):
            expected = analytic.exe_time(other, pass_, shapes, DEVICE)
            assert costs.exe_time(other, pass_, shapes, DEVICE) == expected
            assert expected.source == "analytic"
        another = Device("gpu:0", "gpu", "K80", 0, "gpu:0", 1 << 34, {"float32": 10**13}, 10**12)
        assert costs.exe_time(operator, "forward", WHOLE, another).source == "analytic"
        assert MeasuredCosts(db, analytic, "lib 2").exe_time(
            operator, "forward", WHOLE, DEVICE
        ) == analytic.exe_time(operator, "forward", WHOLE, DEVICE)


def test_many_at_once(tmp_path: Path) -> None:
    """As one by one, whether of an operator some, none, or all shapes were measured."""
    operator, other = dense(), Graph()
    other.add(Dense(8, True, "relu"), [other.add_input("x", (4, 16), "float32", True)], "it")
    extents = np.zeros((2, 4, 2), np.int64)
    for row, shapes in zip(extents, (WHOLE, HALF), strict=True):
        for its, shape in zip(row, shapes, strict=True):
            its[: len(shape)] = shape
    with ProfileDB(tmp_path / "p") as db:
        key = task_key(operator, "forward", WHOLE)
        db.add_task("P100", "lib", key, Sample(150, 1, 0, 100))
        for model in (MeasuredCosts(db, AnalyticCosts()), AnalyticCosts()):
            for its in (operator, other.operators[0]):
                for pass_ in ("forward", "backward"):
                    costs = model.exe_times(its, pass_, extents, DEVICE)
                    one_by_one = [
                        model.exe_time(its, pass_, shapes, DEVICE) for shapes in (WHOLE, HALF)
                    ]
                    assert costs.times_ns.tolist() == [cost.time_ns for cost in one_by_one]
                    sources = costs.sources * (2 // len(costs.sources))
                    assert list(sources) == [cost.source for cost in one_by_one]
                    more = np.zeros(2) if costs.contentions is None else costs.contentions
                    assert more.tolist() == [cost.contention for cost in one_by_one]


def test_what_neighbours_add(tmp_path: Path) -> None:
    """A time alone, and how much longer beside neighbours; never less, whatever noise says."""
    operator = dense()
    with ProfileDB(tmp_path / "p") as db:
        for pass_, sample in (("forward", (150, 100)), ("backward", (190, 200))):
            together, alone = sample
            db.add_task(
                "P100", "lib", task_key(operator, pass_, WHOLE), Sample(together, 1, 0, alone)
            )
        db.add_linear("P100", "lib", "sum", Linear(10, 4000, 0.5))
        costs = MeasuredCosts(db, AnalyticCosts(), calibration=Calibration(2.0, 1.0))
        assert costs.exe_time(operator, "forward", WHOLE, DEVICE) == Cost(200, "measured", 0.5)
        assert costs.exe_time(operator, "backward", WHOLE, DEVICE) == Cost(380, "measured", 0.0)
        assert costs.linear("sum", DEVICE) == (Linear(20, 2000, 0.5), "measured")


def test_keys_tell_strides_and_what_all_tasks_read() -> None:
    """A part of some rows is one run of memory, whatever the tensor; one of some columns is not.

    What each task of a split operator has as a whole, its neighbours read at the same place.
    """
    rows = task_key(dense(), "forward", HALF)
    assert rows.shapes == "2x16 =8x16 =8 2x8"
    columns: Shapes = ((4, 16), (4, 16), (4,), (4, 4))
    assert task_key(dense(), "forward", columns).shapes == "=4x16 4x16 4 4x4@8"
    assert "=" not in task_key(dense(), "forward", WHOLE).shapes
    one_row: Shapes = ((1, 16), (4, 16), (4,), (1, 4))
    assert task_key(dense(), "forward", one_row).shapes == "1x16 4x16 4 1x4"


def test_measured_lines(tmp_path: Path) -> None:
    """An update of the optimizer, or of any other that was measured."""
    analytic = AnalyticCosts()
    with ProfileDB(tmp_path / "p") as db:
        assert MeasuredCosts(db, analytic).linear("sum", DEVICE)[1] == "analytic"
        db.add_linear("P100", "lib", "sum", Linear(1, 2))
        db.add_linear("P100", "lib", "update", Linear(3, 4), "adam")
        costs = MeasuredCosts(db, analytic, optimizer="sgd")
        assert costs.linear("sum", DEVICE) == (Linear(1, 2), "measured")
        assert costs.linear("update", DEVICE) == (Linear(3, 4), "measured")
        assert costs.linear("load", DEVICE) == analytic.linear("load", DEVICE)
        db.add_linear("P100", "lib", "update", Linear(5, 6), "sgd")
        assert costs.linear("update", DEVICE) == (Linear(5, 6), "measured")


def test_the_runtime_and_calibration(tmp_path: Path) -> None:
    """What the runtime takes is not part of tasks; a calibration scales each for itself."""
    analytic = AnalyticCosts()
    operator = dense()
    runtime = RuntimeCosts(100, 20, 3, 6, 40, 5, cores=2)
    with ProfileDB(tmp_path / "p") as db:
        assert MeasuredCosts(db, analytic).runtime(DEVICE) == RuntimeCosts()
        db.add_task("P100", "lib", task_key(operator, "forward", WHOLE), Sample(100, 1, 0))
        db.add_linear("P100", "lib", "sum", Linear(10, 4000))
        db.add_linear("P100", "lib", "load", Linear(20, 4000))
        db.add_runtime("P100", "legate 1, 2 processors", runtime)
        db.add_runtime("P100", "legate 1, 2 processors", RuntimeCosts(1))  # the first one stays
        costs = MeasuredCosts(db, analytic)
        assert costs.exe_time(operator, "forward", WHOLE, DEVICE) == Cost(100, "measured")
        assert costs.runtime(DEVICE) == runtime
        assert costs.linear("load", DEVICE) == (Linear(20, 4000), "measured")
        assert costs.linear("sum", DEVICE) == (Linear(10, 4000), "measured")
        costs = MeasuredCosts(db, analytic, calibration=Calibration(2.0, 1.5))
        assert costs.exe_time(operator, "forward", WHOLE, DEVICE) == Cost(200, "measured")
        assert costs.runtime(DEVICE) == RuntimeCosts(150, 30, 4, 9, 60, 8, cores=2)
        assert costs.linear("load", DEVICE) == (Linear(40, 2000), "measured")
        assert costs.linear("sum", DEVICE) == (Linear(20, 2000), "measured")
        others = MeasuredCosts(db, analytic, software="legate 1, 4 processors")
        assert others.runtime(DEVICE) == RuntimeCosts()
        estimate = analytic.exe_time(operator, "backward", WHOLE, DEVICE)
        assert costs.exe_time(operator, "backward", WHOLE, DEVICE) == estimate

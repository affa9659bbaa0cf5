"""The profile data base: measured times, kept in one SQLite file for all runs and machines.

Any number of processes may use one file at a time. A measured value is never overwritten: of two
processes that measure the same task, the first to write wins, and both go on with its value.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, fields
from pathlib import Path

from flexlegion.base.cache import cache_folder
from flexlegion.base.errors import UserError
from flexlegion.base.files import check_regular
from flexlegion.base.quoting import note, printable, shown, warn
from flexlegion.cost.model import Linear, RuntimeCosts
from flexlegion.cost.records import DeviceRates, LinkRates, Sample, TaskKey, Times
from flexlegion.objective.precision import DEFAULT, of_library

SCHEMA_VERSION = 4
_APPLICATION_ID = 0x464C4547  # "FLEG", in the file's header: tells it from other programs' files
_PATIENCE = 20.0  # seconds to wait for other writers
_SAID_AFTER = 1.0  # seconds, that it waits
_MOST = 10**18  # of any value: a day in nanoseconds is 1e14, and no machine has 1e18 bytes/s
_CONTENTION_UNIT = 1000  # contention is kept in these parts
_RATES = ("bytes_per_second", "peak_flops", "memory_bandwidth")  # never 0
ENVIRONMENT = "FLEXLEGION_PROFILE_DB"


_RUNTIME_FIELDS = [field.name for field in fields(RuntimeCosts)]
_TASK_FIELDS = ", ".join(field.name for field in fields(TaskKey))
_SCHEMA = f"""
CREATE TABLE tasks (
  device TEXT, library TEXT, {", ".join(f"{field.name} TEXT" for field in fields(TaskKey))},
  time_ns INTEGER NOT NULL, runs INTEGER NOT NULL, spread_ns INTEGER NOT NULL,
  alone_ns INTEGER NOT NULL,
  measured_at INTEGER NOT NULL,
  PRIMARY KEY (device, library, {_TASK_FIELDS})
) WITHOUT ROWID;
CREATE TABLE linears (
  device TEXT, library TEXT, stage TEXT, variant TEXT,
  overhead_ns INTEGER NOT NULL, bytes_per_second INTEGER NOT NULL,
  contention INTEGER NOT NULL, measured_at INTEGER NOT NULL,
  PRIMARY KEY (device, library, stage, variant)
) WITHOUT ROWID;
CREATE TABLE links (
  path TEXT, source TEXT, destination TEXT,
  bytes_per_second INTEGER NOT NULL, latency_ns INTEGER NOT NULL, measured_at INTEGER NOT NULL,
  PRIMARY KEY (path, source, destination)
) WITHOUT ROWID;
CREATE TABLE devices (
  device TEXT, library TEXT,
  peak_flops INTEGER NOT NULL, memory_bandwidth INTEGER NOT NULL, measured_at INTEGER NOT NULL,
  PRIMARY KEY (device, library)
) WITHOUT ROWID;
CREATE TABLE runtimes (
  device TEXT, software TEXT, {", ".join(f"{name} INTEGER NOT NULL" for name in _RUNTIME_FIELDS)},
  measured_at INTEGER NOT NULL,
  PRIMARY KEY (device, software)
) WITHOUT ROWID;
"""


def default_path() -> Path:
    """The data base's place: ``$FLEXLEGION_PROFILE_DB``, or a file in the user's cache folder."""
    if path := os.environ.get(ENVIRONMENT):
        return Path(path)
    return cache_folder() / f"profiles-{SCHEMA_VERSION}.sqlite"


class ProfileDB:
    """An open data base; created if there is none.

    Parameters
    ----------
    path
        The file; `default_path` if none is given.

    Raises
    ------
    UserError
        Here and in every method: if the file cannot be used, is damaged, or is no such data base.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = default_path() if path is None else Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise UserError(
                f"{self.path}: the folder of the profile data base cannot be made ({e.strerror}); "
                f"name another file in {ENVIRONMENT}"
            ) from None
        self._bad: set[tuple[object, ...]] = set()
        self._writable = True
        try:
            check_regular(self.path)
            self._writable = os.access(self.path, os.W_OK)
        except FileNotFoundError:
            pass
        except OSError as e:
            raise UserError(
                f"{self.path}: cannot be used as the profile data base ({e.strerror}); name "
                f"another file in {ENVIRONMENT}"
            ) from None
        with self._errors():
            self._connection = sqlite3.connect(
                self._address(), timeout=_SAID_AFTER, isolation_level=None, uri=True
            )
        try:
            with self._errors():
                self._open()
        except BaseException:
            self._connection.close()
            raise

    def _address(self) -> str:
        """As SQLite opens it: a file that may only be read is never written, not even beside it."""
        address = self.path.absolute().as_uri()
        if self._writable:
            return address
        beside = os.access(self.path.parent, os.W_OK)
        return f"{address}?mode=ro{'' if beside else '&immutable=1'}"

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> ProfileDB:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        if not self._is_ours():
            with self._writing():
                if not self._is_ours():  # another process may have made it meanwhile
                    for statement in _SCHEMA.split(";"):
                        self._connection.execute(statement)
                    self._connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                    self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        if not self._writable:
            return
        # Readers and a writer do not wait for each other. On file systems that cannot do it,
        # SQLite keeps to its older, slower way by itself.
        self._execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")

    def _execute(self, statement: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        """Execute a statement, wait for other programs, and say so if that takes long."""
        start, said = time.monotonic(), False
        while True:
            try:
                return self._connection.execute(statement, values)
            except sqlite3.OperationalError as e:
                waited = time.monotonic() - start
                if "locked" not in str(e) or waited > _PATIENCE:
                    raise
                if waited > _SAID_AFTER and not said:
                    said = True
                    text = f"{self.path}: another program has locked it; waiting {_PATIENCE:g} s"
                    note(text)
                time.sleep(0.01)  # the journal's mode alone does not wait by itself

    def _about(self) -> tuple[int, int, int]:
        """The file's application and version, and how many tables it has, all at one moment.

        Between single statements another process could make the file.
        """
        transaction = not self._connection.in_transaction
        if transaction:
            self._connection.execute("BEGIN")
        try:
            tables = self._execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            application = self._connection.execute("PRAGMA application_id").fetchone()[0]
            version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        finally:
            if transaction:
                self._connection.execute("COMMIT")
        return application, version, tables

    def _is_ours(self) -> bool:
        """False for a new, empty file."""
        application, version, tables = self._about()
        if application == 0 and version == 0 and tables == 0:
            return False
        if application != _APPLICATION_ID:
            raise UserError(
                f"{self.path}: an SQLite file of another program, not a profile data base; name "
                f"another file in {ENVIRONMENT}"
            )
        if version != SCHEMA_VERSION:
            raise UserError(
                f"{self.path}: a profile data base of version {version}, but this program uses "
                f"{SCHEMA_VERSION}; remove it, or name another file in {ENVIRONMENT}"
            )
        kinds = self._connection.execute("SELECT DISTINCT type FROM sqlite_master").fetchall()
        if ("view",) in kinds or ("trigger",) in kinds:  # programs, which may never end
            raise UserError(
                f"{self.path}: a profile data base has tables alone, but this has views or "
                f"triggers; name another file in {ENVIRONMENT}"
            )
        return True

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as e:
            if "locked" in str(e):
                raise UserError(
                    f"{self.path}: another program has locked this profile data base for "
                    f"{_PATIENCE:g} s; wait for it, or name another file in {ENVIRONMENT}"
                ) from None
            if "readonly" in str(e):
                raise UserError(
                    f"{self.path}: this profile data base can be read but not written; name "
                    f"another file in {ENVIRONMENT}"
                ) from None
            raise UserError(
                f"{self.path}: cannot be used as the profile data base ({e}); remove it, or name "
                f"another file in {ENVIRONMENT}"
            ) from None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction that waits for its turn at the start, so that it cannot fail later."""
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def _insert(self, table: str, values: tuple[object, ...]) -> None:
        marks = ", ".join("?" * (len(values) + 1))
        # The first measurement stays, unless what is there is none.
        bad = any(values[: len(row) - 1] == row[1:] for row in self._bad if row[0] == table)
        with self._errors(), self._writing():
            self._connection.execute(
                f"INSERT OR {'REPLACE' if bad else 'IGNORE'} INTO {table} VALUES ({marks})",
                (*values, int(time.time())),
            )

    def _select(self, query: str, values: tuple[object, ...]) -> list[tuple[object, ...]]:
        with self._errors():
            return self._execute(query, values).fetchall()

    def _integers(self, query: str, values: tuple[object, ...]) -> tuple[int, ...] | None:
        """The row that a query of whole numbers finds, unless there is none that can be right."""
        rows = self._select(query, values)
        found = re.match(r"SELECT (?P<columns>.*) FROM (?P<table>\w+)", query)
        assert found is not None
        for row in rows:
            for column, value in zip(found["columns"].split(", "), row, strict=True):
                if not self._is_right(column, value, (found["table"], *values)):
                    return None
            return tuple(value for value in row if isinstance(value, int))
        return None

    def _is_right(self, column: str, value: object, row: tuple[object, ...]) -> bool:
        """Whether a value can have been measured; if not, it is said once, and the row left out."""
        if type(value) is int and (column in _RATES) <= value <= _MOST:
            return True
        if row not in self._bad:
            self._bad.add(row)
            place = " ".join(map(str, row))
            text = (
                f"{self.path}: {column} is {shown(str(value))} in the row {printable(place, 300)}; "
                "it is left out, and measured anew where that is done"
            )
            warn(text)
        return False

    def add_task(self, device: str, library: str, key: TaskKey, sample: Sample) -> None:
        """Keep a measured task, unless there is one.

        Parameters
        ----------
        device
            The device's model: ``Device.model``.
        library
            The kernel library and its version.
        key, sample
            What was measured.
        """
        self._insert("tasks", (device, library, *astuple(key), *astuple(sample)))

    def task(self, device: str, library: str, key: TaskKey) -> Sample | None:
        """What is known of a task."""
        where = " AND ".join(f"{field.name} = ?" for field in fields(TaskKey))
        row = self._integers(
            "SELECT time_ns, runs, spread_ns, alone_ns FROM tasks "
            f"WHERE device = ? AND library = ? AND {where}",
            (device, library, *astuple(key)),
        )
        return None if row is None else Sample(*row)

    def tasks(self, device: str, library: str) -> dict[TaskKey, Times]:
        """All times that are known of a device with a library."""
        columns = ", ".join(Times._fields)
        rows = self._select(
            f"SELECT {columns}, {_TASK_FIELDS} FROM tasks WHERE device = ? AND library = ?",
            (device, library),
        )
        found = {}
        for time_ns, alone_ns, *key in rows:
            place = ("tasks", device, library, *key)
            if self._is_right("time_ns", time_ns, place) and self._is_right(
                "alone_ns", alone_ns, place
            ):
                assert isinstance(time_ns, int)
                assert isinstance(alone_ns, int)
                found[TaskKey(*map(str, key))] = Times(time_ns, alone_ns)
        return found

    def newest_library(self, device: str, precision: str = DEFAULT) -> str | None:
        """The kernel library of the newest measurement on that device; None if there is none.

        Parameters
        ----------
        device
            The device's model.
        precision
            In which it has to compute.
        """
        rows = self._select(
            "SELECT library FROM (SELECT library, measured_at FROM tasks WHERE device = ? "
            "UNION ALL SELECT library, measured_at FROM linears WHERE device = ?) "
            "GROUP BY library ORDER BY max(measured_at) DESC, library DESC",
            (device, device),
        )
        names = (str(row[0]) for row in rows)
        return next((name for name in names if of_library(name)[1] == precision), None)

    def add_linear(
        self, device: str, library: str, stage: str, linear: Linear, variant: str = ""
    ) -> None:
        """Keep a fitted linear cost, unless there is one; `variant` is an update's optimizer."""
        contention = round(_CONTENTION_UNIT * linear.contention)
        values = (linear.overhead_ns, linear.bytes_per_second, contention)
        self._insert("linears", (device, library, stage, variant, *values))

    def linear(self, device: str, library: str, stage: str, variant: str = "") -> Linear | None:
        """What is known of a linear cost."""
        row = self._integers(
            "SELECT overhead_ns, bytes_per_second, contention FROM linears "
            "WHERE device = ? AND library = ? AND stage = ? AND variant = ?",
            (device, library, stage, variant),
        )
        if row is None:
            return None
        overhead, rate, contention = row
        return Linear(overhead, rate, contention / _CONTENTION_UNIT)

    def add_link(self, path: str, source: str, destination: str, rates: LinkRates) -> None:
        """Keep a measured path, unless there is one.

        Parameters
        ----------
        path
            Its kind, ``"ranks of a node"`` for example, and what else its rates depend on.
        source, destination
            Models of the devices at its ends.
        rates
            What was measured.
        """
        self._insert("links", (path, source, destination, *astuple(rates)))

    def links(self) -> list[str]:
        """The paths that are known, in order."""
        rows = self._select("SELECT DISTINCT path FROM links ORDER BY path", ())
        return [str(row[0]) for row in rows]

    def link(self, path: str, source: str, destination: str) -> LinkRates | None:
        """What is known of a path."""
        row = self._integers(
            "SELECT bytes_per_second, latency_ns FROM links "
            "WHERE path = ? AND source = ? AND destination = ?",
            (path, source, destination),
        )
        return None if row is None else LinkRates(*row)

    def add_device(self, device: str, library: str, rates: DeviceRates) -> None:
        """Keep a device's measured rates, unless there are some."""
        self._insert("devices", (device, library, *astuple(rates)))

    def device(self, device: str, library: str) -> DeviceRates | None:
        """What is known of a device."""
        row = self._integers(
            "SELECT peak_flops, memory_bandwidth FROM devices WHERE device = ? AND library = ?",
            (device, library),
        )
        return None if row is None else DeviceRates(*row)

    def add_runtime(self, device: str, software: str, costs: RuntimeCosts) -> None:
        """Keep what the runtime takes, unless that is known.

        Parameters
        ----------
        device
            The devices' model.
        software
            Versions, and how many processors share how many cores.
        costs
            What was measured.
        """
        self._insert("runtimes", (device, software, *astuple(costs)))

    def runtime(self, device: str, software: str) -> RuntimeCosts | None:
        """What is known of the runtime with these devices and that software."""
        row = self._integers(
            f"SELECT {', '.join(_RUNTIME_FIELDS)} FROM runtimes WHERE device = ? AND software = ?",
            (device, software),
        )
        return None if row is None else RuntimeCosts(*row)

    def newest_software(self, device: str) -> str:
        """Of the runtime that was measured last with these devices; empty if none was."""
        rows = self._select(
            "SELECT software FROM runtimes WHERE device = ? ORDER BY measured_at DESC, software",
            (device,),
        )
        return str(rows[0][0]) if rows else ""

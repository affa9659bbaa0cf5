"""Files appear whole or not at all, what killed processes leave is removed, only files are read."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from flexlegion import UserError
from flexlegion.base.documents import MAX_VALUES, read_json
from flexlegion.base.files import check_writable, json_text, replacing, write_arrays, write_text
from flexlegion.base.quoting import MAX_LINE, printable, shown

WRITING = """
import sys, time
from flexlegion.base.files import replacing
with replacing(sys.argv[1], "text") as file:
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    time.sleep(60)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_names_are_what_was_asked_for(tmp_path: Path) -> None:
    write_arrays(tmp_path / "weights", {"fc": np.arange(3)}, "weights")
    assert names(tmp_path) == ["weights"]
    with np.load(tmp_path / "weights") as arrays:
        assert arrays["fc"].tolist() == [0, 1, 2]


def test_a_killed_process_leaves_the_old_file_and_the_next_removes_its_own(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("old")
    (tmp_path / ".flexlegion-of-mine").write_text("not ours")
    command = [sys.executable, "-c", WRITING, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        assert path.read_text() == "old"
        # While it lives, its file is not taken for a leftover.
        write_text(tmp_path / "other.txt", "new", "text")
        assert len(names(tmp_path)) == 4
        process.send_signal(signal.SIGKILL)
    assert path.read_text() == "old"
    check_writable(path, "text")
    assert names(tmp_path) == [".flexlegion-of-mine", "other.txt", "t.txt"]


def test_two_write_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"

    def write(text: str) -> None:
        for _ in range(50):
            write_text(path, text * 1000, "text")

    threads = [threading.Thread(target=write, args=(text,)) for text in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() in ("a" * 1000, "b" * 1000)
    assert names(tmp_path) == ["t.txt"]


def test_what_cannot_be_written_is_found_before(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, reason in (
        (Path("/dev/full"), "No space left on device"),
        (tmp_path / "pipe", "nobody reads"),
        (tmp_path, "Is a directory"),
        (tmp_path / "no" / "t.txt", "No such file or directory"),
    ):
        with pytest.raises(UserError, match=reason):
            write_text(path, "x", "text")
        if reason != "nobody reads":  # which only who opens it finds out
            with pytest.raises(UserError, match=reason):
                check_writable(path, "text")
    check_writable("/dev/null", "text")


def test_a_block_that_fails_to_write_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No space left"), replacing(tmp_path / "t", "text"):
        raise OSError(28, os.strerror(28))
    assert names(tmp_path) == []


def pipe(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as its:
        its.bind(str(path))


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [pipe, unix_socket, device, Path.mkdir])
def test_only_files_are_read(
    make: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    make(Path("x.json"))
    with pytest.raises(UserError, match=r"^x\.json: cannot be read as a test file") as raised:
        read_json("x.json", "test", "give one", "of any kind")
    assert raised.match("not a file|No such device")


def test_an_end_of_a_pipe_that_the_shell_connected() -> None:
    code = (
        "from flexlegion.base.documents import read_json; "
        "print(read_json('/dev/stdin', '', '', ''))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input='{"a": 1}', capture_output=True, text=True, check=True
    )
    assert done.stdout == "{'a': 1}\n"


def test_many_values(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(f"[{'[],' * MAX_VALUES}[]]")
    with pytest.raises(UserError, match=f"at most {MAX_VALUES:,} values"):
        read_json(path, "test", "", "")


def test_json_has_null_for_what_is_no_number() -> None:
    value = {"loss": math.nan, "all": [1.5, math.inf, (2, -math.inf)], "np": np.float64("nan")}
    assert json.loads(json_text(value)) == {"loss": None, "all": [1.5, None, [2, None]], "np": None}


def test_values_for_people() -> None:
    assert printable("a\x1b[2J\r\n\x07\0é\u202e\ud800") == (
        "a\\x1b[2J\\r\\n\\x07\\x00é\\u202e\\ud800"
    )
    for text in ("x" * 5_000_000, "\x1b" * 5_000_000, "\x1b" * MAX_LINE):
        line = printable(f"file: '{text}' is no name; give one")
        assert len(line) <= MAX_LINE
        assert line.startswith("file: '")
        assert line.endswith("is no name; give one")
    assert shown("\x1b" * 5_000_000) == '"' + "\\u001b" * 9 + "\\u..."
    assert len(shown({"a" * 5_000_000: 1})) == 60

"""Nothing that a benchmark started outlives it, however it ends.

Workers that wait for their turn are stopped, and a stopped process keeps its memory until somebody
kills it. A benchmark that is killed (by ``timeout``, or for want of memory) can no longer do that.
So a process of its own, the guardian, waits for its end. Whatever the benchmark started is known by
a word in its environment, which processes hand on to all that they start.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

VARIABLE = "FLEXLEGION_BENCHMARKS"
PASSES = 50  # through all processes, which may start others meanwhile
_PAUSE = 0.02  # seconds


@functools.cache
def guarded() -> dict[str, str]:
    """What the environment of all that this process starts has to have; starts the guardian."""
    word = f"{os.getpid()}.{time.time_ns()}"
    # One benchmark may start another: each one's guardian knows its own word.
    words = filter(None, [os.environ.get(VARIABLE), word])
    guardian = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, word],
        stdin=subprocess.PIPE,  # it ends with this process, and no other has it
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C and timeout reach the group of the benchmark
    )
    _guardians.append(guardian)
    return {VARIABLE: ":".join(words)}


# Kept, or their pipes would be closed. A forked child that has a copy of a pipe counts, too.
_guardians: list[subprocess.Popen[bytes]] = []


def started_by(word: str) -> list[int]:
    """The processes that have a word in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # ended meanwhile, or another user's
            continue
        for variable in variables:
            name, _, words = variable.decode(errors="replace").partition("=")
            if name == VARIABLE and word in words.split(":"):
                found.append(int(folder.name))
    return found


def main() -> None:
    """Wait for the end of standard input, then kill."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    for _ in range(PASSES):
        left = started_by(sys.argv[1])
        if not left:
            break
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(_PAUSE)


if __name__ == "__main__":
    main()

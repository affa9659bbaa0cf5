"""Run under legate on several ranks, one of which is to be lost: trains, and notes where it is.

Arguments: a folder, in which each process writes a file of its number with a line for each stage;
the number of epochs; and what goes wrong on the last rank after the first of them: nothing, raise
(an exception), fail (as a command does after a user's mistake), or hold (Python's lock for 6 s);
or on all ranks, fail-all.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

FOLDER, EPOCHS, FAULT = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
ROWS, WIDTH, BATCH = 4096, 64, 32


def enter(stage: str) -> None:
    """Note that this process has come to that stage."""
    with (FOLDER / str(os.getpid())).open("a") as file:
        print(stage, file=file)


enter("imports")

import numpy as np  # noqa: E402

from flexlegion import SGD, Model  # noqa: E402
from flexlegion.bindings import native  # noqa: E402
from flexlegion.machine.running import running_machine  # noqa: E402


def main() -> None:
    enter("Legion's start")
    machine = running_machine()
    enter("compile")
    model = Model(BATCH)
    x = model.input((WIDTH,))
    for _ in range(4):
        x = model.dense(x, WIDTH, activation="relu")
    model.dense(x, 10)
    model.compile(SGD(0.01), "sparse_categorical_crossentropy", strategy="data")
    rng = np.random.default_rng(1)
    data = rng.standard_normal((ROWS, WIDTH), np.float32)
    labels = rng.integers(0, 10, ROWS, np.int32)
    for epoch in range(EPOCHS):
        enter("training")
        model.fit(data, labels, epochs=1, progress=False)
        enter("between epochs")
        if epoch == 0 and (FAULT == "fail-all" or machine.rank == machine.ranks - 1):
            go_wrong()
    enter("end")
    model.close()


def go_wrong() -> None:
    if FAULT == "raise":
        raise RuntimeError("this rank alone has had enough")
    if FAULT.startswith("fail"):
        native.leave(2)
    if FAULT == "hold":
        ctypes.PyDLL(None).sleep(6)


if __name__ == "__main__":
    main()

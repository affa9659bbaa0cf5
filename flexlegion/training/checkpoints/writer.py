"""Writes checkpoints in a thread, beside training; of several ranks, each writes its own files.

The first rank makes a folder. In it ranks meet: each leaves a note of what it has written, and the
first one, once it has all notes, writes the manifest and gives the folder its name.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from flexlegion.training.checkpoints.files import (
    STATE,
    TEMPORARY,
    Array,
    Sum,
    folder_name,
    folders,
    remove,
    sync_folder,
    write_document,
    write_manifest,
    write_tensors,
)

# Of the writing thread beside that of threads that compute. They have work all the time, and
# with a much lower priority it would hardly run at all.
NICENESS = 5
_PAUSE = 0.02  # seconds between two looks for the other ranks' notes


class NotFiniteError(Exception):
    """A weight has grown beyond all bounds; training can only be resumed from before that."""


class Writer:
    """Writes one checkpoint at a time.

    Parameters
    ----------
    directory
        Where checkpoints are; exists.
    rank, ranks
        Which of how many this process is.
    keep
        How many checkpoints to keep.
    token
        Of this run; the same on all ranks.
    """

    def __init__(self, directory: Path, rank: int, ranks: int, keep: int, token: str) -> None:
        self._directory, self._rank, self._ranks = directory, rank, ranks
        self._keep, self._token = keep, token
        self._running: Future[None] | None = None

    def make_folder(self, step: int) -> None:
        """Make the folder that `write` writes into: called on all ranks, before any of them writes.

        Raises
        ------
        OSError
            On the first rank, if it cannot be made.
        """
        if self._rank == 0:
            self._folder(step).mkdir()

    def write(self, step: int, tensors: Mapping[str, Mapping[str, Array]], state: str) -> None:
        """Begin to write; `finish` has to be called before the arrays are changed.

        Parameters
        ----------
        step
            Iterations before it.
        tensors
            By file ("weights", "optimizer"), by key, those of this rank.
        state
            The text of ``state.json``; that of the first rank is written.
        """
        done: Future[None] = Future()
        self._running = done

        def run() -> None:
            try:
                with suppress(OSError):
                    niceness = os.getpriority(os.PRIO_PROCESS, 0) + NICENESS
                    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
                self._write(step, tensors, state)
                done.set_result(None)
            except BaseException as e:
                done.set_exception(e)

        # As a daemon: a process that has to end does not wait for a disk.
        threading.Thread(target=run, name="flexlegion-checkpoint", daemon=True).start()

    def finish(self) -> None:
        """Wait until what was begun is written.

        Raises
        ------
        OSError
            If it could not be.
        NotFiniteError
            If a weight was not finite; nothing was written then.
        """
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def _write(self, step: int, tensors: Mapping[str, Mapping[str, Array]], state: str) -> None:
        folder = self._folder(step)
        names = [f"{kind}-{self._rank}-of-{self._ranks}.safetensors" for kind in tensors]
        sums: dict[str, Sum] = {}
        failure: Exception | None = None
        try:
            for name, arrays in zip(names, tensors.values(), strict=True):
                _check_finite(arrays)
                sums[name] = write_tensors(folder / name, arrays)
            if self._rank == 0:
                sums[STATE] = write_document(folder / STATE, state)
        except Exception as e:  # of whichever kind: the first rank waits for a note
            failure = e
        if self._rank == 0:
            self._commit(folder, folder_name(step), sums, failure)
            return
        if failure is not None:
            for name in names:  # where the disk is full, the note needs room
                (folder / name).unlink(missing_ok=True)
        self._leave_note(folder, sums, failure)
        if failure is not None:
            raise failure

    def _folder(self, step: int) -> Path:
        """Where it is written, until it is complete."""
        return self._directory / f"{TEMPORARY}{self._token}-{folder_name(step)}"

    def _commit(
        self, folder: Path, name: str, sums: dict[str, Sum], failure: Exception | None
    ) -> None:
        for rank in range(1, self._ranks):
            note = self._note_of(folder, rank)
            # A rank that gives up takes the folder away.
            if "failure" in note and isinstance(failure, FileNotFoundError | None):
                kind = NotFiniteError if note["not_finite"] else OSError
                failure = kind(f"rank {rank}: {note['failure']}")
            sums |= {file: Sum(**its) for file, its in note.get("files", {}).items()}
        if failure is None:
            try:
                for rank in range(1, self._ranks):
                    (folder / _note(rank)).unlink()
                write_manifest(folder, sums)
                final = self._directory / name
                if final.exists():
                    remove(final)
                os.rename(folder, final)
                sync_folder(self._directory)
            except OSError as e:
                failure = e
        if failure is not None:
            for left in (folder, _given_up(folder)):
                shutil.rmtree(left, ignore_errors=True)
            raise failure
        for old in folders(self._directory)[: -self._keep]:
            with suppress(OSError):
                remove(old)

    def _leave_note(self, folder: Path, sums: Mapping[str, Sum], failure: Exception | None) -> None:
        note: dict[str, Any] = {"files": {name: asdict(its) for name, its in sums.items()}}
        if failure is not None:
            reason = getattr(failure, "strerror", None) or str(failure)
            note |= {"failure": reason, "not_finite": isinstance(failure, NotFiniteError)}
        draft = folder / f"{TEMPORARY}{_note(self._rank)}"
        try:
            sync_folder(folder)
            draft.write_text(json.dumps(note))
            os.rename(draft, folder / _note(self._rank))
        except OSError as e:
            with suppress(OSError):  # another name needs no room
                os.rename(folder, _given_up(folder))
            raise failure or e from None

    def _note_of(self, folder: Path, rank: int) -> dict[str, Any]:
        # Without a limit: a rank that is lost ends all.
        while not (folder / _note(rank)).exists():
            if not folder.exists():
                return {"failure": "its files cannot be written", "not_finite": False}
            time.sleep(_PAUSE)
        note: dict[str, Any] = json.loads((folder / _note(rank)).read_text())
        return note


def _note(rank: int) -> str:
    return f"rank-{rank}.json"


def _given_up(folder: Path) -> Path:
    """What a rank calls the folder that cannot even leave a note there."""
    return folder.with_name(f"{folder.name}-given-up")


def _check_finite(arrays: Mapping[str, Array]) -> None:
    for key, array in arrays.items():
        # A sum is finite only if all its terms are, and takes a quarter of the time.
        with np.errstate(over="ignore", invalid="ignore"):
            suspicious = not np.isfinite(array.sum())
        if suspicious and not np.isfinite(array).all():
            raise NotFiniteError(f"'{key}' has values that are not finite")

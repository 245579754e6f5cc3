"""Removal of old runs' records: `outdated` chooses the records, `sweep` removes them.

RETAIN-1: no record of a living run is removed, nor the newest record of an ended run.
RETAIN-2: a record is removed only if it would exceed a limit together with the newer records that are kept.
RETAIN-3: the remaining records fit both limits, except for records that RETAIN-1 keeps.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ....lazy_dataclass import dataclass
from ....providers.shared.pool_lock import Lock
from .names import name_in
from .reader import run_of

KEPT_RUNS = 200
KEPT_BYTES = 5 * 2**30
SWEEP_EVERY_S = 600.0
# A run on another computer counts as dead after this many seconds without a write: living runs write each minute.
ELSEWHERE_S = 24 * 3600.0
# a record without a lock is being created for at most this many seconds; if it is older, its creator was killed
MAKING_S = 60.0


@dataclass(frozen=True, slots=True)
class StoredRun:
    """The record of one run on this disk. ``began``: unix time."""

    directory: Path
    began: float
    size_bytes: int
    alive: bool


def outdated(runs: Sequence[StoredRun], *, most: int = KEPT_RUNS, most_bytes: int = KEPT_BYTES) -> list[StoredRun]:
    """Return the records to remove. Records of living runs are never removed, but count toward the limits."""
    newest_first = sorted(runs, key=lambda run: run.began, reverse=True)
    newest_ended = next((run for run in newest_first if not run.alive), None)
    result: list[StoredRun] = []
    count = size_bytes = 0
    for run in newest_first:
        fits = count < most and size_bytes + run.size_bytes <= most_bytes
        if fits or run.alive or run is newest_ended:
            count += 1
            size_bytes += run.size_bytes
        else:
            result.append(run)
    return result


def sweep_at_times(folder: Path) -> None:
    """Run `sweep`, but at most once in `SWEEP_EVERY_S` seconds: checking one record takes up to a millisecond."""
    mark = folder / "swept"
    with suppress(FileNotFoundError):
        if 0.0 <= time.time() - mark.stat().st_mtime < SWEEP_EVERY_S:
            return
    mark.touch(mode=0o600)
    sweep(folder)


def sweep(folder: Path) -> None:
    """Remove outdated records in ``folder``. Errors are ignored, because nothing depends on the removal."""
    for run in outdated(list(_stored(folder))):
        with suppress(OSError):
            _remove(run.directory)


def remove(directory: Path) -> bool:
    """Remove the record of a run, unless the run is alive. Return whether the record is gone.

    Raises:
        OSError: A file of the record cannot be removed.
    """
    if _stored_run(directory).alive:
        return False
    _remove(directory)
    return not directory.exists()


def _stored(folder: Path) -> Iterator[StoredRun]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if name_in(entry.name) is not None and entry.is_dir(follow_symlinks=False):
                with suppress(OSError):  # another program is removing the record at the same time
                    yield _stored_run(Path(entry.path))


def _stored_run(directory: Path) -> StoredRun:
    began = directory.stat().st_mtime  # without run.json: the time at which a file was last added to the folder
    with suppress(FileNotFoundError):
        began = (directory / "run.json").stat().st_mtime
    alive = Lock.is_taken(directory)
    if not alive:
        alive = _lives_elsewhere(directory) if (directory / "lock").exists() else time.time() - began < MAKING_S
    return StoredRun(directory, began, _size(directory), alive)


def _lives_elsewhere(directory: Path) -> bool:
    """Return whether a program on another computer seems to write the record.

    In a shared folder, locks that other computers hold may not be visible here.
    """
    run = run_of(directory)
    if run.ended or run.owner != "elsewhere":
        return False
    changed = [path.stat().st_mtime for path in directory.glob("*.json")]
    return time.time() - max(changed, default=0.0) < ELSEWHERE_S


def _size(folder: Path | str) -> int:
    size_bytes = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                size_bytes += _size(entry.path)
            else:
                size_bytes += entry.stat(follow_symlinks=False).st_size
    return size_bytes


def _remove(directory: Path) -> None:
    """Remove a record. The lock is removed last, so that two programs do not remove the record at the same time."""
    from shutil import rmtree  # imported only here, as the import is slow

    if Lock.is_taken(directory) or _lives_elsewhere(
        directory
    ):  # check before `take`, which succeeds for a lock that this process itself holds
        return
    lock = Lock.take(directory)
    if lock is None:
        return
    try:
        for each in directory.iterdir():
            if each.is_dir() and not each.is_symlink():
                rmtree(each)
            elif each.name != "lock":
                each.unlink()
        rmtree(directory)
    finally:
        lock.give_back()

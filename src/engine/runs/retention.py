"""Remove the records of old runs: `outdated` decides which, `sweep` removes them.

RETAIN-1: no record of a living run is removed, and neither is the newest of those that have ended.
RETAIN-2: a record is removed only if it would exceed a limit together with the newer ones that stay.
RETAIN-3: what stays fits both limits, but for what RETAIN-1 keeps.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ...lazy_dataclass import dataclass
from ...providers.pool_lock import Lock
from .names import name_in
from .reader import run_of

KEPT_RUNS = 200
KEPT_BYTES = 5 * 2**30
SWEEP_EVERY_S = 600.0
ELSEWHERE_S = 24 * 3600.0  # a run of another computer that has written nothing for so long is dead; it does each minute
MAKING_S = 60.0  # a record without a lock is being made, or its maker was killed half way


@dataclass(frozen=True, slots=True)
class StoredRun:
    """The record of one run on this disk. ``began``: unix time."""

    directory: Path
    began: float
    size_bytes: int
    alive: bool


def outdated(runs: Sequence[StoredRun], *, most: int = KEPT_RUNS, most_bytes: int = KEPT_BYTES) -> list[StoredRun]:
    """Return the records that are to go. The living count for the limits as well."""
    newest_first = sorted(runs, key=lambda run: run.began, reverse=True)
    newest_ended = next((run for run in newest_first if not run.alive), None)
    found: list[StoredRun] = []
    count = size_bytes = 0
    for run in newest_first:
        fits = count < most and size_bytes + run.size_bytes <= most_bytes
        if fits or run.alive or run is newest_ended:
            count += 1
            size_bytes += run.size_bytes
        else:
            found.append(run)
    return found


def sweep_at_times(folder: Path) -> None:
    """Do as `sweep`, at most once in `SWEEP_EVERY_S`: looking at a record takes up to a millisecond."""
    mark = folder / "swept"
    with suppress(FileNotFoundError):
        if 0.0 <= time.time() - mark.stat().st_mtime < SWEEP_EVERY_S:
            return
    mark.touch(mode=0o600)
    sweep(folder)


def sweep(folder: Path) -> None:
    """Remove the outdated records in ``folder``. What cannot be removed stays: nothing depends on it."""
    for run in outdated(list(_stored(folder))):
        with suppress(OSError):
            _remove(run.directory)


def remove(directory: Path) -> bool:
    """Remove the record of a run, unless the run lives; return whether it is gone.

    Raises:
        OSError: something in it cannot be removed.
    """
    _remove(directory)
    return not directory.exists()


def _stored(folder: Path) -> Iterator[StoredRun]:
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if name_in(entry.name) is not None and entry.is_dir(follow_symlinks=False):
                with suppress(OSError):  # another program removes it at the same time
                    yield _stored_run(Path(entry.path))


def _stored_run(directory: Path) -> StoredRun:
    made = directory.stat().st_mtime  # when its newest file was made, where it has no run.json
    with suppress(FileNotFoundError):
        made = (directory / "run.json").stat().st_mtime
    alive = Lock.is_taken(directory)
    if not alive:
        alive = _lives_elsewhere(directory) if (directory / "lock").exists() else time.time() - made < MAKING_S
    return StoredRun(directory, made, _size(directory), alive)


def _lives_elsewhere(directory: Path) -> bool:
    """Return whether a record seems to be written on another computer that shares this folder. The kernel here may not
    know of a lock there.
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
    """Remove a record, its lock last: another program that removes it at the same time finds the lock taken."""
    from shutil import rmtree  # which takes long

    if Lock.is_taken(directory) or _lives_elsewhere(
        directory
    ):  # `take` would give this process a lock that it holds already
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

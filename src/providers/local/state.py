"""The state directory, which has all files of local pools. This module also removes the directories of killed pools."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from ...lazy_dataclass import dataclass
from ..errors import BadRequest
from ..shared.inherited_files import Descriptor, keep_here
from ..shared.paths import make_private, state_root

# Seconds; a directory without an owner that is younger is still being created; the creator of an older one was killed.
UNOWNED_S = 60.0


class PoolDirectory:
    """A new private directory of one pool. Its ``owner`` file is locked for as long as the client lives.

    The kernel releases the lock however the client ends. A pid would not be reliable: another process may have it by
    now, or it may belong to another container, or to another host with the same home directory.
    """

    def __init__(self, state: Path | None, pool: str) -> None:
        root = state_root(state)
        if not _is_text(root):  # nodes receive the path as text in UTF-8
            raise BadRequest(
                f"{str(root)!r} is no text in UTF-8: name another directory, by Local(state=...) or OUTRIDER_STATE"
            )
        for directory in (root, root / "local"):
            make_private(directory)
        self.path = root / "local" / pool
        try:
            self.path.mkdir(mode=0o700)
        except FileExistsError:
            if not _is_abandoned(self.path):
                raise BadRequest(f"a pool {pool} is open already: give this one another name") from None
            _remove(self.path)
            self.path.mkdir(mode=0o700)
        try:
            owner = os.open(self.path / "owner.new", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError:  # e.g. no free descriptor, or a full disk
            self.path.rmdir()
            raise
        self._owner = Descriptor(owner)
        # Children must not inherit this descriptor: the kernel releases the lock only when every process has closed the
        # file.
        keep_here(self._owner)
        with suppress(OSError):  # a full disk is no failure: the content of the file is only for people
            os.write(owner, f"{os.getpid()}\n".encode())
        _lock(owner)
        (self.path / "owner.new").rename(self.path / "owner")

    def remove(self) -> None:
        _remove(self.path)
        self._owner.close()

    def discard(self) -> None:
        """Remove the directory when no supervisor could be started. This works even if no descriptor is free."""
        for name in ("supervisor.log", "owner"):
            (self.path / name).unlink(missing_ok=True)
        self.path.rmdir()
        self._owner.close()


@dataclass(frozen=True, slots=True)
class LivingPool:
    """The folder of a local pool whose client lives. ``since``: unix time."""

    name: str
    pid: int | None  # the client's pid; None: the disk was full when the client wrote it
    since: float
    nodes: int
    directory: Path


def living_pools(state: Path) -> list[LivingPool]:
    """Return the local pools in a state directory whose clients live, in the order of their names.

    Raises:
        OSError: The directory exists, and cannot be read.
    """
    try:
        names = sorted(os.listdir(state / "local"))  # noqa: PTH208  only the names are needed
    except FileNotFoundError:
        return []
    pools = (_living(state / "local" / name) for name in names)
    return [each for each in pools if each is not None]


def _living(directory: Path) -> LivingPool | None:
    """Return the pool in a folder; None: its client is dead. A client that takes the lock at the same time is not
    disturbed.
    """
    try:
        with (directory / "owner").open("rb") as owner:
            if not _is_locked(owner.fileno()):
                return None
            text = owner.read(32).strip()
            since = os.fstat(owner.fileno()).st_mtime
        nodes = sum(is_node(name) for name in os.listdir(directory))  # noqa: PTH208  only the names are needed
    except OSError:  # the pool has just ended, or belongs to another user
        return None
    return LivingPool(directory.name, int(text) if text.isdigit() else None, since, nodes, directory)


def _is_text(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def is_node(name: str) -> bool:
    return name.startswith("n") and name[1:].isdecimal()


def _is_locked(file: int) -> bool:
    """Return whether a living process holds the lock. To check, this process takes the lock for a moment."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


def sweep(pools: Path) -> None:
    """Remove the directories of dead pools: the client is dead, and the supervisor was killed before it could remove
    them.
    """
    try:
        directories = list(pools.iterdir())
    except OSError:
        return
    for directory in directories:
        if _is_abandoned(directory):
            _remove(directory)


def _remove(directory: Path) -> None:
    if not os.access(directory, os.F_OK):  # the supervisor has already removed it
        return
    import shutil  # imported here because it is slow

    shutil.rmtree(directory, ignore_errors=True)


def _is_abandoned(directory: Path) -> bool:
    try:
        owner = os.open(directory / "owner", os.O_RDWR)
    except FileNotFoundError:
        return _age_s(directory) > UNOWNED_S
    except OSError:  # the folder is not a pool's directory, or belongs to another user
        return False
    try:
        return _lock(owner)
    finally:
        os.close(owner)


def _lock(file: int) -> bool:
    """Take the lock; return whether this process has it. False also if the file system has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _age_s(directory: Path) -> float:
    try:
        return time.time() - directory.stat().st_mtime
    except OSError:
        return 0.0

"""The state directory: the only place where local pools keep files, and the sweep of what killed ones left there."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from ...lazy_dataclass import dataclass
from ..errors import BadRequest
from ..inherited_files import Descriptor, keep_here
from ..private import make_private, state_root

UNOWNED_S = 60.0  # a directory without an owner is being made, or its maker was killed half way


class PoolDirectory:
    """A new private directory of one pool. Its ``owner`` file is locked for as long as the client lives.

    The kernel gives the lock back however the client ends. A pid would not do: it may mean another process by now, or
    nothing at all in another container, or on another host with the same home directory.
    """

    def __init__(self, state: Path | None, pool: str) -> None:
        root = state_root(state)
        if not _is_text(root):  # nodes are told of it in texts
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
        except OSError:  # no descriptor, no room
            self.path.rmdir()
            raise
        self._owner = Descriptor(owner)
        keep_here(self._owner)  # the lock is not given back before the last process that holds the file has ended
        with suppress(OSError):  # no room: it is for people
            os.write(owner, f"{os.getpid()}\n".encode())
        _lock(owner)
        (self.path / "owner.new").rename(self.path / "owner")

    def remove(self) -> None:
        _remove(self.path)
        self._owner.close()

    def discard(self) -> None:
        """`remove` where no supervisor was started, and without a descriptor: there may be none."""
        for name in ("supervisor.log", "owner"):
            (self.path / name).unlink(missing_ok=True)
        self.path.rmdir()
        self._owner.close()


@dataclass(frozen=True, slots=True)
class LivingPool:
    """The folder of a local pool whose client lives. ``since``: unix time."""

    name: str
    pid: int | None  # of its client, None: it had no room to say so
    since: float
    nodes: int
    directory: Path


def living_pools(state: Path) -> list[LivingPool]:
    """Return the local pools in a state directory whose clients live, by name.

    Raises:
        OSError: it is there, and cannot be read.
    """
    try:
        names = sorted(os.listdir(state / "local"))  # noqa: PTH208  names
    except FileNotFoundError:
        return []
    pools = (_living(state / "local" / name) for name in names)
    return [each for each in pools if each is not None]


def _living(directory: Path) -> LivingPool | None:
    """Return the pool in a folder; None if its client is dead. Nobody who locks it as its owner is in the way."""
    try:
        with (directory / "owner").open("rb") as owner:
            if not _is_locked(owner.fileno()):
                return None
            text = owner.read(32).strip()
            since = os.fstat(owner.fileno()).st_mtime
        nodes = sum(is_node(name) for name in os.listdir(directory))  # noqa: PTH208  names
    except OSError:  # it has ended meanwhile, or is another user's
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
    """Return whether a living process holds the lock, without keeping another from it for longer than this takes."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


def sweep(pools: Path) -> None:
    """Remove the directories of pools whose client is dead and whose supervisor was killed before it could tidy up."""
    try:
        directories = list(pools.iterdir())
    except OSError:
        return
    for directory in directories:
        if _is_abandoned(directory):
            _remove(directory)


def _remove(directory: Path) -> None:
    if not os.access(directory, os.F_OK):  # the supervisor has removed it
        return
    import shutil  # which takes long

    shutil.rmtree(directory, ignore_errors=True)


def _is_abandoned(directory: Path) -> bool:
    try:
        owner = os.open(directory / "owner", os.O_RDWR)
    except FileNotFoundError:
        return _age_s(directory) > UNOWNED_S
    except OSError:  # not a pool's, or another user's
        return False
    try:
        return _lock(owner)
    finally:
        os.close(owner)


def _lock(file: int) -> bool:
    """Take the lock and return whether it is ours now. It is not if the file system has no locks, either."""
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

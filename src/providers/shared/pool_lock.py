"""The ownership of a pool: a lock that only a living process can hold, and the pool's private files beside it."""

from __future__ import annotations

import fcntl
import getpass
import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...lazy_dataclass import dataclass
from .paths import make_private

Place = Mapping[str, str]

# File systems whose disk only one kernel controls: a lock there holds for every process that sees the file. NFS is not
# one of them.
ON_A_DISK = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})
# How often to try a lock, and the pause (seconds) between two tries: when another process checks a free lock with
# `is_taken`, it holds the lock for a moment.
LOCK_TRIES, LOCK_AGAIN_S = 40, 0.005
# The clocks of two computers may differ by this many seconds, and so may one computer's clock before and after it is
# set.
CLOCKS_DIFFER_S = 60.0


@dataclass(frozen=True, slots=True)
class Computer:
    """A computer, as its programs see it. An empty field is unknown."""

    host: str
    boot: str  # the kernel's id of the present boot
    machine: str  # id of the installed operating system; it stays equal after a reboot
    up_since: float  # unix time of the last boot

    @classmethod
    def this(cls) -> Computer:
        return cls(socket.gethostname(), _boot(), machine(), time.time() - time.clock_gettime(time.CLOCK_BOOTTIME))


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that opened a pool, described for people. Only the pool's lock says whether the process is alive."""

    user: str
    host: str
    pid: int
    # When the process started, in clock ticks since boot: it distinguishes processes that had the same pid.
    started: str
    boot: str  # the kernel's id of the boot in which the process started
    since: float  # unix time
    inode: int = 0  # inode of the lock file; a copy of the directory on another computer has another one
    machine: str = ""  # id of the installed operating system, equal after a reboot; empty: unknown

    @classmethod
    def this(cls, directory: Path) -> Owner:
        """Return this process as the owner of the pool in ``directory``."""
        inode = (directory / "lock").stat().st_ino
        boot, since = _boot(), time.time()
        return cls(_user(), socket.gethostname(), os.getpid(), _started(), boot, since, inode, machine())

    def near(self, directory: Path) -> bool:
        """Return whether the pool's lock can be trusted: its owner ran on this computer, or only one computer uses its
        disk.
        """
        if self.was_on(Computer.this()):
            return True
        try:
            same = (directory / "lock").stat().st_ino == self.inode
        except OSError:
            return False
        return same and _file_system(directory) in ON_A_DISK

    def was_on(self, here: Computer) -> bool:
        """Return whether the owner ran on the computer ``here``, perhaps before a reboot.

        Host names prove little: the name of a container changes each time, the name of a laptop changes with the
        network, and many computers are called localhost. After a reboot, both the machine-id and the name have to
        match, because computers that start from one image share a machine-id. The name alone decides only if the kernel
        reports no boot id.
        """
        if not (self.boot and here.boot):
            return self.host == here.host
        if self.boot == here.boot:
            return True
        # The owner ran in another boot at a time when this computer was already in its present boot: these are two
        # computers.
        if self.since > here.up_since + CLOCKS_DIFFER_S:
            return False
        return bool(self.machine) and (self.machine, self.host) == (here.machine, here.host)

    def __str__(self) -> str:
        return f"process {self.pid} of {self.user} on {self.host}"


class Lock:
    """A pool's lock. This process holds it only once, for all code in it that uses the pool. Forked children do not
    hold it.
    """

    _mutex = threading.RLock()
    _held: dict[Path, Lock] = {}  # noqa: RUF012

    def __init__(self, directory: Path, file: int) -> None:
        self.directory, self.file, self.users = directory, file, 1
        self.places: list[dict[str, str]] = []

    @classmethod
    def take(cls, directory: Path) -> Lock | None:
        """Take the lock; return None: another living process holds it."""
        with cls._mutex:
            held = cls._held.get(directory)
            if held is not None:
                held.users += 1
                return held
            file = _locked_file(directory)
            if file is None:
                return None
            cls._held[directory] = lock = cls(directory, file)
            return lock

    @classmethod
    def is_taken(cls, directory: Path) -> bool:
        with cls._mutex:
            if directory in cls._held:
                return True
            try:
                file = os.open(directory / "lock", os.O_RDWR)
            except FileNotFoundError:
                return False
            try:
                return not _flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            finally:
                os.close(file)

    def discard(self) -> None:
        """Remove the pool's files, the lock as the last. A process that waits for the lock then sees that its file is
        gone.
        """
        from shutil import rmtree  # imported here: the import is slow, and opening a pool does not need it

        for each in self.directory.iterdir():
            if each.name != "lock":
                each.unlink()
        rmtree(self.directory, ignore_errors=True)

    def give_back(self) -> None:
        with self._mutex:
            self.users -= 1
            if self.users == 0 and self._held.get(self.directory) is self:
                del self._held[self.directory]
                os.close(self.file)

    @classmethod
    def forked(cls) -> None:
        """Close the parent's locks in a forked child: otherwise, the child would hold them for as long as it lives."""
        for lock in cls._held.values():
            os.close(lock.file)
        cls._held.clear()
        cls._mutex = threading.RLock()


os.register_at_fork(after_in_child=Lock.forked)


def _locked_file(directory: Path) -> int | None:
    for _ in range(LOCK_TRIES):
        make_directory(directory)
        try:
            file = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:  # the pool's folder was removed a moment ago
            continue
        try:
            if not _flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB):
                time.sleep(LOCK_AGAIN_S)
            elif (directory / "lock").exists() and os.path.samestat(os.fstat(file), (directory / "lock").stat()):
                kept, file = file, -1
                return kept
        except FileNotFoundError:
            pass
        finally:
            if file >= 0:
                os.close(file)
    return None


def _flock(file: int, how: int) -> bool:
    try:
        fcntl.flock(file, how)
    except BlockingIOError:
        return False
    return True


@contextmanager
def flocked(path: Path) -> Iterator[None]:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        # Unlock before closing: a child that was forked meanwhile also has the file open, and would hold the lock.
        fcntl.flock(file, fcntl.LOCK_UN)
        os.close(file)


# --- files ------------------------------------------------------------------------------------------------------------


def make_directory(path: Path) -> None:
    """Make a private folder, and flush it to the disk.

    Raises:
        NotPrivate: The folder exists, and other users may write in it.
    """
    if make_private(path):
        flush(path.parent)


def write(
    directory: Path, provider: str, places: Sequence[Place], owner: Owner, *, before: Mapping[str, Any] | None
) -> None:
    """Write a pool's file. ``before``: the present content, from `read`. The names of all former owners' computers are
    kept, because resources may have these names in their tags.
    """
    hosts = dict.fromkeys([*hosts_of(before), owner.host])
    facts = {"provider": provider, "places": list(map(dict, places)), "owner": asdict(owner), "hosts": list(hosts)}
    write_whole(directory / "pool", json.dumps(facts))


def read(directory: Path) -> dict[str, Any] | None:
    """Return the content of a pool's file, as `write` wrote it; None: there is no file, or it cannot be parsed."""
    try:
        written = json.loads((directory / "pool").read_text())
        facts = {"provider": written["provider"], "places": list(written["places"]), "owner": written["owner"]}
        return {**facts, "hosts": [str(host) for host in written.get("hosts", ())]}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def hosts_of(written: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the names of the computers of all owners that the pool has had. Older files name only one."""
    owner = owner_of(written)
    hosts = [] if written is None else list(written["hosts"])
    return tuple(dict.fromkeys(hosts if owner is None else [*hosts, owner.host]))


def owner_of(written: Mapping[str, Any] | None) -> Owner | None:
    if written is None:
        return None
    try:
        return Owner(**written["owner"])
    except TypeError:
        return None


def write_whole(path: Path, text: str) -> None:
    """Replace a file's content as a whole: after a power cut, the file has either the old or the new content."""
    new = path.with_name(f"{path.name}.{os.urandom(8).hex()}")
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with open(file, "w") as stream:  # noqa: PTH123  a file descriptor
            stream.write(text)
            stream.flush()
            os.fsync(file)
        new.rename(path)
    except BaseException:  # also on KeyboardInterrupt: leave no partial file
        with suppress(OSError):
            new.unlink()
        raise
    flush(path.parent)


def flush(directory: Path) -> None:
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _started() -> str:
    try:
        return Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _file_system(path: Path) -> str:
    """Return the type of the file system that has ``path``; empty: unknown."""
    try:
        # The format is in proc(5).
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return ""
    where = path.resolve()
    above = [(len(at), kind) for _, at, kind, *_ in mounts if where.is_relative_to(at)]
    return max(above, default=(0, ""), key=lambda each: each[0])[1]


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def machine() -> str:
    """Return an id of this computer's operating system; empty: it has none, as in most containers.

    The id is a hash of machine-id, because machine-id(5) asks programs not to reveal machine-id itself.
    """
    try:
        written = Path("/etc/machine-id").read_text().strip()
    except (OSError, ValueError):
        return ""
    if len(written) != 32:  # on some systems, the file has the text "uninitialized"
        return ""
    return hashlib.sha256(f"outrider {written}".encode()).hexdigest()[:16]

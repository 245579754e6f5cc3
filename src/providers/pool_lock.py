"""The ownership of a pool: a lock that only a living process holds, and the pool's private files beside it."""

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

from ..lazy_dataclass import dataclass
from .private import make_private

Place = Mapping[str, str]

# File systems on which one kernel controls the disk, so a lock holds for every process that sees the file. Not NFS.
ON_A_DISK = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})
# Tries and pause in seconds; `is_taken` in another process holds a free lock for a moment.
LOCK_TRIES, LOCK_AGAIN_S = 40, 0.005
# Largest clock difference, in seconds, of two computers, or of one computer after it sets its clock.
CLOCKS_DIFFER_S = 60.0


@dataclass(frozen=True, slots=True)
class Computer:
    """A computer as its programs see it. Empty: unknown."""

    host: str
    boot: str  # the kernel's id of the present boot
    machine: str  # id of the operating system's installation, equal after a reboot
    up_since: float  # unix time

    @classmethod
    def this(cls) -> Computer:
        return cls(socket.gethostname(), _boot(), machine(), time.time() - time.clock_gettime(time.CLOCK_BOOTTIME))


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that opened a pool, described for people. Only the pool's lock says whether the process is alive."""

    user: str
    host: str
    pid: int
    started: str  # clock ticks from boot to the process's start, since a pid may be reused
    boot: str  # the kernel's id of the boot in which the process started
    since: float  # unix time
    inode: int = 0  # inode of the lock file; it differs in a copy of the directory on another computer
    machine: str = ""  # id of the operating system's installation, equal after a reboot; empty: unknown

    @classmethod
    def this(cls, directory: Path) -> Owner:
        """Describe this process as the owner of the pool in ``directory``."""
        inode = (directory / "lock").stat().st_ino
        boot, since = _boot(), time.time()
        return cls(_user(), socket.gethostname(), os.getpid(), _started(), boot, since, inode, machine())

    def near(self, directory: Path) -> bool:
        """Return whether the pool's lock is reliable: it was made on this computer, or its disk belongs to one
        computer.
        """
        if self.was_on(Computer.this()):
            return True
        try:
            same = (directory / "lock").stat().st_ino == self.inode
        except OSError:
            return False
        return same and _file_system(directory) in ON_A_DISK

    def was_on(self, here: Computer) -> bool:
        """Return whether the owner ran on the computer ``here``, perhaps in an earlier boot.

        Host names prove little: a container's changes each time, a laptop's changes with the network, and many
        computers are called localhost. After a reboot, both the machine-id and the name have to match, because
        computers that start from one image share a machine-id. The name alone decides only if the kernel reports no
        boot id.
        """
        if not (self.boot and here.boot):
            return self.host == here.host
        if self.boot == here.boot:
            return True
        # The owner ran in one boot while this computer was in another, so the computers differ.
        if self.since > here.up_since + CLOCKS_DIFFER_S:
            return False
        return bool(self.machine) and (self.machine, self.host) == (here.machine, here.host)

    def __str__(self) -> str:
        return f"process {self.pid} of {self.user} on {self.host}"


class Lock:
    """A pool's lock, held once by this process for all of its users. Forked children do not hold it."""

    _mutex = threading.RLock()
    _held: dict[Path, Lock] = {}  # noqa: RUF012

    def __init__(self, directory: Path, file: int) -> None:
        self.directory, self.file, self.users = directory, file, 1
        self.places: list[dict[str, str]] = []

    @classmethod
    def take(cls, directory: Path) -> Lock | None:
        """Take the lock; return None if another living process holds it."""
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
        """Remove the pool's files, the lock last. A process that waits for the lock then notices the removal."""
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
        """Close the parent's locks in a forked child, which would otherwise hold them for as long as it lives."""
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
        except FileNotFoundError:  # the folder was just removed with its pool
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
        # Closing is not enough: a child forked in the meantime has the file open as well.
        fcntl.flock(file, fcntl.LOCK_UN)
        os.close(file)


# --- files ------------------------------------------------------------------------------------------------------------


def make_directory(path: Path) -> None:
    """Make a private folder, durably.

    Raises:
        NotPrivate: The folder exists, and others may write in it.
    """
    if make_private(path):
        flush(path.parent)


def write(
    directory: Path, provider: str, places: Sequence[Place], owner: Owner, *, before: Mapping[str, Any] | None
) -> None:
    """Write a pool's file. ``before``: the result of `read`. Its owners' computers are kept, as tags may name them."""
    hosts = dict.fromkeys([*hosts_of(before), owner.host])
    facts = {"provider": provider, "places": list(map(dict, places)), "owner": asdict(owner), "hosts": list(hosts)}
    write_whole(directory / "pool", json.dumps(facts))


def read(directory: Path) -> dict[str, Any] | None:
    """Return the content that `write` wrote; None if there is no file, or it cannot be parsed."""
    try:
        written = json.loads((directory / "pool").read_text())
        facts = {"provider": written["provider"], "places": list(written["places"]), "owner": written["owner"]}
        return {**facts, "hosts": [str(host) for host in written.get("hosts", ())]}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def hosts_of(written: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the names of the computers of the pool's owners. Older files name only one."""
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
    """Replace a file's content as a whole, safe against a power cut."""
    new = path.with_name(f"{path.name}.{os.urandom(8).hex()}")
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with open(file, "w") as stream:  # noqa: PTH123  a file descriptor
            stream.write(text)
            stream.flush()
            os.fsync(file)
        new.rename(path)
    except BaseException:  # also on KeyboardInterrupt, so that no partial file stays
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
    """Return the type of the file system that holds ``path``; empty: unknown."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]  # proc(5)
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
    """Return an id of this computer's system; empty if there is none, as in most containers. The id is derived from
    machine-id, because machine-id(5) asks programs not to reveal machine-id itself.
    """
    try:
        written = Path("/etc/machine-id").read_text().strip()
    except (OSError, ValueError):
        return ""
    if len(written) != 32:  # some systems have the text "uninitialized"
        return ""
    return hashlib.sha256(f"outrider {written}".encode()).hexdigest()[:16]

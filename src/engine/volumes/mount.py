"""The mount of one volume (a bucket) on this host, which is kept alive until `end`, and the kernel's list of mounts.

`MountLock` has the locks on a folder that several pools of this host may use as a mount. The last pool unmounts it.
There are three lock files, and the kernel releases a lock when its holder dies. ``lock`` is held during every change.
Each pool that uses the mount holds a shared lock on ``users``. The pool whose process mounts the folder holds
``owner``, and writes the mount's facts into that file.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from . import mount_path, rclone

_BOOT, _NAMESPACE = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/mnt")
_LOCK_PATIENCE_S = (
    120.0  # longest wait for the lock, in seconds: its holder may be waiting for a store that does not answer
)
_LOCK_POLL_S = 0.05


class Busy(Exception):
    """The error for a lock that another process has held for minutes."""


class MountLock:
    """The locks on the mount folder ``mount``.

    ``registry``: the folder of the lock files. Hosts that share a home folder share it too.
    """

    def __init__(self, registry: Path, mount: str) -> None:
        # The name of the locks contains what limits the mount: this boot of the kernel, and this mount namespace.
        identity = f"{_BOOT.read_text().strip()} {_NAMESPACE.stat().st_ino} {mount}"
        self.name = hashlib.sha256(identity.encode(errors="surrogateescape")).hexdigest()[:16]
        self._folder = registry / self.name
        self._users = self._owner = -1

    def alone(self) -> BinaryIO:
        """Take the lock for changes, so that no other pool changes the mount.

        Close the returned file to release the lock.

        Raises:
            Busy: Another process has held the lock for too long.
        """
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            with suppress(FileNotFoundError):  # the last holder of the lock has just removed the folder
                fd = self._open("lock")
                if _try_lock(fd) and os.fstat(fd).st_nlink:
                    return os.fdopen(fd, "rb")
                os.close(fd)
            if time.monotonic() > deadline:
                raise Busy
            time.sleep(_LOCK_POLL_S)

    def use(self) -> None:
        self._users = self._open("users")
        fcntl.flock(self._users, fcntl.LOCK_SH)

    def own(self) -> bool:
        """Become the owner of the mount if there is none. Return whether this process is the owner."""
        if self._owner < 0:
            fd = self._open("owner")
            if not _try_lock(fd):
                os.close(fd)
                return False
            self._owner = fd
        return True

    def read_facts(self) -> dict[str, Any]:
        """Return the facts that the present or last owner of the mount has written; {}: there are none."""
        try:
            facts: dict[str, Any] = json.loads((self._folder / "owner").read_text())
        except (OSError, ValueError):
            return {}
        return facts

    def write_facts(self, facts: dict[str, Any]) -> None:
        os.ftruncate(self._owner, 0)
        os.pwrite(self._owner, json.dumps(facts).encode(), 0)

    def leave(self) -> bool:
        """End this pool's use of the mount.

        Return whether no other pool uses it. If so, unmount before you release the lock for changes.
        """
        if self._users >= 0:
            os.close(self._users)
            self._users = -1
        fd = self._open("users")
        try:
            return _try_lock(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        for fd in (self._users, self._owner):
            if fd >= 0:
                os.close(fd)
        self._users = self._owner = -1

    def remove(self) -> None:
        """Remove the lock files. The caller must hold the lock for changes.

        A process that waits for the removed lock detects the removal, and creates and locks new files.
        """
        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        for folder in (self._folder.parent, self._folder.parent.parent):
            with suppress(OSError):  # the folder has locks of other mounts
                folder.rmdir()

    def _open(self, name: str) -> int:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_CHECK_S, _MOUNTED_S, _LISTED_S = 25.0, 30.0, 10.0
_UNMOUNTED_S, _BUSY_S = 10.0, 1.5
# At the end, rclone is waited for three times, this many seconds each. A pool waits longer for the end of its nodes.
_ENDED_S = 1.0
_POLL_S = 0.02
_UNMOUNT_POLL_S = 0.05
_AGAIN_S = 2.0
_OUTPUT_LINES = 20
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class MountFailed(Exception):
    """The error for a volume that cannot be mounted. ``log``: lines of output that explain the reason."""

    def __init__(self, reason: str, log: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.log = list(log)


class VolumeMount:
    """The mount of one volume.

    ``order``: the installer's request, described in `image.installer.system`. ``volume``: one of its volumes.
    """

    def __init__(self, order: Mapping[str, Any], volume: Mapping[str, Any]) -> None:
        self._order, self._volume = order, volume
        self.mount: str = os.path.realpath(volume["mount"])
        self._lock = MountLock(Path(order["registry"]), self.mount)
        self._cache = Path(order["cache"]) / "volumes" / self._lock.name
        self._env = rclone.environment(volume, order["login"])
        self._running: subprocess.Popen[bytes] | None = None
        self._output: deque[str] = deque(maxlen=_OUTPUT_LINES)
        self._created_folders: list[str] = []  # folders created for the mount, outermost first
        self._due_at = 0.0

    def begin(self) -> None:
        """Mount the volume, or share another pool's mount of it. The volume is mounted when this returns."""
        if objection := mount_path.objection(self.mount):
            raise MountFailed(f"{self._volume['mount']} is {self.mount} there, and that {objection}")
        try:
            with self._lock.alone():
                self._lock.use()
                if self._lock.own():
                    self._mount()
                elif (facts := self._lock.read_facts()).get("identity") != self._identity:
                    self._lock.close()
                    raise MountFailed(f"another pool has mounted {facts.get('source')} at {self.mount}")
        except Busy:
            raise MountFailed(f"another pool has been busy with {self.mount} for minutes") from None

    def check(self) -> None:
        """Mount again if rclone was killed, or if another pool's supervisor ran rclone and was killed."""
        if self._running is not None and self._running.poll() is None:
            return
        if time.monotonic() < self._due_at or (self._running is None and not self._lock.own()):
            return
        self._due_at = time.monotonic() + _AGAIN_S
        with suppress(MountFailed, Busy, OSError), self._lock.alone():  # after a failure, the next check tries again
            self._created_folders = self._lock.read_facts().get("made", [])
            self._remove_dead_mount()
            self._start()

    def end(self) -> bool:
        """End this pool's use of the volume.

        Return False if this process must keep the mount for other pools: then call this method again later.
        """
        try:
            with self._lock.alone():
                if self._lock.leave() and self._lock.own():
                    self._created_folders = self._created_folders or self._lock.read_facts().get("made", [])
                    self._unmount()
                elif self._running is not None:
                    return False
                self._lock.close()
                return True
        except (Busy, OSError):
            return False

    @property
    def _identity(self) -> list[Any]:
        """The settings that identify the mount. Pools share a mount only if all these settings are equal."""
        wanted = self._volume
        same = [wanted[name] for name in ("source", "read_only", "region", "endpoint", "cache_bytes")]
        # only a hash of the key, as the key itself must not be written to a file
        key = wanted["credentials"].get("AWS_ACCESS_KEY_ID", "")
        return [*same, hashlib.sha256(key.encode()).hexdigest(), self._order["uid"]]

    # --- mounting -------------------------------------------------------------------------------------------------

    def _mount(self) -> None:
        # from an owner that died: the folders that it created
        self._created_folders = self._lock.read_facts().get("made", [])
        try:
            self._check_store()
            self._remove_dead_mount()
            self._make_folder()
            self._start()
            self._check_contents()
            self._lock.write_facts(
                {"identity": self._identity, "source": self._volume["source"], "made": self._created_folders}
            )
        except BaseException:
            self._unmount()
            raise

    def _check_store(self) -> None:
        """Check that the store replies, accepts the credentials and has the bucket.

        The check lists a name that does not exist.
        """
        source = self._volume["source"]
        argv = [self._order["rclone"], "lsf", "--max-depth", "1", rclone.remote(self._volume, ".outrider-is-here")]
        try:
            result = subprocess.run(  # noqa: S603
                argv, env={**self._env, **rclone.SOON}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, timeout=_CHECK_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise MountFailed(f"{source} cannot be read: its store did not answer within {_CHECK_S:g} s") from None
        output = result.stderr.decode(errors="replace")
        if result.returncode == rclone.NO_BUCKET:
            raise MountFailed(f"there is no bucket {self._volume['bucket']}", output.splitlines())
        if result.returncode != 0:
            raise MountFailed(rclone.reason(source, output), output.splitlines())

    def _remove_dead_mount(self) -> None:
        """Unmount a mount whose rclone was killed. Raise an error if something else is mounted."""
        existing = mount_at(self.mount)
        if existing is None:
            return
        if existing.kind != "fuse.rclone" or not is_dead(self.mount):
            raise MountFailed(f"something is mounted at {self.mount} already: {existing.source} ({existing.kind})")
        if problem := unmount(self.mount):
            raise MountFailed(f"a dead mount at {self.mount} cannot be taken away: {problem}")

    def _make_folder(self) -> None:
        path, missing = Path(self.mount), []
        while not path.exists():
            missing.append(path)
            path = path.parent
        try:
            for folder in reversed(missing):
                folder.mkdir(mode=0o755)
                self._created_folders.append(str(folder))
                if os.geteuid() == 0:
                    os.chown(folder, self._order["uid"], self._order["gid"])
            if os.listdir(self.mount):  # noqa: PTH208
                raise MountFailed(f"the folder {self.mount} is not empty")
        except OSError as error:
            raise MountFailed(f"the folder {self.mount} cannot be used: {error.strerror}") from error

    def _start(self) -> None:
        shutil.rmtree(self._cache, ignore_errors=True)
        order = self._order
        env = rclone.mounting(
            self._volume, self._env, uid=order["uid"], gid=order["gid"], as_root=os.geteuid() == 0,
            cache=str(self._cache),
        )  # fmt: skip
        argv = [order["rclone"], "mount", rclone.remote(self._volume), self.mount]
        running = subprocess.Popen(  # noqa: S603
            argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            start_new_session=True, preexec_fn=partial(_end_with, os.getpid()),  # noqa: PLW1509 - only one thread forks in this process
        )  # fmt: skip
        self._running = running
        threading.Thread(target=self._collect_output, args=(running,), daemon=True).start()
        deadline = time.monotonic() + _MOUNTED_S
        while not is_rclone(self.mount):
            if running.poll() is not None:
                time.sleep(_POLL_S)  # the thread may still read the last output lines
                why = self._output[-1] if self._output else "it does not say why"
                raise MountFailed(f"rclone cannot mount {self.mount}: {why}", self._output)
            if time.monotonic() > deadline:
                raise MountFailed(f"rclone has not mounted {self.mount} within {_MOUNTED_S:g} s", self._output)
            time.sleep(_POLL_S)

    def _check_contents(self) -> None:
        """Raise an error if a read-only volume is empty, as then its prefix must be wrong.

        If listing the volume takes long, assume that it is not empty.
        """
        seen: list[bool | None] = []
        looking = threading.Thread(target=_look_into, args=(self.mount, seen), daemon=True)
        looking.start()
        looking.join(_LISTED_S)
        if seen == [None]:
            raise MountFailed(rclone.reason(self._volume["source"], "\n".join(self._output)), self._output)
        if seen == [False] and self._volume["read_only"]:
            raise MountFailed(f"there is nothing in {self._volume['source']}")

    # --- unmounting -----------------------------------------------------------------------------------------------

    def _unmount(self) -> None:
        if self._running is not None:
            unmount(self.mount)
            _ended(self._running)
            self._running = None
        if is_rclone(self.mount) and is_dead(self.mount):
            unmount(self.mount)
        shutil.rmtree(self._cache, ignore_errors=True)
        for folder in (*reversed(self._created_folders), str(self._cache.parent)):
            with suppress(OSError):  # not empty: other files are in the folder
                os.rmdir(folder)  # noqa: PTH106
        self._created_folders = []
        self._lock.remove()

    def _collect_output(self, running: subprocess.Popen[bytes]) -> None:
        assert running.stderr is not None
        with running.stderr as output:
            for line in output:
                self._output.append(line.decode(errors="replace").rstrip())


def _look_into(folder: str, seen: list[bool | None]) -> None:
    """Append to ``seen`` whether ``folder`` has any entry; append None if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            seen.append(next(entries, None) is not None)
    except OSError:
        seen.append(None)


def _ended(running: subprocess.Popen[bytes]) -> None:
    """Wait for rclone to end, as it does by itself once it is unmounted. If it does not end, send signals to it."""
    for number in (signal.SIGTERM, signal.SIGKILL, None):
        try:
            running.wait(_ENDED_S)
        except subprocess.TimeoutExpired:
            if number is not None:
                running.send_signal(number)
        else:
            return


def _end_with(parent: int) -> None:
    """Make the kernel send SIGTERM to this process when the process ``parent`` ends.

    This runs in the child process before it executes rclone, which unmounts on SIGTERM.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)


# --- the kernel's mounts --------------------------------------------------------------------------------------------


class MountEntry(NamedTuple):
    point: str
    kind: str  # type of the file system, such as "fuse.rclone"
    source: str


def parse(mounts: str) -> list[MountEntry]:
    """Parse text in the format of ``/proc/self/mounts``, see proc(5).

    A later mount hides earlier mounts of the same path.
    """
    # `splitlines` would also split at other line separators, which names may contain
    lines = (line.split(" ") for line in mounts.split("\n"))
    return [MountEntry(_plain(words[1]), words[2], _plain(words[0])) for words in lines if len(words) >= 6]


def _plain(written: str) -> str:
    """Decode the octal escapes that the kernel writes in names."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), written)


def mount_at(point: str) -> MountEntry | None:
    """Return the mount that is visible at the path ``point``; None: there is none."""
    text = os.fsdecode(Path("/proc/self/mounts").read_bytes())
    return next((mount for mount in reversed(parse(text)) if mount.point == point), None)


def is_rclone(point: str) -> bool:
    mount = mount_at(point)
    return mount is not None and mount.kind == "fuse.rclone"


def is_dead(point: str) -> bool:
    """Return whether the process that serves the mount is gone."""
    try:
        os.statvfs(point)  # unlike stat, whose answer the kernel caches for a second, statvfs always asks that process
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def unmount(point: str) -> str:
    """Unmount all mounts of rclone at ``point``.

    Return the error, or "". If a program still uses the mount after some time, it is unmounted lazily: that program
    keeps access until it closes its files.
    """
    deadline = time.monotonic() + _BUSY_S
    problem, lazily = "", False
    while True:
        if not is_rclone(point):
            return ""
        if problem and lazily:
            return problem
        lazily = time.monotonic() > deadline or is_dead(point)
        problem = _unmount_once(point, lazily=lazily)
        if problem:
            time.sleep(_UNMOUNT_POLL_S)


def _unmount_once(point: str, *, lazily: bool) -> str:
    """Unmount the newest mount at ``point``. Return the error, or "".

    Only root, or the user who mounted with fusermount, can unmount.
    """
    if os.geteuid() == 0:
        argv = ["umount", *(["-l"] if lazily else []), "--", point]
    else:
        argv = ["fusermount3", "-u", *(["-z"] if lazily else []), "--", point]
    try:
        ended = subprocess.run(  # noqa: S603
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_UNMOUNTED_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if ended.returncode == 0 else ended.stdout.decode(errors="replace").strip() or "it does not say why"

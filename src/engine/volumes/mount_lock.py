"""The locks on a folder that several pools of this host may use as a mount. The last pool unmounts it.

There are three lock files, and the kernel releases a lock when its holder dies. ``lock`` is held during every change.
Each pool that uses the mount holds a shared lock on ``users``. The pool whose process mounts the folder holds
``owner``, and writes the mount's facts into that file.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

_BOOT, _NAMESPACE = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/mnt")
_PATIENCE_S = 120.0  # longest wait for the lock, in seconds: its holder may be waiting for a store that does not answer
_POLL_S = 0.05


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
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            with suppress(FileNotFoundError):  # the last holder of the lock has just removed the folder
                fd = self._open("lock")
                if _try(fd) and os.fstat(fd).st_nlink:
                    return os.fdopen(fd, "rb")
                os.close(fd)
            if time.monotonic() > deadline:
                raise Busy
            time.sleep(_POLL_S)

    def use(self) -> None:
        self._users = self._open("users")
        fcntl.flock(self._users, fcntl.LOCK_SH)

    def own(self) -> bool:
        """Become the owner of the mount if there is none. Return whether this process is the owner."""
        if self._owner < 0:
            fd = self._open("owner")
            if not _try(fd):
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
            return _try(fd)
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


def _try(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

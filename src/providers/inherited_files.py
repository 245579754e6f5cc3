"""Open files that forked children must not keep, because the peer would mistake a living child for its parent.

`multiprocessing` forks by default until Python 3.14, and so do data loaders. A forked child inherits sockets and locks,
and outlives a client that is killed.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class File(Protocol):
    def fileno(self) -> int:
        """Return the descriptor; -1 once the file is closed."""
        ...


class Descriptor:
    """A plain file descriptor with one owner. `close` closes it, once."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


_kept_here: WeakSet[File] = WeakSet()


def keep_here(file: File) -> None:
    """Register ``file``: in children forked without exec, its descriptor points to the null device."""
    _kept_here.add(file)


def _forked() -> None:
    """Point the registered descriptors to the null device.

    They are not closed: the code that holds one may later close its number, which could then belong to another file.
    """
    fds = [fd for file in _kept_here if (fd := file.fileno()) >= 0]
    if fds:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in fds:
            os.dup2(null, fd, inheritable=False)
        os.close(null)


os.register_at_fork(after_in_child=_forked)

"""Files that a forked child must not hold open, as the peer would take a living child for its living parent.

`multiprocessing` forks by default until Python 3.14, and so do data loaders. Such a child inherits sockets and locks,
and outlives a client that is killed.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class File(Protocol):
    def fileno(self) -> int:
        """The descriptor; -1 once it is closed."""
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

    They are not closed, as their holder may still close the number later, when it would belong to another file.
    """
    fds = [fd for file in _kept_here if (fd := file.fileno()) >= 0]
    if fds:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in fds:
            os.dup2(null, fd, inheritable=False)
        os.close(null)


os.register_at_fork(after_in_child=_forked)

"""Close some open files in forked children. If a child kept a socket of its parent open, the peer could not see that
the parent has ended.

`multiprocessing` forks by default until Python 3.14, and so do data loaders. A forked child inherits sockets and locks,
and may outlive a client that is killed.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class File(Protocol):
    def fileno(self) -> int:
        """Return the file's descriptor; -1 after the file was closed."""
        ...


class Descriptor:
    """A plain file descriptor that one object owns. `close` closes it; further calls do nothing."""

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
    """Keep ``file`` out of children that are forked without exec: there, its descriptor points to the null device."""
    _kept_here.add(file)


def _forked() -> None:
    """Point the registered descriptors to the null device, in a forked child.

    They are not closed: code that still has such a number may close it later, when the number may belong to another
    file.
    """
    fds = [fd for file in _kept_here if (fd := file.fileno()) >= 0]
    if fds:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in fds:
            os.dup2(null, fd, inheritable=False)
        os.close(null)


os.register_at_fork(after_in_child=_forked)

"""The node's blobs: memfds that the executor server holds by name. Dropping a name frees it; mappings keep pages."""

from __future__ import annotations

import os
from collections.abc import Iterable

from . import limits
from .pipe import write_all


class Store:
    def __init__(self, *, same_host: bool) -> None:
        self._same_host = same_host
        self._fds: dict[str, int] = {}
        self._made = 0
        self._unopened: dict[str, tuple[str, int]] = {}  # adopted when there was no descriptor left: tried again

    def names(self) -> tuple[str, ...]:
        return tuple(self._fds)

    def fd(self, name: str | None) -> int | None:
        """Return the descriptor of a blob, None if there is none. The descriptor stays the store's."""
        return None if name is None else self._fds.get(name)

    def lacks(self, names: Iterable[str | None]) -> bool:
        """Return whether a blob of these was adopted, and this process still lacks the descriptors to open it."""
        if not self._unopened:
            return False
        return any(name in self._unopened and not self.adopt(name, *self._unopened[name]) for name in names if name)

    def add(self, name: str, fd: int) -> None:
        """Add a complete blob; the descriptor is the store's from now on."""
        self.drop([name])
        self._fds[name] = fd

    def add_result(self, fd: int) -> str:
        """Add a worker's blob under a new name, on the client's own machine a path to open. Return the name.

        Raises:
            OSError: this process has too few descriptors left to keep it. It is closed.
        """
        limits.kept(fd)
        self._made += 1
        name = f"/proc/{os.getpid()}/fd/{fd}" if self._same_host else f"b{self._made}"
        self.add(name, fd)
        return name

    def adopt(self, name: str, path: str, size_bytes: int) -> bool:
        """Open a blob that another process of this machine holds; return False if it is missing or not that large."""
        try:
            opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a fifo would wait for its writer
            fd = limits.kept(opened)
        except OSError as error:
            if limits.is_shortage(error):
                self._unopened[name] = path, size_bytes
            return False
        self._unopened.pop(name, None)
        if os.fstat(fd).st_size != size_bytes:
            os.close(fd)
            return False
        self.add(name, fd)
        return True

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            self._unopened.pop(name, None)
            if (fd := self._fds.pop(name, None)) is not None:
                os.close(fd)

    def close(self) -> None:
        self.drop(self.names())


class Incoming:
    """A blob that is still arriving."""

    def __init__(self, name: str, size_bytes: int) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self.missing_bytes = size_bytes
        self._fd = limits.kept(os.memfd_create("blob", os.MFD_CLOEXEC))

    def write(self, data: bytes) -> None:
        """Append ``data``: at most `missing_bytes`."""
        write_all(self._fd, [data])
        self.missing_bytes -= len(data)

    def done(self, store: Store) -> None:
        store.add(self.name, self._fd)

    def abandon(self) -> None:
        os.close(self._fd)

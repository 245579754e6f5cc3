"""Blobs in this machine's memory: memfds, handed on as file descriptors, mapped and never copied.

A task's own arguments and result are mapped privately. Shared values are sent to a node once, mapped once per worker,
and unpickled by each task that refers to one: arrays lie over the mapping itself, which every worker of the node has in
common, so they are read-only, as a change would be seen by other tasks. What surrounds them is each task's own.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
from collections.abc import Iterable, Sequence
from typing import Any

from ..wire import values
from ..wire.messages import Value
from . import limits
from .pipe import write_all

SPARE = 32  # descriptors that blobs leave for the channels on which they are fetched; of a low limit, a quarter
_shared: dict[str, mmap.mmap] = {}


def write(parts: Sequence[bytes | memoryview]) -> int:
    """Make a new blob and return its descriptor."""
    fd = os.memfd_create("blob", os.MFD_CLOEXEC)
    try:
        write_all(fd, parts)
    except BaseException:
        os.close(fd)
        raise
    return fd


def mapped(fd: int) -> mmap.mmap:
    """Map a blob copy-on-write: arrays over it are writable, and nobody else sees the changes. Closes ``fd``."""
    try:
        return mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(fd)


def load(value: Value, fds: list[int]) -> Any:
    """Return the object of a value whose blob, if it has one, came as the first of ``fds`` (taken out and closed)."""
    if value.blob is None:
        return values.load(value.data, value.sizes)
    if not fds:
        raise LookupError(f"blob {value.blob!r} is not on this node")
    return values.load(mapped(fds.pop(0)), value.sizes)


def dump(obj: object, name: str) -> tuple[Value, list[int]]:
    """Return the object as a value and its blob, if it has one, which the caller closes and which has no name yet.

    Raises:
        Unpicklable
    """
    dumped = values.dump(obj, name)
    if dumped.total <= values.INLINE_BYTES:
        return values.inline(dumped), []
    return Value(b"", dumped.sizes, ""), [write(dumped.parts)]


def adopt_shared(name: str, fds: list[int]) -> None:
    """Take the blob ``name``, which came as the first of ``fds``."""
    fd = fds.pop(0)
    try:
        _shared[name] = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    finally:
        os.close(fd)


def drop_shared(names: Iterable[str]) -> None:
    """Forget the mappings of these blobs; objects that still refer to a mapping keep it."""
    for name in names:
        _shared.pop(name, None)


def resolve_shared(name: str, sizes: Sequence[int] | None) -> Any:
    """Return the value: what an `engine.serialization.payload.Shared` unpickles as.

    Raises:
        LookupError: this process was not given the value.
    """
    mapping = _shared.get(name)
    if mapping is None:
        raise LookupError(f"the shared value {name} is not in this process: it was closed, or is another pool's")
    return values.load(mapping, sizes)


# --- the executor server's end ---------------------------------------------------------------------------------------


class BlobStore:
    """The blobs that the executor server holds by name. Dropping a name frees the blob; mappings keep its pages."""

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

    def new(self) -> int:
        """Return the descriptor of a blob that is still to arrive. Raises OSError where too few are left to keep it."""
        return _kept(os.memfd_create("blob", os.MFD_CLOEXEC))

    def add(self, name: str, fd: int) -> None:
        """Add a complete blob; the descriptor is the store's from now on."""
        self.drop([name])
        self._fds[name] = fd

    def add_result(self, fd: int) -> str:
        """Add a worker's blob under a new name, on the client's own machine a path to open. Return the name.

        Raises:
            OSError: this process has too few descriptors left to keep it. It is closed.
        """
        _kept(fd)
        self._made += 1
        name = f"/proc/{os.getpid()}/fd/{fd}" if self._same_host else f"b{self._made}"
        self.add(name, fd)
        return name

    def adopt(self, name: str, path: str, size_bytes: int) -> bool:
        """Open a blob that another process of this machine holds; return False if it is missing or not that large."""
        try:
            opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a fifo would wait for its writer
            fd = _kept(opened)
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


def _kept(fd: int) -> int:
    """Return a blob's descriptor if `SPARE` others are left beside it, and close it otherwise.

    The kernel gives the lowest number that is free, so the number says how many are taken.

    Raises:
        OSError: too few are left.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if fd < limit - min(SPARE, limit // 4):
        return fd
    os.close(fd)
    raise OSError(errno.EMFILE, limits.story())

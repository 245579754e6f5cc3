"""Blobs: large values in this machine's memory, in memfds that processes pass as descriptors and map without a copy.

A task's arguments, its result, and the objects that it gets by a `Ref` are mapped privately (copy-on-write).
A shared value (sent once, used by many calls) is mapped once in each worker, and each task that uses it unpickles it
again. The arrays in a shared value refer to the mapped memory, which all workers of the node share: they are read-only,
because other tasks would see a change. All other objects in the value are the task's own copies.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ..wire import values
from ..wire.messages import Value
from . import limits
from .pipe import write_all

FREE = b"\x00"  # first byte of the blob of a rank's checkpoint: FREE means that the rank may overwrite the blob
# second byte of the blob of a rank's checkpoint: SAFE means that the blobs of all ranks for this version of the
# checkpoint are on the requested number of nodes
SAFE = b"\x01"
LARGE_BYTES = 64 << 20  # freeing a blob of this size takes 10 ms: a larger blob is freed in a thread
SPARE = 32  # descriptors kept free for connections that fetch blobs; at most a quarter of the process's limit
_lent: dict[str, int] = {}  # name -> descriptor of the blob of an object or shared value that tasks of this process use
_sizes: dict[str, Sequence[int] | None] = {}  # name -> sizes of the pickle's parts in the blob of this name, if known
_shared: dict[str, mmap.mmap] = {}  # name -> the mapping of a shared value, common to all tasks of this process
_close = os.close
_lending = threading.Lock()  # guards `_lent`, `_sizes` and `_shared`: several threads may run tasks


def write(parts: Sequence[bytes | memoryview]) -> int:
    """Write the parts into a new blob, and return its descriptor."""
    fd = os.memfd_create("blob", os.MFD_CLOEXEC)
    try:
        write_all(fd, parts)
    except BaseException:
        os.close(fd)
        raise
    return fd


def close(fd: int) -> None:
    """Close a blob's descriptor, in a thread if the blob is large: closing frees the memory."""
    give_back(partial(_close, fd), os.fstat(fd).st_size)


def give_back(free: Callable[[], object], size_bytes: int) -> None:
    """Call ``free``, which frees ``size_bytes`` of memory; from `LARGE_BYTES` on, call it in a thread.

    Freeing 4 GiB takes from half a second to several seconds, which would block an event loop. At interpreter shutdown
    ``free`` is called directly: a new thread would not run, and starting it would hang.
    """
    if size_bytes >= LARGE_BYTES and not sys.is_finalizing():
        with suppress(RuntimeError):  # RuntimeError: no thread can be started
            threading.Thread(target=free, daemon=True, name="outrider-close").start()
            return
    free()


def mapped(fd: int) -> mmap.mmap:
    """Map a blob copy-on-write, and close ``fd``: arrays in the mapping are writable, without effect on the blob."""
    try:
        return mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(fd)


def load(value: Value, fds: list[int]) -> Any:
    """Unpickle the object in a `Value` message.

    If its pickle is in a blob, the blob's descriptor must be the first of ``fds``; it is removed from ``fds`` and
    closed.
    """
    if value.blob is None:
        return values.load(value.data, value.sizes)
    if not fds:
        raise LookupError(f"blob {value.blob!r} is not on this node")
    return values.load(mapped(fds.pop(0)), value.sizes)


def dump(obj: object, name: str, *, sized: bool = False) -> tuple[Value, list[int]]:
    """Pickle an object; return its `Value` message, and a list with the blob's descriptor, empty if no blob is needed.

    The caller must close the descriptor. The `Value` does not name the blob yet.

    Args:
        name: how errors name the object, for example "result".
        sized: whether the `Value` of a blob always has ``sizes``, from which the blob's size follows.

    Raises:
        Unpicklable
    """
    return placed(values.dump(obj, name), sized=sized)


def placed(dumped: values.Dumped, *, sized: bool = False) -> tuple[Value, list[int]]:
    """Return what `dump` returns, for an object that is already pickled."""
    if dumped.total <= values.INLINE_BYTES:
        return values.inline(dumped), []
    sizes = (dumped.total,) if sized and dumped.sizes is None else dumped.sizes
    return Value(b"", sizes, ""), [write(dumped.parts)]


def adopt_shared(name: str, fds: list[int], sizes: Sequence[int] | None = None) -> None:
    """Remove the first descriptor from ``fds``, and use it from now on for the blob ``name``.

    ``sizes``: sizes of the parts of the blob's pickle; None: unknown, so the sizes that are already recorded stay.
    """
    with _lending:
        before = _lent.get(name)
        _lent[name] = fds.pop(0)
        if sizes is not None or before is None:
            _sizes[name] = sizes
        _shared.pop(name, None)
        if before is not None:
            os.close(before)


def drop_shared(names: Iterable[str]) -> None:
    """Close the descriptors of these blobs; arrays that still use a mapping keep its memory."""
    with _lending:
        for name in names:
            _shared.pop(name, None)
            _sizes.pop(name, None)
            if (fd := _lent.pop(name, None)) is not None:
                os.close(fd)


def resolve_shared(name: str, sizes: Sequence[int] | None) -> Any:
    """Return the shared value of this name. (Unpickling an `engine.serialization.payload.Shared` calls this function.)

    Raises:
        LookupError: this process did not receive the value.
    """
    with _lending:
        mapping = _shared.get(name)
        if mapping is None:
            _shared[name] = mapping = mmap.mmap(_descriptor(name), 0, prot=mmap.PROT_READ)
    return values.load(mapping, sizes)


def resolve_object(name: str) -> Any:
    """Return the value that a `Ref` stands for; its arrays are writable, without effect on other tasks.

    Raises:
        LookupError: this process did not receive the value.
    """
    with _lending:
        fd, sizes = os.dup(_descriptor(name)), _sizes.get(name)
    return values.load(mapped(fd), sizes)


def lent(prefix: str) -> list[str]:
    """Return those names of received blobs that begin with ``prefix``."""
    with _lending:
        return [name for name in _lent if name.startswith(prefix)]


def lent_mapping(name: str) -> mmap.mmap:
    """Return a copy-on-write mapping of a blob that this process has received.

    Raises:
        LookupError: this process did not receive the blob.
    """
    with _lending:
        fd = os.dup(_descriptor(name))
    return mapped(fd)


def resolve_pieces(pieces: Sequence[tuple[bytes | str, Sequence[int]]], sizes: Sequence[int]) -> Any:
    """Unpickle a value whose parts (the pickle and its arrays) arrived in several pieces; all arrays are writable.

    Args:
        pieces: (bytes, or the name of a received blob; the numbers of the parts in it) of each piece.
        sizes: the sizes of all parts, in bytes.

    Raises:
        LookupError: this process did not receive one of the blobs.
    """
    parts: dict[int, memoryview] = {}
    for piece, numbers in pieces:
        if isinstance(piece, str):
            with _lending:
                fd = os.dup(_descriptor(piece))
            view = memoryview(mapped(fd))
        else:
            view = memoryview(bytearray(piece))
        parts.update(zip(numbers, values.cut(view, [sizes[number] for number in numbers]), strict=True))
    return values.load_parts(parts[0], [parts[number] for number in range(1, len(sizes))])


def _descriptor(name: str) -> int:
    fd = _lent.get(name)
    if fd is None:
        raise LookupError(f"the shared value {name} is not in this process: it was closed, or is another pool's")
    return fd


# --- in the executor server -------------------------------------------------------------------------------------------


class BlobStore:
    """The blobs that the executor server holds by name.

    `drop` frees a blob; the memory stays as long as a process maps it.
    """

    def __init__(self, *, same_host: bool) -> None:
        self._same_host = same_host
        self._fds: dict[str, int] = {}
        self._results = 0
        # names of checkpoint blobs: once such a blob is dropped, its rank writes a new checkpoint into it
        self._slots: set[str] = set()
        # name -> (path, size) of blobs that could not be opened because no descriptor was left; opened when needed
        self._unopened: dict[str, tuple[str, int]] = {}

    def names(self) -> tuple[str, ...]:
        return tuple(self._fds)

    def fd(self, name: str | None) -> int | None:
        """Return the descriptor of a blob, None if the store has no such blob. The caller must not close it."""
        return None if name is None else self._fds.get(name)

    def lacks(self, names: Iterable[str | None]) -> bool:
        """Return whether one of these blobs could not be opened for lack of descriptors, and still cannot."""
        if not self._unopened:
            return False
        return any(name in self._unopened and not self.adopt(name, *self._unopened[name]) for name in names if name)

    def new(self) -> int:
        """Return the descriptor of a new blob whose bytes will arrive later.

        Raises:
            OSError: this process has too few descriptors left to keep the blob.
        """
        return _kept(os.memfd_create("blob", os.MFD_CLOEXEC))

    def add(self, name: str, fd: int) -> None:
        """Add a complete blob; the store closes the descriptor when the blob is dropped."""
        self.drop([name])
        self._fds[name] = fd

    def add_result(self, fd: int) -> str:
        """Add a worker's blob under a new name, and return the name.

        If the client runs on this machine, the name is a path that the client can open.

        Raises:
            OSError: this process has too few descriptors left to keep the blob. The descriptor is closed.
        """
        _kept(fd)
        self._results += 1
        name = f"/proc/{os.getpid()}/fd/{fd}" if self._same_host else f"b{self._results}"
        self.add(name, fd)
        return name

    def add_slot(self, fd: int) -> str:
        """Add a checkpoint's blob, which its worker overwrites once `drop` has set the first byte to `FREE`.

        Raises:
            OSError: this process has too few descriptors left to keep the blob. The first byte is set to `FREE`,
                and the descriptor closed.
        """
        if fd >= _most_descriptors():
            os.pwrite(fd, FREE, 0)
        name = self.add_result(fd)
        self._slots.add(name)
        return name

    def mark_safe(self, names: Iterable[str]) -> None:
        """Mark these checkpoint blobs as `SAFE`: enough nodes have copies of this checkpoint's blobs of all ranks."""
        for name in self._slots.intersection(names):
            os.pwrite(self._fds[name], SAFE, 1)

    def open(self, name: str, path: str) -> None:
        """Open a blob of another process on this machine, whatever its size. Do nothing if it does not exist."""
        with suppress(OSError):
            self.add(name, _kept(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)))

    def adopt(self, name: str, path: str, size_bytes: int) -> bool:
        """Open a blob of another process on this machine; return False if it is missing or has another size."""
        try:
            # NONBLOCK: opening a FIFO would wait for a writer
            opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
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

    def replace(self, name: str, fd: int) -> bool:
        """Make a blob's descriptor refer to ``fd``, a copy of the blob's bytes, and close ``fd``.

        Return False if the blob was dropped before.
        """
        kept = self._fds.get(name)
        if kept is not None:
            try:
                before = os.dup(kept)
            except OSError:  # no descriptor is left: the old memory is freed here, not in a thread
                os.dup2(fd, kept, inheritable=False)
            else:
                os.dup2(fd, kept, inheritable=False)
                close(before)
        os.close(fd)
        return kept is not None

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            self._unopened.pop(name, None)
            if (fd := self._fds.pop(name, None)) is not None:
                if name in self._slots:
                    self._slots.remove(name)
                    os.pwrite(fd, FREE, 0)
                close(fd)

    def close(self) -> None:
        self.drop(self.names())


def _kept(fd: int) -> int:
    """Return ``fd`` if this process still has `SPARE` free descriptors; close it otherwise.

    The kernel gives out the lowest free descriptor number, so ``fd`` shows how many descriptors are in use.

    Raises:
        OSError: fewer than `SPARE` descriptors are free.
    """
    if fd < _most_descriptors():
        return fd
    os.close(fd)
    raise OSError(errno.EMFILE, limits.story())


def _most_descriptors() -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit - min(SPARE, limit // 4)

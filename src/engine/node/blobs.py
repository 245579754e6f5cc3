"""Blobs in this machine's memory: memfds, handed on as file descriptors, mapped and never copied.

A task's own arguments and result are mapped privately, and so are the objects that it refers to, which a node was sent
once. Shared values are mapped once per worker, and unpickled by each task that refers to one: arrays lie over the
mapping itself, which every worker of the node has in common, so they are read-only, as a change would be seen by other
tasks. The objects around the arrays are each task's own.
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

FREE = b"\x00"  # the first byte of a part of a checkpoint: its rank may write it again
SAFE = b"\x01"  # the second one: all parts of its version are on as many nodes as was asked for
LARGE_BYTES = 64 << 20  # freeing so much takes 10 ms
SPARE = 32  # descriptors that blobs leave for the channels on which they are fetched; of a low limit, a quarter
_lent: dict[str, int] = {}  # descriptors of objects that this process's tasks refer to, by name
_sizes: dict[str, Sequence[int] | None] = {}  # and the sizes of their parts, if known
_shared: dict[str, mmap.mmap] = {}  # those of them that are mapped for all tasks
_close = os.close
_lending = threading.Lock()  # a thread worker's tasks open what its pipe brings


def write(parts: Sequence[bytes | memoryview]) -> int:
    """Make a new blob and return its descriptor."""
    fd = os.memfd_create("blob", os.MFD_CLOEXEC)
    try:
        write_all(fd, parts)
    except BaseException:
        os.close(fd)
        raise
    return fd


def close(fd: int) -> None:
    """Close a blob, and give its memory back as `give_back` does."""
    give_back(partial(_close, fd), os.fstat(fd).st_size)


def give_back(free: Callable[[], object], size_bytes: int) -> None:
    """Call ``free``, in a thread if the memory is large: 4 GiB take from half a second to several, for which an event
    loop would be blocked. No thread at the end of the program, where it would never begin, and its start would hang.
    """
    if size_bytes >= LARGE_BYTES and not sys.is_finalizing():
        with suppress(RuntimeError):  # there are no more threads
            threading.Thread(target=free, daemon=True, name="outrider-close").start()
            return
    free()


def mapped(fd: int) -> mmap.mmap:
    """Map a blob copy-on-write: arrays over it are writable, and the changes are private. Closes ``fd``."""
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


def dump(obj: object, name: str, *, sized: bool = False) -> tuple[Value, list[int]]:
    """Return the object as a value and its blob, if it has one, which the caller closes and which has no name yet.
    ``sized``: the value has the size of the blob in any case.

    Raises:
        Unpicklable
    """
    return placed(values.dump(obj, name), sized=sized)


def placed(dumped: values.Dumped, *, sized: bool = False) -> tuple[Value, list[int]]:
    """Return a pickled object as `dump` does."""
    if dumped.total <= values.INLINE_BYTES:
        return values.inline(dumped), []
    sizes = (dumped.total,) if sized and dumped.sizes is None else dumped.sizes
    return Value(b"", sizes, ""), [write(dumped.parts)]


def adopt_shared(name: str, fds: list[int], sizes: Sequence[int] | None = None) -> None:
    """Take the blob ``name``, which came as the first of ``fds``; without ``sizes`` it may be another copy."""
    with _lending:
        before = _lent.get(name)
        _lent[name] = fds.pop(0)
        if sizes is not None or before is None:
            _sizes[name] = sizes
        _shared.pop(name, None)
        if before is not None:
            os.close(before)


def drop_shared(names: Iterable[str]) -> None:
    """Forget these blobs; objects that still refer to a mapping keep it."""
    with _lending:
        for name in names:
            _shared.pop(name, None)
            _sizes.pop(name, None)
            if (fd := _lent.pop(name, None)) is not None:
                os.close(fd)


def resolve_shared(name: str, sizes: Sequence[int] | None) -> Any:
    """Return the value as which an `engine.serialization.payload.Shared` is unpickled.

    Raises:
        LookupError: this process was not given the value.
    """
    with _lending:
        mapping = _shared.get(name)
        if mapping is None:
            _shared[name] = mapping = mmap.mmap(_descriptor(name), 0, prot=mmap.PROT_READ)
    return values.load(mapping, sizes)


def resolve_object(name: str) -> Any:
    """Return the value that a `Ref` stands for, as if it were a task's own argument: arrays over it are writable.

    Raises:
        LookupError: this process was not given the value.
    """
    with _lending:
        fd, sizes = os.dup(_descriptor(name)), _sizes.get(name)
    return values.load(mapped(fd), sizes)


def lent(prefix: str) -> list[str]:
    """Return the names that begin so among those of blobs that this process was given."""
    with _lending:
        return [name for name in _lent if name.startswith(prefix)]


def lent_mapping(name: str) -> mmap.mmap:
    """Map a blob that this process was given, copy-on-write. A LookupError: it was not given it."""
    with _lending:
        fd = os.dup(_descriptor(name))
    return mapped(fd)


def resolve_pieces(pieces: Sequence[tuple[bytes | str, Sequence[int]]], sizes: Sequence[int]) -> Any:
    """Return a value whose parts, of these ``sizes``, are in several pieces: bytes, or names of blobs that this process
    has, each with the numbers of its parts. Arrays over all of them are writable.

    Raises:
        LookupError: this process was not given one.
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


# --- the executor server's end ---------------------------------------------------------------------------------------


class BlobStore:
    """The blobs that the executor server holds by name. Dropping a name frees the blob; mappings keep its pages."""

    def __init__(self, *, same_host: bool) -> None:
        self._same_host = same_host
        self._fds: dict[str, int] = {}
        self._results = 0
        self._slots: set[str] = set()  # blobs whose memory their rank writes again when they are dropped
        self._unopened: dict[str, tuple[str, int]] = {}  # adopted while no descriptor was left: tried again

    def names(self) -> tuple[str, ...]:
        return tuple(self._fds)

    def fd(self, name: str | None) -> int | None:
        """Return the descriptor of a blob, None if there is none. The descriptor stays the store's."""
        return None if name is None else self._fds.get(name)

    def lacks(self, names: Iterable[str | None]) -> bool:
        """Return whether one of these blobs was adopted, and this process still lacks the descriptors to open it."""
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
        self._results += 1
        name = f"/proc/{os.getpid()}/fd/{fd}" if self._same_host else f"b{self._results}"
        self.add(name, fd)
        return name

    def add_slot(self, fd: int) -> str:
        """Add a worker's blob whose memory the worker reuses once the first byte is `FREE`, which `drop` writes.

        Raises:
            OSError: this process has too few descriptors left to keep it. It is free, and closed.
        """
        if fd >= _most_descriptors():
            os.pwrite(fd, FREE, 0)
        name = self.add_result(fd)
        self._slots.add(name)
        return name

    def mark_safe(self, names: Iterable[str]) -> None:
        """Mark these slots as safe for their ranks: they, and the slots of all other ranks, were copied."""
        for name in self._slots.intersection(names):
            os.pwrite(self._fds[name], SAFE, 1)

    def open(self, name: str, path: str) -> None:
        """Open a blob of another process of this machine, of any size, if it is there."""
        with suppress(OSError):
            self.add(name, _kept(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)))

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

    def replace(self, name: str, fd: int) -> bool:
        """Have a blob's descriptor lead to ``fd``, another copy of its bytes, and close that. False: it is gone."""
        kept = self._fds.get(name)
        if kept is not None:
            try:
                before = os.dup(kept)
            except OSError:  # there is no descriptor left for that
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
    """Return a blob's descriptor if `SPARE` others are left beside it, and close it otherwise.

    The kernel gives the lowest number that is free, so the number says how many are taken.

    Raises:
        OSError: too few are left.
    """
    if fd < _most_descriptors():
        return fd
    os.close(fd)
    raise OSError(errno.EMFILE, limits.story())


def _most_descriptors() -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit - min(SPARE, limit // 4)

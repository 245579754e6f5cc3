"""Blobs in this machine's memory: memfds that are passed as file descriptors, and mapped instead of copied.

A task's own arguments and result are mapped privately (copy-on-write). So are the objects that a task gets by a `Ref`,
which a node receives once. Shared values are mapped once per worker, and each task that uses a shared value unpickles
it: its arrays lie over the mapping, which all workers of the node share. These arrays are read-only, because other
tasks would see a change. Each task has its own copy of the objects around the arrays.
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

FREE = b"\x00"  # first byte of a checkpoint part: FREE means that its rank may overwrite it
# second byte of a checkpoint part: SAFE means that all parts of its version are on the requested number of nodes
SAFE = b"\x01"
LARGE_BYTES = 64 << 20  # freeing a blob of this size takes 10 ms
SPARE = 32  # free descriptors reserved for channels that fetch blobs; at a low limit: a quarter of the limit
_lent: dict[str, int] = {}  # name -> descriptor of an object or shared value that this process's tasks refer to
_sizes: dict[str, Sequence[int] | None] = {}  # name -> sizes of the parts of that object or shared value, if known
_shared: dict[str, mmap.mmap] = {}  # name -> mapping that all tasks of this process share
_close = os.close
_lending = threading.Lock()  # in a thread worker, several tasks use the descriptors that arrive by its pipe


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
    """Close a blob, and free its memory as `give_back` does."""
    give_back(partial(_close, fd), os.fstat(fd).st_size)


def give_back(free: Callable[[], object], size_bytes: int) -> None:
    """Call ``free``, in a thread if the memory is large.

    Freeing 4 GiB takes from half a second to several seconds, which would block an event loop. At interpreter shutdown
    ``free`` is called directly: a new thread would not run, and starting it would hang.
    """
    if size_bytes >= LARGE_BYTES and not sys.is_finalizing():
        with suppress(RuntimeError):  # no further thread can be started
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
    """Return the object of a value.

    If the value has a blob, its descriptor must be the first of ``fds``: it is removed from ``fds`` and closed.
    """
    if value.blob is None:
        return values.load(value.data, value.sizes)
    if not fds:
        raise LookupError(f"blob {value.blob!r} is not on this node")
    return values.load(mapped(fds.pop(0)), value.sizes)


def dump(obj: object, name: str, *, sized: bool = False) -> tuple[Value, list[int]]:
    """Return an object as a value, and a list with the descriptor of its blob, empty if the value needs none.

    The caller closes the descriptor; the blob has no name yet.

    Args:
        sized: whether the value always has the size of the blob.

    Raises:
        Unpicklable
    """
    return placed(values.dump(obj, name), sized=sized)


def placed(dumped: values.Dumped, *, sized: bool = False) -> tuple[Value, list[int]]:
    """Return an already pickled object in the form of `dump`."""
    if dumped.total <= values.INLINE_BYTES:
        return values.inline(dumped), []
    sizes = (dumped.total,) if sized and dumped.sizes is None else dumped.sizes
    return Value(b"", sizes, ""), [write(dumped.parts)]


def adopt_shared(name: str, fds: list[int], sizes: Sequence[int] | None = None) -> None:
    """Store the blob ``name``, whose descriptor is the first of ``fds``; without ``sizes`` it may be another copy."""
    with _lending:
        before = _lent.get(name)
        _lent[name] = fds.pop(0)
        if sizes is not None or before is None:
            _sizes[name] = sizes
        _shared.pop(name, None)
        if before is not None:
            os.close(before)


def drop_shared(names: Iterable[str]) -> None:
    """Forget these blobs; objects that still refer to a mapping keep the mapping alive."""
    with _lending:
        for name in names:
            _shared.pop(name, None)
            _sizes.pop(name, None)
            if (fd := _lent.pop(name, None)) is not None:
                os.close(fd)


def resolve_shared(name: str, sizes: Sequence[int] | None) -> Any:
    """Return the value as which an `engine.serialization.payload.Shared` is unpickled.

    Raises:
        LookupError: this process did not receive the value.
    """
    with _lending:
        mapping = _shared.get(name)
        if mapping is None:
            _shared[name] = mapping = mmap.mmap(_descriptor(name), 0, prot=mmap.PROT_READ)
    return values.load(mapping, sizes)


def resolve_object(name: str) -> Any:
    """Return the value that a `Ref` stands for. As in a task's own argument, its arrays are writable.

    Raises:
        LookupError: this process did not receive the value.
    """
    with _lending:
        fd, sizes = os.dup(_descriptor(name)), _sizes.get(name)
    return values.load(mapped(fd), sizes)


def lent(prefix: str) -> list[str]:
    """Return the names of received blobs that begin with ``prefix``."""
    with _lending:
        return [name for name in _lent if name.startswith(prefix)]


def lent_mapping(name: str) -> mmap.mmap:
    """Map a blob that this process has received, copy-on-write.

    Raises:
        LookupError: this process did not receive the blob.
    """
    with _lending:
        fd = os.dup(_descriptor(name))
    return mapped(fd)


def resolve_pieces(pieces: Sequence[tuple[bytes | str, Sequence[int]]], sizes: Sequence[int]) -> Any:
    """Return a value whose parts are spread over several pieces; its arrays are all writable.

    Args:
        pieces: each is bytes, or the name of a blob that this process has, with the numbers of the parts that it
            contains.
        sizes: the sizes of all parts.

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

    Dropping a name frees the blob; existing mappings keep its pages.
    """

    def __init__(self, *, same_host: bool) -> None:
        self._same_host = same_host
        self._fds: dict[str, int] = {}
        self._results = 0
        self._slots: set[str] = set()  # blobs whose memory their rank reuses once they are dropped
        # name -> (path, size) of blobs for which no descriptor was left: opened when needed
        self._unopened: dict[str, tuple[str, int]] = {}

    def names(self) -> tuple[str, ...]:
        return tuple(self._fds)

    def fd(self, name: str | None) -> int | None:
        """Return the descriptor of a blob, None if the store has no such blob. The store keeps the descriptor."""
        return None if name is None else self._fds.get(name)

    def lacks(self, names: Iterable[str | None]) -> bool:
        """Return whether an adopted blob among these could not be opened, and still cannot, for lack of descriptors."""
        if not self._unopened:
            return False
        return any(name in self._unopened and not self.adopt(name, *self._unopened[name]) for name in names if name)

    def new(self) -> int:
        """Return the descriptor of a new blob whose bytes will arrive later.

        Raises:
            OSError: too few descriptors are left to keep it.
        """
        return _kept(os.memfd_create("blob", os.MFD_CLOEXEC))

    def add(self, name: str, fd: int) -> None:
        """Add a complete blob; from now on the store owns the descriptor."""
        self.drop([name])
        self._fds[name] = fd

    def add_result(self, fd: int) -> str:
        """Add a worker's blob under a new name; return the name, which is a path on the client's own machine.

        Raises:
            OSError: this process has too few descriptors left to keep the blob. The descriptor is closed.
        """
        _kept(fd)
        self._results += 1
        name = f"/proc/{os.getpid()}/fd/{fd}" if self._same_host else f"b{self._results}"
        self.add(name, fd)
        return name

    def add_slot(self, fd: int) -> str:
        """Add a worker's blob whose memory the worker reuses once the first byte is `FREE`. `drop` writes that byte.

        Raises:
            OSError: this process has too few descriptors left to keep the blob. It is marked `FREE`, and its descriptor
                closed.
        """
        if fd >= _most_descriptors():
            os.pwrite(fd, FREE, 0)
        name = self.add_result(fd)
        self._slots.add(name)
        return name

    def mark_safe(self, names: Iterable[str]) -> None:
        """Mark these slots as safe for their ranks: the slots of all ranks of this version have been copied."""
        for name in self._slots.intersection(names):
            os.pwrite(self._fds[name], SAFE, 1)

    def open(self, name: str, path: str) -> None:
        """Open a blob of another process of this machine, of any size. Do nothing if it does not exist."""
        with suppress(OSError):
            self.add(name, _kept(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)))

    def adopt(self, name: str, path: str, size_bytes: int) -> bool:
        """Open a blob that another process of this machine holds; return False if it is missing or has another size."""
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
        """Redirect a blob's descriptor to ``fd``, another copy of its bytes, and close ``fd``.

        Return False if it was dropped.
        """
        kept = self._fds.get(name)
        if kept is not None:
            try:
                before = os.dup(kept)
            except OSError:  # no descriptor is left for the duplicate
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
    """Return a blob's descriptor if `SPARE` others remain free beside it; close it otherwise.

    The kernel returns the lowest free number, so the number shows how many descriptors are in use.

    Raises:
        OSError: too few descriptors are left.
    """
    if fd < _most_descriptors():
        return fd
    os.close(fd)
    raise OSError(errno.EMFILE, limits.story())


def _most_descriptors() -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit - min(SPARE, limit // 4)

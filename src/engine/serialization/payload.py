"""The bytes of tasks on their way to the node and back, and memory for large values.

A blob is a value that is too large for a frame. Only workers and waiting callers unpickle the bytes.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import re
import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from ...lazy_dataclass import dataclass
from ...lazy_named_tuple import NamedTuple
from ..api.errors import SpecError
from ..node import blobs
from ..wire.values import ALIGN_BYTES, INLINE_BYTES

COPY_BYTES = 4 << 20  # bytes that are copied between two updates of the progress
AT_ONCE_BYTES = 256 * 1024  # smaller values are copied and hashed without a thread, because this takes only 0.2 ms

Part = bytes | bytearray | memoryview | mmap.mmap


@dataclass(slots=True, eq=False)
class Filled:
    """The progress of filling a buffer: the bytes up to ``at_bytes`` are filled."""

    at_bytes: int = 0


class OwnMemory(mmap.mmap):
    """Memory into which Outrider copies a caller's buffers. After the copy is complete, it must not change."""


def is_fixed(part: Part) -> bool:
    """Return whether a buffer is certainly immutable: it is `bytes`, an `OwnMemory`, or a view of these."""
    owner: Any = part
    while (kind := type(owner)) is not bytes and kind is not OwnMemory:
        if kind is memoryview:
            owner = owner.obj
        elif kind.__module__ == "numpy" and kind.__name__ == "ndarray":
            owner = owner.base  # the memory behind an array of numpy.frombuffer; None for an array that owns its memory
        else:
            return False
    return True


def copy_of(parts: Sequence[Part], size_bytes: int, kind: type[mmap.mmap] = mmap.mmap) -> Part:
    """Copy the parts into one buffer, piece by piece. Between two pieces, other Python threads can run."""
    if size_bytes <= AT_ONCE_BYTES:
        return b"".join(parts)
    buffer = huge_buffer(size_bytes, kind)
    copy_into(memoryview(buffer), parts, Filled())
    return buffer


def copy_into(view: memoryview, parts: Sequence[Part], filled: Filled) -> None:
    from ..wire import large_copy  # imported here, because it imports ctypes, which few programs need

    for part in parts:
        rest = memoryview(part).cast("B")
        while rest:
            piece, rest = rest[:COPY_BYTES], rest[COPY_BYTES:]
            at = filled.at_bytes
            large_copy.copy(view[at : at + len(piece)], piece)
            filled.at_bytes = at + len(piece)


def huge_buffer(size_bytes: int, kind: type[mmap.mmap] | None = None) -> mmap.mmap:
    """Allocate private anonymous memory, which uses huge pages if possible.

    The first write to it runs at 10 GB/s; the first write to a bytearray runs at 1.5 GB/s (measured). The default of
    `mmap` is shared memory, for which kernels normally do not use huge pages.

    Raises:
        OSError: the computer has less memory and swap. The check is needed for kernels that overcommit memory: they
            would allocate any size.
    """
    if size_bytes > memory_bytes() and size_bytes > memory_bytes() + _swap_bytes():
        raise OSError(errno.ENOMEM, f"{size_bytes:,} bytes are more than the memory of this computer")
    buffer = (kind or mmap.mmap)(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        buffer.madvise(mmap.MADV_HUGEPAGE)
    return buffer


@cache
def memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _swap_bytes() -> int:
    try:
        found = re.search(r"^SwapTotal:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return 0 if found is None else int(found[1]) * 1024


T = TypeVar("T")
# Maximum number of memory mappings at a time. Before Python 3.13, each mapping keeps a file descriptor open, and a
# process may often have only 1024.
MAPPED_AT_MOST = 256

KEYED_BYTES = 4 << 30  # larger blobs get no content key, because a key needs a copy, which would take too much memory
# If a call has at most this number of large buffers, each buffer is a blob of its own. If it has more, neighbouring
# buffers are combined into one blob.
ALONE = 16
GROUP_BYTES = 64 << 20
LOOKS, LOOK_BYTES = 64, 256  # for a blob's fingerprint: number of samples, and bytes per sample
# When blobs are kept, an open file descriptor counts as this many bytes of memory: 1 GiB corresponds to 128
# descriptors.
DESCRIPTOR_BYTES = 8 << 20
# maximum number of open memory files for queued calls, two descriptors each; small blobs may use half of them
EARLY = 64

# A larger pickle is unpickled in a thread. Unpickling this size takes 2 ms for text or bytes, 50 ms for a list of small
# objects.
LONG_BYTES = 4 * 1024 * 1024


@dataclass(slots=True, eq=False, weakref_slot=True)
class Blob:
    """The client's side of a blob: bytes that are too large for a frame.

    A blob lives until all attempts that may read it have ended.
    """

    name: str
    parts: Sequence[Part]
    size_bytes: int
    filled: Filled | None = None  # how much of ``parts`` is filled; None: all
    _shared: int | None = field(default=None, init=False)
    # the blob's content key on nodes: see `objects.content_keys`
    known_key: str | None = field(default=None, init=False)
    _digest: str = field(default="", init=False)
    # while ``parts`` are being filled: the source of the copy
    _to_copy: Sequence[Part] | None = field(default=None, init=False)
    _pieces: tuple[Piece, ...] | None = field(default=None, init=False)
    _kept: bool = field(default=False, init=False)
    _copy: OwnMemory | None = field(default=None, init=False)  # after `own`: the copy; ``parts`` are views of it
    # the blob with another name that has the same bytes and owns the memory
    _same_bytes: Blob | None = field(default=None, init=False)
    # guards `share`, which the connections to several nodes may call at the same time
    _sharing: Lock = field(default_factory=Lock, init=False)

    def share(self) -> str:
        """Return a path by which other processes of this user on this computer can open the bytes.

        The path is that of an anonymous file of this process. The file disappears with this process, even if the
        process is killed. This method blocks: call it in a thread.
        """
        with self._sharing:
            self._fill()
            if self._shared is None:
                self._shared = self._copied()
        return f"/proc/{os.getpid()}/fd/{self._shared}"

    def snapshot(self) -> None:
        """Copy the bytes into this blob, so that the caller may change the original buffers.

        Blocks, as `share` does.
        """
        self.share()
        with self._sharing:
            assert self._shared is not None, "it was shared just now"
            self.parts = [mmap.mmap(self._shared, 0, prot=mmap.PROT_READ)]

    def own(self) -> None:
        """Copy the bytes if the caller could change them. Afterwards the caller may change the original buffers.

        Blocks for 0.05 s per 100 MB. If few files are open, a large copy goes into a memory file, which local nodes can
        map without another copy.

        Raises:
            MemoryError: there is not enough memory for the copy.
        """
        with self._sharing:
            if not self.may_change:
                return
            try:
                copy: Part = self._early_file() or copy_of(self.parts, self.size_bytes, OwnMemory)
            except OSError as error:
                size = f"{self.size_bytes >> 20:,} MiB"
                raise MemoryError(
                    f"A call's arguments have {size}, and there is no memory for a copy of them: await the call by "
                    f"pool.run, which takes none, or give it the path of a file. ({error})"
                ) from error
            if isinstance(copy, OwnMemory):
                self._copy = copy
            views, at = list[Part](), 0
            for part in self.parts:
                size_bytes = memoryview(part).nbytes
                views.append(memoryview(copy)[at : at + size_bytes])
                at += size_bytes
            self.parts = views

    def _early_file(self) -> OwnMemory | None:
        """Copy the bytes into a memory file, which `share` uses later.

        None: the blob is small, or too many files are open.
        """
        most = min(EARLY, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 16)
        if self.size_bytes <= AT_ONCE_BYTES or len(_early) >= (
            most if self.size_bytes >= DESCRIPTOR_BYTES else most // 2
        ):
            return None
        try:
            shared = self._copied()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                return None
            raise
        try:
            copy = OwnMemory(shared, 0, prot=mmap.PROT_READ)
        except BaseException:
            os.close(shared)
            raise
        self._shared = shared
        _early.add(self)
        return copy

    def begin_copy(self) -> None:
        """Allocate memory for a copy of the bytes. `copy` or `key` fills it later.

        The blob can already be sent while the memory is being filled.
        """
        if self._shared is None and self._to_copy is None and not self._digest and self.may_change:
            self._to_copy, self.parts, self.filled = self.parts, [huge_buffer(self.size_bytes)], Filled()

    def copy(self) -> None:
        """Complete the copy that `begin_copy` began. Blocks for 0.04 s per 100 MB."""
        with self._sharing:
            self._fill()

    def key(self) -> str:
        """Return the SHA-256 of the bytes as the blob's content key; empty if there are too many bytes.

        If the caller could change the bytes, they are copied first: bytes with a key must never change. Blocks for
        0.1 s per 100 MB.
        """
        if self.size_bytes > KEYED_BYTES:
            return ""
        with self._sharing:
            if not self._digest:
                if self._to_copy is not None:
                    self._fill()
                elif self._shared is None and self.may_change:
                    self.parts = [copy_of(self.parts, self.size_bytes)]
                digest = hashlib.sha256()
                for part in self.parts:
                    digest.update(part)
                self._digest = digest.hexdigest()
        return self._digest

    def look(self) -> bytes:
        """Return a cheap fingerprint: a hash of samples of the bytes. Takes 50 us."""
        digest = hashlib.blake2b(str(self.size_bytes).encode(), digest_size=16)
        parts = self._to_copy or self.parts
        for part in parts:
            view = memoryview(part).cast("B")
            for at in range(0, len(view), max(LOOK_BYTES, len(view) * len(parts) // LOOKS)):
                digest.update(view[at : at + LOOK_BYTES])
            digest.update(view[-LOOK_BYTES:])
        return digest.digest()

    @property
    def may_change(self) -> bool:
        """Return whether the bytes may change, because they are in the caller's memory."""
        return not all(map(is_fixed, self.parts))

    def _fill(self) -> None:
        if self._to_copy is not None and self.filled is not None:
            copy_into(memoryview(self.parts[0]), self._to_copy, self.filled)
            self._to_copy = None

    @classmethod
    def opened(cls, name: str, size_bytes: int, path: str) -> Blob:
        """Return a blob whose bytes are in a file ``path`` of another process on this computer.

        Raises OSError if that process has ended.
        """
        blob = cls(name, [], size_bytes)
        blob._shared = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return blob

    def pieces(self, sizes: Sequence[int]) -> tuple[Piece, ...]:
        """Divide a value into blobs: first the pickle with all small buffers, then the large buffers.

        Nodes can then use the blob of a buffer again for another call. Empty: there is no large buffer, or one is too
        large.
        """
        with self._sharing:
            if self._pieces is None:
                self._pieces = _cut(self.name, self._buffers(sizes), sizes)
        return self._pieces

    def _buffers(self, sizes: Sequence[int]) -> list[memoryview]:
        """Return the pickle and its buffers as a list, without the padding between them."""
        parts, buffers, total = iter(self.parts), list[memoryview](), 0
        for size in sizes:
            if gap := -total % ALIGN_BYTES:
                next(parts)
            buffers.append(memoryview(next(parts)).cast("B"))
            total += gap + size
        return buffers

    def renamed(self, name: str) -> Blob:
        """Return a blob with the same bytes under another name, for sending."""
        other = Blob(name, self.parts, self.size_bytes, self.filled)
        other._same_bytes = self
        return other

    def _copied(self) -> int:
        fd = os.memfd_create("outrider-blob", os.MFD_CLOEXEC)
        try:
            for part in self.parts:
                rest = memoryview(part).cast("B")
                while rest:
                    rest = rest[os.write(fd, rest) :]
        except BaseException:
            os.close(fd)
            raise
        return fd

    def keep(self) -> bool:
        """Keep the bytes after the blob is closed, until `let_go` is called.

        The caller may then change the original buffers.

        Returns False, and keeps nothing, if a copy would be necessary. Bytes that were sent usually have a copy
        already.
        """
        if not self._sharing.acquire(blocking=False):  # a thread whose caller no longer waits is still copying the blob
            return False
        try:
            small = [each.blob for each in self._pieces or () if each.blob.size_bytes <= INLINE_BYTES]
            if self._shared is None and self._pieces:
                if not all(each.blob in small or each.blob._is_own for each in self._pieces):
                    return False
                for each in small:
                    each.parts = [b"".join(each.parts)]
            elif not self._is_own:
                return False
            if self._copy is None and (self._shared is not None or self._pieces):
                self.parts = ()  # release the caller's arguments
            self._kept = True
            return True
        finally:
            self._sharing.release()

    @property
    def _is_own(self) -> bool:
        """Return whether the bytes are independent of the caller's memory."""
        copied = self.filled is not None and self._to_copy is None
        return self._shared is not None or bool(self._digest) or copied or not self.may_change

    @property
    def kept_bytes(self) -> int:
        """Return what keeping the blob costs, in bytes. If it needs a file descriptor, at least `DESCRIPTOR_BYTES`."""
        return max(self.size_bytes, 0 if self._shared is None else DESCRIPTOR_BYTES)

    def let_go(self) -> None:
        self._kept = False
        self.close()

    def close(self) -> None:
        if self._shared is not None and not self._kept:
            shared, self._shared = self._shared, None
            _early.discard(self)
            blobs.close(shared)

    def __del__(self) -> None:
        self.let_go()  # a thread whose caller no longer waits may have opened the memory file after `close`
        if self._copy is not None:
            self.parts = [self._copy]  # drop the views, which would prevent that the copy's memory is released
            self._pieces = None
        if self._same_bytes is None:
            for part in self.parts:
                if isinstance(part, mmap.mmap):  # memory of our own: a copy, or bytes from a node, not in a shared file
                    blobs.give_back(partial(_unmap, part), self.size_bytes)


_early: WeakSet[Blob] = WeakSet()  # blobs for which `own` created a memory file


def _unmap(buffer: mmap.mmap) -> None:
    """Release the memory without holding Python's lock (GIL).

    Does nothing while a part of the memory is being sent or is used by an unpickled value.
    """
    if buffer.closed or _is_viewed(buffer):
        return
    with memoryview(buffer) as view:
        if len(view) >= blobs.LARGE_BYTES and not view.readonly and not sys.is_finalizing():
            from ..wire import large_copy  # imported here, because it imports ctypes, which few programs need

            large_copy.give_back(view)
    buffer.close()


def _is_viewed(buffer: mmap.mmap) -> bool:
    """Return whether a memoryview of the memory exists.

    Resizing fails if there is a view; the new size is the old one.
    """
    try:
        buffer.resize(len(buffer))
    except BufferError:
        return True
    except (OSError, TypeError, ValueError):  # this kind of memory cannot be resized
        return False
    return False


class Piece(NamedTuple):
    """A blob that contains some parts of a value. ``parts``: the numbers of these parts; 0 is the pickle."""

    blob: Blob
    parts: tuple[int, ...]


def _cut(name: str, buffers: Sequence[memoryview], sizes: Sequence[int]) -> tuple[Piece, ...]:
    large = [number for number, size in enumerate(sizes) if number and size > INLINE_BYTES]
    if not large or max(sizes) > KEYED_BYTES:
        return ()
    groups = [[number] for number in large]
    if len(large) > ALONE:  # as for a model: a later call often has all of these buffers again
        groups = [[]]
        for number in large:
            if sum(sizes[each] for each in groups[-1]) >= GROUP_BYTES:
                groups.append([])
            groups[-1].append(number)
    rest = [number for number in range(len(sizes)) if number not in set(large)]
    return tuple(
        Piece(_joined(f"{name}/{number}", [buffers[each] for each in parts]), tuple(parts))
        for number, parts in enumerate((rest, *groups))
    )


def _joined(name: str, buffers: Sequence[memoryview]) -> Blob:
    parts, total = list[Part](), 0
    for each in buffers:
        if gap := -total % ALIGN_BYTES:
            parts.append(bytes(gap))
        parts.append(each)
        total += gap + len(each)
    return Blob(name, parts, total)


class Shared(Generic[T]):
    """A value to which the arguments of many calls can refer. Tasks receive the value itself, with read-only arrays.

    Client and nodes keep the value's bytes until it is closed and all calls that refer to it have ended. Use this
    object only in the thread of the pool's event loop.
    """

    __slots__ = ("_closed", "_drop", "_sizes", "_uses", "blob")

    def __init__(self, blob: Blob, sizes: tuple[int, ...] | None, drop: Callable[[Blob], None]) -> None:
        self.blob, self._sizes, self._drop = blob, sizes, drop
        self._uses = 0
        self._closed = False

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._forget()

    def released(self) -> None:
        self._uses -= 1
        self._forget()

    def _forget(self) -> None:
        if self._closed and not self._uses:
            self._drop(self.blob)

    def __reduce__(self) -> tuple[Any, ...]:
        pending_references.append(self)
        return blobs.resolve_shared, (self.blob.name, self._sizes)


# shared values to which the call that is being packed refers; used only in the event loop's thread
pending_references: list[Shared[Any]] = []


def referred() -> tuple[Shared[Any], ...]:
    """Return the shared values to which the call that was just pickled refers, and count the call as their user.

    Raises:
        SpecError: a shared value was closed.
    """
    references = tuple(dict.fromkeys(pending_references))
    pending_references.clear()
    if any(each._closed for each in references):
        raise SpecError("The call refers to a shared value that was closed: share it again.")
    for each in references:
        each._uses += 1
    return references


class Received(NamedTuple):
    data: Part
    sizes: tuple[int, ...] | None
    busy_s: float = 0.0  # for the result of a task: how long the task ran, in seconds

    @property
    def is_long_to_load(self) -> bool:
        """Return whether unpickling takes so long that it should run in a thread.

        The buffers of arrays take no time.
        """
        return (len(self.data) if self.sizes is None else self.sizes[0]) >= LONG_BYTES

    def drop(self) -> None:
        """Release the memory of the pickled bytes.

        Memory that the unpickled value uses, such as an array's, is not released.

        Call this method in a thread: it takes 0.1 s per gigabyte, while other threads can run.
        """
        if self.sizes is None and isinstance(self.data, mmap.mmap):
            _unmap(self.data)


def check_size(size_bytes: int, most_bytes: int | None) -> None:
    """Raise ValueError if ``size_bytes`` is greater than ``most_bytes``. None: no limit."""
    if most_bytes is not None and size_bytes > most_bytes:
        raise ValueError(f"it has {size_bytes:,} bytes, and at most {most_bytes:,} are taken")


def map_shared(path: str, most_bytes: int | None = None) -> mmap.mmap:
    """Map an anonymous file of another process into memory. Pages are read when they are first used.

    The mapping is private (copy-on-write), so arrays in it are writable. If there are so many mappings that this
    process could run out of file descriptors, return a copy instead. Raises ValueError if the file is larger than
    ``most_bytes``.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        check_size(os.fstat(fd).st_size, most_bytes)
        how: dict[str, Any] = {"flags": mmap.MAP_PRIVATE, "prot": mmap.PROT_READ | mmap.PROT_WRITE}
        if sys.version_info >= (3, 13):
            return mmap.mmap(fd, 0, **how, trackfd=False)
        if len(_mapped) >= min(MAPPED_AT_MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4):
            return _copied(fd)
        mapping = mmap.mmap(fd, 0, **how)
        _mapped.add(mapping)
        return mapping
    finally:
        os.close(fd)


_mapped: WeakSet[mmap.mmap] = WeakSet()


def _copied(fd: int) -> mmap.mmap:
    buffer = huge_buffer(os.fstat(fd).st_size)
    rest = memoryview(buffer)
    while rest:
        count = os.readv(fd, [rest])
        if not count:
            raise OSError("a value became shorter while it was read")
        rest = rest[count:]
    return buffer

"""The executor's work on the blobs (large values in memory) of its store: names, moves to disk, verified copies.

`NamedBlobs` gives names to the blobs in messages of workers, by which the client fetches them: values, artifacts and
checkpoints. `DiskBlobs` moves blobs from memory into unnamed files in the node's folder, one blob at a time, in a
thread. `Replicas` verifies copies of checkpoint parts (a part: one rank's state, in a blob) that another node holds. It
does not verify the first 64 bytes of a part: they contain flags that the rank and its node set later, such as "free".
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Thread
from typing import Any, cast
from zlib import crc32

from ..wire.messages import LOST, Done, Failed, Kept, Logged, Message, NotMoved, Replicate, Replicated, Value, Yield
from . import blobs, limits
from .blobs import BlobStore

ARTIFACTS_BYTES = 1 << 30  # memory limit for artifacts (blobs of log records) that the client has not fetched yet

VALUES = {Done: "value", Yield: "item", Failed: "error"}  # message -> its field whose value may be in a blob


class NamedBlobs:
    """The giver of names to the blobs in workers' messages.

    A node keeps at most `ARTIFACTS_BYTES` of artifacts (blobs of log records), in at most half of its descriptors. The
    other half is reserved for values of tasks, which must not be lost.
    """

    def __init__(self, store: BlobStore, limit_bytes: int = ARTIFACTS_BYTES) -> None:
        self._store, self._limit = store, limit_bytes
        # name of an artifact's blob -> its size in bytes; some of these blobs may already be dropped
        self._sizes: dict[str, int] = {}
        self._waiting_bytes = 0  # sum of the sizes in `_sizes`
        self._look_at = 64  # at this number of artifacts, remove the dropped ones from `_sizes`

    def named(self, message: Message, fds: list[int] | None) -> Message:
        """Add the blob of a worker's message to the store; return the message with the blob's name, or with an error.

        ``fds``: the message's descriptors; None if they were lost because this process had too few free descriptors.
        """
        if isinstance(message, Logged):
            return self._artifact(message, fds)
        if isinstance(message, Kept):
            return self._slot(message, fds)
        field = VALUES.get(type(message), "")
        value: Value | None = getattr(message, field, None)
        if value is None:
            for fd in fds or ():
                os.close(fd)
            return message
        try:
            value = value._replace(blob=self._store.add_result(fds[0])) if fds else None
        except OSError:
            value = None
        if value is None and not isinstance(message, Failed):
            value = Value(b"", None, f"{LOST}{limits.story()}")
        changed: Message = cast("Any", message)._replace(**{field: value})
        return changed

    def _artifact(self, message: Logged, fds: list[int] | None) -> Logged:
        if not fds:
            return message._replace(blob=None if fds is not None else f"{LOST}{limits.story()}")
        fd, *others = fds
        for other in others:
            os.close(other)
        size_bytes, most = os.fstat(fd).st_size, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        if self._waiting_bytes + size_bytes > self._limit or len(self._sizes) >= min(most, self._look_at):
            self._forget_gone()
        if self._waiting_bytes + size_bytes > self._limit or len(self._sizes) >= most:
            os.close(fd)
            story = (
                f"{len(self._sizes)} artifacts of {self._waiting_bytes} bytes wait on its node to be fetched, which "
                f"keeps {most} of {self._limit} bytes"
            )
            return message._replace(blob=f"{LOST}{story}")
        try:
            name = self._store.add_result(fd)
        except OSError:
            return message._replace(blob=f"{LOST}{limits.story()}")
        # a dropped artifact may have had the same descriptor, and therefore the same name
        self._waiting_bytes += size_bytes - self._sizes.get(name, 0)
        self._sizes[name] = size_bytes
        return message._replace(blob=name)

    def _slot(self, message: Kept, fds: list[int] | None) -> Kept:
        """Add a rank's checkpoint to the store, and return the message with the name of the checkpoint's blob.

        If the blob is lost, the name is replaced by `LOST` and the reason.
        """
        fd, *others = fds or (-1,)
        for other in others:
            os.close(other)
        try:
            return message._replace(blob=self._store.add_slot(fd) if fd >= 0 else f"{LOST}{limits.story()}")
        except OSError:
            return message._replace(blob=f"{LOST}{limits.story()}")

    def _forget_gone(self) -> None:
        self._sizes = {name: size for name, size in self._sizes.items() if self._store.fd(name) is not None}
        self._waiting_bytes = sum(self._sizes.values())
        self._look_at = 2 * len(self._sizes) + 64


FREE_SHARE = 0.1  # share of the disk that must stay free
_PIECE_BYTES = 1 << 24


class DiskBlobs:
    """The mover of blobs from memory to disk.

    Args:
        moved: called with the name of each blob whose descriptor now refers to a file.
        send: called with a message for each blob that could not be moved.
    """

    def __init__(
        self,
        store: BlobStore,
        folder: Path,
        *,
        moved: Callable[[str], object],
        send: Callable[[NotMoved], object],
    ) -> None:
        self._store, self._folder, self._moved, self._send = store, folder, moved, send
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[str] = deque()
        self._busy = False

    def move(self, names: Iterable[str]) -> None:
        self._waiting += names
        self._next()

    def _next(self) -> None:
        while self._waiting and not self._busy:
            name = self._waiting.popleft()
            fd = self._store.fd(name)
            if fd is None:  # the blob was dropped while it waited
                continue
            try:
                source = os.dup(fd)
            except OSError as error:
                self._send(NotMoved(name, str(error.strerror)))
                continue
            self._busy = True
            Thread(target=self._copy, args=(name, source), daemon=True, name="outrider-disk").start()

    def _copy(self, name: str, source: int) -> None:
        try:
            file, reason = copied_to_disk(source, self._folder), ""
        except OSError as error:
            file, reason = -1, str(error.strerror or error)
        finally:
            os.close(source)
        try:
            self._loop.call_soon_threadsafe(self._copied, name, file, reason)
        except RuntimeError:  # the event loop is closed: the executor is ending
            if file >= 0:
                os.close(file)

    def _copied(self, name: str, file: int, reason: str) -> None:
        self._busy = False
        if file < 0:
            self._send(NotMoved(name, reason))
        elif self._store.replace(name, file):
            self._moved(name)
        self._next()


def copied_to_disk(source: int, folder: Path) -> int:
    """Copy a blob into a new unnamed file in ``folder``; return its descriptor.

    Raises:
        OSError: less than `FREE_SHARE` of the disk would stay free, or the file cannot be written.
    """
    size_bytes, disk = os.fstat(source).st_size, os.statvfs(folder)
    if disk.f_bavail * disk.f_frsize - size_bytes < FREE_SHARE * disk.f_blocks * disk.f_frsize:
        raise OSError(errno.ENOSPC, "its disk is full")
    path = folder / f"object-{os.urandom(8).hex()}"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        path.unlink()
        at = 0
        while at < size_bytes:
            at += os.sendfile(file, source, at, min(_PIECE_BYTES, size_bytes - at))
    except BaseException:
        os.close(file)
        raise
    return file


HEAD_BYTES = 64  # number of bytes at the beginning of a part that are not verified
BLOCK_BYTES = 1 << 18  # the digest of a part is computed from the sums of its blocks of this size
WORD_BYTES = 8
_AT_ONCE_BYTES = 1 << 15
_PAIRS = _AT_ONCE_BYTES // WORD_BYTES // 2
_EVERY_SECOND = int.from_bytes((b"\xff" * WORD_BYTES + bytes(WORD_BYTES)) * _PAIRS, "little")


class Replicas:
    """The handler of the client's requests to verify copies of checkpoint parts on this node.

    ``send``: called with the answer to each request, in any order.
    """

    def __init__(self, store: BlobStore, send: Callable[[Replicated], object]) -> None:
        self._store, self._send = store, send
        self._loop = asyncio.get_running_loop()

    def handle(self, order: Replicate) -> None:
        if self._store.fd(order.blob) is None and order.path:
            self._store.open(order.blob, order.path)
        fd = self._store.fd(order.blob)
        if fd is None or os.fstat(fd).st_size < order.size_bytes:
            self._send(Replicated(order.blob, "", "it is not there"))
            return
        path = f"/proc/{os.getpid()}/fd/{fd}"
        if order.digest is None:
            self._send(Replicated(order.blob, path, ""))
            return
        try:
            mine = os.dup(fd)
        except OSError as error:
            self._send(Replicated(order.blob, "", str(error.strerror)))
            return
        Thread(target=self._verify, args=(order, mine, path), daemon=True, name="outrider-replica").start()

    def _verify(self, order: Replicate, fd: int, path: str) -> None:
        try:
            problem = "" if part_digest(blobs.mapped(fd), order.size_bytes) == order.digest else "it is damaged"
        except Exception as error:  # noqa: BLE001  for example, no memory: the client waits for an answer
            problem = str(error) or type(error).__name__
        try:
            self._loop.call_soon_threadsafe(self._send, Replicated(order.blob, "" if problem else path, problem))
        except RuntimeError:  # the event loop is closed: the executor is ending
            pass


def part_digest(content: object, size_bytes: int) -> int:
    """Return the digest of a checkpoint part. It takes 1.5 s for 1 GB; `checkpoint.slot` computes it faster."""
    with memoryview(content) as view:  # type: ignore[arg-type]
        rest_at = HEAD_BYTES + (size_bytes - HEAD_BYTES) // BLOCK_BYTES * BLOCK_BYTES
        blocks = range(HEAD_BYTES, rest_at, BLOCK_BYTES)
        sums = [_sum(view[at : at + BLOCK_BYTES]).to_bytes(WORD_BYTES, "little") for at in blocks]
        return part_digest_of(b"".join(sums), view[rest_at:size_bytes])


def part_digest_of(sums: bytes, rest: bytes | memoryview) -> int:
    """Return the digest of a checkpoint part.

    Args:
        sums: the sum of each whole block of `BLOCK_BYTES`: its 8-byte numbers added up, modulo 2**64.
        rest: the bytes after the last whole block.
    """
    return crc32(rest, crc32(sums))


def _sum(block: memoryview) -> int:
    """Return the sum of a block's 8-byte numbers, modulo 2**64.

    For speed, thousands of numbers are added at once, as two large integers. Each integer contains every second number
    and zeros between the numbers, which leave room for carries.
    """
    total, bits = 0, 8 * _AT_ONCE_BYTES
    for at in range(0, len(block), _AT_ONCE_BYTES):
        numbers = int.from_bytes(block[at : at + _AT_ONCE_BYTES], "little")
        total += (numbers & _EVERY_SECOND) + (numbers >> 8 * WORD_BYTES & _EVERY_SECOND)
    while bits > 16 * WORD_BYTES:
        bits //= 2
        total = (total & (1 << bits) - 1) + (total >> bits)
    return total & (1 << 8 * WORD_BYTES) - 1

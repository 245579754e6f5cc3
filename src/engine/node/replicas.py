"""Copies of checkpoint parts (a part: one rank's state, in a blob) on another node, and their verification.

The first 64 bytes of a part are not verified: they contain flags that the rank and its node set later, such as "free".
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from threading import Thread
from zlib import crc32

from ..wire.checkpoint_messages import Replicate, Replicated
from . import blobs
from .blobs import BlobStore

HEAD_BYTES = 64  # number of bytes at the beginning of a part that are not verified
BLOCK_BYTES = 1 << 18  # size of a block, of which the digest contains the sum
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
            problem = "" if digest(blobs.mapped(fd), order.size_bytes) == order.digest else "it is damaged"
        except Exception as error:  # noqa: BLE001  for example, no memory: the client waits for an answer
            problem = str(error) or type(error).__name__
        try:
            self._loop.call_soon_threadsafe(self._send, Replicated(order.blob, "" if problem else path, problem))
        except RuntimeError:  # the event loop is closed: the executor is ending
            pass


def digest(content: object, size_bytes: int) -> int:
    """Return the digest of a checkpoint part. It takes 1.5 s for 1 GB; `checkpoint.slot` computes it faster."""
    with memoryview(content) as view:  # type: ignore[arg-type]
        rest_at = HEAD_BYTES + (size_bytes - HEAD_BYTES) // BLOCK_BYTES * BLOCK_BYTES
        blocks = range(HEAD_BYTES, rest_at, BLOCK_BYTES)
        sums = [_sum(view[at : at + BLOCK_BYTES]).to_bytes(WORD_BYTES, "little") for at in blocks]
        return digest_of(b"".join(sums), view[rest_at:size_bytes])


def digest_of(sums: bytes, rest: bytes | memoryview) -> int:
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

"""The keys of the objects on nodes: the SHA-256 of the bytes, or a provisional key at first.

The SHA-256 of a gigabyte takes most of a second. If the fingerprint of a large blob is new, no node has the blob: it is
sent at once under a provisional key, without a wait for its SHA-256. The SHA-256 is computed after the blob was sent,
or when a caller needs it, and then replaces the provisional key.
"""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Protocol

from ...providers.shared.threads import in_thread
from ..serialization.payload import AT_ONCE_BYTES, KEYED_BYTES, Blob

if TYPE_CHECKING:
    from .peer_transfers import PeerTransfers

LARGE_BYTES = 16 << 20  # blobs from this size on may get a provisional key; the SHA-256 of a smaller one takes 10 ms
SEEN = 4096  # fingerprints that are remembered; a blob whose fingerprint is forgotten is sent again


class Keyed(Protocol):
    """The interface of a node that has objects under keys."""

    def rekeyed(self, before: str, key: str) -> None: ...


class ContentKeys:
    """The keys of a pool's objects. Use it only in the thread of the pool's event loop."""

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, weakref.ref[Blob]] = OrderedDict()  # fingerprint -> the first blob that had it
        self._numbers = itertools.count(1)
        self._settling: dict[str, asyncio.Task[str]] = {}  # provisional key -> the running computation of the SHA-256
        self._own: set[str] = set()  # provisional keys that no SHA-256 has replaced yet
        self._copying: set[asyncio.Task[None]] = set()
        self.nodes: weakref.WeakSet[Keyed] = weakref.WeakSet()
        self.peers: PeerTransfers | None = None

    async def key_of(self, blob: Blob) -> str:
        """Return the key under which nodes may have the blob; empty: the blob has no key."""
        if blob.known_key is None:
            if blob.size_bytes > KEYED_BYTES:
                return ""
            if blob.size_bytes <= AT_ONCE_BYTES:
                blob.known_key = blob.key()
            elif blob.size_bytes >= LARGE_BYTES and await self._is_new(blob):
                return self._own_key(blob)
            else:
                key = await in_thread(blob.key, abandon=True)
                if blob.known_key is None:
                    blob.known_key = key
        return blob.known_key

    def is_own(self, key: str) -> bool:
        return key in self._own

    async def settle(self, blob: Blob) -> str:
        """Compute the SHA-256 of a blob, make it the blob's key, and return it."""
        self.begin_to_settle(blob)
        settling = self._settling.get(blob.known_key or "")
        return await (self.key_of(blob) if settling is None else asyncio.shield(settling))

    def begin_to_settle(self, blob: Blob) -> None:
        """Begin to replace a blob's provisional key with its SHA-256."""
        key = blob.known_key
        if key in self._own and key not in self._settling:
            self._settling[key] = settling = asyncio.ensure_future(self._settled(blob, key))
            settling.add_done_callback(partial(self._over, key))

    def _over(self, key: str, settling: asyncio.Task[str]) -> None:
        del self._settling[key]
        if not settling.cancelled():
            settling.exception()  # retrieve the error: asyncio would log it

    def left(self, node: Keyed) -> None:
        """Note that a node is lost. Once the last node is lost, no key is needed any more."""
        self.nodes.discard(node)
        if not self.nodes:
            for task in (*self._settling.values(), *self._copying):
                task.cancel()

    async def _is_new(self, blob: Blob) -> bool:
        """Return whether a blob's fingerprint is new."""
        look = blob.look()
        if look not in self._seen:
            self._seen[look] = weakref.ref(blob)
            if len(self._seen) > SEEN:
                self._seen.popitem(last=False)
            return True
        self._seen.move_to_end(look)
        if (first := self._seen[look]()) is not None and first is not blob:
            await self.settle(first)
        return False

    def _own_key(self, blob: Blob) -> str:
        key = blob.known_key = f"{next(self._numbers)} of this pool"
        self._own.add(key)
        blob.begin_copy()
        if blob.filled is not None:
            copying = asyncio.ensure_future(in_thread(blob.copy, abandon=True))
            self._copying.add(copying)
            copying.add_done_callback(self._copying.discard)
        return key

    async def _settled(self, blob: Blob, before: str) -> str:
        key = await in_thread(blob.key, abandon=True)
        if self.peers is None or self.peers.rekeyed(before, key):
            for node in [*self.nodes]:
                node.rekeyed(before, key)
        blob.known_key = key
        self._own.discard(before)
        return key

"""The keys by which nodes are known to have an object: the SHA-256 of its bytes, or at first one of its own.

The SHA-256 of a gigabyte takes most of a second. A large blob that looks like none before is on no node, so it is sent
at once by a key of its own, while it is copied. Its SHA-256 is taken when it has been sent, or somebody asks for it,
and from then on it is known by that.
"""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Protocol

from ...providers.threads import in_thread
from ..serialization.own_memory import AT_ONCE_BYTES
from ..serialization.payload import KEYED_BYTES, Blob

if TYPE_CHECKING:
    from .peer_transfers import PeerTransfers

LARGE_BYTES = 16 << 20  # of a smaller blob the SHA-256 takes 10 ms
SEEN = 4096  # looks that are remembered: what looks like a forgotten one is sent again


class Keyed(Protocol):
    """Whoever has objects by keys."""

    def rekeyed(self, before: str, key: str) -> None: ...


class ContentKeys:
    """The keys of a pool's objects. It is for the thread of the pool's loop."""

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, weakref.ref[Blob]] = OrderedDict()  # the first blob of each look
        self._numbers = itertools.count(1)
        self._settling: dict[str, asyncio.Task[str]] = {}  # by the key that a blob has until then
        self._own: set[str] = set()  # keys that are no SHA-256
        self._copying: set[asyncio.Task[None]] = set()
        self.nodes: weakref.WeakSet[Keyed] = weakref.WeakSet()
        self.peers: PeerTransfers | None = None

    async def key_of(self, blob: Blob) -> str:
        """Return the key by which nodes have a blob, if they have it; empty: it has none."""
        if blob.known_key is None:
            if blob.size_bytes > KEYED_BYTES:
                return ""
            if blob.size_bytes <= AT_ONCE_BYTES:
                blob.known_key = blob.key()
            elif blob.size_bytes >= LARGE_BYTES and await self._is_new(blob):
                return self._given(blob)
            else:
                key = await in_thread(blob.key, abandon=True)
                if blob.known_key is None:
                    blob.known_key = key
        return blob.known_key

    def is_own(self, key: str) -> bool:
        return key in self._own

    async def settle(self, blob: Blob) -> str:
        """Return the SHA-256 of a blob, by which it is known from then on."""
        self.begin_to_settle(blob)
        settling = self._settling.get(blob.known_key or "")
        return await (self.key_of(blob) if settling is None else asyncio.shield(settling))

    def begin_to_settle(self, blob: Blob) -> None:
        """Have a blob be known by its SHA-256 soon."""
        key = blob.known_key
        if key in self._own and key not in self._settling:
            self._settling[key] = settling = asyncio.ensure_future(self._settled(blob, key))
            settling.add_done_callback(partial(self._over, key))

    def _over(self, key: str, settling: asyncio.Task[str]) -> None:
        del self._settling[key]
        if not settling.cancelled():
            settling.exception()  # seen: perhaps nobody waits for it

    def left(self, node: Keyed) -> None:
        """Note that a node is lost. Behind the last one nobody asks for keys any more."""
        self.nodes.discard(node)
        if not self.nodes:
            for task in (*self._settling.values(), *self._copying):
                task.cancel()

    async def _is_new(self, blob: Blob) -> bool:
        """Return whether a blob looks like none before."""
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

    def _given(self, blob: Blob) -> str:
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

"""Blobs that are still arriving: the bytes received so far can already be sent to other nodes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from ...lazy_named_tuple import NamedTuple
from .blobs import BlobStore


class Whole(NamedTuple):
    """A blob that another node has sent completely. ``digest``: SHA-256 in hex; "" if none was requested."""

    name: str
    size_bytes: int
    digest: str


class Arrival:
    """A blob that is still arriving.

    Args:
        on_whole: called when the blob is complete; None for a blob that the client sends. Blobs of other nodes
            have this function, and stay when the channel (the connection that carries them) closes.
    """

    def __init__(
        self, name: str, size_bytes: int, fd: int, on_whole: Callable[[Whole], object] | None, *, hashed: bool
    ) -> None:
        self.name, self.size_bytes, self.on_whole = name, size_bytes, on_whole
        self.fd: int | None = fd  # None once the blob is complete or was dropped
        self.have_bytes = 0
        self.digest = None
        if hashed:
            import hashlib  # imported here because few nodes need it

            self.digest = hashlib.sha256()

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


class Arrivals:
    """The blobs that are still arriving at this node, and access to the complete ones in the store."""

    def __init__(self, store: BlobStore) -> None:
        self.store = store
        self._arriving: dict[str, Arrival] = {}
        self._watched: dict[str, list[asyncio.Event]] = {}

    def get(self, name: str) -> Arrival | None:
        return self._arriving.get(name)

    def begin(
        self, name: str, size_bytes: int, on_whole: Callable[[Whole], object] | None = None, *, hashed: bool = False
    ) -> Arrival:
        """Begin to receive a blob; if a blob of this name is already arriving, drop its received bytes.

        Args:
            hashed: whether ``on_whole`` gets the blob's SHA-256.

        Raises:
            OSError: this process has too few file descriptors left (`BlobStore.new`).
        """
        arrival = Arrival(name, size_bytes, self.store.new(), on_whole, hashed=hashed)
        if (before := self._arriving.get(name)) is not None:
            before.close()
        self._arriving[name] = arrival
        return arrival

    def take(self, arrival: Arrival, data: bytes | memoryview, at: int) -> None:
        """Write bytes at the offset ``at`` of a blob; bytes that it already has are written again, but not counted.

        Raises:
            OSError: no memory is left for the bytes.
        """
        if arrival.fd is None:
            raise OSError("the blob was dropped")
        rest, end = memoryview(data), at + len(data)
        while rest:
            rest = rest[os.pwrite(arrival.fd, rest, end - len(rest)) :]
        if end <= arrival.have_bytes and end < arrival.size_bytes:
            return
        if arrival.digest is not None:
            arrival.digest.update(data[arrival.have_bytes - at :])
        arrival.have_bytes = end
        if end == arrival.size_bytes:
            self.store.add(arrival.name, arrival.fd)
            arrival.fd = None
            del self._arriving[arrival.name]
            if arrival.on_whole is not None:
                digest = "" if arrival.digest is None else arrival.digest.hexdigest()
                arrival.on_whole(Whole(arrival.name, end, digest))
        for changed in self._watched.get(arrival.name, ()):
            changed.set()

    def abandon(self, arrival: Arrival) -> None:
        """Drop a blob that will not be completed."""
        arrival.close()
        if self._arriving.get(arrival.name) is arrival:
            del self._arriving[arrival.name]

    def drop(self, names: Iterable[str]) -> None:
        """Drop those of the named blobs that another node is still sending.

        A blob that the client sends is dropped when its connection closes.
        """
        for name in names:
            if (arrival := self._arriving.get(name)) is not None and arrival.on_whole is not None:
                self.abandon(arrival)

    def read(self, name: str, at: int, most_bytes: int) -> bytes:
        """Return at most ``most_bytes`` bytes from the offset ``at`` of a blob; b"" if they have not arrived yet."""
        arrival = self._arriving.get(name)
        fd, end = (self.store.fd(name), at + most_bytes) if arrival is None else (arrival.fd, arrival.have_bytes)
        return b"" if fd is None or end <= at else os.pread(fd, min(most_bytes, end - at), at)

    @contextmanager
    def watched(self, name: str) -> Iterator[asyncio.Event]:
        """Return an event that is set whenever more bytes of a blob arrive."""
        changed = asyncio.Event()
        self._watched.setdefault(name, []).append(changed)
        try:
            yield changed
        finally:
            self._watched[name].remove(changed)
            if not self._watched[name]:
                del self._watched[name]

    def close(self) -> None:
        for arrival in [*self._arriving.values()]:
            self.abandon(arrival)

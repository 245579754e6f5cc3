"""Blobs while they arrive: the part that is there can go to other nodes already."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from ...lazy_named_tuple import NamedTuple
from .blobs import BlobStore


class Whole(NamedTuple):
    """A blob that another node has sent completely, with its SHA-256 in hex; "" if none was requested."""

    name: str
    size_bytes: int
    digest: str


class Arrival:
    """A blob on its way. With ``on_whole``, called at its end, other nodes send it, and it outlives its channel."""

    def __init__(
        self, name: str, size_bytes: int, fd: int, on_whole: Callable[[Whole], object] | None, *, hashed: bool
    ) -> None:
        self.name, self.size_bytes, self.on_whole = name, size_bytes, on_whole
        self.fd: int | None = fd  # until it is whole, or was dropped
        self.have_bytes = 0
        self.digest = None
        if hashed:
            import hashlib  # needed by few nodes

            self.digest = hashlib.sha256()

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


class Arrivals:
    """The blobs that are on their way to this node, and those in the store, to read them from."""

    def __init__(self, store: BlobStore) -> None:
        self.store = store
        self._arriving: dict[str, Arrival] = {}
        self._watched: dict[str, list[asyncio.Event]] = {}

    def get(self, name: str) -> Arrival | None:
        return self._arriving.get(name)

    def begin(
        self, name: str, size_bytes: int, on_whole: Callable[[Whole], object] | None = None, *, hashed: bool = False
    ) -> Arrival:
        """Begin a blob; the part of an earlier blob of its name is dropped. An OSError: see `BlobStore.new`.

        ``hashed``: ``on_whole`` gets its SHA-256.
        """
        arrival = Arrival(name, size_bytes, self.store.new(), on_whole, hashed=hashed)
        if (before := self._arriving.get(name)) is not None:
            before.close()
        self._arriving[name] = arrival
        return arrival

    def take(self, arrival: Arrival, data: bytes | memoryview, at: int) -> None:
        """Write bytes to their place; only bytes that follow the present part count. An OSError: there is no room."""
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
        """Drop a blob that will not be complete."""
        arrival.close()
        if self._arriving.get(arrival.name) is arrival:
            del self._arriving[arrival.name]

    def drop(self, names: Iterable[str]) -> None:
        """Drop blobs that other nodes send. The client ends its own by their channels."""
        for name in names:
            if (arrival := self._arriving.get(name)) is not None and arrival.on_whole is not None:
                self.abandon(arrival)

    def read(self, name: str, at: int, most_bytes: int) -> bytes:
        """Return bytes of a blob; none: they are not there yet."""
        arrival = self._arriving.get(name)
        fd, end = (self.store.fd(name), at + most_bytes) if arrival is None else (arrival.fd, arrival.have_bytes)
        return b"" if fd is None or end <= at else os.pread(fd, min(most_bytes, end - at), at)

    @contextmanager
    def watched(self, name: str) -> Iterator[asyncio.Event]:
        """Return an event that is set whenever more of a blob arrives."""
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

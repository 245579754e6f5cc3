"""Blobs while they arrive: other nodes can be given what is there of them already."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from ...lazy_named_tuple import NamedTuple
from .blobs import BlobStore


class Whole(NamedTuple):
    """A blob that another node has brought, with its SHA-256 in hex; "" where nobody has asked for that."""

    name: str
    size_bytes: int
    digest: str


class Arrival:
    """One blob. It outlives its channel where other nodes bring it: then ``told`` hears its end."""

    def __init__(
        self, name: str, size_bytes: int, fd: int, told: Callable[[Whole], object] | None, *, hashed: bool
    ) -> None:
        self.name, self.size_bytes, self.told = name, size_bytes, told
        self.fd: int | None = fd  # until it is whole, or was dropped
        self.have_bytes = 0
        self.digest = None
        if hashed:
            import hashlib  # as few nodes need

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
        self, name: str, size_bytes: int, told: Callable[[Whole], object] | None = None, *, hashed: bool = False
    ) -> Arrival:
        """Begin a blob; what has come of an earlier one of its name is gone. An OSError: see `BlobStore.new`.

        ``hashed``: ``told`` is told its SHA-256.
        """
        arrival = Arrival(name, size_bytes, self.store.new(), told, hashed=hashed)
        if (before := self._arriving.get(name)) is not None:
            before.close()
        self._arriving[name] = arrival
        return arrival

    def take(self, arrival: Arrival, data: bytes | memoryview, at: int) -> None:
        """Put bytes in their place; none but those that follow what is there count. An OSError: there is no room."""
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
            if arrival.told is not None:
                digest = "" if arrival.digest is None else arrival.digest.hexdigest()
                arrival.told(Whole(arrival.name, end, digest))
        for changed in self._watched.get(arrival.name, ()):
            changed.set()

    def abandon(self, arrival: Arrival) -> None:
        """Let go of a blob that will not come whole."""
        arrival.close()
        if self._arriving.get(arrival.name) is arrival:
            del self._arriving[arrival.name]

    def drop(self, names: Iterable[str]) -> None:
        """Let go of what other nodes bring. What the client itself sends it ends by its channel."""
        for name in names:
            if (arrival := self._arriving.get(name)) is not None and arrival.told is not None:
                self.abandon(arrival)

    def read(self, name: str, at: int, most_bytes: int) -> bytes:
        """Return bytes of a blob; none: they are not there yet."""
        arrival = self._arriving.get(name)
        fd, end = (self.store.fd(name), at + most_bytes) if arrival is None else (arrival.fd, arrival.have_bytes)
        return b"" if fd is None or end <= at else os.pread(fd, min(most_bytes, end - at), at)

    @contextmanager
    def watched(self, name: str) -> Iterator[asyncio.Event]:
        """Give what is set whenever more of a blob is there."""
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

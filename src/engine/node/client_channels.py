"""Connections to an executor's socket, and the blobs (large values in memory) that arrive over them.

The first frame (message) of a connection shows its purpose: a client's control channel, or the transfer of one blob.
`Arrivals` has the blobs that are still arriving, from the client or from other nodes (`peers`): the bytes received so
far can already be sent to other nodes.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import cast

from ...lazy_named_tuple import NamedTuple
from ..wire import codec
from ..wire.codec import ProtocolError
from ..wire.messages import Get, Have, Hello, Missing, Put, PutRest
from . import limits
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


_PIECE_BYTES = 65536
_SENT_BYTES, _HELD_BYTES = 1 << 18, 4096  # bytes of a blob for one call of sendfile, or of asyncio's `write`
_CREDENTIALS = struct.Struct("3i")  # <linux/socket.h>: struct ucred {pid, uid, gid}


class _Reads(threading.local):
    """The read buffer of a thread. All its connections share it: each one copies its data before the next read."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(_PIECE_BYTES))


_reads = _Reads()


class ByteStream(asyncio.BufferedProtocol):
    """An asyncio protocol that reads 64 KiB at a time into a buffer shared by the thread's connections.

    By default asyncio reads 256 KiB at a time, which costs 16 us for an mmap. A separate buffer for each connection
    would cost the client 64 KiB of memory for each node. Create the protocol in the thread of its event loop.
    """

    def __init__(self) -> None:
        self._read = _reads.buffer

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._read

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._read[:nbytes]))

    def data_received(self, data: bytes) -> None:
        raise NotImplementedError


class NewChannel(ByteStream):
    """A connection on which no complete frame has arrived yet.

    If the other end belongs to another user, the connection is closed at once, unless that user is root.
    """

    def __init__(self, greeted: Callable[[asyncio.Transport, Hello, bytes], None], arrivals: Arrivals) -> None:
        super().__init__()
        self._greeted, self._arrivals = greeted, arrivals
        self._splitter = codec.Splitter()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if peer_uid(transport.get_extra_info("socket")) not in {0, os.geteuid()}:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            body = self._splitter.first(data)
            if body is not None:
                self._begin(codec.decode(body), self._splitter.tail)
        except ProtocolError:  # the frame is malformed: close this connection only
            self._transport.close()
        except OSError as error:  # no descriptor is left for a new blob: the client retries
            if not limits.is_shortage(error):
                raise
            self._transport.close()

    def _begin(self, first: object, rest: bytes) -> None:
        match first:
            case Hello() as hello:
                self._greeted(self._transport, hello, rest)
            case Put(name, size_bytes):
                self._take(BlobIn(self._transport, self._arrivals, self._arrivals.begin(name, size_bytes)), rest)
            case PutRest(name, size_bytes, offset):
                arrival = self._arrivals.get(name)
                if arrival is None or arrival.size_bytes != size_bytes or arrival.have_bytes < offset:
                    raise ProtocolError(f"there are no {offset} bytes of {name!r}")
                self._take(BlobIn(self._transport, self._arrivals, arrival, offset), rest)
            case Get(name):
                BlobOut(self._transport, name, self._arrivals.store).begin()
            case _:
                raise ProtocolError(f"a channel cannot begin with {type(first).__name__}")

    def _take(self, incoming: BlobIn, rest: bytes) -> None:
        self._transport.set_protocol(incoming)
        incoming.data_received(rest)


class BlobIn(ByteStream):
    """A connection on which a client sends a blob, or only the bytes at its end that this node lacks.

    When the blob is complete, it is added to the store, and the client receives `Have`.
    """

    def __init__(self, transport: asyncio.Transport, arrivals: Arrivals, arrival: Arrival, at: int = 0) -> None:
        super().__init__()
        self._transport, self._arrivals, self._arrival = transport, arrivals, arrival
        self._at = at

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(self._read[:nbytes])  # no copy: the bytes are written to the blob before the next read

    def data_received(self, data: bytes | memoryview) -> None:
        arrival = self._arrival
        if arrival.fd is None or self._at + len(data) > arrival.size_bytes:  # dropped, or larger than announced
            self._transport.close()
            return
        try:
            self._arrivals.take(arrival, data, self._at)
        except OSError:  # no memory is left: the client notices the closed connection
            self._transport.close()
            return
        self._at += len(data)
        if self._at == arrival.size_bytes:
            self._transport.write(codec.encode(Have(arrival.name, arrival.size_bytes)))

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self._arrival.fd is not None and self._arrival.on_whole is None:
            self._arrivals.abandon(self._arrival)


class BlobOut(ByteStream):
    """A connection on which a client fetches a blob: it carries `Have` and then the blob's bytes.

    `sendfile` moves the bytes from the blob to the socket, in a third of the time of a copy. When the socket is full,
    asyncio gets the next few bytes, and calls `resume_writing` when it has sent them. The blob is read through the
    store's descriptor, so an accepted connection needs no further descriptor.
    """

    def __init__(self, transport: asyncio.Transport, name: str, store: BlobStore) -> None:
        super().__init__()
        self._transport, self._name, self._store = transport, name, store
        self._socket = transport.get_extra_info("socket")
        self._at = 0
        self._sending = False
        self._paused = False

    def begin(self) -> None:
        self._transport.set_protocol(self)
        # asyncio calls `pause_writing` at the first buffered byte, so that sendfile does not overtake buffered bytes
        self._transport.set_write_buffer_limits(high=0)
        fd = self._store.fd(self._name)
        if fd is None:
            self._transport.write(codec.encode(Missing(self._name)))
            return
        self._sending = True
        self._transport.write(codec.encode(Have(self._name, os.fstat(fd).st_size)))
        self._pump()

    def data_received(self, data: bytes) -> None:
        """Ignore all further bytes from the client."""

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._sending = False

    def _pump(self) -> None:
        while self._sending and not self._paused:
            fd = self._store.fd(self._name)
            if fd is None:  # the client has dropped the blob and needs no more bytes
                self._sending = False
                # `close` within `resume_writing` would make asyncio close the transport twice
                asyncio.get_running_loop().call_soon(self._transport.close)
                return
            try:
                sent = os.sendfile(self._socket.fileno(), fd, self._at, _SENT_BYTES)
            except OSError:  # the socket is full, or closed (asyncio's `write` detects that)
                piece = os.pread(fd, _HELD_BYTES, self._at)
                sent = len(piece)
                self._transport.write(piece)
            self._sending = bool(sent)
            self._at += sent


def peer_uid(sock: socket.socket) -> int:
    """Return the user id of the process at the other end of a unix socket."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(credentials)[1]
    return uid

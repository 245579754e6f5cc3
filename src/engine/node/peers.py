"""Transfers of blobs from node to node, which the client requests: over TLS, with the pool's key at both ends.

A node listens only while it has a blob to send. A peer must have the pool's key: otherwise it receives no bytes, and
only OpenSSL reads its bytes. A peer with the key sends a ticket, and receives the blob to which the ticket belongs. The
connection then stays open for a while, for the next ticket.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any

from ..wire import codec
from ..wire.codec import ProtocolError
from ..wire.messages import Arrived, Copy, Digest, GetRest, Keys, Message, Pull, Serve, Serving, Unserve
from .arrivals import Arrival, Arrivals, Whole
from .peer_connections import CONNECT_S, KEEP_S, PIECE_BYTES, Broken, PeerConnections, reason_of

IDLE_S = 0.3  # while a node waits for bytes of a blob to send, it sends an empty frame at this interval
# maximum number of connections, including unauthenticated ones; one more closes the connection idle for longest
CONNECTIONS = 32
_FIRST_BYTES = 1024  # maximum size of a frame that requests a blob
_HASHED_BYTES = 1 << 20


class Peers:
    """The transfers of blobs between this node and other nodes, in both directions.

    Args:
        arrivals: the blobs of this node, complete or arriving.
        address: the address on which this node listens.
        send: sends a message to the client.
    """

    def __init__(self, arrivals: Arrivals, address: str, send: Callable[[Message], object]) -> None:
        self._arrivals, self._address, self._send = arrivals, address, send
        self._loop = asyncio.get_running_loop()
        self._server_side: ssl.SSLContext | None = None
        self._client_side: ssl.SSLContext | None = None
        self._listening: asyncio.Task[None] | None = None
        self._port: asyncio.Future[int] | None = None
        self._last_port = 0  # reused: other nodes look up an idle connection by address and port
        self._tickets: dict[str, tuple[str, int]] = {}  # ticket -> (name of its blob, size)
        self._served: dict[str, set[asyncio.Task[None]]] = {}  # ticket -> asyncio tasks that send its blob
        self._pulling: dict[str, asyncio.Task[None]] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._idle: dict[asyncio.Task[None], None] = {}  # asyncio tasks of idle connections, the longest idle first
        self._to_others = PeerConnections()
        self._others: set[asyncio.Task[None]] = set()

    def obey(self, message: Message) -> bool:
        match message:
            case Keys(certificate, key):
                self._to_others.close()
                self._server_side = _context(ssl.PROTOCOL_TLS_SERVER, certificate, key)
                self._client_side = _context(ssl.PROTOCOL_TLS_CLIENT, certificate, key)
            case Serve(ticket, blob, size_bytes):
                self._tickets[ticket] = blob, size_bytes
                _spawn(self._others, self._tell_port(ticket))
            case Unserve(ticket):
                self._end([ticket])
            case Pull() | Copy():
                self._pull(message)
            case Digest(blob):
                _spawn(self._others, self._tell_digest(blob))
            case _:
                return False
        return True

    def drop(self, names: Iterable[str]) -> None:
        """Stop the transfers of these blobs, which were dropped."""
        dropped = {*names}
        for name in dropped & self._pulling.keys():
            self._pulling.pop(name).cancel()
        self._end([ticket for ticket, (name, _) in self._tickets.items() if name in dropped])
        self._arrivals.drop(dropped)

    async def close(self) -> None:
        self._end([*self._tickets])
        tasks = {*self._connections, *self._others, *self._pulling.values()}
        for task in tasks:
            task.cancel()
        self._to_others.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._arrivals.close()

    # --- sending to other nodes ---------------------------------------------------------------------------------------

    def _end(self, tickets: Iterable[str]) -> None:
        for ticket in tickets:
            self._tickets.pop(ticket, None)
            for connection in self._served.pop(ticket, ()):
                connection.cancel()
        if not self._tickets and self._listening is not None:
            self._listening.cancel()
            self._listening = self._port = None

    async def _tell_port(self, ticket: str) -> None:
        if self._port is None:
            self._port = self._loop.create_future()
            self._listening = _spawn(self._others, self._listen(self._port))
        port = self._port
        await asyncio.wait([port])
        failed = None if port.cancelled() else port.exception()
        if failed is None and not port.cancelled():
            self._send(Serving(ticket, port.result()))
        else:
            self._send(Serving(ticket, None, str(failed or "it was ended")))

    async def _listen(self, port: asyncio.Future[int]) -> None:
        try:
            addresses = await self._loop.getaddrinfo(self._address, 0, type=socket.SOCK_STREAM)
            listener = self._bound(addresses[0][0], str(addresses[0][4][0]))
        except OSError as error:
            port.set_exception(OSError(f"it cannot listen on {self._address}: {error.strerror}"))
            self._listening = self._port = None  # listen again for the next blob
            return
        except BaseException:
            port.cancel()
            raise
        with listener:
            listener.setblocking(False)
            self._last_port = listener.getsockname()[1]
            port.set_result(self._last_port)
            while True:
                try:
                    accepted, _ = await self._loop.sock_accept(listener)
                except OSError:  # the peer has closed the connection, or no descriptor is left
                    await asyncio.sleep(IDLE_S)
                    continue
                if len(self._connections) >= CONNECTIONS and self._idle:
                    oldest = next(iter(self._idle))
                    oldest.cancel()
                    await asyncio.wait([oldest])
                if len(self._connections) < CONNECTIONS:
                    _spawn(self._connections, self._answer(accepted))
                else:
                    accepted.close()

    def _bound(self, family: int, address: str) -> socket.socket:
        if self._last_port:
            with suppress(OSError):
                return socket.create_server((address, self._last_port), family=family, backlog=CONNECTIONS)
        return socket.create_server((address, 0), family=family, backlog=CONNECTIONS)

    async def _answer(self, accepted: socket.socket) -> None:
        """Serve an accepted connection: the TLS handshake, then a blob for each ticket that the peer sends."""
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport: asyncio.Transport | None = None
        try:
            async with asyncio.timeout(CONNECT_S):
                transport, _ = await self._loop.connect_accepted_socket(
                    lambda: protocol, accepted, ssl=self._server_side, ssl_handshake_timeout=CONNECT_S
                )
                want = await _wanted(reader)
            writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
            while want is not None and want.ticket in self._tickets:
                await self._serve(writer, want)
                want = await self._next_wanted(reader)
        except (OSError, TimeoutError, EOFError, ProtocolError):
            pass
        finally:
            if transport is None:
                accepted.close()
            else:
                transport.abort()

    async def _serve(self, writer: asyncio.StreamWriter, want: GetRest) -> None:
        task = asyncio.current_task()
        assert task is not None, "it was spawned"
        connections = self._served.setdefault(want.ticket, set())
        connections.add(task)
        try:
            await self._hand_on(writer, *self._tickets[want.ticket], want.offset)
        finally:
            connections.discard(task)

    async def _next_wanted(self, reader: asyncio.StreamReader) -> GetRest | None:
        task = asyncio.current_task()
        assert task is not None, "it was spawned"
        self._idle[task] = None
        try:
            async with asyncio.timeout(2 * KEEP_S):  # usually the peer closes an idle connection earlier
                return await _wanted(reader)
        finally:
            del self._idle[task]

    async def _hand_on(self, writer: asyncio.StreamWriter, blob: str, size_bytes: int, at: int) -> None:
        with self._arrivals.watched(blob) as changed:
            while at < size_bytes:
                changed.clear()
                piece = self._arrivals.read(blob, at, min(PIECE_BYTES, size_bytes - at))
                if not piece:
                    try:
                        async with asyncio.timeout(IDLE_S):
                            await changed.wait()
                            continue
                    except TimeoutError:
                        pass
                writer.writelines((len(piece).to_bytes(codec.HEADER_BYTES, "big"), piece))
                await writer.drain()
                at += len(piece)

    # --- receiving from another node ----------------------------------------------------------------------------------

    def _pull(self, order: Pull | Copy) -> None:
        arrival = self._arrivals.get(order.blob)
        if arrival is None:
            hashed = isinstance(order, Pull)
            try:
                arrival = self._arrivals.begin(order.blob, order.size_bytes, self._arrived, hashed=hashed)
            except OSError as error:
                self._send(Arrived(order.blob, 0, "", True, reason_of(error)))
                return
        if (before := self._pulling.pop(order.blob, None)) is not None:
            before.cancel()
        self._pulling[order.blob] = task = self._loop.create_task(self._bring(order, arrival))
        task.add_done_callback(lambda over: self._pulled(order.blob, over))

    def _pulled(self, blob: str, task: asyncio.Task[None]) -> None:
        if self._pulling.get(blob) is task:
            del self._pulling[blob]

    def _arrived(self, whole: Whole) -> None:
        self._send(Arrived(whole.name, whole.size_bytes, whole.digest, True))

    async def _bring(self, order: Pull | Copy, arrival: Arrival) -> None:
        def take(piece: memoryview) -> None:
            self._arrivals.take(arrival, piece, arrival.have_bytes)

        try:
            place = order.address, order.port
            await self._to_others.bring(place, self._client_side, order.ticket, arrival, take)
        except Broken as broken:
            if arrival.have_bytes < arrival.size_bytes:
                self._send(Arrived(order.blob, arrival.have_bytes, "", broken.connected, broken.reason))

    # --- digests of present blobs -------------------------------------------------------------------------------------

    async def _tell_digest(self, blob: str) -> None:
        fd = self._arrivals.store.fd(blob)
        try:
            if fd is None:
                raise OSError("it is not there")
            size_bytes, digest = await self._loop.run_in_executor(None, _digest, os.dup(fd))
        except OSError as error:
            self._send(Arrived(blob, 0, "", True, reason_of(error)))
        else:
            self._send(Arrived(blob, size_bytes, digest, True))


def _spawn(tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


async def _wanted(reader: asyncio.StreamReader) -> GetRest | None:
    """Return the peer's next request, which contains a ticket; None if it is malformed."""
    size = int.from_bytes(await reader.readexactly(codec.HEADER_BYTES), "big")
    if size > _FIRST_BYTES:
        return None
    want = codec.decode(await reader.readexactly(size))
    return want if isinstance(want, GetRest) else None


def _context(side: int, certificate: bytes, key: bytes) -> ssl.SSLContext:
    """Return the TLS context of the server's or client's side: TLS 1.3, and both sides have the same certificate."""
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificate.decode("ascii"))
    fd = os.memfd_create("keys", os.MFD_CLOEXEC)  # load_cert_chain accepts only a path
    try:
        os.write(fd, certificate + key)
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
    return context


def _digest(fd: int) -> tuple[int, str]:
    """Return the size of a blob in bytes, and its SHA-256 in hex. Close ``fd``."""
    try:
        import hashlib  # imported here because few nodes need it

        digest, at = hashlib.sha256(), 0
        while piece := os.pread(fd, _HASHED_BYTES, at):
            digest.update(piece)
            at += len(piece)
        return at, digest.hexdigest()
    finally:
        os.close(fd)

"""Transfers of blobs from node to node, which the client requests: over TLS, with the pool's key at both ends.

A node listens only while it has a blob to send. A peer must have the pool's key: otherwise it receives no bytes, and
only OpenSSL reads its bytes. A peer with the key sends a ticket, and receives the blob to which the ticket belongs.

The connection then stays open for a while, for the next ticket (`PeerConnections`). A new TLS connection costs 3 ms of
processor time at each end, and two round trips. A node that gets the training state from the same node at each step
pays this only once.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, cast

from ..wire import codec
from ..wire.codec import ProtocolError
from ..wire.messages import Arrived, Copy, Digest, GetRest, Keys, Message, Pull, Serve, Serving, Unserve
from .client_channels import Arrival, Arrivals, Whole

CONNECT_S = 3.0  # time limit to connect to another node and verify its key
SILENCE_S = 1.5  # a transfer fails after this time without a byte from the other node
LATE_S = 0.02  # usual delay of a timer; a longer delay means that this process was stopped, and could not read
KEEP_S = 10.0  # an idle connection is closed after this time
MOST_KEPT = 8  # maximum number of idle connections to one node
PIECE_BYTES = 256 << 10
_IDLE = memoryview(bytearray(1))  # buffer of an idle connection, which expects no bytes


class Broken(Exception):
    """Raised if another node did not send a blob completely; ``connected``: whether it was reached at all."""

    def __init__(self, reason: str, connected: bool) -> None:
        super().__init__(reason)
        self.reason, self.connected = reason, connected


class PeerConnection(asyncio.BufferedProtocol):
    """A connection to another node, from which this node fetches blobs. ``lost``: called once, after its closing."""

    def __init__(self, lost: Callable[[PeerConnection], object]) -> None:
        self._lost, self._loop = lost, asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.used_at = self._heard_at = 0.0
        self.heard = self.closed = False
        self._buffer = _IDLE
        self._head = bytearray()  # the received part of the next frame's header
        self._frame = self._left = 0  # number of missing bytes of the current frame, and of the blob
        self._take: Callable[[memoryview], None] | None = None
        self._over: asyncio.Future[None] | None = None

    @property
    def usable(self) -> bool:
        return self.transport is not None and not self.closed and not self.transport.is_closing()

    async def bring(self, ticket: str, offset: int, count: int, take: Callable[[memoryview], None]) -> None:
        """Fetch ``count`` bytes from the offset ``offset`` of a blob, and call ``take`` with each piece.

        Args:
            ticket: names the blob, and authorizes the transfer.

        Raises:
            OSError, ProtocolError: the transfer failed.
        """
        if self.transport is None or not self.usable:
            raise OSError("the other node has closed the connection")
        self._over = over = self._loop.create_future()
        self._take, self._left = take, count
        self._buffer = memoryview(bytearray(PIECE_BYTES))
        self._heard_at = self._loop.time()
        self.transport.write(codec.encode(GetRest(ticket, offset)))
        try:
            while not over.done():
                heard_at, due_at = self._heard_at, self._heard_at + SILENCE_S
                await asyncio.wait([over], timeout=max(0.0, due_at - self._loop.time()))
                late_s = self._loop.time() - due_at
                if over.done() or self._heard_at > heard_at or late_s < 0:
                    continue
                if late_s <= LATE_S:
                    raise OSError(f"nothing came for {SILENCE_S:g} s")
                self._heard_at += late_s
            over.result()
        finally:
            self._take, self._over, self._buffer = None, None, _IDLE
            if self._left or self._frame or self._head:
                self.close()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    # --- called by the event loop -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._end(exc or OSError("the other node has closed the connection"))
        self._lost(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.heard, self._heard_at = True, self._loop.time()
        try:
            self._received(self._buffer[:nbytes])
        except (OSError, ProtocolError) as error:
            self._end(error)
            self.close()

    def _received(self, data: memoryview) -> None:
        """Pass the contents of received frames to ``take``. An empty frame means: no new bytes of the blob yet."""
        at = 0
        while at < len(data):
            if self._frame:
                piece = data[at : at + self._frame]
                at += len(piece)
                self._frame -= len(piece)
                self._left -= len(piece)
                if self._take is not None:
                    self._take(piece)
                if not self._left:
                    self._end(None)
            else:
                head = data[at : at + codec.HEADER_BYTES - len(self._head)]
                at += len(head)
                self._head += head
                if len(self._head) == codec.HEADER_BYTES:
                    self._frame = int.from_bytes(self._head, "big")
                    self._head.clear()
                    if self._frame > self._left:
                        raise ProtocolError("the other node sends more than there is")

    def _end(self, error: Exception | None) -> None:
        if self._over is not None and not self._over.done():
            if error is None:
                self._over.set_result(None)
            else:
                self._over.set_exception(error)


class PeerConnections:
    """The connections from this node to other nodes; idle connections are kept for the next blob."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        # (address, port) -> idle connections, the least recently used first
        self._kept: dict[tuple[str, int], list[PeerConnection]] = {}
        self._sweeping: asyncio.TimerHandle | None = None

    async def bring(
        self,
        place: tuple[str, int],
        tls: ssl.SSLContext | None,
        ticket: str,
        arrival: Arrival,
        take: Callable[[memoryview], None],
    ) -> None:
        """Fetch the missing bytes of a blob, over a kept or a new connection, and call ``take`` with each piece.

        If the other node has closed a kept connection, the next connection is used.

        Args:
            place: address and port of the other node.
            ticket: names the blob, and authorizes the transfer.
            arrival: the blob, with the number of bytes received so far.

        Raises:
            Broken: the other node did not send all missing bytes.
        """
        while (kept := self._one_kept(place)) is not None:
            before = arrival.have_bytes
            try:
                await self._bring_over(kept, place, ticket, arrival, take)
            except Broken:
                if not kept.closed or arrival.have_bytes != before:  # else the peer had just closed an idle connection
                    raise
            else:
                return
        try:
            new = await self._connected(place, tls)
        except TimeoutError:
            raise Broken(f"it was not reached within {CONNECT_S:g} s", connected=False) from None
        except OSError as error:
            raise Broken(reason_of(error), connected=False) from None
        await self._bring_over(new, place, ticket, arrival, take)

    async def _connected(self, place: tuple[str, int], tls: ssl.SSLContext | None) -> PeerConnection:
        """Connect to another node.

        If this process was stopped meanwhile, so that the timeout came late, try again for the lost time: after one
        failure, the client never again lets these two nodes connect.

        Raises:
            TimeoutError: no connection within `CONNECT_S`.
            OSError: the connection was refused, or has failed.
        """
        left_s = CONNECT_S
        while True:
            due_at = self._loop.time() + left_s
            try:
                async with asyncio.timeout_at(due_at):
                    _, new = await self._loop.create_connection(lambda: PeerConnection(self._forget), *place, ssl=tls)
                return new
            except TimeoutError:
                left_s = self._loop.time() - due_at
                if left_s <= LATE_S:
                    raise

    async def _bring_over(
        self,
        connection: PeerConnection,
        place: tuple[str, int],
        ticket: str,
        arrival: Arrival,
        take: Callable[[memoryview], None],
    ) -> None:
        offset = arrival.have_bytes
        try:
            await connection.bring(ticket, offset, arrival.size_bytes - offset, take)
        except (OSError, ProtocolError) as error:
            raise Broken(reason_of(error), connection.heard) from None
        except BaseException:
            connection.close()
            raise
        self._keep(place, connection)

    # --- kept connections ---------------------------------------------------------------------------------------------

    def _one_kept(self, place: tuple[str, int]) -> PeerConnection | None:
        kept = self._kept.get(place, [])
        connection = kept.pop() if kept else None
        if not kept:
            self._kept.pop(place, None)
        return connection

    def _keep(self, place: tuple[str, int], connection: PeerConnection) -> None:
        kept = self._kept.setdefault(place, [])
        if not connection.usable or len(kept) == MOST_KEPT:
            connection.close()
            return
        connection.used_at = self._loop.time()
        kept.append(connection)
        if self._sweeping is None:
            self._sweeping = self._loop.call_later(KEEP_S, self._sweep)

    def _sweep(self) -> None:
        """Close the connections that have been idle for `KEEP_S`."""
        self._sweeping = None
        until, oldest = self._loop.time() - KEEP_S, []
        for kept in self._kept.values():
            oldest += [each.used_at for each in kept if each.used_at > until]
            for connection in kept:
                if connection.used_at <= until:
                    connection.close()
        if oldest:
            self._sweeping = self._loop.call_at(min(oldest) + KEEP_S, self._sweep)

    def _forget(self, closed: PeerConnection) -> None:
        for place, kept in [*self._kept.items()]:
            if closed in kept:
                kept.remove(closed)
                if not kept:
                    del self._kept[place]

    def close(self) -> None:
        """Close the idle connections. A connection in use is closed by the asyncio task that uses it."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        for kept in self._kept.values():
            for connection in kept:
                connection.close()


def reason_of(error: OSError | ProtocolError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason}"
    return str(error) if not isinstance(error, OSError) or not error.errno else os.strerror(error.errno)


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
        self._last_port = 0  # listen on the same port again: other nodes keep idle connections by address and port
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

"""Connections from this node to other nodes, which send blobs to it. An idle connection is kept for the next blob.

A new TLS connection costs 3 ms of processor time at each end, and two round trips. A node that gets the training state
from the same node at each step pays this only once.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from typing import cast

from ..wire import codec
from ..wire.codec import ProtocolError
from ..wire.messages import GetRest
from .arrivals import Arrival

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
                if not kept.closed or arrival.have_bytes != before:  # not just an idle connection that was closed
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

"""Relay the connections between a pool and its local nodes, so that faults can hold back or slow down the data.

A `Wire` runs no task: each relayed connection is two sockets whose asyncio protocols pass bytes to each other.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque

from ...providers.base import Machine

FULL_BYTES = 1 << 20  # once so many bytes are queued in one direction, the relay stops reading from the sender


class Wires:
    """The wires of all nodes, one per node. An implementation of `transport.route.Interpose`."""

    def __init__(self) -> None:
        self._wires: dict[str, Wire] = {}

    def of(self, machine: str) -> Wire:
        return self._wires.setdefault(machine, Wire())

    async def __call__(self, machine: Machine, sock: socket.socket) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        try:
            await self.of(machine.id).join(theirs, sock)
        except BaseException:
            for each in (ours, theirs, sock):
                each.close()
            raise
        return ours

    def restore(self) -> None:
        for wire in self._wires.values():
            wire.held = 0
            wire.slow(None)


class Wire:
    """The relay of all connections to one node."""

    def __init__(self) -> None:
        self.held = 0  # number of `Partition` faults that hold back this wire's data at present
        self.latency_s = self.s_per_byte = 0.0
        self.flows: set[Flow] = set()

    async def join(self, one: socket.socket, other: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        there, back = Flow(self), Flow(self)
        there.to, back.to = back, there
        transport, _ = await loop.create_connection(lambda: there, sock=one)
        try:
            await loop.create_connection(lambda: back, sock=other)
        except BaseException:
            # abort the transport before its socket is closed: otherwise the loop confuses it with the next socket of
            # the same fd
            transport.abort()
            raise

    @property
    def used(self) -> bool:
        """Return whether the node's connection runs over this wire; False if the connection is older than the wire."""
        return bool(self.flows)

    @property
    def plain(self) -> bool:
        return not self.held and not self.latency_s and not self.s_per_byte

    def hold(self) -> None:
        """Hold back all data, and the closing of connections as well."""
        self.held += 1

    def release(self) -> None:
        self.held = max(0, self.held - 1)
        self._pump()

    def slow(self, latency_s: float | None, kib_per_s: float = 0.0) -> None:
        """Delay all data by ``latency_s`` and limit its rate to ``kib_per_s``.

        ``latency_s=None``: restore full speed.
        """
        self.latency_s = latency_s or 0.0
        self.s_per_byte = 1 / (1024 * kib_per_s) if latency_s is not None and kib_per_s else 0.0
        if latency_s is None:
            for flow in self.flows:
                flow.hurry()
        self._pump()

    def _pump(self) -> None:
        for flow in list(self.flows):
            flow.pump()


class Flow(asyncio.Protocol):
    """One direction of a relayed connection: passes bytes from its own socket to the socket of the flow ``to``."""

    to: Flow
    transport: asyncio.Transport  # set by `connection_made`

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._queue: deque[tuple[float, bytes]] = deque()  # (loop time at which to pass the data on, data)
        self._size = 0
        self._free_at = 0.0  # loop time at which a link of the limited rate would have sent all data so far
        self._timer: asyncio.TimerHandle | None = None
        self._closed = self._paused = False
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._wire.flows.add(self)

    def data_received(self, data: bytes) -> None:
        if self._wire.plain and not self._queue:
            self.to.transport.write(data)
            return
        now = self._loop.time()
        self._free_at = max(now, self._free_at) + len(data) * self._wire.s_per_byte
        self._queue.append((self._free_at + self._wire.latency_s, data))
        self._size += len(data)
        self._flow()
        self.pump()

    def eof_received(self) -> bool:
        return False  # False: asyncio closes the transport, and calls `connection_lost`

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._closed = True
        self.pump()

    def pause_writing(self) -> None:
        """Stop reading from the other socket while this socket's send buffer is full."""
        self.to._paused = True
        self.to._flow()

    def resume_writing(self) -> None:
        self.to._paused = False
        self.to._flow()

    def hurry(self) -> None:
        self._queue = deque((0.0, data) for _, data in self._queue)
        self._free_at = 0.0

    def pump(self) -> None:
        """Pass on all data whose time has come."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._wire.held:
            return
        now = self._loop.time()
        while self._queue and self._queue[0][0] <= now:
            _, data = self._queue.popleft()
            self._size -= len(data)
            self.to.transport.write(data)
        if self._queue:
            self._timer = self._loop.call_at(self._queue[0][0], self.pump)
        elif self._closed:
            self._wire.flows.discard(self)
            if hasattr(self.to, "transport"):
                self.to.transport.close()
        self._flow()

    def _flow(self) -> None:
        if self._closed or self.transport.is_closing():
            return
        if self._paused or self._size >= FULL_BYTES:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

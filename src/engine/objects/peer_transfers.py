"""Send large objects from node to node: requests to nodes, and their answers. `distribution` decides the routes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from ...actors.events import Event, TransferRerouted
from ..api.printable import plain
from ..wire import messages as wire
from .distribution import Distribution, Reach

if TYPE_CHECKING:
    from ...actors.interfaces import NodeId

# smallest object to send from node to node: below this size, to connect takes as long as the transfer
LEAST_BYTES = 1 << 20
SERVE_S = 5.0  # seconds for a node to report its port


class PeerEnd:
    """The client's view of one node in transfers: the requests that the node has not answered."""

    def __init__(self, send: Callable[[wire.Message], None], address: str) -> None:
        """Begin without requests. ``send``: sends the node a message. ``address``: where other nodes reach the node."""
        self.send, self.address = send, address
        self.has_keys = self._closed = False
        self._ports: dict[str, asyncio.Future[int]] = {}  # ticket of a transfer -> the node's port for it
        self._arrivals: dict[str, asyncio.Future[wire.Arrived]] = {}  # name of a blob -> the node's answer

    async def serve(self, ticket: str, blob: str, size_bytes: int) -> int:
        """Have the node listen, and return its port. Raise an OSError with the reason if the node cannot listen."""
        port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._ports[ticket] = port
        self.send(wire.Serve(ticket, blob, size_bytes))
        try:
            async with asyncio.timeout(SERVE_S):
                await port
            return port.result()
        except TimeoutError:
            if port.done() and not port.cancelled():  # the answer arrived while this process's event loop stalled
                return port.result()
            raise OSError(f"it did not say where it listens within {SERVE_S:g} s") from None
        finally:
            del self._ports[ticket]

    async def arrival(self, blob: str, ask: Callable[[], Awaitable[None] | None]) -> wire.Arrived:
        """Send a request by ``ask``, and return the node's answer about the blob.

        Raises:
            ConnectionError: the node is lost.
        """
        if self._closed:
            raise ConnectionResetError("the node is lost")
        reply: asyncio.Future[wire.Arrived] = asyncio.get_running_loop().create_future()
        self._arrivals[blob] = reply
        try:
            if (asking := ask()) is not None:
                await asking
            return await reply
        finally:
            del self._arrivals[blob]

    def received(self, message: wire.Serving | wire.Arrived) -> None:
        """Handle an answer. Ignore answers without an open request."""
        if isinstance(message, wire.Arrived):
            if (reply := self._arrivals.get(message.blob)) is not None and not reply.done():
                reply.set_result(message)
        elif (port := self._ports.get(message.ticket)) is not None and not port.done():
            if message.port is None:
                port.set_exception(OSError(plain(message.reason)))
            else:
                port.set_result(message.port)

    def close(self) -> None:
        self._closed = True
        unanswered: list[asyncio.Future[Any]] = [*self._ports.values(), *self._arrivals.values()]
        for waiting in unanswered:
            if not waiting.done():
                waiting.set_exception(ConnectionResetError("the node is lost"))
                waiting.exception()  # retrieve the error: asyncio would log it


class Home(Protocol):
    """The parts of a node's `NodeObjects` that transfers use."""

    closed: bool

    @property
    def node(self) -> NodeId: ...

    @property
    def end(self) -> PeerEnd: ...

    def hold(self, name: str) -> None: ...

    def release(self, name: str) -> None: ...


class _Object:
    """An object and the nodes that have or receive it.

    ``digest``: its SHA-256, requested from the node that made it.
    """

    def __init__(self, reach: Reach, key: str) -> None:
        self.way = Distribution(reach)
        self.key = key
        self.places: dict[NodeId, tuple[Home, str]] = {}
        self.digest: asyncio.Task[str] | None = None
        self.settle: Callable[[], Awaitable[str]] | None = None  # returns the SHA-256; None: the key is the SHA-256

    async def expected(self) -> str:
        """Return the SHA-256 of the whole object."""
        if self.digest is not None:
            return await asyncio.shield(self.digest)
        return self.key if self.settle is None else await self.settle()


class PeerTransfers:
    """The objects that a pool sends from node to node. ``observe`` receives an event for every broken hop."""

    def __init__(self, observe: Callable[[Event], object]) -> None:
        self._observe = observe
        self._reach = Reach()
        self._objects: dict[str, _Object] = {}  # key of an object -> the object
        self._keys: wire.Keys | None = None
        self._apart_reported = False

    def kept(self, key: str, home: Home, name: str, size_bytes: int) -> None:
        """Register an object with the node on which it was made, before the object is sent to another node."""
        if key not in self._objects:
            self._objects[key] = new = _Object(self._reach, key)
            new.places[home.node] = home, name
            new.way.has(home.node)
            new.digest = asyncio.ensure_future(self._digest_at(home, name, size_bytes))

    def left(self, key: str, node: NodeId) -> None:
        """Note that a node no longer has an object, or is lost."""
        if (left := self._objects.get(key)) is not None and left.places.pop(node, None) is not None:
            left.way.left(node)
            if left.way.empty:
                del self._objects[key]
                if left.digest is not None:
                    left.digest.cancel()

    def rekeyed(self, before: str, key: str) -> bool:
        """Note that an object's key has changed. Return False if another object has the new key."""
        brought = self._objects.get(before)
        if brought is None:
            return True
        brought.key, brought.settle = key, None
        if key in self._objects:
            return False
        self._objects[key] = self._objects.pop(before)
        return True

    async def bring(
        self,
        to: Home,
        name: str,
        size_bytes: int,
        key: str,
        send_rest: Callable[[int], Awaitable[None]],
        *,
        settle: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        """Bring an object to a node as ``name``, from the best source. After an error or a cancellation, call `left`.

        ``send_rest(at)`` sends the object from the client, from byte ``at`` on. ``settle`` returns the object's
        SHA-256; None: ``key`` is the SHA-256.
        """
        brought = self._objects.setdefault(key, _Object(self._reach, key))
        brought.settle = settle
        brought.places[to.node] = to, name
        source, arrived = brought.way.wants(to.node), wire.Arrived(name, 0, "", True)
        while source is not None:
            arrived = await self._hop(brought, to, source, arrived, size_bytes)
            if arrived.digest:
                break
            source = self._rerouted(brought, to.node, arrived, size_bytes)
        have_bytes = arrived.have_bytes
        if not arrived.digest and 0 < have_bytes < size_bytes:
            arrived = await to.end.arrival(name, lambda: send_rest(have_bytes))
        elif not arrived.digest:
            await send_rest(0)
        if arrived.digest and arrived.digest != await brought.expected():
            arrived = arrived._replace(have_bytes=0, reason="it has other bytes than the object")
            if brought.way.source_of(to.node) is not None:
                self._rerouted(brought, to.node, arrived, size_bytes, more=False)
            await send_rest(0)
        brought.way.has(to.node)

    async def _hop(
        self, brought: _Object, to: Home, source: NodeId, arrived: wire.Arrived, size_bytes: int
    ) -> wire.Arrived:
        """Have a node fetch the missing bytes from another node, which keeps the object meanwhile.

        Return the fetching node's last answer.
        """
        if source not in brought.places:
            return arrived._replace(reason="it does not have the object any more")
        giver, its_name = brought.places[source]
        giver.hold(its_name)
        try:
            return await self._pull(giver, its_name, to, arrived, size_bytes)
        finally:
            giver.release(its_name)

    async def copy(self, giver: Home, its_name: str, to: Home, name: str, size_bytes: int) -> bool:
        """Have a node copy a blob from another node in a single hop, as ``name``. Return whether that succeeded.

        The copy is not verified. Neither blob is tracked or held by this class: if the source blob is dropped, the copy
        fails.
        """
        if not self._reach.allows(to.node, giver.node):
            return False
        arrived = await self._pull(giver, its_name, to, wire.Arrived(name, 0, "", True), size_bytes, kind=wire.Copy)
        if arrived.have_bytes == size_bytes:
            return True
        was_reported, self._apart_reported = self._apart_reported, self._reach.apart
        if not (was_reported and self._apart_reported):
            reason = plain(arrived.reason)
            self._observe(
                TransferRerouted(
                    to.node, giver.node, None, arrived.have_bytes, size_bytes, reason, self._apart_reported
                )
            )
        return False

    async def _pull(
        self,
        giver: Home,
        its_name: str,
        to: Home,
        before: wire.Arrived,
        size_bytes: int,
        *,
        kind: type[wire.Pull | wire.Copy] = wire.Pull,
    ) -> wire.Arrived:
        """Have a node fetch the missing bytes of a blob from another node. Return how many bytes it has afterwards."""
        arrived = await self._pulled(giver, its_name, to, before, size_bytes, kind=kind)
        if arrived.have_bytes > before.have_bytes:
            self._reach.connected()
        elif not arrived.connected:
            self._reach.failed(to.node, giver.node)
        return arrived

    async def _pulled(
        self,
        giver: Home,
        its_name: str,
        to: Home,
        arrived: wire.Arrived,
        size_bytes: int,
        *,
        kind: type[wire.Pull | wire.Copy],
    ) -> wire.Arrived:
        ticket = os.urandom(16).hex()
        try:
            self._give_keys(giver.end, to.end)
            port = await giver.end.serve(ticket, its_name, size_bytes)
            pull = kind(arrived.blob, size_bytes, ticket, giver.end.address, port)
            return await to.end.arrival(arrived.blob, lambda: to.end.send(pull))
        except OSError as error:
            if to.closed:
                raise
            return arrived._replace(connected=False, reason=str(error))
        finally:
            giver.end.send(wire.Unserve(ticket))

    def _rerouted(
        self, brought: _Object, node: NodeId, arrived: wire.Arrived, size_bytes: int, *, more: bool = True
    ) -> NodeId | None:
        """Choose the next source after a broken hop, report the change of source, and return the new source.

        Once it is known that nodes cannot reach each other, changes are no longer reported.
        """
        before, was_reported = brought.way.source_of(node), self._apart_reported
        assert before is not None, "a hop has broken"
        source = brought.way.broke(node, more=more)
        self._apart_reported = apart = self._reach.apart
        if not (was_reported and apart):
            event = TransferRerouted(node, before, source, arrived.have_bytes, size_bytes, plain(arrived.reason), apart)
            self._observe(event)
        return source

    def _give_keys(self, *ends: PeerEnd) -> None:
        if self._keys is None:
            from .peer_keys import new_keys  # this imports `cryptography`, which pools on this computer do not need

            self._keys = new_keys()
        for end in ends:
            if not end.has_keys:
                end.has_keys = True
                end.send(self._keys)

    async def _digest_at(self, home: Home, name: str, size_bytes: int) -> str:
        """Return the digest of a node's object; "": the node does not have the object, so data from the node is not
        used.
        """
        try:
            arrived = await home.end.arrival(name, lambda: home.end.send(wire.Digest(name)))
        except ConnectionError:
            return ""
        return arrived.digest if arrived.have_bytes == size_bytes else ""

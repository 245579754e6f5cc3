"""Large objects from node to node: the orders that nodes get, and what they answer. `distribution` decides the way."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ...actors.events import Event, TransferRerouted
from ..api.printable import plain
from ..wire import messages as wire
from .distribution import Distribution, Reach

if TYPE_CHECKING:
    from ...actors.interfaces import NodeId
    from .node_objects import NodeObjects

LEAST_BYTES = 1 << 20  # of an object that goes from node to node: for a smaller one the connection takes as long
SERVE_S = 5.0  # for a node to say where it listens


class PeerEnd:
    """One node's end, as the client sees it: what it was asked, and has not answered yet."""

    def __init__(self, send: Callable[[wire.Message], None], address: str) -> None:
        """``address``: by which other nodes reach it."""
        self.send, self.address = send, address
        self.has_keys = self._closed = False
        self._ports: dict[str, asyncio.Future[int]] = {}  # by ticket
        self._arrivals: dict[str, asyncio.Future[wire.Arrived]] = {}  # by blob

    async def serve(self, ticket: str, blob: str, size_bytes: int) -> int:
        """Return the port where the node listens. An OSError says why it does not."""
        port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._ports[ticket] = port
        self.send(wire.Serve(ticket, blob, size_bytes))
        try:
            async with asyncio.timeout(SERVE_S):
                await port
            return port.result()
        except TimeoutError:
            if port.done() and not port.cancelled():  # it has said so while this program stood still
                return port.result()
            raise OSError(f"it did not say where it listens within {SERVE_S:g} s") from None
        finally:
            del self._ports[ticket]

    async def told_of(self, blob: str, ask: Callable[[], Awaitable[None] | None]) -> wire.Arrived:
        """Return what the node says of a blob once it was asked. A ConnectionError: it is lost."""
        if self._closed:
            raise ConnectionResetError("the node is lost")
        told: asyncio.Future[wire.Arrived] = asyncio.get_running_loop().create_future()
        self._arrivals[blob] = told
        try:
            if (asking := ask()) is not None:
                await asking
            return await told
        finally:
            del self._arrivals[blob]

    def received(self, message: wire.Serving | wire.Arrived) -> None:
        """Handle an answer; what nobody waits for is ignored."""
        if isinstance(message, wire.Arrived):
            if (told := self._arrivals.get(message.blob)) is not None and not told.done():
                told.set_result(message)
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
                waiting.exception()  # seen: perhaps nobody waits any more


class _Object:
    """An object, where it is or is on its way to, and its SHA-256 if it was made on a node that was asked for it."""

    def __init__(self, reach: Reach, key: str) -> None:
        self.way = Distribution(reach)
        self.key = key
        self.places: dict[NodeId, tuple[NodeObjects, str]] = {}
        self.digest: asyncio.Task[str] | None = None
        self.settle: Callable[[], Awaitable[str]] | None = None  # while its key is not its SHA-256

    async def expected(self) -> str:
        """Return the SHA-256 that it has wherever it is whole."""
        if self.digest is not None:
            return await asyncio.shield(self.digest)
        return self.key if self.settle is None else await self.settle()


class PeerTransfers:
    """The objects of a pool that go from node to node. ``observe`` is told of every hop that breaks."""

    def __init__(self, observe: Callable[[Event], object]) -> None:
        self._observe = observe
        self._reach = Reach()
        self._objects: dict[str, _Object] = {}  # by key
        self._keys: wire.Keys | None = None
        self._told_apart = False

    def kept(self, key: str, home: NodeObjects, name: str, size_bytes: int) -> None:
        """Note the node on which an object was made, before another one is brought it."""
        if key not in self._objects:
            self._objects[key] = made = _Object(self._reach, key)
            made.places[home.node] = home, name
            made.way.has(home.node)
            made.digest = asyncio.ensure_future(self._asked_digest(home, name, size_bytes))

    def left(self, key: str, node: NodeId) -> None:
        """Note that a node has an object no longer, or is lost."""
        if (left := self._objects.get(key)) is not None and left.places.pop(node, None) is not None:
            left.way.left(node)
            if left.way.empty:
                del self._objects[key]
                if left.digest is not None:
                    left.digest.cancel()

    def rekeyed(self, before: str, key: str) -> bool:
        """Note that an object has another key from now on; return False if there is another object by that key."""
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
        to: NodeObjects,
        name: str,
        size_bytes: int,
        key: str,
        send_rest: Callable[[int], Awaitable[None]],
        *,
        settle: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        """Have a node have an object as ``name``, from wherever it is had best.

        ``send_rest`` sends what is behind so many bytes from here. ``settle`` says its SHA-256, where the key is not
        that. Cancelled or failed, it needs `left`.
        """
        brought = self._objects.setdefault(key, _Object(self._reach, key))
        brought.settle = settle
        brought.places[to.node] = to, name
        source, told = brought.way.wants(to.node), wire.Arrived(name, 0, "", True)
        while source is not None:
            told = await self._hop(brought, to, source, told, size_bytes)
            if told.digest:
                break
            source = self._rerouted(brought, to.node, told, size_bytes)
        have_bytes = told.have_bytes
        if not told.digest and 0 < have_bytes < size_bytes:
            told = await to.end.told_of(name, lambda: send_rest(have_bytes))
        elif not told.digest:
            await send_rest(0)
        if told.digest and told.digest != await brought.expected():
            told = told._replace(have_bytes=0, reason="it has other bytes than the object")
            if brought.way.source_of(to.node) is not None:
                self._rerouted(brought, to.node, told, size_bytes, more=False)
            await send_rest(0)
        brought.way.has(to.node)

    async def _hop(
        self, brought: _Object, to: NodeObjects, source: NodeId, told: wire.Arrived, size_bytes: int
    ) -> wire.Arrived:
        """Have a node get what it lacks from another one; return how far it came."""
        if source not in brought.places:
            return told._replace(reason="it does not have the object any more")
        giver, its_name = brought.places[source]
        giver.hold(its_name)
        try:
            return await self._pull(giver, its_name, to, told, size_bytes)
        finally:
            giver.release(its_name)

    async def copy(self, giver: NodeObjects, its_name: str, to: NodeObjects, name: str, size_bytes: int) -> bool:
        """Have a node get a blob of another one by a single hop, as ``name``; return whether it has it.

        What it has is not verified. Nothing of either is remembered here, or held: whoever drops the blob ends this.
        """
        if not self._reach.allows(to.node, giver.node):
            return False
        told = await self._pull(giver, its_name, to, wire.Arrived(name, 0, "", True), size_bytes, kind=wire.Copy)
        if told.have_bytes == size_bytes:
            return True
        told_apart, self._told_apart = self._told_apart, self._reach.apart
        if not (told_apart and self._told_apart):
            reason = plain(told.reason)
            self._observe(
                TransferRerouted(to.node, giver.node, None, told.have_bytes, size_bytes, reason, self._told_apart)
            )
        return False

    async def _pull(
        self,
        giver: NodeObjects,
        its_name: str,
        to: NodeObjects,
        before: wire.Arrived,
        size_bytes: int,
        *,
        kind: type[wire.Pull | wire.Copy] = wire.Pull,
    ) -> wire.Arrived:
        """Have a node get what it lacks of a blob from another one; return how far it came."""
        told = await self._pulled(giver, its_name, to, before, size_bytes, kind=kind)
        if told.have_bytes > before.have_bytes:
            self._reach.connected()
        elif not told.connected:
            self._reach.failed(to.node, giver.node)
        return told

    async def _pulled(
        self,
        giver: NodeObjects,
        its_name: str,
        to: NodeObjects,
        told: wire.Arrived,
        size_bytes: int,
        *,
        kind: type[wire.Pull | wire.Copy],
    ) -> wire.Arrived:
        ticket = os.urandom(16).hex()
        try:
            self._give_keys(giver.end, to.end)
            port = await giver.end.serve(ticket, its_name, size_bytes)
            pull = kind(told.blob, size_bytes, ticket, giver.end.address, port)
            return await to.end.told_of(told.blob, lambda: to.end.send(pull))
        except OSError as error:
            if to.closed:
                raise
            return told._replace(connected=False, reason=str(error))
        finally:
            giver.end.send(wire.Unserve(ticket))

    def _rerouted(
        self, brought: _Object, node: NodeId, told: wire.Arrived, size_bytes: int, *, more: bool = True
    ) -> NodeId | None:
        """Return where a node gets the rest from, and tell of it. Once all nodes are apart, that was told."""
        before, told_apart = brought.way.source_of(node), self._told_apart
        assert before is not None, "a hop has broken"
        source = brought.way.broke(node, more=more)
        self._told_apart = apart = self._reach.apart
        if not (told_apart and apart):
            event = TransferRerouted(node, before, source, told.have_bytes, size_bytes, plain(told.reason), apart)
            self._observe(event)
        return source

    def _give_keys(self, *ends: PeerEnd) -> None:
        if self._keys is None:
            from .peer_keys import new_keys  # cryptography, which pools on this computer do without

            self._keys = new_keys()
        for end in ends:
            if not end.has_keys:
                end.has_keys = True
                end.send(self._keys)

    async def _asked_digest(self, home: NodeObjects, name: str, size_bytes: int) -> str:
        """Return the digest of what a node keeps; nothing if it cannot say: then what comes from there is not used."""
        try:
            told = await home.end.told_of(name, lambda: home.end.send(wire.Digest(name)))
        except ConnectionError:
            return ""
        return told.digest if told.have_bytes == size_bytes else ""

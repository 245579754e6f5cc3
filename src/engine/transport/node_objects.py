"""The large objects of one node: what its attempts are sent and refer to, and what they leave there.

`object_memory` decides what the node remembers; this brings it there, and has the node drop it or move it to its disk.
A node of this computer maps the memory that the client or another node has, and remembers nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ...providers.threads import in_thread
from ..node.blobs import resolve_pieces
from ..serialization.payload import AT_ONCE_BYTES, Blob, Received
from ..serialization.stored_objects import Whereabouts
from ..wire import messages as wire
from ..wire.values import ALIGN_BYTES, INLINE_BYTES
from .blob_transfers import BlobTransfers
from .object_memory import MoveToDisk, ObjectMemory

if TYPE_CHECKING:
    from ...actors.interfaces import NodeId
    from ..serialization.stored_objects import StoredObject

MEMORY_SHARE = 8  # of the node's memory
DISK_TIMES = 4  # as much on its disk


class ObjectLost(Exception):
    """The object that an attempt refers to is nowhere any more: the node that kept it is lost."""


class NodeObjects:
    """Implements `serialization.stored_objects.Home`."""

    def __init__(
        self, node: NodeId, transfers: BlobTransfers, *, same_host: bool, send: Callable[[wire.Message], None]
    ) -> None:
        self.node, self.same_host = node, same_host
        self._transfers, self._send = transfers, send
        self.memory = ObjectMemory(0, 0)
        self._numbers = itertools.count(1)
        self._placing: dict[str, asyncio.Task[None]] = {}
        self.users: dict[int, list[str]] = {}  # attempts, and what each uses
        self._kept: WeakSet[Whereabouts] = WeakSet()
        self._closed = False

    def limit(self, node_bytes: int, memory_bytes: int | None, disk_bytes: int | None) -> None:
        """Set how much it may remember and keep. ``node_bytes``: the node's memory. None: a share of that."""
        memory = node_bytes // MEMORY_SHARE if memory_bytes is None else memory_bytes
        self.memory.limit(memory, DISK_TIMES * memory if disk_bytes is None else disk_bytes)

    # --- to the node ----------------------------------------------------------------------------------------------

    async def place_arguments(self, attempt: int, args: wire.Value, blob: Blob) -> wire.Value:
        """Have the node have a call's large arguments while the attempt runs; return them as the node knows them.

        Large buffers, such as arrays, are sent each by itself: another call with one of them finds it there.
        """
        pieces = () if self.same_host or args.sizes is None else blob.pieces(args.sizes)
        if not pieces or args.sizes is None:
            return args._replace(blob=await self.place(attempt, blob))
        named: list[tuple[bytes | str, tuple[int, ...]]] = []
        for piece in pieces:
            if piece.blob.size_bytes <= INLINE_BYTES:
                named.append((b"".join(piece.blob.parts), piece.parts))
            else:
                named.append((self._begin(attempt, piece.blob, await _key(piece.blob)), piece.parts))
        names = tuple(name for name, _ in named if isinstance(name, str))
        for name in names:
            await self._there(name)
        self._send(wire.Lend(attempt, names))
        return wire.Value(pickle.dumps(_Pieces(named, args.sizes), 5))

    async def place(self, attempt: int, blob: Blob) -> str:
        """Have the node have a blob while the attempt runs; return its name there."""
        key = "" if self.same_host else await _key(blob)
        if not key:
            await self._transfers.ensure_placed(blob)
            return blob.name
        name = self._begin(attempt, blob, key)
        await self._there(name)
        return name

    def _begin(self, attempt: int, blob: Blob, key: str) -> str:
        """Begin to send a blob, unless the node has it or it is on its way."""
        name = self.memory.find(key)
        if name is None:
            name = f"{blob.name}#{next(self._numbers)}"  # what was dropped may still be on its way there
            self.memory.sent(name, blob.size_bytes, key)
            self._placing[name] = placing = self._transfers.spawn(self._transfers.place(blob.renamed(name)))
            placing.add_done_callback(partial(self._placed, name))
        self._use(attempt, name)
        self._carry_out()
        return name

    async def _there(self, name: str) -> None:
        if (under_way := self._placing.get(name)) is not None:
            await asyncio.wait([under_way])  # leaves it alone when we are cancelled: others wait for it too
            under_way.result()

    def _placed(self, name: str, placing: asyncio.Task[None]) -> None:
        del self._placing[name]
        if placing.cancelled() or placing.exception() is not None:
            self.memory.failed(name)
        self.memory.unused(name)
        self._carry_out()

    def refer_at_once(self, attempt: int, stored: Sequence[StoredObject]) -> bool:
        """Lend the attempt what its arguments refer to; return False if the node has yet to be given some of it."""
        blobs = [self._there_at_once(each.at) for each in stored]
        if None in blobs:
            return False
        names = tuple(blob for blob in blobs if blob is not None)
        for name in names:
            if self.memory.has(name):
                self._use(attempt, name)
        self._send(wire.Refer(attempt, tuple(each.at.name for each in stored), names))
        return True

    def _there_at_once(self, at: Whereabouts) -> str | None:
        """Return the object's name on the node; None: it is not there, or that is not known without waiting."""
        if at.home is self:
            return at.kept_as
        blob = at.blob
        if blob is None:
            return None
        if self.same_host:
            return blob.name if self._transfers.has(blob) else None
        name = None if blob.known_key is None else self.memory.find(blob.known_key)
        return None if name in self._placing else name

    async def refer(self, attempt: int, stored: Sequence[StoredObject]) -> None:
        """Have the node have what the attempt's arguments refer to.

        Raises:
            ObjectLost
        """
        blobs = [await self._bring_there(attempt, each.at) for each in stored]
        self._send(wire.Refer(attempt, tuple(each.at.name for each in stored), tuple(blobs)))

    async def _bring_there(self, attempt: int, at: Whereabouts) -> str:
        if at.home is self:
            self._use(attempt, at.kept_as)
            return at.kept_as
        if at.blob is None and at.home is not None:
            await self._bring_here(at)
        if at.blob is None:
            raise ObjectLost(at.story)
        return await self.place(attempt, at.blob)

    async def _bring_here(self, at: Whereabouts) -> None:
        """Bring what another node keeps to where this node can be given it. Whoever else waits for it has it too."""
        home = at.home
        if self.same_host and isinstance(home, NodeObjects) and home.same_host:
            try:  # its memory stays for as long as somebody has it open
                at.blob = Blob.opened(at.name, at.size_bytes, at.kept_as)
            except (FileNotFoundError, ProcessLookupError):
                raise ObjectLost(at.story) from None
            return
        if at.fetching is None:
            assert home is not None, "it was looked at just now"
            at.fetching = asyncio.ensure_future(home.bring(at))
        try:
            received: Received = await asyncio.shield(at.fetching)
        except ConnectionError:
            raise ObjectLost(at.story) from None
        finally:
            if at.fetching is not None and at.fetching.done():
                at.fetching = None
        if at.blob is None:
            at.blob = Blob(at.name, [received.data], at.size_bytes)

    # --- from the node --------------------------------------------------------------------------------------------

    def kept(self, at: Whereabouts, name: str) -> Whereabouts:
        """Note what a task has left there under a name, until it is let go."""
        at.home, at.kept_as = self, name
        self._kept.add(at)
        self.memory.made(name, at.size_bytes)
        self._carry_out()
        return at

    async def bring(self, at: Whereabouts) -> Received:
        """Return what the node keeps. A ConnectionError: the node is lost. A LookupError: it says that it has not."""
        return await self._transfers.bring_kept(wire.Value(b"", at.sizes, at.kept_as))

    def let_go(self, name: str) -> None:
        self.memory.let_go(name)
        self._carry_out()

    # --- the node's life ------------------------------------------------------------------------------------------

    def over(self, attempt: int) -> None:
        """Handle that an attempt has ended, which had something in use."""
        for name in self.users.pop(attempt, ()):
            self.memory.unused(name)
            placing = self._placing.get(name)
            if placing is not None and not any(name in used for used in self.users.values()):
                placing.cancel()  # nobody waits for it any more
        self._carry_out()

    def not_moved(self, name: str) -> None:
        self.memory.not_moved(name)
        self._carry_out()

    def close(self) -> None:
        """Handle the node's end: what it kept is lost, but for copies of it."""
        self._closed = True
        for at in self._kept:
            at.home = None

    def _use(self, attempt: int, name: str) -> None:
        self.memory.used(name)
        self.users.setdefault(attempt, []).append(name)

    def _carry_out(self) -> None:
        decided, self.memory.decisions = self.memory.decisions, []
        if self._closed:
            return
        for each in decided:
            names = (each.name,)
            self._send(wire.MoveToDisk(names) if isinstance(each, MoveToDisk) else wire.Drop(names))


class _Pieces:
    """Is unpickled by a worker as what the pieces are together."""

    def __init__(self, pieces: list[tuple[bytes | str, tuple[int, ...]]], sizes: tuple[int, ...]) -> None:
        self._pieces, self._sizes = pieces, sizes

    def __reduce__(self) -> tuple[Any, ...]:
        return resolve_pieces, (self._pieces, self._sizes)


async def _key(blob: Blob) -> str:
    return blob.key() if blob.size_bytes <= AT_ONCE_BYTES else await in_thread(blob.key, abandon=True)


def size_of(sizes: tuple[int, ...]) -> int:
    """Return how many bytes a value takes whose parts have these sizes."""
    total = 0
    for size in sizes:
        total += -total % ALIGN_BYTES + size
    return total

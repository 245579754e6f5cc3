"""The large objects of one node: arguments of its attempts, and results that stay on the node.

A node remembers objects that it was sent, so that later calls need not send them again. `object_memory` decides which
objects it remembers. This module sends objects to the node, and makes it drop them or move them to its disk. A node on
this computer maps memory of the client or of another local node, and remembers nothing.

How an object comes to a node that needs it depends on its place (`Whereabouts`). Its home is the node that keeps it:

============================================  ======================================================================
the object is                                 way to the node
============================================  ======================================================================
on the node itself                            none
in the client's memory                        the client sends it (`place`), unless the node remembers it
on its home, which the node can reach         the node copies it from there (`_copy_from_home`, `peer_transfers`);
                                              the client sends the rest if that fails
on its home, which the node cannot reach      the client fetches it (`_ensure_on_client`), then sends it
nowhere any more                              `ObjectLost`
============================================  ======================================================================
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ..node.blobs import resolve_pieces
from ..serialization.payload import Blob, Received
from ..serialization.stored_objects import Whereabouts
from ..wire import messages as wire
from ..wire.values import ALIGN_BYTES, INLINE_BYTES
from .blob_transfers import BlobTransfers
from .content_keys import ContentKeys
from .object_memory import MoveToDisk, ObjectMemory
from .peer_transfers import LEAST_BYTES, PeerEnd

if TYPE_CHECKING:
    from ...actors.interfaces import NodeId
    from ..serialization.stored_objects import StoredObject
    from .peer_transfers import PeerTransfers

MEMORY_SHARE = 8  # objects that a node remembers take at most one eighth of its memory
DISK_TIMES = 4  # objects on a node's disk may take four times the limit for objects in its memory


class ObjectLost(Exception):
    """The error for an object that no longer exists anywhere: the node that kept it is lost."""


class NodeObjects:
    """The implementation of `serialization.stored_objects.Home` for one node."""

    def __init__(
        self,
        node: NodeId,
        transfers: BlobTransfers,
        *,
        same_host: bool,
        send: Callable[[wire.Message], None],
        keys: ContentKeys | None = None,
        peers: PeerTransfers | None = None,
    ) -> None:
        self.node, self.same_host = node, same_host
        self._transfers, self._send = transfers, send
        # Created on first use: most nodes of a large pool have no large objects.
        self._memory: ObjectMemory | None = None
        self._limits = 0, 0  # limits of `_memory`, in bytes: memory, disk
        self._end: PeerEnd | None = None
        self.address = ""  # the address at which other nodes reach this node
        self._kept: WeakSet[Whereabouts] | None = None
        self._number = 0  # number of the last object that was sent
        self._placing: dict[str, asyncio.Task[None]] = {}
        self.users: dict[int, list[str]] = {}  # attempt -> names of the objects that it uses
        self._peers = None if same_host else peers
        self._keys = ContentKeys() if keys is None else keys
        if not same_host:
            self._keys.nodes.add(self)
            self._keys.peers = peers
        self._shared: dict[str, str] = {}  # objects that this node may send to other nodes: name -> key
        self.closed = False

    @property
    def memory(self) -> ObjectMemory:
        if self._memory is None:
            self._memory = ObjectMemory(*self._limits)
        return self._memory

    @property
    def end(self) -> PeerEnd:
        if self._end is None:
            self._end = PeerEnd(self._send, self.address)
            if self.closed:
                self._end.close()
        return self._end

    def limit(self, node_bytes: int, memory_bytes: int | None, disk_bytes: int | None) -> None:
        """Set how many bytes of objects the node may hold.

        Args:
            node_bytes: The size of the node's memory.
            memory_bytes: The limit in memory; None: the share `MEMORY_SHARE` of ``node_bytes``.
            disk_bytes: The limit on disk; None: `DISK_TIMES` times the limit in memory.
        """
        memory = node_bytes // MEMORY_SHARE if memory_bytes is None else memory_bytes
        self._limits = memory, DISK_TIMES * memory if disk_bytes is None else disk_bytes
        if self._memory is not None:
            self._memory.limit(*self._limits)

    # --- sending to the node --------------------------------------------------------------------------------------

    async def place_arguments(self, attempt: int, args: wire.Value, blob: Blob) -> wire.Value:
        """Send the node the large arguments of a call (an attempt), which stay there until the attempt ends.

        Return the arguments with references to what was sent.

        Each large buffer, such as an array, is sent as its own object, so that a later call can reuse it.
        """
        pieces = () if self.same_host or args.sizes is None else blob.pieces(args.sizes)
        if not pieces or args.sizes is None:
            return args._replace(blob=await self.place(attempt, blob))
        named: list[tuple[bytes | str, tuple[int, ...]]] = []
        for piece in pieces:
            if piece.blob.size_bytes <= INLINE_BYTES:
                named.append((b"".join(piece.blob.parts), piece.parts))
            else:
                named.append(
                    (self._begin_sending(attempt, piece.blob, await self._keys.key_of(piece.blob)), piece.parts)
                )
        names = tuple(name for name, _ in named if isinstance(name, str))
        for name in names:
            await self._wait_until_placed(name)
        self._send(wire.Lend(attempt, names))
        return wire.Value(pickle.dumps(_Pieces(named, args.sizes), 5))

    async def place(self, attempt: int, blob: Blob) -> str:
        """Send the node a blob, which stays there until the attempt ends. Return the blob's name on the node."""
        key = "" if self.same_host else await self._keys.key_of(blob)
        if not key:
            await self._transfers.ensure_placed(blob)
            return blob.name
        name = self._begin_sending(attempt, blob, key)
        await self._wait_until_placed(name)
        return name

    def _begin_sending(self, attempt: int, blob: Blob, key: str) -> str:
        """Begin to send a blob, unless the node has it or is receiving it."""

        def send_rest(name: str, at: int) -> Coroutine[Any, Any, None]:
            return self._transfers.place(blob.renamed(name), at)

        own = self._keys.is_own(key)
        settle = partial(self._keys.settle, blob) if own else None
        name = self._begin_placing(attempt, blob.name, blob.size_bytes, key, send_rest, settle=settle)
        if own and (placing := self._placing.get(name)) is not None:
            placing.add_done_callback(partial(self._settle_key, blob))
        return name

    def _settle_key(self, blob: Blob, placing: asyncio.Task[None]) -> None:
        """Replace a provisional key by the SHA-256 of the blob, once the blob was sent."""
        if not placing.cancelled() and placing.exception() is None and not self.closed:
            self._keys.begin_to_settle(blob)

    def _begin_placing(
        self,
        attempt: int,
        name: str,
        size_bytes: int,
        key: str,
        send_rest: Callable[[str, int], Coroutine[Any, Any, None]],
        *,
        settle: Callable[[], Awaitable[str]] | None = None,
    ) -> str:
        """Begin to bring an object to the node, unless the node has it or is receiving it. Return its name on the node.

        ``send_rest(name, at)`` sends the object from the client as blob ``name``, from byte ``at`` on. ``settle``
        returns the object's SHA-256; None: ``key`` is the SHA-256.
        """
        known = self.memory.find(key)
        if known is not None:
            name = known
        else:
            self._number += 1
            name = f"{name}#{self._number}"  # a unique name: an object of this name may be dropped, but still arriving
            self.memory.sent(name, size_bytes, key)
            if self._peers is None or not self.serves(size_bytes):
                bringing = send_rest(name, 0)
            else:
                self._shared[name] = key
                bringing = self._peers.bring(self, name, size_bytes, key, partial(send_rest, name), settle=settle)
            self._placing[name] = placing = self._transfers.spawn(bringing)
            placing.add_done_callback(partial(self._end_placing, name))
        self._use(attempt, name)
        self._carry_out_decisions()
        return name

    async def _wait_until_placed(self, name: str) -> None:
        """Wait until the whole object is on the node. Raises the error of its transfer."""
        if (under_way := self._placing.get(name)) is not None:
            # this call's cancellation does not cancel `under_way`: other calls wait for it too
            await asyncio.wait([under_way])
            under_way.result()

    def _end_placing(self, name: str, placing: asyncio.Task[None]) -> None:
        del self._placing[name]
        if placing.cancelled() or placing.exception() is not None:
            self.memory.failed(name)
        self.memory.unused(name)
        self._carry_out_decisions()

    def use_if_present(self, attempt: int, stored: Sequence[StoredObject]) -> bool:
        """Let the attempt use the objects in its arguments, if all of them are on the node. Return whether they are."""
        blobs = [self._name_if_present(each.at) for each in stored]
        if None in blobs:
            return False
        for name in blobs:
            if name is not None and self.memory.has(name):
                self._use(attempt, name)
        self._send_references(attempt, stored, [each.at for each in stored], blobs)
        return True

    def _send_references(
        self, attempt: int, stored: Sequence[StoredObject], places: Sequence[Whereabouts], blobs: Sequence[str | None]
    ) -> None:
        """Send the node the name of each object's blob, and the sizes of the value's parts, for use by the attempt.

        The caller passes ``places``, as the place of an object may change while the blobs are brought to the node.
        """
        values = (wire.Value(b"", at.sizes, blob) for at, blob in zip(places, blobs, strict=True))
        self._send(wire.Refer(attempt, tuple(each.name for each in stored), tuple(values)))

    def _name_if_present(self, at: Whereabouts) -> str | None:
        """Return the object's name on the node; None: the node lacks it, or an answer would need an `await`."""
        if at.home is self:
            return at.kept_as
        blob = at.blob
        if blob is None:
            name = self.memory.find(at.name)  # the copy that this node has received from the object's home node
            return None if name in self._placing else name
        if self.same_host:
            return blob.name if self._transfers.has(blob) else None
        name = None if blob.known_key is None else self.memory.find(blob.known_key)
        return None if name in self._placing else name

    async def use(self, attempt: int, stored: Sequence[StoredObject]) -> None:
        """Let the attempt use the objects in its arguments. Objects that are not on the node are sent or copied to it.

        Raises:
            ObjectLost: an object no longer exists.
        """
        places = [each.at for each in stored]
        self._send_references(attempt, stored, places, [await self._ensure_on_node(attempt, at) for at in places])

    async def _ensure_on_node(self, attempt: int, at: Whereabouts) -> str:
        """Have an object on the node until the attempt ends. Return its name there. See the table of this module."""
        if at.home is self:
            self._use(attempt, at.kept_as)
            return at.kept_as
        if at.blob is None and at.home is not None:
            home, peers = at.home, self._peers
            if peers is not None and isinstance(home, NodeObjects) and home.serves(at.size_bytes):
                return await self._copy_from_home(home, peers, attempt, at)
            await self._ensure_on_client(at)
        if at.blob is None:
            raise ObjectLost(at.story)
        return await self.place(attempt, at.blob)

    async def _copy_from_home(self, home: NodeObjects, peers: PeerTransfers, attempt: int, at: Whereabouts) -> str:
        """Copy an object from the node that keeps it, or else through this process. Return its name on this node."""

        async def send_rest(name: str, offset: int) -> None:
            await self._ensure_on_client(at)
            if at.blob is not None:
                await self._transfers.place(at.blob.renamed(name), offset)

        home.share(at.name, at.kept_as)
        peers.kept(at.name, home, at.kept_as, at.size_bytes)
        name = self._begin_placing(attempt, at.name, at.size_bytes, at.name, send_rest)
        if (self, name) not in at.copies:
            at.copies.append((self, name))
        await self._wait_until_placed(name)
        return name

    async def _ensure_on_client(self, at: Whereabouts) -> None:
        """Fetch an object from the node that keeps it to the client, once for all nodes that wait for it."""
        home = at.home
        if self.same_host and isinstance(home, NodeObjects) and home.same_host:
            try:  # both nodes are on this computer: open the memory file, which exists while any process has it open
                at.blob = Blob.opened(at.name, at.size_bytes, at.kept_as)
            except (FileNotFoundError, ProcessLookupError):
                at.lose(home)
                raise ObjectLost(at.story) from None
            return
        if home is None:
            raise ObjectLost(at.story)
        if at.fetching is None:
            at.fetching = asyncio.ensure_future(home.fetch(at))
            at.fetching.add_done_callback(_mark_retrieved)
        try:
            received: Received = await asyncio.shield(at.fetching)
        except ConnectionError:
            at.lose(home)
            raise ObjectLost(at.story) from None
        finally:
            if at.fetching is not None and at.fetching.done():
                at.fetching = None
        if at.blob is None:
            at.blob = Blob(at.name, [received.data], at.size_bytes)

    # --- objects that the node keeps ------------------------------------------------------------------------------

    def keep(self, at: Whereabouts, name: str) -> Whereabouts:
        """Note an object that a task has left on the node under ``name``. It stays until `let_go`."""
        at.home, at.kept_as = self, name
        if self._kept is None:
            self._kept = WeakSet()
        self._kept.add(at)
        self.memory.created(name, at.size_bytes)
        self._carry_out_decisions()
        return at

    async def fetch(self, at: Whereabouts) -> Received:
        """Return the bytes of an object that the node keeps.

        Raises:
            ConnectionError: the node is lost.
            LookupError: the node does not have the object.
        """
        return await self._transfers.bring_kept(wire.Value(b"", at.sizes, at.kept_as))

    def let_go(self, name: str) -> None:
        self.memory.let_go(name)
        self._carry_out_decisions()

    def forget(self, name: str) -> None:
        self.memory.forget(name)
        self._carry_out_decisions()

    def serves(self, size_bytes: int) -> bool:
        """Return whether this node may send objects of this size to other nodes."""
        return self._peers is not None and size_bytes >= LEAST_BYTES

    async def copy(self, home: NodeObjects, blob: str, name: str, size_bytes: int) -> bool:
        """Have the node copy a blob directly from another node, as ``name``. The object memory does not track the copy.

        Return whether the copy succeeded. It fails if the nodes cannot reach each other.
        """
        if self._peers is None or home._peers is None:
            return False
        return await self._peers.copy(home, blob, self, name, size_bytes)

    def share(self, key: str, name: str) -> None:
        """Note that this node may send an object that it keeps to other nodes."""
        self._shared[name] = key

    def rekeyed(self, before: str, key: str) -> None:
        """Note that an object's key has changed."""
        self.memory.rekeyed(before, key)
        for name, its in self._shared.items():
            if its == before:
                self._shared[name] = key

    def hold(self, name: str) -> None:
        """Keep an object on the node until `release`, while another node copies it."""
        self.memory.used(name)

    def release(self, name: str) -> None:
        self.memory.unused(name)
        self._carry_out_decisions()

    # --- ends of attempts and of the node -------------------------------------------------------------------------

    def end_attempt(self, attempt: int) -> None:
        """End the use of objects by an attempt that is over."""
        for name in self.users.pop(attempt, ()):
            self.memory.unused(name)
            placing = self._placing.get(name)
            if placing is not None and not any(name in used for used in self.users.values()):
                placing.cancel()  # nobody waits for this transfer any more
        self._carry_out_decisions()

    def not_moved(self, name: str) -> None:
        self.memory.not_moved(name)
        self._carry_out_decisions()

    def close(self) -> None:
        """Handle the node's end: its objects are lost, unless they have copies elsewhere."""
        self.closed = True
        self._keys.left(self)
        if self._end is not None:
            self._end.close()
        for name in [*self._shared]:
            self._unshare(name)
        for at in self._kept or ():
            at.lose(self)

    def _unshare(self, name: str) -> None:
        key = self._shared.pop(name, None)
        if key is not None and self._peers is not None:
            self._peers.left(key, self.node)

    def _use(self, attempt: int, name: str) -> None:
        self.memory.used(name)
        self.users.setdefault(attempt, []).append(name)

    def _carry_out_decisions(self) -> None:
        decided, self.memory.decisions = self.memory.decisions, []
        if self.closed:
            return
        for each in decided:
            names = (each.name,)
            if self._shared and not isinstance(each, MoveToDisk):
                self._unshare(each.name)
            self._send(wire.MoveToDisk(names) if isinstance(each, MoveToDisk) else wire.Drop(names))


class _Pieces:
    """A stand-in for a value that is sent in pieces: when a worker unpickles it, the result is the whole value."""

    def __init__(self, pieces: list[tuple[bytes | str, tuple[int, ...]]], sizes: tuple[int, ...]) -> None:
        self._pieces, self._sizes = pieces, sizes

    def __reduce__(self) -> tuple[Any, ...]:
        return resolve_pieces, (self._pieces, self._sizes)


def size_of(sizes: tuple[int, ...]) -> int:
    """Return the bytes that a value takes if its parts have these sizes."""
    total = 0
    for size in sizes:
        total += -total % ALIGN_BYTES + size
    return total


def _mark_retrieved(fetching: asyncio.Future[Received]) -> None:
    """Retrieve an error: asyncio would log it if all waiting calls were cancelled."""
    if not fetching.cancelled():
        fetching.exception()

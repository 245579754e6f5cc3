"""The blobs that cross between the client and one node, over as many channels and connections as each takes."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Protocol, TypeVar

from ...actors.ports import NodeId
from ...providers.threads import in_thread
from ..api.printable import plain
from ..serialization.payload import Blob, Part, Received
from ..wire import messages as wire
from .transfer_progress import TransferProgress

T = TypeVar("T")

CHANNEL_TRIES = 8  # for one blob that comes no further: sshd has its MaxSessions, an executor its memory
CHANNEL_PAUSE_S = 0.1  # after the first under a connection that stays, and so much longer after each


class Bulk(Protocol):
    """The way in which large data crosses, bounded by the connection's life. ``progress`` counts what has moved."""

    async def put(self, blob: Blob, progress: TransferProgress, /) -> None: ...
    async def get(self, name: str, progress: TransferProgress, /) -> Part: ...


class BlobTransfers:
    """A node's transfers. Each starts over on the next channel or connection when it loses its own."""

    def __init__(self, node: NodeId, bulk: Bulk, *, same_host: bool, send: Callable[[wire.Message], None]) -> None:
        self._node, self._bulk, self._same_host, self._send = node, bulk, same_host, send
        self._attached = asyncio.Event()
        self._connection: object = None
        self._closed = False
        self.placed: dict[str, asyncio.Task[None]] = {}  # blobs that are on the node, or on their way there, by name
        self.progress: dict[str, TransferProgress] = {}  # of blobs on their way in either direction, by name
        self.tasks: set[asyncio.Task[None]] = set()

    def attach(self, connection: object) -> None:
        self._connection = connection
        self._attached.set()

    def detach(self, *, keep: Iterable[asyncio.Task[None]]) -> None:
        """Cancel the transfers, as their connection is lost; whoever needs one begins it again on the next."""
        self._connection = None
        self._attached.clear()
        for task in self.tasks.difference(keep):
            task.cancel()

    def close(self) -> None:
        """Cancel the transfers for good; those who wait for a connection get a ConnectionError."""
        self._connection = None
        self._closed = True
        self._attached.set()
        for task in self.tasks:
            task.cancel()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` until the connection is lost. The loss is reported elsewhere, so its errors are dropped."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled():
            task.exception()

    # --- to the node ----------------------------------------------------------------------------------------------

    async def ensure_placed(self, blob: Blob) -> None:
        """Return when the node has the blob, whoever brought it there.

        Raises:
            Exception: the blob cannot be had, on this or any connection.
        """
        while True:
            await self._attached.wait()
            placing = self.placed.get(blob.name)
            if placing is None:
                placing = self.placed[blob.name] = self.spawn(self.place(blob))
            await asyncio.wait([placing])  # leaves it alone when we are cancelled: others wait for it too
            error = None if placing.cancelled() else placing.exception()
            if not placing.cancelled() and error is None:
                return
            if self.placed.get(blob.name) is placing:
                del self.placed[blob.name]
            if error is not None:
                raise error
            await asyncio.sleep(0)  # the connection was lost under it; the next one carries it

    async def place(self, blob: Blob) -> None:
        await self._across_losses(blob.name, lambda progress: self._place(blob, progress))

    async def _place(self, blob: Blob, progress: TransferProgress) -> None:
        if self._same_host:
            path = await in_thread(blob.share, abandon=True)
            self._send(wire.Adopt(blob.name, path, blob.size_bytes))
        else:
            await self._bulk.put(blob, progress)

    def drop(self, blob: Blob) -> None:
        """Have the node drop the blob, if it has it."""
        placed = self.placed.pop(blob.name, None)
        if placed is not None:
            placed.cancel()
            self._send(wire.Drop((blob.name,)))

    # --- from the node --------------------------------------------------------------------------------------------

    async def fetch(self, value: wire.Value, duration_us: int = 0) -> Received:
        """Return a value that lies in a blob on the node; the node drops the blob then."""
        name = value.blob
        assert name is not None, "only a value that lies in a blob is fetched"
        refuse_lost(name)
        data = await self._across_losses(name, lambda progress: self._bulk.get(name, progress))
        self._send(wire.Drop((name,)))
        return Received(data, value.sizes, duration_us / 1e6)

    # --- both -----------------------------------------------------------------------------------------------------

    async def _across_losses(self, name: str, transfer: Callable[[TransferProgress], Awaitable[T]]) -> T:
        """Try a transfer until it succeeds. If it is cancelled, as by the loss of its connection, its progress is kept
        for whoever begins it again.

        Raises:
            ConnectionError: the node is lost.
            RuntimeError: it came no further, again and again.
        """
        progress = self.progress.setdefault(name, TransferProgress(CHANNEL_TRIES))
        last: ConnectionError | None = None
        try:
            while True:
                await self._attached.wait()
                if self._closed:
                    raise ConnectionResetError("the node is lost")
                connection = self._connection
                progress.begin(last)
                try:
                    moved = await transfer(progress)
                except ConnectionError as error:
                    last = error
                    if self._connection is connection:
                        await asyncio.sleep(CHANNEL_PAUSE_S * progress.tries)
                else:
                    self.progress.pop(name, None)
                    return moved
        except Exception:
            self.progress.pop(name, None)
            raise


def refuse_lost(name: str) -> None:
    """Refuse the name that stands for a blob which the node could not keep.

    Raises:
        OSError: the node could not keep the value, and says why in place of its name.
    """
    if name.startswith(wire.LOST):
        raise OSError(errno.EMFILE, plain(name.removeprefix(wire.LOST)))

"""The blobs that cross between the client and one node, over as many channels and connections as each takes."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from ...providers.threads import in_thread
from ..api.printable import plain
from ..serialization.payload import Blob, Part, Received, check_size, map_shared
from ..wire import messages as wire

T = TypeVar("T")

CHANNEL_TRIES = 8  # for a blob without progress: sshd has its MaxSessions, an executor its memory
CHANNEL_PAUSE_S = 0.1  # after the first lost channel of a live connection; longer by as much after each further one


class TransferProgress:
    """A counter of the tries to transfer a blob, and of their progress.

    TRANSFER-1: after ``tries`` tries in a row without progress there is no other.
    """

    def __init__(self, tries: int, most_bytes: int | None = None) -> None:
        """Set the limits. ``most_bytes``: the largest size that the blob may have; None: any."""
        self._most, self._most_bytes = tries, most_bytes
        self._farthest = 0
        self.tries = 0  # since the last progress
        self.at_bytes = 0  # of the present try

    def begin(self, last: BaseException | None) -> None:
        """Begin another try; a RuntimeError: there were enough. ``last``: the error of the try before."""
        if self.at_bytes > self._farthest:
            self._farthest, self.tries = self.at_bytes, 0
        if self.tries == self._most:
            how = f" ({last})" if last is not None else ""
            raise RuntimeError(f"it was begun {self.tries} times, and came no further than {self._farthest} bytes{how}")
        self.tries += 1
        self.at_bytes = 0

    def expect(self, size_bytes: int) -> None:
        """Raise a ValueError if the size is above the limit, before memory is reserved for it."""
        check_size(size_bytes, self._most_bytes)

    def moved(self, count: int) -> None:
        self.at_bytes += count


class Bulk(Protocol):
    """A carrier of large data over one connection, until that is lost. ``progress`` counts the moved bytes."""

    async def put(self, blob: Blob, progress: TransferProgress, at: int, /) -> None:
        """Send a blob, from byte ``at`` on."""
        ...

    async def get(self, name: str, progress: TransferProgress, /) -> Part: ...


class BlobTransfers:
    """A node's transfers. Each starts over on the next channel or connection when it loses its own."""

    def __init__(self, bulk: Bulk, *, same_host: bool, send: Callable[[wire.Message], None]) -> None:
        self._bulk, self._same_host, self.send = bulk, same_host, send
        self._attached = self._closed = False
        self._change: asyncio.Future[None] | None = None  # of the two fields above, if a transfer waits for it
        self.placed: dict[str, asyncio.Task[None]] = {}  # blobs that are on the node, or on their way there, by name
        self.tasks: dict[asyncio.Task[None], None] = {}  # dicts without values take less than sets while they are empty
        self.moving: dict[asyncio.Task[Any], None] = {}  # transfers that have a channel, or are about to have one

    def attach(self) -> None:
        self._attached = True
        self._changed()

    def detach(self) -> None:
        """End the running transfers, as their connection is lost: they start over on the next."""
        self._attached = False
        for moving in self.moving:
            moving.cancel()

    def close(self) -> None:
        """Cancel the transfers for good; callers that wait for a connection get a ConnectionError."""
        self.detach()
        self._closed = True
        self._changed()
        for task in self.tasks:
            task.cancel()

    def _changed(self) -> None:
        change, self._change = self._change, None
        if change is not None:
            change.set_result(None)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` until the node is lost. The loss is reported elsewhere, so its errors are dropped."""
        return _kept(self.tasks, work)

    async def ensure_placed(self, blob: Blob) -> None:
        """Return when the node has the blob, whichever call sent it. No other connection would mend its errors."""
        while True:
            placing = self.placed.get(blob.name)
            if placing is None:
                placing = self.placed[blob.name] = self.spawn(self.place(blob))
            await asyncio.wait([placing])  # not cancelled with this call: other calls wait for it too
            error = None if placing.cancelled() else placing.exception()
            if not placing.cancelled() and error is None:
                return
            if self.placed.get(blob.name) is placing:
                del self.placed[blob.name]
            if error is not None:
                raise error

    def has(self, blob: Blob) -> bool:
        """Return whether the node has a blob that was placed there, for certain."""
        placing = self.placed.get(blob.name)
        return placing is not None and placing.done() and not placing.cancelled() and placing.exception() is None

    async def place(self, blob: Blob, at: int = 0) -> None:
        """Send the node a blob, of which it has ``at`` bytes already."""
        await self._across_losses(lambda progress: self._place(blob, at, progress))

    async def _place(self, blob: Blob, at: int, progress: TransferProgress) -> None:
        if self._same_host:
            path = await in_thread(blob.share, abandon=True)
            self.send(wire.Adopt(blob.name, path, blob.size_bytes))
        else:
            await self._bulk.put(blob, progress, at)

    def drop(self, blob: Blob) -> None:
        """Have the node drop the blob, if it has it: no attempt will read it any more."""
        placed = self.placed.pop(blob.name, None)
        if placed is not None:
            placed.cancel()
            self.send(wire.Drop((blob.name,)))

    def arrived(self, value: wire.Value, duration_us: int = 0, most_bytes: int | None = None) -> Received:
        """Return a value that is here, or on this computer. A ConnectionError: its executor has gone, with the value.
        Any other error: there is no room for the value here.
        """
        if value.blob is None:
            return Received(value.data, value.sizes, duration_us / 1e6)
        refuse_lost(value.blob)
        try:
            mapping = map_shared(value.blob, most_bytes)
        except (FileNotFoundError, ProcessLookupError) as error:
            raise ConnectionResetError("the executor has gone") from error
        self.send(wire.Drop((value.blob,)))
        return Received(mapping, value.sizes, duration_us / 1e6)

    async def bring(self, value: wire.Value, duration_us: int = 0, most_bytes: int | None = None) -> Received:
        """Return a value, wherever it is: here, on this computer, or on the node. A ValueError: it is too large."""
        if value.blob is None or self._same_host:
            return self.arrived(value, duration_us, most_bytes)
        return await self.fetch(value, duration_us, most_bytes)

    async def bring_kept(self, value: wire.Value) -> Received:
        """Return a copy of a value that stays on the node. A ConnectionError: the node is lost."""
        name = value.blob
        assert name is not None, "only what lies in a blob is kept"
        if self._same_host:
            try:
                return Received(map_shared(name), value.sizes)
            except (FileNotFoundError, ProcessLookupError) as error:
                raise ConnectionResetError("the executor has gone") from error
        return Received(await self._across_losses(lambda progress: self._bulk.get(name, progress)), value.sizes)

    async def fetch(self, value: wire.Value, duration_us: int = 0, most_bytes: int | None = None) -> Received:
        name = value.blob
        assert name is not None, "only a value that lies in a blob is fetched"
        refuse_lost(name)
        data = await self._across_losses(lambda progress: self._bulk.get(name, progress), most_bytes)
        self.send(wire.Drop((name,)))
        return Received(data, value.sizes, duration_us / 1e6)

    async def _across_losses(
        self, transfer: Callable[[TransferProgress], Coroutine[Any, Any, T]], most_bytes: int | None = None
    ) -> T:
        """Try a transfer until it succeeds, comes no further again and again, or the node is lost."""
        progress = TransferProgress(CHANNEL_TRIES, most_bytes)
        last: BaseException | None = None
        while True:
            while not self._attached and not self._closed:
                self._change = self._change or asyncio.get_running_loop().create_future()
                await asyncio.wait([self._change])  # other transfers may wait for it as well
            if self._closed:
                raise ConnectionResetError("the node is lost")
            progress.begin(last)
            moving = _kept(self.moving, transfer(progress))
            try:
                await asyncio.wait([moving])
            finally:
                moving.cancel()
            last = None if moving.cancelled() else moving.exception()
            if not moving.cancelled() and not isinstance(last, ConnectionError):
                return moving.result()
            if last is not None and self._attached:  # its channel was lost, and not its connection
                await asyncio.sleep(CHANNEL_PAUSE_S * progress.tries)


def _kept(tasks: dict[Any, None], work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run ``work`` as one of ``tasks``, until it ends. Marks its error as retrieved: asyncio would log it."""
    task = asyncio.ensure_future(work)
    tasks[task] = None

    def is_over(over: asyncio.Task[T]) -> None:
        tasks.pop(over, None)
        if not over.cancelled():
            over.exception()

    task.add_done_callback(is_over)
    return task


def is_lost(fetched: asyncio.Task[Received]) -> bool:
    """Return whether a value will not come, as its node is lost."""
    return not fetched.cancelled() and isinstance(fetched.exception(), ConnectionError)


def refuse_lost(name: str) -> None:
    """Raise an OSError if the node could not keep a value: then ``name`` is the reason."""
    if name.startswith(wire.LOST):
        raise OSError(errno.EMFILE, plain(name.removeprefix(wire.LOST)))

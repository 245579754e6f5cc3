"""Transfers of blobs (large values) between the client and one node.

A transfer that loses its channel or connection starts over on another channel or connection.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from ...providers.shared.threads import in_thread
from ..api.printable import plain
from ..serialization.payload import Blob, Part, Received, check_size, map_shared
from ..wire import messages as wire

T = TypeVar("T")

# A transfer of a blob fails after this number of tries in a row without progress. A single try may fail for a reason
# that passes: sshd refuses the channel because of MaxSessions, or the executor because it is short of memory.
CHANNEL_TRIES = 8
# After a try that lost its channel, but not its connection, wait this number of seconds for each try in a row without
# progress.
CHANNEL_PAUSE_S = 0.1


class TransferProgress:
    """A counter of the tries to transfer a blob, and of their progress.

    TRANSFER-1: after ``tries`` tries in a row without progress, the transfer is not tried again.
    """

    def __init__(self, tries: int, most_bytes: int | None = None) -> None:
        """Set the limits. ``most_bytes``: the largest size that the blob may have; None: any size."""
        self._most, self._most_bytes = tries, most_bytes
        self._farthest = 0
        self.tries = 0  # tries since the last progress
        self.at_bytes = 0  # bytes that the current try has moved

    def begin(self, last: BaseException | None) -> None:
        """Begin another try. ``last``: the error of the previous try; None: this is the first try.

        Raises:
            RuntimeError: `tries` tries in a row made no progress.
        """
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
    """The interface that moves blobs over one connection, until the connection is lost.

    ``progress`` counts the bytes that were moved.
    """

    async def put(self, blob: Blob, progress: TransferProgress, at: int, /) -> None:
        """Send a blob, from byte ``at`` on."""
        ...

    async def get(self, name: str, progress: TransferProgress, /) -> Part: ...


class BlobTransfers:
    """The transfers of one node. A transfer that loses its channel or connection starts over on the next one."""

    def __init__(self, bulk: Bulk, *, same_host: bool, send: Callable[[wire.Message], None]) -> None:
        self._bulk, self._same_host, self.send = bulk, same_host, send
        self._attached = self._closed = False
        # result is set when `_attached` or `_closed` changes; None: no transfer waits for a change
        self._change: asyncio.Future[None] | None = None
        # name of a blob -> the task that sends the blob to the node, or has sent it
        self.placed: dict[str, asyncio.Task[None]] = {}
        # `tasks` and `moving` are dicts that are used as sets: an empty dict takes less memory than an empty set
        self.tasks: dict[asyncio.Task[None], None] = {}
        self.moving: dict[asyncio.Task[Any], None] = {}  # transfers that have a channel, or will open one at once

    def attach(self) -> None:
        self._attached = True
        self._changed()

    def detach(self) -> None:
        """Cancel the running transfers, as their connection is lost. They start over on the next connection."""
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
        """Run ``work`` in a task that is cancelled when the node is lost. Errors of ``work`` are ignored here."""
        return _kept(self.tasks, work)

    async def ensure_placed(self, blob: Blob) -> None:
        """Send the blob to the node unless another call has done so, and return when the node has it.

        An error of the transfer is final: a new connection would not help.
        """
        while True:
            placing = self.placed.get(blob.name)
            if placing is None:
                placing = self.placed[blob.name] = self.spawn(self.place(blob))
            # this call's cancellation does not cancel `placing`: other calls wait for it too
            await asyncio.wait([placing])
            error = None if placing.cancelled() else placing.exception()
            if not placing.cancelled() and error is None:
                return
            if self.placed.get(blob.name) is placing:
                del self.placed[blob.name]
            if error is not None:
                raise error

    def has(self, blob: Blob) -> bool:
        """Return whether the blob was placed on the node, and the transfer is complete."""
        placing = self.placed.get(blob.name)
        return placing is not None and placing.done() and not placing.cancelled() and placing.exception() is None

    async def place(self, blob: Blob, at: int = 0) -> None:
        """Send a blob to the node, which already has its first ``at`` bytes."""
        await self._across_losses(lambda progress: self._place(blob, at, progress))

    async def _place(self, blob: Blob, at: int, progress: TransferProgress) -> None:
        if self._same_host:
            path = await in_thread(blob.share, abandon=True)
            self.send(wire.Adopt(blob.name, path, blob.size_bytes))
        else:
            await self._bulk.put(blob, progress, at)

    def drop(self, blob: Blob) -> None:
        """Make the node drop the blob, as no attempt will read it any more. Do nothing if the node lacks the blob."""
        placed = self.placed.pop(blob.name, None)
        if placed is not None:
            placed.cancel()
            self.send(wire.Drop((blob.name,)))

    def arrived(self, value: wire.Value, duration_us: int = 0, most_bytes: int | None = None) -> Received:
        """Return a value that can be read at once: from the message, or from a memory file on this computer.

        Raises:
            ConnectionError: the executor has ended, and the value is lost with it.
            Exception: any other error means that this process has no room for the value.
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
        """Return a value that the node has reported; fetch its blob if the node is on another computer.

        Raises:
            ValueError: the value is larger than ``most_bytes``.
        """
        if value.blob is None or self._same_host:
            return self.arrived(value, duration_us, most_bytes)
        return await self.fetch(value, duration_us, most_bytes)

    async def bring_kept(self, value: wire.Value) -> Received:
        """Return a copy of a value that stays on the node. Raise a ConnectionError if the node is lost."""
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
        """Repeat a transfer until it succeeds, makes no progress in `CHANNEL_TRIES` tries, or the node is lost."""
        progress = TransferProgress(CHANNEL_TRIES, most_bytes)
        last: BaseException | None = None
        while True:
            while not self._attached and not self._closed:
                self._change = self._change or asyncio.get_running_loop().create_future()
                await asyncio.wait([self._change])  # other transfers may wait for this future as well
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
            if last is not None and self._attached:  # the transfer lost its channel, but the connection lives
                await asyncio.sleep(CHANNEL_PAUSE_S * progress.tries)


def _kept(tasks: dict[Any, None], work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run ``work`` in a task, and keep the task in ``tasks`` until it ends. asyncio will not log its error."""
    task = asyncio.ensure_future(work)
    tasks[task] = None

    def is_over(over: asyncio.Task[T]) -> None:
        tasks.pop(over, None)
        if not over.cancelled():
            over.exception()

    task.add_done_callback(is_over)
    return task


def is_lost(fetched: asyncio.Task[Received]) -> bool:
    """Return whether a value cannot be fetched because its node is lost."""
    return not fetched.cancelled() and isinstance(fetched.exception(), ConnectionError)


def refuse_lost(name: str) -> None:
    """Raise an OSError if the node could not keep the value; in that case, ``name`` contains the reason."""
    if name.startswith(wire.LOST):
        raise OSError(errno.EMFILE, plain(name.removeprefix(wire.LOST)))

"""Items between a client and a running task, both ways, by credit: few are held that the other has not taken."""

from __future__ import annotations

import asyncio
import pickle
import queue
import threading
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
)
from contextlib import aclosing, suppress
from typing import Any

import cloudpickle

from ..node.failure import text_of
from ..wire import values
from .items import QUICK_ITERATORS
from .payload import Give, Received

AHEAD = 16  # items a generator may be ahead of its consumer
_TEXT_CHARACTERS = 8 * 1024  # of an error that is told by its text


class Values(AsyncIterator[Received]):
    """The values of a generator, as they arrive at the client until its task ends. Implements `StreamOutput`."""

    def __init__(self) -> None:
        self._items: deque[tuple[Received | Awaitable[Received], Callable[[int], None]]] = deque()
        self._ended = False
        self._taken = 0
        self._changed: asyncio.Future[None] | None = None

    def push(self, item: Received | Awaitable[Received], grant: Callable[[int], None]) -> None:
        if isinstance(item, asyncio.Future):  # whoever leaves the stream early does not ask for the value
            item.add_done_callback(_retrieve)
        self._items.append((item, grant))
        self._wake()

    def end(self) -> None:
        """End, when the values that have come are taken: no more will come."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def __anext__(self) -> Received:
        while not self._items:
            if self._ended:
                raise StopAsyncIteration
            self._changed = asyncio.get_running_loop().create_future()
            await self._changed
        item, grant = self._items.popleft()
        self._taken += 1
        if self._taken * 2 >= AHEAD:  # half a window at a time: one frame for many items
            grant(self._taken)
            self._taken = 0
        if isinstance(item, Received):
            return item
        try:
            return await item
        except ConnectionError:  # its node was lost under it: how the task ended says more
            self._items.clear()
            return await self.__anext__()


def _retrieve(fetched: asyncio.Future[Received]) -> None:
    """Take note of the error of a value: asyncio logs those that nobody has asked for."""
    if not fetched.cancelled():
        fetched.exception()


class Source:
    """An iterable argument of the client's, consumed by a running task. Implements `payload.StreamInput`.

    A plain iterator is advanced in a thread of its own, because its ``next`` may block; items keep their order.
    """

    def __init__(self, items: Iterable[Any] | AsyncIterable[Any]) -> None:
        self._items = items
        self._wanted: asyncio.Queue[int] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def wanted(self, count: int, give: Give) -> None:
        self._wanted.put_nowait(count)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._serve(give))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _serve(self, give: Give) -> None:
        """Give the items. If anything goes wrong, tell the task, which would wait for ever."""
        try:
            await self._give_all(give)
        except asyncio.CancelledError as error:
            if self._task is None or self._task.cancelling():
                raise  # `stop`
            await give(None, _pickled(error))  # what the user's iterator waited for was cancelled
        except Exception as error:  # noqa: BLE001  the user's iterator failed, or an item cannot be pickled or placed
            await give(None, _pickled(error))

    async def _give_all(self, give: Give) -> None:
        async with aclosing(_advanced(self._items)) as items:
            while True:
                for _ in range(await self._wanted.get()):
                    item = await anext(items, _END)
                    if item is _END:
                        await give(None)
                        return
                    await give(values.dump(item, "item"))


def _pickled(error: BaseException) -> bytes:
    """Pickle the error that the task will raise. One that cannot be pickled, or is too large for a frame, becomes its
    text.
    """
    try:
        pickled: bytes = cloudpickle.dumps(error)
        if len(pickled) <= values.INLINE_BYTES:
            return pickled
    except Exception:  # noqa: BLE001, S110  whatever it holds: a lock, a connection
        pass
    return pickle.dumps(RuntimeError(f"{type(error).__name__}: {text_of(error)[:_TEXT_CHARACTERS]}"))


_END: Any = object()


async def _advanced(items: Iterable[Any] | AsyncIterable[Any]) -> AsyncGenerator[Any]:
    """Yield the items of ``items``. Closing this generator also closes the user's generator."""
    if isinstance(items, AsyncIterable):
        iterator = aiter(items)
        try:
            async for item in iterator:
                yield item
        finally:
            if isinstance(iterator, AsyncGenerator):
                await iterator.aclose()
        return
    plain = iter(items)
    if isinstance(plain, QUICK_ITERATORS):
        for item in plain:
            yield item
        return
    threaded = _ThreadIterator(plain)
    try:
        while (item := await threaded.next()) is not _END:
            yield item
    finally:
        threaded.close()


class _ThreadIterator:
    """A plain iterator in a daemon thread: one that waits for ever keeps no program from ending."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator
        self._asked: queue.SimpleQueue[asyncio.Future[Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="outrider-argument", daemon=True).start()

    async def next(self) -> Any:
        self._asked.put(asked := asyncio.get_running_loop().create_future())
        return await asked

    def close(self) -> None:
        """Close the iterator soon: a generator that is running is closed when it has come to its next item."""
        self._asked.put(None)

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            item = failed = None
            try:
                item = next(self._iterator, _END)
            except BaseException as error:  # noqa: BLE001  it is the task that gets it
                failed = error
            with suppress(RuntimeError):  # the loop has ended, and nobody waits any more
                asked.get_loop().call_soon_threadsafe(_settle, asked, item, failed)
        if isinstance(self._iterator, Generator):
            self._iterator.close()


def _settle(asked: asyncio.Future[Any], item: Any, failed: BaseException | None) -> None:
    if asked.done():
        return
    if failed is None:
        asked.set_result(item)
    else:
        asked.set_exception(failed)

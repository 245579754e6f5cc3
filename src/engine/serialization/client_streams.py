"""The client's side of streams: reading the inputs of calls, sending their items to the running tasks, and receiving
the values of generators.

Reading an input never blocks the event loop.

INPUT-1: the input of a call ends in exactly one way: exhausted, failed with its own error, or closed by its consumer.
INPUT-2: an input that is not exhausted never looks exhausted. Its error is raised after the items before the error; but
    an error that is not an `Exception`, such as a `KeyboardInterrupt`, may be raised before items that wait to be read.
INPUT-3: no error of an input ends an event loop or the thread that reads the input.
"""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections import defaultdict, deque
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
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import copy_context
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeVar

from ...lazy_dataclass import dataclass
from ...providers.shared.threads import in_thread
from ..node import exception_pickle
from ..node.failure import text_of
from ..wire import values
from .frozen_items import FIXED
from .payload import Received

AHEAD = 16  # number of values that a generator may produce before its consumer reads them
PULL_S = 0.002  # maximum wait until a chunk of items is full; then the items that are there are sent

_QUICK: tuple[Iterable[Any], ...] = ([], (), range(0), "", {}, set())
_QUICK_ITERATORS = tuple(type(each.__iter__()) for each in _QUICK)  # iterators of these types never block


@dataclass(frozen=True, slots=True)
class Blocking:
    """A plain iterator that a separate thread must advance, because it may block or use the pool."""

    iterator: Iterator[Any]
    closes: bool = False  # whether to close the iterator at the end, if it is a generator


def marked_blocking(
    items: Iterable[Any] | AsyncIterable[Any], *, closes: bool = False
) -> Iterable[Any] | AsyncIterable[Any] | Blocking:
    """Return an iterator over ``items``, as `Blocking` if it may block.

    An async iterable is returned unchanged.
    """
    if isinstance(items, AsyncIterable):
        return items
    iterator = iter(items)
    return iterator if isinstance(iterator, _QUICK_ITERATORS) else Blocking(iterator, closes)


class Freezer(Protocol):
    """An interface for pickling items when they arrive. An iterator may change an item when it continues."""

    def freeze(self, item: Any, /) -> Any:
        """Return a stand-in for the item that cannot change. None: call `pack` instead.

        The stand-in is the item itself if its type is immutable. Call this method in the thread that advances the
        iterator.
        """
        ...

    def pack(self, item: Any, /) -> tuple[Any, Callable[[], None] | None]:
        """Return a stand-in for the item, and a function that copies the item's large buffers.

        The function is None if the item has no buffers. The stand-in may be used only after the function has run. Call
        this method in the event loop's thread. The function may block, and may run in any thread.
        """
        ...


def items_of(
    items: Iterable[Any] | AsyncIterable[Any] | Blocking, news: asyncio.Event, freezer: Freezer | None = None
) -> Items:
    """Return an object from which the items can be taken.

    The object sets the event ``news`` when items are available, and at the end of the items.
    """
    if isinstance(items, Blocking):
        return ThreadItems(items, news, freezer)
    if isinstance(items, AsyncIterable):
        return AsyncItems(aiter(items), news, freezer)
    return PlainItems(iter(items), freezer)


E = TypeVar("E", bound=BaseException)


def as_input_error(error: E) -> E | RuntimeError:
    """Return the error to raise for an input that failed with ``error``.

    StopIteration and StopAsyncIteration are replaced by a RuntimeError, as Python's generators do: otherwise the
    consumer would take the error for the end of the items.
    """
    if not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    failure = RuntimeError(f"the input of a call raised {type(error).__name__}")
    failure.__cause__ = error
    return failure


class PlainItems:
    """The items of a plain iterable that cannot block. `take` advances the iterable."""

    def __init__(self, iterator: Iterator[Any], freezer: Freezer | None = None) -> None:
        self._iterator = iterator
        # iterators of these types run no code of the user that could change an item
        self._is_quick = isinstance(iterator, _QUICK_ITERATORS)
        self._freezer = freezer
        self._exhausted = False
        self._error: BaseException | None = None

    def take(self, count: int) -> list[Any]:
        """Return up to ``count`` further items.

        An empty list: no item is ready yet, or there are none left (see `is_exhausted`).

        Raises:
            BaseException: an error of the iterable that is not an `Exception`. It is raised at once.
        """
        items: list[Any] = []
        if self._is_quick and not self._exhausted and self._error is None:
            try:
                items.extend(islice(self._iterator, count))  # on an error, the items before it stay in the list
                self._exhausted = len(items) < count
            except RuntimeError as error:  # a set or a dict has changed its size meanwhile
                self._error = error
            return items
        began = time.monotonic()
        while len(items) < count and (not items or time.monotonic() - began < PULL_S):
            if self._exhausted or self._error is not None:
                break
            try:
                items.append(self._next())
            except StopIteration:
                self._exhausted = True
            except BaseException as error:
                self._error = as_input_error(error)
                if not isinstance(self._error, Exception):
                    raise
        return items

    def _next(self) -> Any:
        item = next(self._iterator)
        return item if self._freezer is None or type(item) in FIXED else self._frozen(self._freezer, item)

    def _frozen(self, freezer: Freezer, item: Any) -> Any:
        frozen = freezer.freeze(item)
        if frozen is None:
            frozen, copy = freezer.pack(item)
            if copy is not None:
                copy()
        return frozen

    def is_exhausted(self) -> bool:
        """Return whether there are no more items.

        Raises:
            BaseException: the iterable's error, after all items before the error were taken. Each later call raises it
                again.
        """
        if self._error is not None:
            raise self._error
        return self._exhausted

    async def close(self) -> None:
        """Stop reading items. Does not wait for an iterable that blocks."""


class BufferedItems:
    """The items of an iterable that a task or a thread reads in advance, but never more items than were requested.

    Items wait in a buffer. `take` returns them when enough items are in the buffer, after `PULL_S`, or at the end.
    """

    def __init__(self, news: asyncio.Event, more: Callable[[], None]) -> None:
        """Create the buffer. ``more`` is called when more items are requested."""
        self._news, self._want_more = news, more
        self._loop = asyncio.get_running_loop()
        self._buffer: deque[Any] = deque()
        # numbers of items since the beginning: taken by the consumer, begun to be read, requested
        self._taken = self._begun = self._wanted = 0
        self._due = False  # whether items have waited in the buffer for `PULL_S`
        self._timer: asyncio.TimerHandle | None = None
        self._over = self._exhausted = self._closed = False
        self._error: BaseException | None = None

    def is_exhausted(self) -> bool:
        """See `PlainItems.is_exhausted`."""
        if self._buffer:
            return False
        if self._error is not None:
            raise self._error
        return self._exhausted

    def take(self, count: int) -> list[Any]:
        """See `PlainItems.take`."""
        self._wanted = self._taken + count
        buffer = self._buffer
        if not buffer and self._error is not None and not isinstance(self._error, Exception):
            raise self._error
        if self._due or self._over or len(buffer) >= count:
            items = [buffer.popleft() for _ in range(min(count, len(buffer)))]
            self._taken += len(items)
            self._due = bool(buffer)
            return items
        self._want_more()
        if buffer and self._timer is None:
            self._timer = self._loop.call_later(PULL_S, self._has_waited)
        return []

    def _has_waited(self) -> None:
        self._timer = None
        self._due = bool(self._buffer)
        self._news.set()

    @property
    def _is_news(self) -> bool:
        """True if the consumer should be notified.

        This is so if the buffer was empty before this item, or if all requested items have been read.
        """
        return len(self._buffer) == 1 or self._begun >= self._wanted

    def _report(self, error: BaseException) -> None:
        """Log an error that closing the input has raised: no consumer is left to raise it to."""
        context = {"message": "closing the input of a call has failed", "exception": error}
        self._loop.call_exception_handler(context)


class AsyncItems(BufferedItems):
    """The items of an async iterable. One asyncio task reads and closes the iterable."""

    def __init__(self, iterator: AsyncIterator[Any], news: asyncio.Event, freezer: Freezer | None = None) -> None:
        self._iterator, self._freezer, self._more = iterator, freezer, asyncio.Event()
        super().__init__(news, self._more.set)
        self._task = self._loop.create_task(self._read())

    async def _read(self) -> None:
        """Read all items of the iterable (INPUT-1).

        Catches all errors, because a `SystemExit` raised here would end the event loop (INPUT-3).
        """
        try:
            while not self._closed:
                while self._begun >= self._wanted:
                    self._more.clear()
                    await self._more.wait()
                self._begun += 1
                item = await anext(self._iterator)
                if self._freezer is not None and type(item) not in FIXED:
                    item = await self._frozen(self._freezer, item)
                self._buffer.append(item)
                if self._is_news:
                    self._news.set()
        except StopAsyncIteration:
            self._exhausted = True
        except BaseException as error:  # noqa: BLE001  raised in place of the item, also after a cancellation
            self._error = as_input_error(error)
            if self._closed and not isinstance(error, asyncio.CancelledError):
                self._report(error)
        finally:
            self._over = True
            self._news.set()
        if isinstance(self._iterator, AsyncGenerator):
            try:
                await self._iterator.aclose()
            except BaseException as error:  # noqa: BLE001  the generator continues, or raises on its end
                self._report(error)

    async def _frozen(self, freezer: Freezer, item: Any) -> Any:
        frozen = freezer.freeze(item)
        if frozen is None:
            frozen, copy = freezer.pack(item)
            if copy is not None:
                await in_thread(copy)
        return frozen

    async def close(self) -> None:
        self._closed = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class ThreadItems(BufferedItems):
    """The items of a plain iterable that may block. A thread reads it, and ends when the iterable ends or is closed."""

    def __init__(self, items: Blocking, news: asyncio.Event, freezer: Freezer | None = None) -> None:
        self._iterator, self._closes, self._more = items.iterator, items.closes, threading.Event()
        self._freezer = freezer
        # result of packing the current item, which the event loop computes while the thread waits
        self._packing: Future[Any] | None = None
        self._context = copy_context()  # context variables of the consumer, which are set while items are packed
        super().__init__(news, self._more.set)
        threading.Thread(target=self._read, name="outrider-items", daemon=True).start()

    def _read(self) -> None:
        try:
            while True:
                while self._begun >= self._wanted and not self._closed:
                    self._more.wait()
                    self._more.clear()
                if self._closed:
                    break
                self._begun += 1
                item = next(self._iterator)
                if self._freezer is not None and type(item) not in FIXED:
                    item = self._frozen(self._freezer, item)
                self._buffer.append(item)
                if self._is_news:
                    self._notify(self._news.set)
        except StopIteration:
            self._exhausted = True
        except BaseException as error:  # noqa: BLE001  raised in place of the item
            self._error = as_input_error(error)
        finally:
            self._over = True
            self._notify(self._news.set)
        if self._closes and isinstance(self._iterator, Generator):
            try:
                self._iterator.close()
            except BaseException as error:  # noqa: BLE001  the generator continues, or raises on its end
                self._notify(partial(self._report, error))

    def _frozen(self, freezer: Freezer, item: Any) -> Any:
        """Return a stand-in for the item that cannot change.

        If the item must be packed, wait until the loop has packed it.

        Raises:
            concurrent.futures.CancelledError: the consumer is gone.
        """
        if (frozen := freezer.freeze(item)) is not None:
            return frozen
        self._packing = packing = Future[Any]()
        if self._closed:
            packing.cancel()
        else:
            self._loop.call_soon_threadsafe(_pack, packing, freezer, item, context=self._context)
        frozen, copy = packing.result()
        if copy is not None:
            copy()
        return frozen

    def _notify(self, call: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # raised if the loop is closed: the consumer is gone
            self._loop.call_soon_threadsafe(call)

    async def close(self) -> None:
        self._closed = True
        if self._packing is not None:
            self._packing.cancel()
        self._more.set()


def _pack(packing: Future[Any], freezer: Freezer, item: Any) -> None:
    if packing.set_running_or_notify_cancel():
        try:
            packing.set_result(freezer.pack(item))
        except BaseException as error:  # noqa: BLE001  raised in place of the item
            packing.set_exception(error)


Items = PlainItems | AsyncItems | ThreadItems


class Values(AsyncIterator[Received]):
    """An async iterator over a generator's values, as they arrive at the client.

    It ends when the generator's task ends.
    """

    def __init__(self) -> None:
        self._items: deque[tuple[Received | Awaitable[Received], Callable[[int], None]]] = deque()
        self._ended = False
        self._taken = 0
        self._changed: asyncio.Future[None] | None = None

    def push(self, item: Received | Awaitable[Received], grant: Callable[[int], None]) -> None:
        """Add the next value, or a future of it. ``grant(n)`` allows the generator to produce ``n`` more values."""
        # the consumer may stop before this value: then nobody retrieves the future's error
        if isinstance(item, asyncio.Future):
            item.add_done_callback(_retrieve)
        self._items.append((item, grant))
        self._wake()

    def of(self, _rank: int) -> Values:
        return self

    def end(self) -> None:
        """End the iteration once the consumer has read the values that have already arrived."""
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
        if self._taken * 2 >= AHEAD:  # grant several values at once, so that one frame is enough for them
            grant(self._taken)
            self._taken = 0
        if isinstance(item, Received):
            return item
        try:
            return await item
        except ConnectionError:  # raised if the node was lost; the task's own error, which follows, says more
            self._items.clear()
            return await self.__anext__()


class RankValues:
    """The values of a generator that runs on every rank of a broadcast: one iterator per rank."""

    def __init__(self) -> None:
        self._ranks: defaultdict[int, Values] = defaultdict(Values)

    def of(self, rank: int) -> Values:
        return self._ranks[rank]


def _retrieve(fetched: asyncio.Future[Received]) -> None:
    """Retrieve the error of a future, because asyncio logs errors that nobody retrieves."""
    if not fetched.cancelled():
        fetched.exception()


_TEXT_CHARACTERS = 8 * 1024  # maximum length of an error that is sent as text

# A function that sends one item of a stream to its task. If the first argument is None, the stream ends there: with the
# pickled error in the second argument, or without an error.
Give = Callable[[values.Dumped | None, bytes | None], Awaitable[None]]

# Returns a context manager; pickles inside it are for a pool's nodes. It yields True if classes may have to be copied.
ForNodes = Callable[[], AbstractContextManager[bool | None]]


class Source:
    """An iterable argument on the client, whose items are sent to a running task.

    A separate thread advances a plain iterator, because its ``next`` may block. The order of the items is kept.
    """

    def __init__(self, items: Iterable[Any] | AsyncIterable[Any], for_nodes: ForNodes = nullcontext) -> None:
        self._items, self._for_nodes = items, for_nodes
        self._wanted: asyncio.Queue[int] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        # an error of the iterable that is not an `Exception`; it is raised in the caller
        self.fatal: BaseException | None = None

    def wanted(self, count: int, give: Give) -> None:
        """Send the task ``count`` more items and, at the end of the items, None."""
        self._wanted.put_nowait(count)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._serve(give))

    def stop(self) -> None:
        self._stopped = True
        if self._task is not None:
            self._task.cancel()

    async def _serve(self, give: Give) -> None:
        """Send the items. Report any failure to the task, which would otherwise wait forever."""
        try:
            await self._give_all(give)
        except BaseException as error:  # the user's iterator failed, or an item could not be pickled or stored
            if self._stopped:
                if isinstance(error, asyncio.CancelledError):
                    raise
                return
            if not isinstance(error, Exception | asyncio.CancelledError):
                self.fatal = error
            with suppress(ConnectionError):  # raised if the node is lost, for which the caller gets another error
                await give(None, self._error(as_input_error(error)))

    async def _give_all(self, give: Give) -> None:
        news = asyncio.Event()
        items = items_of(marked_blocking(self._items, closes=True), news)
        try:
            while True:
                for _ in range(await self._wanted.get()):
                    while not (taken := items.take(1)):
                        if items.is_exhausted():
                            await give(None, None)
                            return
                        await news.wait()
                        news.clear()
                    await give(self._item(taken[0]), None)
        finally:
            await items.close()

    def _item(self, item: object) -> values.Dumped:
        with self._for_nodes() as copies:
            return values.dump(item, "item", by_reference=not copies)

    def _error(self, error: BaseException) -> bytes:
        with self._for_nodes():
            return _pickled(error)


def _pickled(error: BaseException) -> bytes:
    """Pickle an error of the input, which the task then raises.

    If the error cannot be pickled or unpickled, or is too large for a frame, it is replaced by a RuntimeError with its
    text.
    """
    text = pickle.dumps(RuntimeError(f"{type(error).__name__}: {text_of(error)[:_TEXT_CHARACTERS]}"))
    try:
        pickled = exception_pickle.either(exception_pickle.dumps(error, most_bytes=values.INLINE_BYTES // 2), text)
        if len(pickled) <= values.INLINE_BYTES:
            return pickled
    except BaseException:  # noqa: BLE001, S110  pickling its class may fail, or call exit()
        pass
    return text

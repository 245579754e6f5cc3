"""The client's side of streams: advance iterables without blocking the event loop, and receive generators' values.

INPUT-1: the input of a call ends in exactly one way: exhausted, failed with its own error, or closed by its consumer.
INPUT-2: an unexhausted input never looks exhausted. Its error comes after the items before it, but an error that is not
    an `Exception`, such as a `KeyboardInterrupt`, may overtake items that were not taken yet.
INPUT-3: no error of an input ends an event loop or the thread that advances the input.
"""

from __future__ import annotations

import asyncio
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
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Protocol, TypeVar

from ...lazy_dataclass import dataclass
from ...providers.threads import in_thread
from .frozen_items import FIXED
from .payload import Received

AHEAD = 16  # items that a generator may be ahead of its consumer
PULL_S = 0.002  # seconds to wait for a full chunk; after that, a chunk is sent partly filled

_QUICK: tuple[Iterable[Any], ...] = ([], (), range(0), "", {}, set())
_QUICK_ITERATORS = tuple(type(each.__iter__()) for each in _QUICK)  # iterators of these types never block


@dataclass(frozen=True, slots=True)
class Blocking:
    """A plain iterator that a separate thread advances, because it may block, or use the pool."""

    iterator: Iterator[Any]
    closes: bool = False  # whether to close a generator at the end of its items


def marked_blocking(
    items: Iterable[Any] | AsyncIterable[Any], *, closes: bool = False
) -> Iterable[Any] | AsyncIterable[Any] | Blocking:
    """Return ``items``, marked as `Blocking` if advancing them may take time."""
    if isinstance(items, AsyncIterable):
        return items
    iterator = iter(items)
    return iterator if isinstance(iterator, _QUICK_ITERATORS) else Blocking(iterator, closes)


class Freezer(Protocol):
    """The pickling of items on arrival, as their iterator may change them when it continues."""

    def freeze(self, item: Any, /) -> Any:
        """Return a fixed stand-in for the item: the item itself if nothing can change it; None: use `pack`.

        Call it in the thread that advances the iterator.
        """
        ...

    def pack(self, item: Any, /) -> tuple[Any, Callable[[], None] | None]:
        """Return a fixed stand-in for the item, and a function to call first that copies its large buffers; None: no
        buffers.

        Call this method in the loop's thread. The returned function may block, and may run in any thread.
        """
        ...


def items_of(
    items: Iterable[Any] | AsyncIterable[Any] | Blocking, news: asyncio.Event, freezer: Freezer | None = None
) -> Items:
    """Return the source of the items. ``news`` is set when an item is available, and at the end of the items."""
    if isinstance(items, Blocking):
        return ThreadItems(items, news, freezer)
    if isinstance(items, AsyncIterable):
        return AsyncItems(aiter(items), news, freezer)
    return PlainItems(iter(items), freezer)


E = TypeVar("E", bound=BaseException)


def as_input_error(error: E) -> E | RuntimeError:
    """Return the error of a failed input.

    A StopIteration or StopAsyncIteration becomes a RuntimeError, as in generators: the consumer would take it for the
    end of the items.
    """
    if not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    failure = RuntimeError(f"the input of a call raised {type(error).__name__}")
    failure.__cause__ = error
    return failure


class PlainItems:
    """The items of a plain iterable. `take` advances it."""

    def __init__(self, iterator: Iterator[Any], freezer: Freezer | None = None) -> None:
        self._iterator = iterator
        # iterators of these types run no code of the user
        self._freezer = None if isinstance(iterator, _QUICK_ITERATORS) else freezer
        self._exhausted = False
        self._error: BaseException | None = None

    def take(self, count: int) -> list[Any]:
        """Take at most the next ``count`` items. An empty list: no items yet, or no more (see `is_exhausted`).

        Raises:
            BaseException: an error of the iterable that is not an `Exception`; it is raised at once.
        """
        items: list[Any] = []
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
            BaseException: the iterable's error, once the items before it were taken. Each later call raises it again.
        """
        if self._error is not None:
            raise self._error
        return self._exhausted

    async def close(self) -> None:
        """Take no more items. This does not wait for an iterable that blocks."""


class BufferedItems:
    """The items of an iterable that a task or a thread advances, never further than requested.

    Items wait in a buffer, and are returned when enough are there, when they have waited for `PULL_S`, or at the end.
    """

    def __init__(self, news: asyncio.Event, more: Callable[[], None]) -> None:
        """Create it. ``more``: called when more items are requested."""
        self._news, self._want_more = news, more
        self._loop = asyncio.get_running_loop()
        self._buffer: deque[Any] = deque()
        self._taken = self._begun = self._wanted = 0  # total numbers of items
        self._due = False  # whether the waiting items have waited for `PULL_S`
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
        """True if the last read item is the first that waits in the buffer, or the last that was requested."""
        return len(self._buffer) == 1 or self._begun >= self._wanted

    def _report(self, error: BaseException) -> None:
        """Log an error from closing the input, as its consumer is gone."""
        context = {"message": "closing the input of a call has failed", "exception": error}
        self._loop.call_exception_handler(context)


class AsyncItems(BufferedItems):
    """The items of an async iterable, which one task advances and closes."""

    def __init__(self, iterator: AsyncIterator[Any], news: asyncio.Event, freezer: Freezer | None = None) -> None:
        self._iterator, self._freezer, self._more = iterator, freezer, asyncio.Event()
        super().__init__(news, self._more.set)
        self._task = self._loop.create_task(self._read())

    async def _read(self) -> None:
        """Read items until the end (INPUT-1).

        Catch all errors: a `SystemExit` raised here would also end the loop (INPUT-3).
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
    """The items of a plain iterable that may block. A thread advances it, and ends with it."""

    def __init__(self, items: Blocking, news: asyncio.Event, freezer: Freezer | None = None) -> None:
        self._iterator, self._closes, self._more = items.iterator, items.closes, threading.Event()
        self._freezer = freezer
        self._packing: Future[Any] | None = None  # the item that the loop packs while the thread waits
        self._context = copy_context()  # the consumer's context, in which items are packed
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
        """Freeze an item. If it must be packed, wait until the loop has packed it.

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
        with suppress(RuntimeError):  # the loop is closed, so its consumer is gone
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
    """The values of a generator, which arrive at the client until the generator's task ends."""

    def __init__(self) -> None:
        self._items: deque[tuple[Received | Awaitable[Received], Callable[[int], None]]] = deque()
        self._ended = False
        self._taken = 0
        self._changed: asyncio.Future[None] | None = None

    def push(self, item: Received | Awaitable[Received], grant: Callable[[int], None]) -> None:
        """Add the next item, or a future for it. ``grant(n)`` lets the generator produce ``n`` more items."""
        if isinstance(item, asyncio.Future):  # if the consumer stops early, nobody retrieves the value
            item.add_done_callback(_retrieve)
        self._items.append((item, grant))
        self._wake()

    def of(self, _rank: int) -> Values:
        return self

    def end(self) -> None:
        """End the iteration after the values that have arrived."""
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
        if self._taken * 2 >= AHEAD:  # grant half a window at a time, so that one frame serves many items
            grant(self._taken)
            self._taken = 0
        if isinstance(item, Received):
            return item
        try:
            return await item
        except ConnectionError:  # the node was lost: the task's own error explains more
            self._items.clear()
            return await self.__anext__()


class RankValues:
    """The values of a generator that runs on every rank of a broadcast."""

    def __init__(self) -> None:
        self._ranks: defaultdict[int, Values] = defaultdict(Values)

    def of(self, rank: int) -> Values:
        return self._ranks[rank]


def _retrieve(fetched: asyncio.Future[Received]) -> None:
    """Retrieve the error of a value: asyncio logs unretrieved errors."""
    if not fetched.cancelled():
        fetched.exception()

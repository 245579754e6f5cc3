"""The client's end of streams: it advances iterables without blocking the event loop, and takes generators' values.

INPUT-1: the input of a call ends in exactly one way: exhausted, failed with its own error, or closed by its consumer.
INPUT-2: an input that was not exhausted never looks as if it had been. Its error comes after the items before it; what
    is no `Exception`, such as a `KeyboardInterrupt`, may come before those that nobody has taken.
INPUT-3: no input ends an event loop, or a thread in which it is advanced, whatever it raises.
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

AHEAD = 16  # items a generator may be ahead of its consumer
PULL_S = 0.002  # a chunk leaves unfilled when its items take longer than this to come

_QUICK: tuple[Iterable[Any], ...] = ([], (), range(0), "", {}, set())
_QUICK_ITERATORS = tuple(type(each.__iter__()) for each in _QUICK)  # they never block


@dataclass(frozen=True, slots=True)
class Blocking:
    """A plain iterator that is to be advanced in a thread of its own, since it may block, or use the pool."""

    iterator: Iterator[Any]
    closes: bool = False  # a generator is closed when its items are


def marked_blocking(
    items: Iterable[Any] | AsyncIterable[Any], *, closes: bool = False
) -> Iterable[Any] | AsyncIterable[Any] | Blocking:
    """Return ``items``, marked as `Blocking` where advancing them may take time."""
    if isinstance(items, AsyncIterable):
        return items
    iterator = iter(items)
    return iterator if isinstance(iterator, _QUICK_ITERATORS) else Blocking(iterator, closes)


class Freezer(Protocol):
    """The pickling of items as they come: their iterator may change them when it goes on."""

    def freeze(self, item: Any, /) -> Any:
        """Return what stands for the item from then on: itself, where nothing can change it. None: `pack` it. It is for
        the thread that advances the iterator.
        """
        ...

    def pack(self, item: Any, /) -> tuple[Any, Callable[[], None] | None]:
        """Return what stands for the item from then on, and a call that first copies its large buffers, if it has any.
        That may block, and is for any thread; this is for the thread of the loop.
        """
        ...


def items_of(
    items: Iterable[Any] | AsyncIterable[Any] | Blocking, news: asyncio.Event, freezer: Freezer | None = None
) -> Items:
    """Return how to take the items. ``news`` is set when there is something to take, or when they have ended."""
    if isinstance(items, Blocking):
        return ThreadItems(items, news, freezer)
    if isinstance(items, AsyncIterable):
        return AsyncItems(aiter(items), news, freezer)
    return PlainItems(iter(items), freezer)


E = TypeVar("E", bound=BaseException)


def as_input_error(error: E) -> E | RuntimeError:
    """Return the error with which an input has failed. What ends an iteration in Python becomes a RuntimeError, as in
    generators: whoever iterates over the items would take it for their end.
    """
    if not isinstance(error, StopIteration | StopAsyncIteration):
        return error
    failure = RuntimeError(f"the input of a call raised {type(error).__name__}")
    failure.__cause__ = error
    return failure


class PlainItems:
    """The items of a plain iterable, which `take` advances."""

    def __init__(self, iterator: Iterator[Any], freezer: Freezer | None = None) -> None:
        self._iterator = iterator
        self._freezer = None if isinstance(iterator, _QUICK_ITERATORS) else freezer  # those run no code of the user's
        self._exhausted = False
        self._error: BaseException | None = None

    def take(self, count: int) -> list[Any]:
        """Take the next ``count`` items or fewer; none: none has come yet, or no more will, for `is_exhausted`.

        Raises:
            BaseException: the iterable's own, where it is no `Exception`: at once.
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
            BaseException: the iterable's own, when the items before it have been taken. Each call raises it.
        """
        if self._error is not None:
            raise self._error
        return self._exhausted

    async def close(self) -> None:
        """Take no more. What an iterable is just waiting for is not waited for."""


class BufferedItems:
    """The items of an iterable that a task or a thread advances, never further than was asked for.

    Items that have come are given when they are enough, when they have waited for `PULL_S`, or when there are no more.
    """

    def __init__(self, news: asyncio.Event, more: Callable[[], None]) -> None:
        """``more`` is called when more items are wanted."""
        self._news, self._want_more = news, more
        self._loop = asyncio.get_running_loop()
        self._buffer: deque[Any] = deque()
        self._taken = self._begun = self._wanted = 0  # items ever
        self._due = False  # what has come has waited
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
        """True if the item just read is the first that waits here, or the last that is wanted."""
        return len(self._buffer) == 1 or self._begun >= self._wanted

    def _report(self, error: BaseException) -> None:
        """Log what closing the input has raised: its consumer has left."""
        context = {"message": "closing the input of a call has failed", "exception": error}
        self._loop.call_exception_handler(context)


class AsyncItems(BufferedItems):
    """The items of an async iterable, which one task advances and closes."""

    def __init__(self, iterator: AsyncIterator[Any], news: asyncio.Event, freezer: Freezer | None = None) -> None:
        self._iterator, self._freezer, self._more = iterator, freezer, asyncio.Event()
        super().__init__(news, self._more.set)
        self._task = self._loop.create_task(self._read())

    async def _read(self) -> None:
        """Read items until the first of the ends of INPUT-1. asyncio would let what is raised here, where it is a
        `SystemExit`, end the loop as well (INPUT-3).
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
        except BaseException as error:  # noqa: BLE001  raised where its item would be; also where something else
            self._error = as_input_error(error)  # cancels this task
            if self._closed and not isinstance(error, asyncio.CancelledError):
                self._report(error)
        finally:
            self._over = True
            self._news.set()
        if isinstance(self._iterator, AsyncGenerator):
            try:
                await self._iterator.aclose()
            except BaseException as error:  # noqa: BLE001  a generator that goes on, or raises as it ends
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
    """The items of a plain iterable that may block, which a thread advances. The thread ends with the iterable."""

    def __init__(self, items: Blocking, news: asyncio.Event, freezer: Freezer | None = None) -> None:
        self._iterator, self._closes, self._more = items.iterator, items.closes, threading.Event()
        self._freezer = freezer
        self._packing: Future[Any] | None = None  # for which the thread waits
        self._context = copy_context()  # in which items are packed: that of whoever takes them
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
        except BaseException as error:  # noqa: BLE001  raised where its item would be
            self._error = as_input_error(error)
        finally:
            self._over = True
            self._notify(self._news.set)
        if self._closes and isinstance(self._iterator, Generator):
            try:
                self._iterator.close()
            except BaseException as error:  # noqa: BLE001  a generator that goes on, or raises as it ends
                self._notify(partial(self._report, error))

    def _frozen(self, freezer: Freezer, item: Any) -> Any:
        """Freeze an item. Where it has to be packed, wait until the loop has done that.

        Raises:
            CancelledError: of `concurrent.futures`: nobody takes items any more.
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
        with suppress(RuntimeError):  # the loop has ended, and nobody takes any more
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
        except BaseException as error:  # noqa: BLE001  raised where the item would be
            packing.set_exception(error)


Items = PlainItems | AsyncItems | ThreadItems


class Values(AsyncIterator[Received]):
    """The values of a generator, as they arrive at the client until its task ends."""

    def __init__(self) -> None:
        self._items: deque[tuple[Received | Awaitable[Received], Callable[[int], None]]] = deque()
        self._ended = False
        self._taken = 0
        self._changed: asyncio.Future[None] | None = None

    def push(self, item: Received | Awaitable[Received], grant: Callable[[int], None]) -> None:
        """Take the next item, or what will be it; ``grant(n)`` lets the generator run ``n`` items further."""
        if isinstance(item, asyncio.Future):  # whoever leaves the stream early does not ask for the value
            item.add_done_callback(_retrieve)
        self._items.append((item, grant))
        self._wake()

    def of(self, _rank: int) -> Values:
        return self

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


class RankValues:
    """The values of a generator that runs on every rank of a broadcast."""

    def __init__(self) -> None:
        self._ranks: defaultdict[int, Values] = defaultdict(Values)

    def of(self, rank: int) -> Values:
        return self._ranks[rank]


def _retrieve(fetched: asyncio.Future[Received]) -> None:
    """Take note of the error of a value: asyncio logs those that nobody has asked for."""
    if not fetched.cancelled():
        fetched.exception()

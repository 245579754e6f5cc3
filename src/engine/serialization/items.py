"""The items of `Pool.map`, a chunk at a time, from any kind of iterable. Taking them never waits."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

PULL_S = 0.002  # a chunk leaves unfilled when its items take longer than this to come

_QUICK: tuple[Iterable[Any], ...] = ([], (), range(0), "", {}, set())
QUICK_ITERATORS = tuple(type(each.__iter__()) for each in _QUICK)  # they never block


@dataclass(frozen=True, slots=True)
class Blocking:
    """A plain iterator that is to be advanced in a thread of its own, since it may block, or use the pool."""

    iterator: Iterator[Any]


def marked_blocking(items: Iterable[Any] | AsyncIterable[Any]) -> Iterable[Any] | AsyncIterable[Any] | Blocking:
    """Return ``items``, marked as `Blocking` where advancing them may take time."""
    if isinstance(items, AsyncIterable):
        return items
    iterator = iter(items)
    return iterator if isinstance(iterator, QUICK_ITERATORS) else Blocking(iterator)


class Items(Protocol):
    """The items of one map."""

    @property
    def ended(self) -> bool:
        """Return whether all items have been taken."""
        ...

    def take(self, count: int) -> list[Any]:
        """Take the next ``count`` items or fewer; none: none has come yet, or there are no more.

        Raises:
            Exception: the iterable's own, in its place.
        """
        ...

    async def close(self) -> None: ...


def items_of(items: Iterable[Any] | AsyncIterable[Any] | Blocking, news: asyncio.Event) -> Items:
    """Return how to take the items. ``news`` is set when there is something to take, or when they have ended."""
    if isinstance(items, Blocking):
        return ThreadItems(items.iterator, news)
    return AsyncItems(aiter(items), news) if isinstance(items, AsyncIterable) else PlainItems(iter(items))


class PlainItems:
    """The items of a plain iterable, which `take` advances."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator
        self.ended = False

    def take(self, count: int) -> list[Any]:
        items: list[Any] = []
        began = time.monotonic()
        while len(items) < count and (not items or time.monotonic() - began < PULL_S):
            try:
                items.append(next(self._iterator))
            except StopIteration:
                self.ended = True
                break
        return items

    async def close(self) -> None:
        pass


class BufferedItems:
    """The items of an iterable that a task or a thread advances, never further than was asked for.

    Items that have come are given when they are enough, when they have waited for `PULL_S`, or when there are no more.
    """

    def __init__(self, news: asyncio.Event) -> None:
        self._news = news
        self._loop = asyncio.get_running_loop()
        self._buffer: deque[Any] = deque()
        self._taken = self._begun = self._wanted = 0  # items ever
        self._due = False  # what has come has waited
        self._timer: asyncio.TimerHandle | None = None
        self._over = False
        self._error: BaseException | None = None

    @property
    def ended(self) -> bool:
        return self._over and not self._buffer and self._error is None

    def take(self, count: int) -> list[Any]:
        self._wanted = self._taken + count
        buffer = self._buffer
        if not buffer and self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._due or self._over or len(buffer) >= count:
            items = [buffer.popleft() for _ in range(min(count, len(buffer)))]
            self._taken += len(items)
            self._due = bool(buffer)
            return items
        self._advance()
        if buffer and self._timer is None:
            self._timer = self._loop.call_later(PULL_S, self._has_waited)
        return []

    def _advance(self) -> None:
        """Read items up to the number that is wanted."""
        raise NotImplementedError

    def _has_waited(self) -> None:
        self._timer = None
        self._due = bool(self._buffer)
        self._news.set()

    @property
    def _is_news(self) -> bool:
        """True if the item just read is the first that waits here, or the last that is wanted."""
        return len(self._buffer) == 1 or self._begun >= self._wanted


class AsyncItems(BufferedItems):
    """The items of an async iterable, which one task advances and closes."""

    def __init__(self, iterator: AsyncIterator[Any], news: asyncio.Event) -> None:
        super().__init__(news)
        self._iterator = iterator
        self._more = asyncio.Event()
        self._task = self._loop.create_task(self._read())

    def _advance(self) -> None:
        self._more.set()

    async def _read(self) -> None:
        try:
            while True:
                while self._begun >= self._wanted:
                    self._more.clear()
                    await self._more.wait()
                self._begun += 1
                self._buffer.append(await anext(self._iterator))
                if self._is_news:
                    self._news.set()
        except StopAsyncIteration:
            pass
        except asyncio.CancelledError as error:
            if self._task.cancelling():
                raise  # `close`
            self._error = error  # the user's iterable waited for something that was cancelled
        except Exception as error:  # noqa: BLE001  raised where its item would be
            self._error = error
        finally:
            self._over = True
            self._news.set()
            if isinstance(self._iterator, AsyncGenerator):
                await self._iterator.aclose()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class ThreadItems(BufferedItems):
    """The items of a plain iterable that may block, which a thread advances. The thread ends with the iterable."""

    def __init__(self, iterator: Iterator[Any], news: asyncio.Event) -> None:
        super().__init__(news)
        self._iterator = iterator
        self._more = threading.Event()
        self._closed = False
        threading.Thread(target=self._read, name="outrider-items", daemon=True).start()

    def _advance(self) -> None:
        self._more.set()

    def _read(self) -> None:
        try:
            while True:
                while self._begun >= self._wanted and not self._closed:
                    self._more.wait()
                    self._more.clear()
                if self._closed:
                    return
                self._begun += 1
                self._buffer.append(next(self._iterator))
                if self._is_news:
                    self._notify()
        except StopIteration:
            pass
        except BaseException as error:  # noqa: BLE001  raised where its item would be
            self._error = error
        self._over = True
        self._notify()

    def _notify(self) -> None:
        with suppress(RuntimeError):  # the loop has ended, and nobody takes any more
            self._loop.call_soon_threadsafe(self._news.set)

    async def close(self) -> None:
        self._closed = True
        self._more.set()

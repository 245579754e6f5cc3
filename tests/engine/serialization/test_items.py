"""Items are taken a chunk at a time from any iterable, and nobody waits for those that have not come."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from outrider.engine.serialization.items import (
    AsyncItems,
    Blocking,
    Items,
    PlainItems,
    ThreadItems,
    items_of,
    marked_blocking,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Feed:
    """Gives what a test puts in, as an async iterable or as a plain one that blocks."""

    def __init__(self) -> None:
        self.given = 0
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Any] = asyncio.Queue()

    def put(self, *items: object) -> None:
        for item in items:
            self._items.put_nowait(item)

    async def items(self) -> AsyncIterator[Any]:
        try:
            while (item := await self._items.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                self.given += 1
                yield item
        finally:
            self.closed = True

    def blocking(self) -> Iterator[Any]:
        while (item := asyncio.run_coroutine_threadsafe(self._items.get(), self._loop).result()) is not None:
            if isinstance(item, Exception):
                raise item
            self.given += 1
            yield item


@pytest.fixture
async def feed() -> Feed:
    return Feed()


@pytest.fixture
async def news() -> asyncio.Event:
    return asyncio.Event()


Make = Callable[[], Items]


@pytest.fixture(params=["task", "thread"])
def make(request: pytest.FixtureRequest, feed: Feed, news: asyncio.Event) -> Make:
    given = {"task": feed.items, "thread": lambda: Blocking(feed.blocking())}[request.param]
    return lambda: items_of(given(), news)


async def taken(items: Items, news: asyncio.Event, count: int) -> list[Any]:
    async with asyncio.timeout(30):
        while not (some := items.take(count)) and not items.ended:
            news.clear()
            await news.wait()
    return some


async def all_taken(items: Items, news: asyncio.Event, count: int) -> list[Any]:
    """So many, in several chunks where this computer is slow: a chunk that waits for its items leaves unfilled."""
    some: list[Any] = []
    while len(some) < count:
        some += await taken(items, news, count - len(some))
    return some


async def test_a_chunk_leaves_when_it_is_full_or_its_first_item_has_waited(
    make: Make, feed: Feed, news: asyncio.Event
) -> None:
    items = make()
    feed.put(1, 2, 3, 4, 5)
    assert await all_taken(items, news, 3) == [1, 2, 3]
    waited = await taken(items, news, 3)  # the next item never comes
    while len(waited) < 2:
        waited += await taken(items, news, 3)
    assert waited == [4, 5]
    assert items.take(3) == []
    feed.put(6)
    assert await taken(items, news, 8) == [6]
    feed.put(None)
    assert await taken(items, news, 3) == []
    assert items.ended
    await items.close()


async def test_an_item_that_came_for_a_smaller_chunk_leaves_with_a_larger_one(
    make: Make, feed: Feed, news: asyncio.Event
) -> None:
    items = make()
    assert items.take(1) == []
    feed.put("only")
    await news.wait()
    assert await taken(items, news, 100) == ["only"]
    feed.put(None)
    assert await taken(items, news, 1) == []
    await items.close()


async def test_no_more_are_advanced_than_are_to_be_taken(make: Make, feed: Feed, news: asyncio.Event) -> None:
    items = make()
    feed.put(*range(100))
    assert await all_taken(items, news, 4) == [0, 1, 2, 3]
    await asyncio.sleep(0)
    assert feed.given == 4
    assert await all_taken(items, news, 2) == [4, 5]
    assert feed.given == 6
    await items.close()


async def test_an_error_is_raised_in_its_items_place(make: Make, feed: Feed, news: asyncio.Event) -> None:
    items = make()
    feed.put(1, KeyError("mine"))
    assert await taken(items, news, 3) == [1]
    with pytest.raises(KeyError, match="mine"):
        await taken(items, news, 3)
    assert items.ended
    await items.close()


async def test_a_cancelled_wait_of_the_iterable_is_no_end_of_it(news: asyncio.Event) -> None:
    """The items that it had still to give would be left out without a word."""

    async def interrupted() -> AsyncIterator[int]:
        yield 1
        waited_for = asyncio.get_running_loop().create_future()
        waited_for.cancel()
        await waited_for
        yield 2

    items = items_of(interrupted(), news)
    assert await taken(items, news, 1) == [1]
    with pytest.raises(asyncio.CancelledError):
        await taken(items, news, 1)
    await items.close()


async def test_an_async_generator_is_closed_where_it_was_advanced(feed: Feed, news: asyncio.Event) -> None:
    items = items_of(feed.items(), news)
    items.take(1)
    feed.put(1)
    assert await taken(items, news, 1) == [1]
    await items.close()
    assert feed.closed


async def test_a_thread_that_waits_for_an_item_is_not_waited_for(feed: Feed, news: asyncio.Event) -> None:
    others = set(threading.enumerate())
    items = items_of(Blocking(feed.blocking()), news)
    items.take(1)
    await items.close()
    feed.put(1)
    for thread in set(threading.enumerate()) - others:
        if thread.name == "outrider-items":
            await asyncio.to_thread(thread.join, 30)
            assert not thread.is_alive()


async def test_what_cannot_block_is_advanced_on_the_spot(news: asyncio.Event) -> None:
    async def later() -> AsyncIterator[int]:
        yield 1

    quick = [[1, 2], (1, 2), range(2), {1: 2}, {1, 2}, "ab"]
    assert {type(items_of(marked_blocking(each), news)) for each in quick} == {PlainItems}  # type: ignore[arg-type]
    assert isinstance(marked_blocking(n for n in range(3)), Blocking)
    started = [items_of(marked_blocking(n for n in range(3)), news), items_of(marked_blocking(later()), news)]
    assert [type(each) for each in started] == [ThreadItems, AsyncItems]
    for each in started:
        await each.close()
    here = items_of(range(5), news)
    assert (here.take(3), here.take(3), here.ended) == ([0, 1, 2], [3, 4], True)

"""Items are taken a chunk at a time from any iterable, and nobody waits for those that have not come. A running task
gets every item in order, and an end, whatever goes wrong.
"""

from __future__ import annotations

import asyncio
import copyreg
import gc
import pickle
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import pytest

from outrider.engine.api.errors import TaskFailed
from outrider.engine.serialization.client_streams import (
    AsyncItems,
    Blocking,
    Items,
    PlainItems,
    Source,
    ThreadItems,
    Values,
    items_of,
    marked_blocking,
)
from outrider.engine.serialization.payload import Received
from outrider.engine.wire import values
from outrider.engine.wire.values import Dumped

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Stream:
    """A task's end of it. ``full_at``: the number of the item that there is no room for."""

    def __init__(self, full_at: int | None = None) -> None:
        self.items: list[Any] = []
        self.ends: list[bytes | None] = []
        self._full_at = full_at

    async def give(self, item: Dumped | None, error: bytes | None = None) -> None:
        if item is None:
            self.ends.append(error)
        elif len(self.items) == self._full_at:
            raise MemoryError("no room for it")
        else:
            value = values.inline(item)
            self.items.append(values.load(value.data, value.sizes))

    @property
    def error(self) -> BaseException:
        """What the task raises at the stream's one end."""
        (error,) = self.ends
        assert error is not None
        assert len(error) <= values.INLINE_BYTES, "it fits a frame"
        loaded: BaseException = pickle.loads(error)
        return loaded


async def served(items: Iterable[Any] | AsyncIterator[Any], full_at: int | None = None) -> Stream:
    stream, source = Stream(full_at), Source(items)
    source.wanted(100, stream.give)
    assert source._task is not None
    await source._task
    return stream


class Unreadable:
    def __iter__(self) -> Iterator[int]:
        raise FileNotFoundError("rows.csv")


class Holder(type):
    """The type of classes that cannot be pickled."""

    def __reduce__(cls) -> str:
        raise TypeError(cls.__name__)


copyreg.pickle(Holder, Holder.__reduce__)


class Locked(Exception, metaclass=Holder):
    pass


class Silent(Locked):
    def __str__(self) -> str:
        raise LookupError


class KeywordOnly(Exception):
    def __init__(self, code: int, *, where: str) -> None:
        super().__init__(f"{code} in {where}")
        self.code, self.lock = code, threading.Lock()


class Unloadable(Exception):
    def __reduce__(self) -> Any:
        return int, ("no number",)


def then(error: BaseException) -> Iterator[int]:
    yield 1
    raise error


async def athen(error: BaseException) -> AsyncIterator[int]:
    yield 1
    raise error


async def test_items_arrive_in_order_and_then_their_end() -> None:
    stream = await served(range(3))
    assert (stream.items, stream.ends) == ([0, 1, 2], [None])


@pytest.mark.parametrize("failing", [then, athen])
async def test_what_an_iterator_raises_its_task_raises(failing: Any) -> None:
    stream = await served(failing(OSError("torn")))
    assert stream.items == [1]
    assert repr(stream.error) == "OSError('torn')"


async def test_what_cannot_be_iterated_over_ends_the_stream() -> None:
    assert repr((await served(Unreadable())).error) == "FileNotFoundError('rows.csv')"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Locked("locked"), "RuntimeError('Locked: locked')"),
        (Silent(), "RuntimeError('Silent: <its text cannot be read: LookupError>')"),
        (ValueError("x" * 2_000_000), f"RuntimeError('ValueError: {'x' * 8192}')"),
    ],
    ids=["unpicklable", "unreadable", "large"],
)
async def test_an_error_that_cannot_be_sent_is_told_by_its_text(error: Exception, said: str) -> None:
    assert repr((await served(then(error))).error) == said


async def test_error_class_with_its_own_init_and_a_lock_arrives() -> None:
    error: Any = (await served(then(KeywordOnly(7, where="the source")))).error
    assert (type(error), str(error), error.code) == (KeywordOnly, "7 in the source", 7)
    assert error.__notes__ == ["left out (cannot be pickled): .lock (_thread.lock)"]


async def test_error_arrives_with_its_cause() -> None:
    error = ValueError("outer")
    error.__cause__ = KeywordOnly(7, where="the source")
    assert repr((await served(then(error))).error.__cause__) == "KeywordOnly('7 in the source')"


async def test_error_with_a_wrong_reduce_arrives_all_the_same() -> None:
    assert repr((await served(then(Unloadable(1)))).error) == "Unloadable(1)"


async def test_item_that_cannot_be_pickled_is_named() -> None:
    stream = await served([1, {"lock": threading.Lock()}])
    assert stream.items == [1]
    assert "item['lock'] cannot be pickled" in str(stream.error)


async def test_an_item_that_cannot_be_placed_ends_the_stream() -> None:
    stream = await served([1, 2, 3], full_at=1)
    assert stream.items == [1]
    assert repr(stream.error) == "MemoryError('no room for it')"


async def test_an_iterator_whose_own_task_was_cancelled_ends_the_stream() -> None:
    assert isinstance((await served(athen(asyncio.CancelledError()))).error, asyncio.CancelledError)


async def test_a_stream_that_is_stopped_closes_its_iterator_and_says_nothing() -> None:
    closed = threading.Event()

    def forever() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    stream, source = Stream(), Source(forever())
    source.wanted(1, stream.give)
    while not stream.items:
        await asyncio.sleep(0)
    source.stop()
    assert source._task is not None
    await asyncio.wait([source._task])
    assert await asyncio.to_thread(closed.wait, 60)
    assert source._task.cancelled()
    assert stream.ends == []


async def test_a_generator_that_waits_when_its_task_ends_is_closed_when_it_goes_on() -> None:
    goes_on, waits, closed, complaints = threading.Event(), threading.Event(), threading.Event(), list[Any]()

    def slow() -> Iterator[int]:
        try:
            waits.set()
            goes_on.wait(60)
            yield 1
        finally:
            closed.set()

    asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
    stream, source = Stream(), Source(slow())
    source.wanted(1, stream.give)
    assert await asyncio.to_thread(waits.wait, 60)
    source.stop()
    assert source._task is not None
    await asyncio.wait([source._task])
    goes_on.set()
    assert await asyncio.to_thread(closed.wait, 60)
    assert (stream.items, stream.ends) == ([], [])
    del source
    gc.collect()
    assert complaints == []


async def test_a_value_that_cannot_be_fetched_is_no_complaint_of_asyncios_when_its_stream_was_left() -> None:
    complaints: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, told: complaints.append(told))

    async def fetched() -> Received:
        raise TaskFailed("its node has no descriptors left")

    fetching, output = loop.create_task(fetched()), Values()
    output.push(fetching, lambda _: None)
    await asyncio.wait([fetching])
    await asyncio.sleep(0)
    del fetching, output
    gc.collect()
    assert complaints == []


async def test_a_value_that_cannot_be_fetched_is_the_error_of_who_asks_for_it() -> None:
    fetching, output = asyncio.get_running_loop().create_future(), Values()
    output.push(fetching, lambda _: None)
    fetching.set_exception(TaskFailed("its node has no descriptors left"))
    with pytest.raises(TaskFailed):
        await anext(output)


# --- the items of a map ---------------------------------------------------------------------------------------------


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
    async with asyncio.timeout(60):
        while not (some := items.take(count)) and not items.is_exhausted():
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
    assert items.is_exhausted()
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
    with pytest.raises(KeyError, match="mine"):
        items.is_exhausted()
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
            await asyncio.to_thread(thread.join, 60)
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
    assert (here.take(3), here.take(3), here.is_exhausted()) == ([0, 1, 2], [3, 4], True)


class Copies:
    """A `Freezer` that copies lists: an odd one by itself, an even one where the loop runs."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.packed_in: set[threading.Thread] = set()
        self.copied_in: set[threading.Thread] = set()

    def freeze(self, item: Any) -> Any:
        self.asked.set()
        return item.copy() if item[0] % 2 else None

    def pack(self, item: Any) -> tuple[Any, Callable[[], None]]:
        self.packed_in.add(threading.current_thread())
        copy: list[int] = []

        def fill() -> None:
            self.copied_in.add(threading.current_thread())
            copy.extend(item)

        return copy, fill


def refilled(count: int) -> Iterator[Any]:
    cells = [0]
    for number in range(count):
        cells[0] = number
        yield cells
        yield number


async def refilled_later(count: int) -> AsyncIterator[Any]:
    for item in refilled(count):
        yield item


@pytest.mark.parametrize("kind", ["plain", "async", "blocking"])
async def test_items_are_frozen_before_their_iterator_goes_on(news: asyncio.Event, kind: str) -> None:
    copies = Copies()
    given: Any = {"plain": refilled, "async": refilled_later, "blocking": lambda count: Blocking(refilled(count))}[kind]
    items = items_of(given(5), news, copies)
    assert await all_taken(items, news, 10) == [[0], 0, [1], 1, [2], 2, [3], 3, [4], 4]
    here = threading.current_thread()
    assert copies.packed_in == {here}
    assert (here in copies.copied_in) is (kind == "plain"), "large buffers are copied off the loop, where that waits"
    await items.close()


async def test_items_of_a_list_are_left_as_they_are(news: asyncio.Event) -> None:
    lists = [[0], [1]]
    items = items_of(lists, news, Copies())
    assert all(taken is item for taken, item in zip(items.take(2), lists, strict=True))


@pytest.mark.parametrize("kind", ["plain", "async", "blocking"])
async def test_an_error_of_the_freezer_is_raised_in_its_items_place(news: asyncio.Event, kind: str) -> None:
    class Fails(Copies):
        def pack(self, item: Any) -> Any:
            raise PermissionError(item)

    given: Any = {"plain": refilled, "async": refilled_later, "blocking": lambda count: Blocking(refilled(count))}[kind]
    items = items_of(given(1), news, Fails())
    with pytest.raises(PermissionError):
        await taken(items, news, 1)
    await items.close()


async def test_a_thread_whose_item_nobody_freezes_any_more_ends(news: asyncio.Event) -> None:
    others, copies = set(threading.enumerate()), Copies()
    items = items_of(Blocking(refilled(1)), news, copies)
    items.take(1)
    assert copies.asked.wait(60)  # and the loop, which waits here, freezes nothing
    await items.close()
    for thread in set(threading.enumerate()) - others:
        if thread.name == "outrider-items":
            await asyncio.to_thread(thread.join, 60)
            assert not thread.is_alive()

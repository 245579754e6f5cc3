"""What a client's iterable gives to a running task: every item in order, and an end, whatever goes wrong."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import pytest

from outrider.engine.api.errors import TaskFailed
from outrider.engine.serialization.payload import Received
from outrider.engine.serialization.streams import Source, Values
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


class Locked(Exception):
    """Cannot be pickled, nor read."""

    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()


class Silent(Locked):
    def __str__(self) -> str:
        raise LookupError


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
        (Locked(), "RuntimeError('Locked: locked')"),
        (Silent(), "RuntimeError('Silent: <its text cannot be read: LookupError>')"),
        (ValueError("x" * 2_000_000), f"RuntimeError('ValueError: {'x' * 8192}')"),
    ],
    ids=["unpicklable", "unreadable", "large"],
)
async def test_an_error_that_cannot_be_sent_is_told_by_its_text(error: Exception, said: str) -> None:
    assert repr((await served(then(error))).error) == said


async def test_an_item_that_cannot_be_pickled_is_named() -> None:
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
    assert await asyncio.to_thread(closed.wait, 20)
    assert source._task.cancelled()
    assert stream.ends == []


async def test_a_generator_that_waits_when_its_task_ends_is_closed_when_it_goes_on() -> None:
    goes_on, waits, closed, complaints = threading.Event(), threading.Event(), threading.Event(), list[Any]()

    def slow() -> Iterator[int]:
        try:
            waits.set()
            goes_on.wait(20)
            yield 1
        finally:
            closed.set()

    asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
    stream, source = Stream(), Source(slow())
    source.wanted(1, stream.give)
    assert await asyncio.to_thread(waits.wait, 20)
    source.stop()
    assert source._task is not None
    await asyncio.wait([source._task])
    goes_on.set()
    assert await asyncio.to_thread(closed.wait, 20)
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

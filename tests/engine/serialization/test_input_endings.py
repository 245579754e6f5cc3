"""An input of any kind ends in one way, which its consumer learns: INPUT-1, INPUT-2 and INPUT-3."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.serialization.client_streams import AsyncItems, Blocking, BufferedItems, Source, items_of
from outrider.engine.wire import values

from .input_kinds import ENDINGS, KINDS, made

PATIENCE_S = 60.0
Inputs = st.tuples(st.sampled_from([*KINDS]), st.sampled_from([*ENDINGS]), st.integers(0, 40))


def marked(items: Any, *, in_thread: bool) -> Any:
    return Blocking(items) if in_thread and isinstance(items, Iterator) else items


async def drained(items: Any, size: int) -> tuple[list[int], BaseException | None]:
    """Take all items as `MapRun` does, and return them and their error."""
    news = asyncio.Event()
    source, taken = items_of(items, news), list[int]()
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                news.clear()
                while some := source.take(size):
                    taken += some
                if source.is_exhausted():
                    return taken, None
                await news.wait()
    except TimeoutError:
        raise
    except BaseException as error:  # noqa: BLE001
        with suppress(type(error)):
            assert not source.is_exhausted(), "INPUT-1: it has two ends"
            assert source.take(1), "INPUT-1: it has two ends"
        return taken, error
    finally:
        await source.close()


def check(kind: str, ending: str, count: int, size: int, *, in_thread: bool) -> None:
    items, expected = made(kind, ending, count)
    try:
        taken, error = asyncio.run(drained(marked(items, in_thread=in_thread), size))
    except (SystemExit, KeyboardInterrupt) as error:
        raise AssertionError("INPUT-3: it has ended the loop") from error
    first = [*range(count)]
    if expected is not None and not issubclass(expected, Exception):
        first = first[: len(taken)]
    assert taken == first, "INPUT-2: its error comes after the items before it"
    assert error is not None or expected is None, "INPUT-2: it looks exhausted"
    assert (None if error is None else type(error)) is expected


@given(Inputs, st.integers(1, 12), st.booleans())
def test_input_ends_in_one_way_after_its_items(given: tuple[str, str, int], size: int, in_thread: bool) -> None:
    """INPUT-1, INPUT-2, INPUT-3"""
    check(*given, size, in_thread=in_thread)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ending", ENDINGS)
def test_input_of_each_kind_with_each_ending(kind: str, ending: str) -> None:
    check(kind, ending, 5, 3, in_thread=False)
    check(kind, ending, 0, 1, in_thread=True)


async def served(items: Any) -> tuple[list[int], list[bytes | None], Source]:
    arrived, ends = list[int](), list[bytes | None]()

    async def give(item: values.Dumped | None, error: bytes | None) -> None:
        if item is None:
            ends.append(error)
        else:
            value = values.inline(item)
            arrived.append(values.load(value.data, value.sizes))

    source = Source(items)
    source.wanted(100, give)
    assert source._task is not None
    async with asyncio.timeout(PATIENCE_S):
        await source._task
    return arrived, ends, source


@given(Inputs)
def test_streamed_argument_ends_in_one_way_after_its_items(given: tuple[str, str, int]) -> None:
    """INPUT-1, INPUT-2, INPUT-3"""
    items, expected = made(*given)
    arrived, (end,), source = asyncio.run(served(items))
    assert arrived == [*range(given[2])]
    assert (None if end is None else type(pickle.loads(end))) is expected
    is_fatal = expected is not None and not issubclass(expected, Exception | asyncio.CancelledError)
    assert (None if source.fatal is None else type(source.fatal)) is (expected if is_fatal else None)


class WhereErrorsEndTheInput(BufferedItems):
    def is_exhausted(self) -> bool:
        return self._over and not self._buffer


class WhereAnErrorIsForgotten(BufferedItems):
    def is_exhausted(self) -> bool:
        exhausted = BufferedItems.is_exhausted
        try:
            return exhausted(self)
        finally:
            if self._error is not None:
                self._error, self._exhausted = None, True


async def read_by_a_task_that_fails(self: AsyncItems) -> None:
    try:
        while True:
            self._begun += 1
            self._buffer.append(await anext(self._iterator))
    except StopAsyncIteration:
        self._exhausted = True
    except Exception as error:  # noqa: BLE001
        self._error = error
    finally:
        self._over = True
        self._news.set()


@pytest.mark.parametrize(
    ("invariant", "name", "broken", "ending"),
    [
        ("INPUT-1", "is_exhausted", WhereAnErrorIsForgotten.is_exhausted, "error"),
        ("INPUT-2", "is_exhausted", WhereErrorsEndTheInput.is_exhausted, "error"),
        ("INPUT-3", "_read", read_by_a_task_that_fails, "exit"),
    ],
)
def test_the_invariant_falls_without_its_guard(
    invariant: str, name: str, broken: Callable[..., Any], ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AsyncItems, name, broken)
    with pytest.raises(AssertionError, match=invariant):
        check("async generator", ending, 3, 2, in_thread=False)


@pytest.mark.parametrize("in_thread", [False, True])
def test_error_while_an_input_is_closed_is_logged(in_thread: bool) -> None:
    reports: list[BaseException] = []
    reported = threading.Event()

    def report(_: object, context: dict[str, Any]) -> None:
        reports.append(context["exception"])
        reported.set()

    def plain() -> Iterator[int]:
        try:
            yield 1
        finally:
            raise SystemExit(4)

    async def asynchronous() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            raise SystemExit(4)

    async def leave() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(report)
        news = asyncio.Event()
        source = items_of(Blocking(plain(), closes=True) if in_thread else asynchronous(), news)
        while not source.take(1):
            news.clear()
            await news.wait()
        await source.close()
        await loop.run_in_executor(None, partial(reported.wait, PATIENCE_S))

    asyncio.run(leave())
    assert [(type(each), each.args) for each in reports] == [(SystemExit, (4,))]


def test_generator_that_ignores_its_cancellation_is_closed() -> None:
    async def stubborn() -> AsyncIterator[int]:
        while True:
            try:
                yield 1
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                pass

    async def leave() -> None:
        news = asyncio.Event()
        source = items_of(stubborn(), news)
        while not source.take(1):
            news.clear()
            await news.wait()
        source.take(1)
        await asyncio.sleep(0)
        await asyncio.wait_for(source.close(), PATIENCE_S)

    asyncio.run(leave())

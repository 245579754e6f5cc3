"""Generators out of a task and iterators into it: by credit, so that nobody computes or keeps what nobody takes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.node.context import AsyncInput, Input
from outrider.engine.node.worker_streams import WINDOW
from outrider.engine.wire import messages as m
from outrider.engine.wire import values
from outrider.engine.wire.messages import RunFlag

pytestmark = pytest.mark.anyio
STREAM = RunFlag.STREAM
ALONE = RunFlag.ALONE


def value(obj: object) -> m.Value:
    return values.inline(values.dump(obj))


def items(client: Any, attempt: int) -> list[Any]:
    return [values.load(y.item.data, y.item.sizes) for y in client.of(attempt, m.Yield)]


def count(n: int, log: str = "") -> Iterator[int]:
    try:
        for number in range(n):
            if log:
                Path(log).write_text(str(number))
            yield number
    finally:
        if log:
            Path(log).write_text("closed")


async def test_a_generators_items_arrive_in_order_and_then_its_end(make: Any) -> None:
    client = await make()
    attempt = client.run(count, 50, flags=STREAM)
    client.send(m.Credit(attempt, -1, 100))
    await client.answer(attempt)
    assert items(client, attempt) == list(range(50))
    assert isinstance(client.of(attempt, m.Yield, m.Done)[-1], m.Done)


async def test_it_computes_no_more_than_was_asked_for(make: Any, tmp_path: Path) -> None:
    client = await make()
    attempt = client.run(count, 50, str(tmp_path / "log"), flags=STREAM)
    client.send(m.Credit(attempt, -1, 2))
    await client.until(lambda: items(client, attempt) == [0, 1])
    client.send(m.Credit(attempt, -1, 1))
    await client.until(lambda: items(client, attempt) == [0, 1, 2])
    assert (tmp_path / "log").read_text() == "2"
    client.send(m.Credit(attempt, -1, 0))
    await client.answer(attempt)
    assert (tmp_path / "log").read_text() == "closed"


async def test_credit_may_come_before_the_task_has_a_worker(make: Any) -> None:
    client = await make()
    first = client.run(count, 1, flags=STREAM)
    second = client.run(count, 3, flags=STREAM)
    client.send(m.Credit(second, -1, 9), m.Credit(first, -1, 9))
    await client.answer(second)
    assert items(client, second) == [0, 1, 2]


async def test_a_generator_that_raises_fails_after_its_items(make: Any) -> None:
    def two() -> Iterator[int]:
        yield 1
        raise LookupError("no more")

    client = await make()
    attempt = client.run(two, flags=STREAM)
    client.send(m.Credit(attempt, -1, 9))
    assert (await client.answer(attempt)).kind == "LookupError"
    assert items(client, attempt) == [1]


async def test_large_items_are_blobs(make: Any, bulk: Any) -> None:
    def large() -> Iterator[bytes]:
        yield bytes(100_000)

    client = await make()
    attempt = client.run(large, flags=STREAM)
    client.send(m.Credit(attempt, -1, 1))
    (item,) = await client.until(lambda: client.of(attempt, m.Yield))
    assert isinstance(await bulk(client.server).ask(m.Get(item.item.blob)), m.Have)
    client.send(m.Credit(attempt, -1, 1))
    await client.answer(attempt)


async def test_the_worker_serves_plain_tasks_afterwards(make: Any) -> None:
    client = await make()
    pid = await client.call(os.getpid)
    for _ in range(3):
        attempt = client.run(count, 1, flags=STREAM)
        client.send(m.Credit(attempt, -1, 5), m.Credit(attempt, -1, 5))
        await client.answer(attempt)
        assert await client.call(os.getpid) == pid


# --- into the task ---------------------------------------------------------------------------------------------------


async def feed(client: Any, attempt: int, stream: int, objects: Iterable[object]) -> list[int]:
    """As a client does: no more than the task asked for. Returns the credits."""

    def granted() -> list[int]:
        return [c.count for c in client.of(attempt, m.Credit) if c.stream == stream]

    for sent, obj in enumerate(objects):
        await client.until(lambda sent=sent: sum(granted()) > sent)
        client.send(m.Input(attempt, stream, value(obj)))
    client.send(m.Input(attempt, stream, None))
    return granted()


def total(numbers: Iterator[int]) -> int:
    return sum(numbers)


async def test_a_task_reads_an_argument_that_is_streamed(make: Any) -> None:
    client = await make()
    attempt = client.run(total, Input(0), flags=ALONE)
    granted = await feed(client, attempt, 0, range(100))
    assert client.result(await client.answer(attempt)) == 4950
    assert granted[0] == WINDOW


async def test_an_async_task_too(make: Any) -> None:
    async def gather(numbers: AsyncIterator[int]) -> list[int]:
        return [number async for number in numbers]

    def run(numbers: AsyncIterator[int]) -> list[int]:
        return asyncio.run(gather(numbers))

    client = await make()
    attempt = client.run(run, AsyncInput(0), flags=ALONE)
    await feed(client, attempt, 0, range(40))
    assert client.result(await client.answer(attempt)) == list(range(40))


@pytest.mark.parametrize("kind", [Input, AsyncInput])
async def test_an_argument_that_has_ended_stays_at_its_end(make: Any, kind: type[Any]) -> None:
    async def drain(numbers: AsyncIterator[int]) -> list[list[int]]:
        return [[number async for number in numbers] for _ in range(2)]

    def run(numbers: Any) -> list[list[int]]:
        if isinstance(numbers, Iterator):
            return [list(numbers) for _ in range(2)]
        return asyncio.run(drain(numbers))

    client = await make()
    attempt = client.run(run, kind(0), flags=ALONE)
    await feed(client, attempt, 0, range(3))
    assert client.result(await client.answer(attempt)) == [[0, 1, 2], []]


async def test_streams_go_both_ways_at_once(make: Any) -> None:
    def squares(numbers: Iterator[int], more: Iterator[int]) -> Iterator[int]:
        for number, other in zip(numbers, more, strict=True):
            yield number * number + other

    client = await make()
    attempt = client.run(squares, Input(0), Input(1), flags=ALONE | STREAM)
    client.send(m.Credit(attempt, -1, 100))
    feeding = asyncio.ensure_future(feed(client, attempt, 0, range(30)))
    await feed(client, attempt, 1, range(30))
    await feeding
    await client.answer(attempt)
    assert items(client, attempt) == [n * n + n for n in range(30)]


async def test_the_clients_error_is_raised_in_the_task(make: Any) -> None:
    def catch(numbers: Iterator[int]) -> str:
        try:
            return str(sum(numbers))
        except OSError as error:
            return f"caught {error}"

    client = await make()
    attempt = client.run(catch, Input(0), flags=ALONE)
    client.send(m.Input(attempt, 0, value(1)), m.Input(attempt, 0, None, values.dump(OSError("torn")).parts[0]))
    assert client.result(await client.answer(attempt)) == "caught torn"


async def test_a_task_may_take_less_than_it_is_given(make: Any) -> None:
    def first(numbers: Any) -> int:
        number: int = next(numbers)
        numbers.close()
        return number

    client = await make()
    attempt = client.run(first, Input(0), flags=ALONE)
    client.send(*(m.Input(attempt, 0, value(n)) for n in range(5)))
    assert client.result(await client.answer(attempt)) == 0
    assert client.of(attempt, m.Credit)[-1] == m.Credit(attempt, 0, 0)
    client.send(*(m.Input(attempt, 0, value(n)) for n in range(5)))  # came too late, for nobody
    assert await client.call(os.getpid)


def test_outside_its_task_such_an_iterator_says_so() -> None:
    with pytest.raises(RuntimeError, match="only the task it was sent to"):
        next(Input(0))

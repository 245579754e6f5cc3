"""Workers of the kind "thread": several tasks in one process."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from outrider.engine.node import context
from outrider.engine.node.context import AsyncInput, Input
from outrider.engine.wire import messages as m
from outrider.engine.wire import values
from outrider.engine.wire.messages import Cause, RunFlag

pytestmark = pytest.mark.anyio
BARRIERS: dict[str, threading.Barrier] = {"two": threading.Barrier(2), "three": threading.Barrier(3)}


def meet() -> int:
    BARRIERS["three"].wait(60)
    return os.getpid()


async def test_tasks_share_a_process_and_run_at_the_same_time(make: Any) -> None:
    client = await make(slots=3, kind="thread")
    attempts = [client.run(meet) for _ in range(3)]
    pids = {client.result(await client.answer(attempt)) for attempt in attempts}
    assert len(pids) == 1


async def test_each_knows_which_it_is(make: Any) -> None:
    def number() -> tuple[int, int]:
        meet()
        task = context.current()
        assert task is not None
        return task.number, task.info["attempt"]

    client = await make(slots=3, kind="thread")
    attempts = [client.run(number, number=n) for n in (1, 2, 3)]
    assert [client.result(await client.answer(a)) for a in attempts] == [(1, 1), (2, 2), (3, 3)]


async def test_each_has_its_own_output(make: Any) -> None:
    def say(word: str) -> None:
        meet()
        for _ in range(50):
            print(word, "and", end=" ")
            print(word)
        print("unfinished", end="")

    client = await make(slots=3, kind="thread")
    attempts = {client.run(say, word): word for word in ("red", "green", "blue")}
    for attempt, word in attempts.items():
        await client.answer(attempt)
        assert client.printed(attempt) == f"{word} and {word}\n".encode() * 50 + b"unfinished"
        assert isinstance(client.of(attempt, m.Output, m.Done)[-1], m.Done)


def meet_one() -> None:
    BARRIERS["two"].wait(60)


def spin(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pass


async def test_a_killed_task_is_interrupted_and_its_process_lives(make: Any) -> None:
    client = await make(slots=2, kind="thread")
    pid = await client.call(os.getpid)
    attempt = client.run(spin, 60)
    await client.call(os.getpid)
    client.send(m.Kill(attempt))
    assert (await client.answer(attempt)).cause is Cause.KILLED
    assert await client.call(os.getpid) == pid


async def test_so_is_one_that_runs_too_long(make: Any) -> None:
    client = await make(slots=2, kind="thread")
    ended = await client.call(spin, 60, timeout_s=0.05)
    assert ended.cause is Cause.TIMEOUT


def meet_and_spin(_failed: bool) -> None:
    BARRIERS["two"].wait(60)
    spin(60)


async def test_so_is_one_that_has_ended_and_is_cleaning_up(make: Any) -> None:
    def fail() -> None:
        task = context.current()
        assert task is not None
        task.closing.append(meet_and_spin)
        raise ValueError

    client = await make(slots=2, kind="thread")
    pid = await client.call(os.getpid)
    attempt = client.run(fail)
    await client.call(meet_one)
    client.send(m.Kill(attempt))
    assert (await client.answer(attempt)).cause is Cause.KILLED
    assert await client.call(os.getpid) == pid


def numbers() -> Iterator[int]:
    yield from range(100)


def total(items: Iterator[int]) -> int:
    return sum(items)


def total_async(items: AsyncIterator[int]) -> int:
    async def run() -> int:
        return sum([item async for item in items])

    return asyncio.run(run())


@pytest.mark.untraced
@pytest.mark.parametrize(
    ("function", "arguments", "flags"),
    [
        (numbers, [], RunFlag.STREAM),
        (total, [Input(0)], RunFlag.ALONE),
        (total_async, [AsyncInput(0)], RunFlag.ALONE),
    ],
    ids=["for credit", "for an item", "for an item, async"],
)
async def test_so_is_one_that_waits_for_its_client(make: Any, function: Any, arguments: Any, flags: int) -> None:
    client = await make(slots=2, kind="thread")
    pid = await client.call(os.getpid)
    attempt = client.run(function, *arguments, flags=flags)
    client.send(m.Credit(attempt, -1, 1), m.Input(attempt, 0, values.inline(values.dump(1))))
    await client.until(lambda: client.of(attempt, m.Yield, m.Credit))
    client.send(m.Kill(attempt))
    assert (await client.answer(attempt)).cause is Cause.KILLED
    assert await client.call(os.getpid) == pid


@pytest.mark.untraced
async def test_so_is_one_that_waits_for_a_slow_client_to_read(make: Any) -> None:
    def chat() -> None:
        while True:
            print("x" * 1000)

    client = await make(slots=2, kind="thread")
    pid = await client.call(os.getpid)
    client.channel.hold()
    attempt = client.run(chat)
    for _ in range(50):
        await client.turn()
    client.send(m.Kill(attempt))
    while client.server._workers._scheduler.worker_of(attempt) is not None:
        await client.turn()
    client.channel.release()
    assert (await client.answer(attempt)).cause is Cause.KILLED
    assert await client.call(os.getpid) == pid


async def test_one_that_does_not_react_takes_its_process_with_it(make: Any) -> None:
    client = await make(slots=2, kind="thread")
    pid = await client.call(os.getpid)
    other = client.run(time.sleep, 60)
    ended = await client.call(time.sleep, 60, timeout_s=0.05)
    assert ended.cause is Cause.TIMEOUT
    beside = await client.answer(other)
    assert (beside.cause, beside.code) == (Cause.SIGNAL, signal.SIGKILL)
    assert "to end another task" in beside.detail
    assert await client.call(os.getpid) != pid


async def test_a_dead_process_ends_all_its_tasks(make: Any) -> None:
    client = await make(slots=2, kind="thread")
    first, second = client.run(time.sleep, 60), client.run(os._exit, 4)
    assert ((await client.answer(first)).code, (await client.answer(second)).code) == (4, 4)
    assert await client.call(os.getpid)


async def test_streams_work_side_by_side(make: Any) -> None:
    def scale(numbers: Iterator[int], factor: int) -> Iterator[int]:
        for number in numbers:
            yield number * factor

    client = await make(slots=2, kind="thread")
    attempts = {client.run(scale, Input(0), f, flags=RunFlag.ALONE | RunFlag.STREAM): f for f in (2, 3)}
    for number in (1, 2, 3):
        for attempt in attempts:
            client.send(m.Input(attempt, 0, values.inline(values.dump(number))), m.Credit(attempt, -1, 1))
    for attempt, factor in attempts.items():
        client.send(m.Input(attempt, 0, None), m.Credit(attempt, -1, 1))
        await client.answer(attempt)
        assert [values.load(y.item.data) for y in client.of(attempt, m.Yield)] == [factor, 2 * factor, 3 * factor]


async def test_a_fresh_task_has_a_process_of_its_own_all_the_same(make: Any) -> None:
    client = await make(slots=2, kind="thread")
    warm = await client.call(os.getpid)
    assert await client.call(os.getpid, flags=RunFlag.FRESH) != warm
    assert await client.call(os.getpid) == warm

"""Workers of the kind "thread": several tasks in one process."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from outrider.engine.executor import context
from outrider.engine.executor.context import Input
from outrider.engine.wire import messages as m
from outrider.engine.wire import values
from outrider.engine.wire.messages import Cause, RunFlag

pytestmark = pytest.mark.anyio
BARRIERS: dict[str, threading.Barrier] = {"three": threading.Barrier(3)}


def meet() -> int:
    BARRIERS["three"].wait(10)
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

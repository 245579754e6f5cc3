"""The loop that lasts: objects that are bound to it are usable by the next task, and nothing else of a task goes on."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from outrider.engine.node import event_loop
from outrider.engine.node.event_loop import run_lasting

variable: ContextVar[str] = ContextVar("variable", default="unset")


@pytest.fixture(autouse=True)
def _own_loop() -> Iterator[None]:
    yield
    if (loop := event_loop._threads.__dict__.pop("loop", None)) is not None:
        loop._loop.close()


def in_a_thread(function: Callable[[], Any]) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


async def loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def test_tasks_share_a_loop_and_threads_do_not() -> None:
    first = run_lasting(loop())
    assert run_lasting(loop()) is first
    other = in_a_thread(lambda: run_lasting(loop()))
    assert other is not first
    other.close()


def test_contended_lock_is_usable_by_the_next_task() -> None:
    lock = asyncio.Lock()

    async def use() -> None:
        async with lock:
            await asyncio.sleep(0)

    async def contend() -> int:
        await asyncio.gather(use(), use())
        return 1

    assert [run_lasting(contend()) for _ in range(2)] == [1, 1]


def test_tasks_generators_and_executor_threads_end_with_their_task() -> None:
    ended: list[str] = []

    async def tick() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("task")

    async def items() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            ended.append("generator")

    kept: list[Any] = []
    release = threading.Event()

    async def leave() -> None:
        kept.append(asyncio.create_task(tick()))
        kept.append(generator := items())
        assert await anext(generator) == 1
        kept.append(asyncio.get_running_loop().run_in_executor(None, release.wait))
        asyncio.get_running_loop().call_soon(release.set)
        await asyncio.sleep(0)

    before = threading.active_count()
    for _ in range(2):
        run_lasting(leave())
        assert sorted(ended) == ["generator", "task"]
        assert threading.active_count() == before
        ended.clear()


def test_error_of_a_leftover_task_is_reported() -> None:
    reports: list[Any] = []

    async def fail_at_the_end() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            raise ValueError("late")

    async def leave() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report["exception"]))
        kept.append(asyncio.create_task(fail_at_the_end()))
        await asyncio.sleep(0)

    kept: list[Any] = []
    run_lasting(leave())
    assert [str(each) for each in reports] == ["late"]


def test_handlers_of_the_loop_end_with_their_task() -> None:
    before = signal.getsignal(signal.SIGUSR2)

    async def change() -> None:
        current = asyncio.get_running_loop()
        current.add_signal_handler(signal.SIGUSR2, int)
        current.set_task_factory(lambda *arguments, **options: asyncio.Task(arguments[1], loop=arguments[0], **options))
        current.set_exception_handler(lambda *_: None)

    run_lasting(change())
    assert signal.getsignal(signal.SIGUSR2) == before
    current = run_lasting(loop())
    assert (current.get_task_factory(), current.get_exception_handler()) == (None, None)


def test_context_variables_are_those_of_the_caller_and_end_with_the_task() -> None:
    async def change(value: str) -> str:
        before = variable.get()
        variable.set(value)
        return before

    def task(value: str) -> str:
        variable.set(value)
        return str(run_lasting(change("changed")))

    assert [task("one"), task("two")] == ["one", "two"]
    assert variable.get() == "two"
    variable.set("unset")


def test_closed_loop_is_replaced() -> None:
    first = run_lasting(loop())
    first.close()
    assert run_lasting(loop()) is not first


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="policies are deprecated")
def test_loop_of_another_policy_replaces_it() -> None:
    first = run_lasting(loop())
    before = asyncio.get_event_loop_policy()
    try:
        asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())
        second = run_lasting(loop())
        assert second is not first
        second.close()
    finally:
        asyncio.set_event_loop_policy(before)
        first.close()


def test_current_loop_that_a_setup_has_used_is_taken() -> None:
    def task() -> bool:
        own = asyncio.new_event_loop()
        asyncio.set_event_loop(own)
        try:
            return run_lasting(loop()) is own
        finally:
            own.close()

    assert in_a_thread(task)

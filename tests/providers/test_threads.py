"""Calls that block, off the event loop, in threads that keep no program from ending."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading

import anyio
import pytest

from outrider.providers.shared import threads
from outrider.providers.shared.threads import in_thread

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_what_is_returned_or_raised_is_the_callers() -> None:
    assert await in_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await in_thread(divmod, 7, 0)
    with pytest.raises(RuntimeError) as caught:  # as of any coroutine
        await in_thread(next, iter(()))
    assert isinstance(caught.value.__cause__, StopIteration)


async def test_more_calls_than_threads_wait_for_one() -> None:
    together = threading.Barrier(threads.THREADS)
    await asyncio.gather(*(in_thread(together.wait, 100) for _ in range(2 * threads.THREADS)))


async def test_a_cancelled_caller_waits_for_the_end_unless_it_may_abandon_it() -> None:
    goes_on, ended = threading.Event(), threading.Event()

    def blocks() -> None:
        goes_on.wait(100)
        ended.set()

    with anyio.CancelScope() as scope:
        scope.cancel()
        await in_thread(blocks, abandon=True)
    assert not ended.is_set()
    goes_on.set()
    await in_thread(ended.wait, 100)
    ended.clear()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await in_thread(blocks)
    assert ended.is_set()


async def test_a_caller_that_asyncio_cancels_waits_for_the_end_too() -> None:
    begun, goes_on, ended = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def blocks() -> None:
        loop.call_soon_threadsafe(begun.set)
        goes_on.wait(100)
        ended.set()

    waiting = asyncio.ensure_future(in_thread(blocks))
    await begun.wait()
    for _ in range(2):
        waiting.cancel()
        await asyncio.sleep(0)
        assert not waiting.done()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended.is_set()


BLOCKED = """
import asyncio, threading
from outrider.providers.shared.threads import in_thread

async def main():
    asyncio.ensure_future(in_thread(threading.Event().wait, abandon=True))
    await asyncio.sleep(0)

asyncio.run(main())
"""


def test_a_call_that_never_ends_does_not_keep_the_program() -> None:
    subprocess.run([sys.executable, "-c", BLOCKED], check=True, timeout=60)


FORKED = """
import asyncio, os, sys
from outrider.providers.shared.threads import in_thread

asyncio.run(in_thread(os.getpid))
child = os.fork()
if child == 0:
    os._exit(asyncio.run(in_thread(os.getpid)) != os.getpid())
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_has_threads_of_its_own() -> None:
    subprocess.run([sys.executable, "-c", FORKED], check=True, timeout=60, env=dict(os.environ))


async def test_idle_threads_end_and_later_calls_start_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "IDLE_S", 0.01)
    pool = threads._Threads()
    monkeypatch.setattr(threads, "_threads", pool)
    for _ in range(3):
        together = threading.Barrier(threads.THREADS)
        await asyncio.gather(*(in_thread(together.wait, 100) for _ in range(2 * threads.THREADS)))
        async with asyncio.timeout(60):
            while pool._count:
                await asyncio.sleep(0.001)


async def test_work_that_comes_while_threads_end_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "IDLE_S", 0.0)
    monkeypatch.setattr(threads, "_threads", threads._Threads())
    async with asyncio.timeout(60):
        for number in range(2000):
            assert await in_thread(abs, -number) == number

"""Whoever closes a pool hears of its end, also second, and never waits for itself."""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from types import FrameType
from typing import Any

import pytest

from outrider import CleanupError, Local, Plugin, Pool, PoolClosed, SpecError, SyncPool, compute
from outrider.engine import sync
from outrider.engine.api.plugin import PluginContext
from outrider.engine.client import loop_thread
from outrider.engine.client.blocking_calls import called
from outrider.engine.client.open_pool import OpenPool
from outrider.providers.shared.threads import in_thread

PATIENCE_S = 60.0


@compute
def double(x: int) -> int:
    return 2 * x


class Slow(Plugin):
    """Keeps a pool from being closed until ``goes_on``."""

    name = "slow"

    def __init__(self) -> None:
        self.reached, self.goes_on = threading.Event(), threading.Event()

    def __getstate__(self) -> dict[str, object]:
        return {}

    @asynccontextmanager
    async def attach(self, context: PluginContext) -> AsyncIterator[None]:
        yield None
        self.reached.set()
        await in_thread(self.goes_on.wait)


class Closing(Plugin):
    """Closes its own pool, in one of several ways."""

    name = "closing"

    def __init__(
        self,
        close: Callable[[Pool], Awaitable[object]],
        at: str = "attach",
    ) -> None:
        self._close, self._at = close, at
        self.tasks: list[asyncio.Future[object]] = []

    def __getstate__(self) -> dict[str, object]:
        return {}  # tasks need nothing of it

    @asynccontextmanager
    async def attach(self, context: PluginContext) -> AsyncIterator[None]:
        if self._at == "attach":
            await self._close(context.pool)
        if self._at == "beside":
            self.tasks.append(asyncio.ensure_future(self._close(context.pool)))
        yield None
        if self._at == "end":
            await self._close(context.pool)
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def directly(pool: Pool) -> None:
    await pool.close()


async def in_a_group(pool: Pool) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(pool.close())


async def in_time(pool: Pool) -> None:
    await asyncio.wait_for(pool.close(), PATIENCE_S)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.anyio
@pytest.mark.parametrize("close", [directly, in_a_group, in_time])
async def test_a_plugin_that_closes_its_pool_as_it_attaches_calls_it_off(
    close: Callable[[Pool], Awaitable[object]],
) -> None:
    pool = Pool(provider=Local(), plugins=[Closing(close)], console="silent")
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(PoolClosed, match="closed while it was being opened"):
            await pool.open()
    assert repr(pool).endswith("ended after 0 jobs>")


def test_so_does_one_of_a_pool_for_threads() -> None:
    pool = SyncPool(Pool(provider=Local(), plugins=[Closing(directly)], console="silent"))
    with pytest.raises(PoolClosed, match="closed while it was being opened"):
        pool.open()
    pool.close()


@pytest.mark.anyio
@pytest.mark.parametrize("close", [directly, in_a_group, in_time])
async def test_a_plugin_that_closes_its_pool_as_it_ends_waits_for_nothing(
    close: Callable[[Pool], Awaitable[object]],
) -> None:
    async with asyncio.timeout(PATIENCE_S):
        async with Pool(provider=Local(), plugins=[Closing(close, "end")], console="silent") as pool:
            assert await pool.run(double(2)) == 4


@pytest.mark.anyio
async def test_what_a_plugin_has_begun_may_close_the_pool_which_ends_after_it() -> None:
    go = asyncio.Event()

    async def later(pool: Pool) -> None:
        await go.wait()
        await pool.close()

    plugin = Closing(later, "beside")
    async with asyncio.timeout(PATIENCE_S):
        async with Pool(provider=Local(), plugins=[plugin], console="silent") as pool:
            go.set()
            await asyncio.gather(*plugin.tasks)
            with pytest.raises(PoolClosed):
                await pool.run(double(2))
        assert repr(pool).endswith("ended after 0 jobs>"), "the end of the block waits for it"


@pytest.mark.anyio
async def test_a_plugin_may_close_another_pool() -> None:
    async with Pool(provider=Local(), console="silent") as other:

        async def close_other(_: Pool) -> None:
            await other.close()
            assert repr(other).endswith("ended after 0 jobs>")

        async with Pool(provider=Local(), plugins=[Closing(close_other)], console="silent") as pool:
            assert await pool.run(double(2)) == 4


@pytest.mark.anyio
async def test_a_second_close_waits_for_the_end_that_the_first_sees_to() -> None:
    slow = Slow()
    async with Pool(provider=Local(), plugins=[slow], console="silent") as pool:
        first = asyncio.ensure_future(pool.close())
        await in_thread(slow.reached.wait)
        second, third, cancelled = (asyncio.ensure_future(pool.close()) for _ in range(3))
        await turns()
        assert not any(each.done() for each in (first, second, third, cancelled))
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert not any(each.done() for each in (first, second, third))
        slow.goes_on.set()
        await second
        assert repr(pool).endswith("ended after 0 jobs>")
        await asyncio.gather(first, third)
        await pool.close()


@pytest.mark.anyio
async def test_the_second_goes_on_though_the_first_is_cancelled() -> None:
    slow = Slow()
    pool = await Pool(provider=Local(), plugins=[slow], console="silent").open()
    first = asyncio.ensure_future(pool.close())
    await in_thread(slow.reached.wait)
    second = asyncio.ensure_future(pool.close())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    assert not second.done()
    slow.goes_on.set()
    await second
    assert repr(pool).endswith("ended after 0 jobs>")
    with pytest.raises(asyncio.CancelledError):
        await first


@pytest.mark.anyio
async def test_the_end_of_the_block_waits_for_a_close_beside_it() -> None:
    slow = Slow()
    async with Pool(provider=Local(), plugins=[slow], console="silent") as pool:
        closing = asyncio.ensure_future(pool.close())
        await in_thread(slow.reached.wait)
        asyncio.get_running_loop().call_later(0.05, slow.goes_on.set)
    assert repr(pool).endswith("ended after 0 jobs>")
    await closing


@pytest.mark.anyio
@pytest.mark.parametrize("by", ["task", "plugin"])
async def test_a_cancelled_end_of_the_block_waits_for_it_as_well(by: str) -> None:
    """Ctrl-C cancels the main task; asyncio would cancel all others as soon as its block were left."""
    go, opened, leaves = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def later(pool: Pool) -> None:
        await go.wait()
        await pool.close()

    slow, plugin = Slow(), Closing(later, "beside")
    pool = Pool(provider=Local(), plugins=[slow, plugin] if by == "plugin" else [slow], console="silent")

    async def main() -> None:
        async with pool:
            opened.set()
            await leaves.wait()

    block = asyncio.ensure_future(main())
    await opened.wait()
    other = plugin.tasks[0] if by == "plugin" else asyncio.ensure_future(later(pool))
    go.set()
    await in_thread(slow.reached.wait)
    leaves.set()
    for _ in range(3):
        await turns()
        block.cancel()
    await turns()
    has_left = block.done()
    slow.goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await block
    assert not has_left
    assert repr(pool).endswith("ended after 0 jobs>")
    await other


def leaving_some(pool: Pool) -> OpenPool:
    """Have its end not be confirmed."""
    core = pool._opened()
    ended = core._end

    def end(*given: object) -> None:
        ended(*given)  # type: ignore[arg-type]
        core.cleanup = core._failure = CleanupError("some may be left")

    core._end = end  # type: ignore[method-assign, assignment]
    return core


@pytest.mark.anyio
@pytest.mark.parametrize("of_its_own", [True, False])
async def test_all_who_wait_are_told_of_machines_that_may_be_left(of_its_own: bool) -> None:
    slow = Slow()
    pool = await Pool(provider=Local(), plugins=[slow], console="silent").open()
    core = leaving_some(pool)
    first = asyncio.ensure_future(pool.close())
    await in_thread(slow.reached.wait)
    error = ValueError("mine") if of_its_own else None
    second = asyncio.ensure_future(pool.close(error))
    await asyncio.sleep(0)
    slow.goes_on.set()
    with pytest.raises(CleanupError):
        await first
    if error is None:
        with pytest.raises(CleanupError):
            await second
    else:
        await second
        assert getattr(error, "cleanup", None) is core.cleanup


def test_a_second_thread_that_closes_waits_for_the_first() -> None:
    slow = Slow()
    pool = SyncPool(Pool(provider=Local(), plugins=[slow], console="silent")).open()
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(pool.close)
        assert slow.reached.wait(PATIENCE_S)
        others = [threads.submit(pool.close) for _ in range(2)]
        with pytest.raises(TimeoutError):
            others[0].result(0.1)
        slow.goes_on.set()
        for each in others:
            each.result(PATIENCE_S)
            assert repr(pool).endswith("ended after 0 jobs>")
            assert pool._thread is None
        first.result(PATIENCE_S)
    pool.close()


def test_the_pools_own_thread_is_refused_while_another_closes() -> None:
    slow = Slow()
    pool = SyncPool(Pool(provider=Local(), plugins=[slow], console="silent")).open()
    thread = pool._thread
    assert thread is not None
    with pytest.raises(SpecError, match="cannot wait for itself"):
        thread.submit(called, pool.close).result()
    assert double(2) >> pool == 4
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(pool.close)
        assert slow.reached.wait(PATIENCE_S)
        with pytest.raises(SpecError, match="cannot wait for itself"):
            thread.submit(called, pool.close).result()
        slow.goes_on.set()
        first.result(PATIENCE_S)


@pytest.mark.parametrize("of_its_own", [True, False])
def test_a_thread_that_waits_is_told_of_machines_that_may_be_left(
    of_its_own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, wait_for = Slow(), sync.wait_for

    def waiting(event: threading.Event) -> None:
        slow.goes_on.set()
        wait_for(event)

    monkeypatch.setattr(sync, "wait_for", waiting)
    with ThreadPoolExecutor(1) as threads:
        with (
            pytest.raises(ValueError if of_its_own else CleanupError) as caught,
            Pool(provider=Local(), plugins=[slow], console="silent") as pool,
        ):
            core = leaving_some(pool._pool)
            first = threads.submit(pool.close)
            assert slow.reached.wait(PATIENCE_S)
            if of_its_own:
                raise ValueError("mine")
        with pytest.raises(CleanupError):
            first.result(PATIENCE_S)
    error: Any = caught.value
    assert core.cleanup is (error.cleanup if of_its_own else error)


class Life:
    """In place of a `Pool`, without nodes. It counts its ends, which may be kept from going on."""

    _core = _interrupt = None

    def __init__(self, *, slow: bool = False) -> None:
        self.ends = 0
        self.reached, self.goes_on = threading.Event(), threading.Event()
        if not slow:
            self.goes_on.set()

    def check_unopened(self) -> None: ...

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None:
        self.ends += 1
        self.reached.set()
        if not self.goes_on.is_set():
            await in_thread(self.goes_on.wait)


def opened(life: Any) -> SyncPool:
    return SyncPool(life).open()


def has_steps(pool: SyncPool, number: int, interrupt: Callable[[], object]) -> bool:
    """Close the pool, and interrupt that at its ``number``-th line as a signal would; return whether it has as many,
    until it waits for its end.
    """
    seen, over = 0, False

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal seen, over
        if frame.f_code.co_filename != sync.__file__:
            return None
        if event == "line" and not over:
            seen += 1
            over = seen == number or frame.f_code.co_name == "_result"
            if seen == number:
                interrupt()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        pool.close()
    finally:
        sys.settrace(before)
    return seen == number


def callers(frame: FrameType | None) -> list[str]:
    return [] if frame is None else [frame.f_code.co_name, *callers(frame.f_back)]


def ctrl_c() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("by", ["Ctrl-C", "a handler that closes it"])
def test_a_close_that_is_interrupted_wherever_it_is_leaves_no_pool_that_cannot_be_closed(by: str) -> None:
    for number in itertools.count(1):
        life, more = Life(), True
        pool = opened(life)
        with suppress(KeyboardInterrupt):
            more = has_steps(pool, number, ctrl_c if by == "Ctrl-C" else pool.close)
        other = threading.Thread(target=pool.close, daemon=True)
        other.start()
        other.join(PATIENCE_S)
        assert not other.is_alive()
        pool.close()
        assert life.ends
        assert pool._thread is None
        if not more:
            break
    assert number > 10


def test_one_that_waits_for_a_close_that_never_begins_closes_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life()
    pool, waiting, wait_for = opened(life), threading.Event(), sync.wait_for
    start = pool._start

    def waited(event: threading.Event) -> None:
        waiting.set()
        wait_for(event)

    def interrupted(*_: object) -> Any:
        pool._start = start  # type: ignore[method-assign]
        others.append(threads.submit(pool.close))
        assert waiting.wait(PATIENCE_S)
        raise KeyboardInterrupt

    others: list[Any] = []
    monkeypatch.setattr(sync, "wait_for", waited)
    pool._start = interrupted  # type: ignore[method-assign, assignment]
    with ThreadPoolExecutor(1) as threads:
        with pytest.raises(KeyboardInterrupt):
            pool.close()
        others[0].result(PATIENCE_S)
    assert life.ends == 1
    assert pool._thread is None


def test_one_that_waits_hears_a_signal_that_another_thread_has_got(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python leaves it to the main thread, which nothing wakes up."""
    monkeypatch.setattr(loop_thread, "DEAF_S", 0.01)
    life, heard, waits = Life(slow=True), threading.Event(), threading.get_ident()
    pool = opened(life)

    def get_signal() -> bool:
        while callers(sys._current_frames()[waits])[:3] != ["wait", "wait", "wait_for"]:  # a condition's, an event's
            assert not life.goes_on.is_set()
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        told = heard.wait(PATIENCE_S)
        life.goes_on.set()
        return told

    before = signal.signal(signal.SIGUSR1, lambda *_: heard.set())
    try:
        with ThreadPoolExecutor(2) as threads:
            first = threads.submit(pool.close)
            assert life.reached.wait(PATIENCE_S)
            told = threads.submit(get_signal)
            pool.close()
            life.goes_on.set()
            assert told.result(PATIENCE_S)
            first.result(PATIENCE_S)
    finally:
        signal.signal(signal.SIGUSR1, before)

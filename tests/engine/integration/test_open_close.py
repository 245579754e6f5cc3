"""Pools without a block, and what pools, their jobs and nodes say of themselves."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from outrider import Local, Plugin, Pool, PoolClosed, Secret, SpecError, SyncPool, compute, plugins
from outrider.engine.api.plugin import PluginContext
from outrider.engine.client.loop_thread import LoopThread
from outrider.providers.shared.threads import in_thread

PATIENCE_S = 60.0


@compute
def double(x: int) -> int:
    return 2 * x


@compute
def fail() -> None:
    raise ValueError("bad luck")


@compute
def wait_for(path: str) -> None:
    import time

    while not Path(path).exists():
        time.sleep(0.01)


@pytest.mark.anyio
async def test_a_pool_is_opened_and_closed_without_a_block(tmp_path: Path) -> None:
    pool = Pool(provider=Local(), nodes=2, name="train", console="silent")
    await pool.close()
    assert repr(pool) == "<Pool 'train' of local, not open yet>"
    assert await pool.open() is pool
    assert await pool.run(double(2)) == 4
    job = pool.submit(wait_for(str(tmp_path / "go")))
    assert repr(pool) == "<Pool 'train' of local: 2 of 2 nodes ready, 1 job open>"
    assert repr(job) == "<job 2 of wait_for: under way>"
    assert repr(pool.snapshot()) == "<pool 'train': 2 of 2 nodes ready, 1 job open>"
    node = pool.snapshot().nodes[0]
    assert repr(node).startswith(f"<node {node.node}: ready, rank {node.rank}, on ")
    (tmp_path / "go").touch()
    await job
    assert repr(job) == "<job 2 of wait_for: returned>"
    await pool.close()
    await pool.close()
    assert repr(pool) == "<Pool 'train' of local: ended after 2 jobs>"
    with pytest.raises(PoolClosed):
        await pool.run(double(2))
    with pytest.raises(SpecError, match="open already, or was"):
        await pool.open()


@pytest.mark.anyio
async def test_a_pool_may_be_closed_in_its_block() -> None:
    async with Pool(provider=Local(), console="silent") as pool:
        await pool.close()


@pytest.mark.anyio
async def test_a_job_says_how_it_ended() -> None:
    async with Pool(provider=Local(), console="silent") as pool:
        failed, cancelled = pool.submit(fail()), pool.submit(wait_for("/never"))
        assert isinstance(await failed_of(failed), ValueError)
        cancelled.cancel()
        await failed_of(cancelled)
        assert repr(failed) == "<job 1 of fail: failed>"
        assert repr(cancelled) == "<job 2 of wait_for: cancelled>"
        mapping = pool.map(double, [1, 2])
        assert repr(mapping).startswith("<pool.map(double, ...): await it for a list")
        assert await mapping == [2, 4]


async def failed_of(job: object) -> BaseException | None:
    try:
        await job  # type: ignore[misc]
    except Exception as error:  # noqa: BLE001
        return error
    return None


class Held(Plugin):
    """Keeps a pool from opening, when all of its nodes are there."""

    name = "held"

    def __init__(self) -> None:
        self.reached, self.left = threading.Event(), threading.Event()

    @asynccontextmanager
    async def attach(self, context: PluginContext) -> AsyncIterator[None]:
        self.reached.set()
        try:
            await asyncio.sleep(PATIENCE_S)
            yield None
        finally:
            self.left.set()


@pytest.mark.anyio
async def test_a_pool_that_is_closed_while_it_opens_is_gone_and_says_so() -> None:
    held = Held()
    pool = Pool(provider=Local(), nodes=2, plugins=[held], console="silent")
    opening = asyncio.ensure_future(pool.open())
    await in_thread(held.reached.wait)
    await pool.close()
    assert held.left.is_set()
    with pytest.raises(PoolClosed, match="closed while it was being opened"):
        await opening
    assert repr(pool).endswith(" of local: ended after 0 jobs>")
    await pool.close()


@pytest.mark.anyio
@pytest.mark.parametrize("turns", [1, 2, 3, 10, 30])
async def test_a_pool_may_be_closed_as_soon_as_its_opening_has_begun(turns: int) -> None:
    pool = Pool(provider=Local(), plugins=[Held()], console="silent")  # else it might be open already
    opening = asyncio.ensure_future(pool.open())
    for _ in range(turns):
        await asyncio.sleep(0)
    await pool.close()
    with pytest.raises(PoolClosed, match="closed while it was being opened"):
        await opening


@pytest.mark.anyio
async def test_the_task_that_opens_may_be_cancelled_as_its_pool_is_closed() -> None:
    held = Held()
    pool = Pool(provider=Local(), plugins=[held], console="silent")
    opening = asyncio.ensure_future(pool.open())
    await in_thread(held.reached.wait)
    closing = asyncio.ensure_future(pool.close())
    await asyncio.sleep(0)
    opening.cancel()
    await closing
    with pytest.raises((PoolClosed, asyncio.CancelledError)):
        await opening


def test_a_pool_for_threads_that_is_closed_while_it_opens_is_gone_and_says_so() -> None:
    held = Held()
    pool = SyncPool(Pool(provider=Local(), nodes=2, plugins=[held], console="silent"))
    with ThreadPoolExecutor(1) as threads:
        opening = threads.submit(pool.open)
        assert held.reached.wait(PATIENCE_S)
        pool.close()
        assert held.left.is_set()
        with pytest.raises(PoolClosed, match="closed while it was being opened"):
            opening.result(PATIENCE_S)
    pool.close()


def test_a_signal_handler_may_close_the_pool_that_its_thread_opens() -> None:
    """As programs do that end at SIGTERM: the handler runs in the midst of `open`, which cannot go on meanwhile."""
    program = """
        import os, signal, threading
        from outrider import Local, Plugin, Pool, PoolClosed, SyncPool

        class Interrupting(Plugin):
            name = "interrupting"

            def attach(self, context):
                os.kill(os.getpid(), signal.SIGTERM)
                return super().attach(context)

        def close(*_):
            pool.close()
            print("handled")

        signal.signal(signal.SIGTERM, close)
        pool = SyncPool(Pool(provider=Local(), plugins=[Interrupting()], console="silent"))
        try:
            pool.open()
        except PoolClosed as error:
            print(error)
        else:
            print("opened as fast:", pool)
        pool.close()
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout.startswith("handled\n"), ran.stderr
    assert "closed while it was being opened" in ran.stdout or "ended after" in ran.stdout


def test_a_pool_for_threads_may_be_closed_before_its_loop_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert goes_on.wait(PATIENCE_S)

    monkeypatch.setattr("outrider.engine.sync.LoopThread", lambda: LoopThread(wait))
    pool = SyncPool(Pool(provider=Local(), console="silent"))
    with ThreadPoolExecutor(2) as threads:
        opening = threads.submit(pool.open)
        assert begun.wait(PATIENCE_S)
        closing = threads.submit(pool.close)
        while not pool._pool._called_off:
            assert not closing.done()
        goes_on.set()
        closing.result(PATIENCE_S)
        with pytest.raises(PoolClosed, match="closed while it was being opened"):
            opening.result(PATIENCE_S)


def test_a_pool_for_threads_is_opened_and_closed_without_a_block() -> None:
    pool = SyncPool(Pool(provider=Local(), name="train", console="silent"))
    assert repr(pool) == "<SyncPool 'train' of local, not open yet>"
    pool.close()
    assert pool.open() is pool
    assert repr(pool) == "<SyncPool 'train' of local: 1 of 1 node ready>"
    assert double(2) >> pool == 4
    pool.close()
    pool.close()
    assert repr(pool) == "<SyncPool 'train' of local: ended after 1 job>"


def test_a_pool_for_threads_that_nobody_closes_ends_with_its_program() -> None:
    program = """
        from outrider import Local, Pool, SyncPool

        pool = SyncPool(Pool(provider=Local(), console="plain")).open()
        print("opened")
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout == "opened\n"
    assert "outrider: closed after" in ran.stderr


def test_saying_what_a_pool_is_fails_never_and_tells_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    assert repr(object.__new__(Pool)) == "<Pool without valid options>"
    pool = Pool(provider=Local(), plugins=[plugins.huggingface(Secret("hf_0123"))])
    assert repr(pool) == "<Pool of local, not open yet>"
    monkeypatch.setattr(Local, "name", property(lambda _: 1 // 0))
    assert repr(pool) == "<Pool of Local, not open yet>"
    monkeypatch.setattr(Local, "name", "two\nlines")
    assert "\n" not in repr(pool)


def test_a_second_open_is_refused_and_leaves_the_open_pool_alone() -> None:
    """A cell of a notebook that is run twice; a pool that is entered inside its own block."""
    pool = Pool(provider=Local(), nodes=1, console="silent")
    with pool as opened:
        with pytest.raises(SpecError, match="open already"):
            opened.open()
        with pytest.raises(SpecError, match="open already"), pool:
            pass
        assert opened.run(double(2)) == 4
    with pytest.raises(PoolClosed):
        opened.run(double(2))


def test_dropped_pool_is_ended_with_a_warning() -> None:
    pool = SyncPool(Pool(provider=Local(), name="dropped", console="silent")).open()
    inner, thread = pool._pool, pool._thread
    assert thread is not None
    future = pool.submit(double(3))
    alive = weakref.ref(pool)
    del pool
    gc.collect()
    assert future.result(PATIENCE_S) == 6, "a future keeps its pool"
    assert alive() is not None
    last = [future]
    del future
    with pytest.warns(ResourceWarning, match="'dropped' of local.* was dropped without close.*keep a reference"):
        last.clear()
    gc.collect()
    assert alive() is None
    assert thread._over.wait(PATIENCE_S)
    assert inner._has_ended


@pytest.mark.parametrize("how", ["closed", "block without a name"])
def test_pool_that_is_closed_is_dropped_without_a_warning(how: str, recwarn: pytest.WarningsRecorder) -> None:
    if how == "closed":
        pool = SyncPool(Pool(provider=Local(), console="silent")).open()
        pool.close()
        del pool
    else:
        inner = Pool(provider=Local(), console="silent")
        with inner:
            gc.collect()
            assert not inner._has_ended
        del inner
    gc.collect()
    assert [each for each in recwarn if each.category is ResourceWarning] == []

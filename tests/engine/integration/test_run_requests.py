"""A pool is ended from outside, by the socket in its record: whatever it is doing, nothing is left of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from outrider import Local, Pool, PoolClosed, compute
from outrider.engine.record.runs.control import CONTROL, ask
from outrider.engine.record.runs.reader import Run, read_json, runs_in
from outrider.errors import RunStopped
from outrider.providers.base import EntryPoints

pytestmark = pytest.mark.anyio
PATIENCE_S = 60.0


@compute
def forever() -> None:
    time.sleep(600)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("OUTRIDER_RUNS", "1")
    return tmp_path / "state"


def recorded(state: Path) -> Run:
    """The one run, once it takes requests."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := runs_in(state / "runs")) or not (found[0].directory / CONTROL).exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found[0]


def ended(state: Path) -> dict[str, Any]:
    (run,) = runs_in(state / "runs")
    assert not (run.directory / CONTROL).exists()
    assert (list((state / "local").glob("*")), run.owner, run.ended) == ([], "dead", True)
    return read_json(run.directory / "result.json")


async def test_a_pool_that_runs_is_ended(state: Path) -> None:
    pool = Pool(provider=Local(), nodes=2, run="stopped", console="silent")
    with pytest.raises(RunStopped, match="by `outrider stop`"):
        async with asyncio.timeout(PATIENCE_S), pool:
            running = pool.submit(forever())
            run = await asyncio.to_thread(recorded, state)
            first, second = await asyncio.gather(
                *(asyncio.to_thread(ask, run, "stop", within_s=PATIENCE_S) for _ in range(2))
            )
            assert first == second == {"left": None}
            assert list((state / "local").glob("*")) == []
            with pytest.raises(PoolClosed, match="by `outrider stop`"):
                await pool.run(forever())
            with pytest.raises(PoolClosed):
                await running
    assert ended(state)["error"]["type"] == "RunStopped"


def test_a_pool_of_a_program_without_a_loop_is_ended(state: Path) -> None:
    asking = threading.Thread(target=lambda: ask(recorded(state), "stop", within_s=PATIENCE_S))
    asking.start()
    with pytest.raises(RunStopped), Pool(provider=Local(), run="stopped", console="silent") as pool:
        pool.run(forever())
    asking.join(PATIENCE_S)
    assert ended(state)["error"]["type"] == "RunStopped"


async def test_a_pool_that_opens_is_ended(state: Path) -> None:
    class Slow(Local):
        @asynccontextmanager
        async def open(self, pool: str, entry_points: EntryPoints) -> AsyncIterator[Any]:
            async with super().open(pool, entry_points) as fleet:
                await asyncio.sleep(600)
                yield fleet

    opening = asyncio.ensure_future(Pool(provider=Slow(), run="stopped", console="silent").open())
    try:
        answer = await asyncio.to_thread(lambda: ask(recorded(state), "stop", within_s=PATIENCE_S))
        assert answer == {"left": None}
        with pytest.raises(RunStopped):
            await opening
    finally:
        opening.cancel()
        await asyncio.wait([opening])
    assert ended(state)["error"]["type"] == "RunStopped"


async def test_a_pool_that_closes_is_waited_for(state: Path) -> None:
    closing, goes_on = asyncio.Event(), asyncio.Event()

    class Slow(Local):
        @asynccontextmanager
        async def open(self, pool: str, entry_points: EntryPoints) -> AsyncIterator[Any]:
            async with super().open(pool, entry_points) as fleet:
                yield fleet
                closing.set()
                await goes_on.wait()

    async def use() -> None:
        async with Pool(provider=Slow(), run="stopped", console="silent"):
            pass

    using = asyncio.ensure_future(use())
    await closing.wait()
    run = await asyncio.to_thread(recorded, state)
    asking = asyncio.ensure_future(asyncio.to_thread(ask, run, "stop", within_s=PATIENCE_S))
    await asyncio.sleep(0.1)
    assert not asking.done()
    goes_on.set()
    assert await asking == {"left": None}
    await using
    assert ended(state)["exit"] == 0

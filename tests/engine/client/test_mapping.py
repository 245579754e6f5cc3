"""A map gives results as they come, whatever its items wait for. The pool is played: it runs each task at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outrider import CapacityError, PoolClosed, compute
from outrider.actors.interfaces import Ending, GaveUp, JobId, NodeId, Reason, Settled, Verdict
from outrider.engine.api.calls import Call
from outrider.engine.client.jobs import SubmittedJob
from outrider.engine.client.mapping import MapRun
from outrider.engine.serialization.payload import Received
from outrider.engine.serialization.task_payload import Payload
from outrider.engine.wire import values
from outrider.engine.wire.messages import Value

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Played:
    """What `MapRun` needs of `engine.client.open_pool.OpenPool`."""

    observer = SimpleNamespace(
        jobs=False, job=lambda job, name: None, job_over=lambda job, ending, name: None, item_failed=lambda *_: None
    )

    def __init__(self) -> None:
        self.chunks: list[int] = []  # how many items each task had
        self._calls: dict[int, Call[Any]] = {}
        self._ids = count(1)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def explained(self, ending: Any) -> Any:
        return ending

    @property
    def packer(self) -> Played:
        return self

    def new_job(self) -> JobId:
        return JobId(next(self._ids))

    def pack(self, call: Call[Any]) -> Payload:
        payload = Payload(call.name, b"digest", b"code", Value(b""))
        self._calls[id(payload)] = call
        return payload

    async def own(self, payload: Payload) -> None:
        pass

    def submit(self, job: SubmittedJob[Any], _on: None, settle: Callable[[Ending], None]) -> None:
        call = self._calls.pop(id(job.payload))
        self.chunks.append(len(call.args[0]))
        dumped = values.inline(values.dump(call.function.function(*call.args)))
        received = Received(dumped.data, dumped.sizes, 1e-6)
        ending = Settled(Verdict.RETURNED, received, NodeId(0), 0, 1, 0)
        asyncio.get_running_loop().call_soon(settle, ending)

    def cancel(self, job: JobId) -> None:
        pass


@compute
def double(n: int) -> int:
    return 2 * n


def mapped(items: Any, core: Played | None = None, *, limit: int | None = None, ordered: bool = True) -> MapRun[int]:
    return MapRun(
        cast("Any", core or Played()), double, items, limit=limit, ordered=ordered, errors="raise", slots=lambda: 32
    )


@pytest.mark.parametrize("ordered", [True, False])
async def test_items_may_depend_on_the_results_before_them(ordered: bool) -> None:
    queue: asyncio.Queue[int | None] = asyncio.Queue()

    async def items() -> AsyncIterator[int]:
        while (item := await queue.get()) is not None:
            yield item

    queue.put_nowait(1)
    seen: list[int] = []
    async with asyncio.timeout(60):
        async for result in mapped(items(), ordered=ordered):
            seen.append(result)
            queue.put_nowait(result if result < 64 else None)
    assert seen == [2, 4, 8, 16, 32, 64]


async def test_results_come_while_the_next_item_is_waited_for() -> None:
    closed = False

    async def items() -> AsyncIterator[int]:
        nonlocal closed
        try:
            for n in range(5):
                yield n
            await asyncio.Event().wait()
        finally:
            closed = True

    async def first_five() -> list[int]:
        results = []
        async for result in (results_of := mapped(items()).__aiter__()):
            results.append(result)
            if len(results) == 5:
                break
        await results_of.aclose()  # type: ignore[attr-defined]
        return results

    assert await asyncio.wait_for(first_five(), 60) == [0, 2, 4, 6, 8]
    assert closed


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_cheap_items_share_tasks_and_no_more_than_the_limit_are_under_way(kind: str) -> None:
    taken = 0

    def plain() -> Any:
        nonlocal taken
        for n in range(3000):
            taken += 1
            yield n

    async def asynchronous() -> AsyncIterator[int]:
        for n in plain():
            yield n

    core = Played()
    make = plain if kind == "plain" else asynchronous
    assert await mapped(make(), core) == [2 * n for n in range(3000)]
    assert max(core.chunks) > 8
    taken = got = 0
    async for _ in mapped(make(), limit=16):
        got += 1
        assert taken - got < 16
    assert got == 3000


async def test_an_error_of_the_items_is_raised() -> None:
    async def items() -> AsyncIterator[int]:
        yield 1
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await mapped(items())


@pytest.mark.parametrize(("reason", "error"), [(Reason.CLOSED, PoolClosed), (Reason.NO_REPLACEMENT, CapacityError)])
async def test_an_error_of_the_pool_is_raised_and_no_items_outcome(reason: Reason, error: type[Exception]) -> None:
    class Ending(Played):
        def submit(self, job: SubmittedJob[Any], _on: None, settle: Callable[[Any], None]) -> None:
            asyncio.get_running_loop().call_soon(settle, GaveUp(reason))

    run: Any = MapRun(cast("Any", Ending()), double, [1, 2], limit=None, ordered=True, errors="return", slots=lambda: 1)
    with pytest.raises(error):
        await run

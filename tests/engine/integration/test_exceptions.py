"""Exceptions of any class arrive as themselves, with their causes, whatever they hold: from tasks and from inputs."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from outrider import BroadcastFailed, ItemOutcome, Local, Pool, SetupFailed, Worker, compute
from outrider.errors import RemoteTraceback

pytestmark = pytest.mark.anyio
LEFT_OUT = "left out (cannot be pickled): .lock (_thread.lock)"


class Busy(Exception):
    def __init__(self, code: int, *, where: str) -> None:
        super().__init__(f"{code} in {where}")
        self.code, self.lock = code, threading.Lock()


class Slotted(Exception):
    __slots__ = ("code",)

    def __init__(self, *, code: int) -> None:
        self.code = code


@pytest.fixture(scope="module", params=["process", "thread"])
async def workers(request: pytest.FixtureRequest, _patience: None) -> AsyncIterator[Pool]:
    async with Pool(provider=Local(), nodes=2, worker=Worker(kind=request.param), console="silent", run=False) as pool:
        yield pool


def fails(_item: object = None) -> Any:
    try:
        raise Slotted(code=3)
    except Slotted as error:
        raise Busy(7, where="the task") from error


raising = compute(fails)


@compute
def streaming() -> Iterator[int]:
    yield 1
    fails()


@compute(setup=fails)
def set_up(_state: object) -> None:
    pass


@compute
def codes(items: Iterator[int]) -> tuple[int, int, list[str]]:
    try:
        sum(items)
    except Busy as error:
        return error.code, getattr(error.__cause__, "code", 0), error.__notes__
    return 0, 0, []


def is_whole(error: Any) -> bool:
    assert (type(error), str(error), error.code, error.lock) == (Busy, "7 in the task", 7, None)
    assert error.__notes__[0] == LEFT_OUT
    assert (type(error.__cause__), error.__cause__.code) == (Slotted, 3)
    return isinstance(error.__cause__.__cause__, RemoteTraceback)


async def test_a_tasks_error_is_whole_by_every_verb(workers: Pool) -> None:
    with pytest.raises(Busy) as run:
        await workers.run(raising())
    with pytest.raises(Busy) as stream:
        async for _ in workers.stream(streaming()):
            pass
    with pytest.raises(SetupFailed) as setup:
        await workers.run(set_up())
    assert all(map(is_whole, (run.value, stream.value, setup.value.__cause__)))
    outcomes: list[ItemOutcome[Any]] = await workers.map(raising, range(3), errors="return")
    assert [is_whole(outcome.error) for outcome in outcomes] == [True] * 3


async def test_each_ranks_error_is_whole(workers: Pool) -> None:
    with pytest.raises(BroadcastFailed) as caught:
        await workers.broadcast(raising())
    assert is_whole(caught.value.exceptions[0])
    assert all(getattr(each, "code", None) == 7 for each in caught.value.exceptions)


async def test_an_inputs_error_is_whole_in_its_task(workers: Pool) -> None:
    def inputs() -> Iterator[int]:
        yield 1
        fails()

    async def awaited() -> AsyncIterator[int]:
        yield 1
        fails()

    assert await workers.run(codes(inputs())) == (7, 3, [LEFT_OUT])
    assert await workers.run(codes(awaited())) == (7, 3, [LEFT_OUT])  # type: ignore[arg-type]

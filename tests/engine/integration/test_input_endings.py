"""Inputs of every kind, with every ending, for every consumer: the caller learns the ending, and the pool goes on
(INPUT-1, INPUT-2, INPUT-3).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import CancelledError as FutureCancelled
from typing import Any

import pytest

from outrider import Local, Pool, SyncPool, TaskFailed, compute

from ..serialization.input_kinds import ENDINGS, KINDS, made

PATIENCE_S = 60.0
COUNT = 5
CASES = [(kind, ending) for kind in KINDS for ending in ENDINGS]
Outcome = tuple[Any, type[BaseException] | None]


@compute
def double(x: int) -> int:
    return 2 * x


@compute
def total(items: Iterator[int]) -> int:
    return sum(items)


@compute
async def async_total(items: AsyncIterator[int]) -> int:
    return sum([item async for item in items])


@compute
def doubled(items: Iterator[int]) -> Iterator[int]:
    for item in items:
        yield 2 * item


async def of_map(pool: Pool, items: Any) -> list[int]:
    return await pool.map(double, items)


async def of_as_completed(pool: Pool, items: Any) -> list[int]:
    async def calls() -> AsyncIterator[Any]:
        async for item in items:
            yield double(item)

    given = calls() if hasattr(items, "__aiter__") else map(double, items)
    return sorted([result async for result in pool.as_completed(given)])


async def of_run(pool: Pool, items: Any) -> int:
    return await pool.run(async_total(items) if hasattr(items, "__aiter__") else total(items))


async def of_gather(pool: Pool, items: Any) -> int:
    call: Any = async_total(items) if hasattr(items, "__aiter__") else total(items)
    result, _ = await pool.gather(call, double(1))
    return int(result)


async def of_stream(pool: Pool, items: Any) -> list[int]:
    return [value async for value in pool.stream(doubled(items))]


def sync_map(pool: SyncPool, items: Any) -> list[int]:
    return list(pool.map(double, items))


def sync_as_completed(pool: SyncPool, items: Any) -> list[int]:
    given: Any = map(double, items) if hasattr(items, "__next__") or isinstance(items, list) else None
    if given is None:

        async def calls() -> AsyncIterator[Any]:
            async for item in items:
                yield double(item)

        given = calls()
    return sorted(pool.as_completed(given))


def sync_run(pool: SyncPool, items: Any) -> int:
    return pool.run(async_total(items) if hasattr(items, "__aiter__") else total(items))


def sync_submit(pool: SyncPool, items: Any) -> int:
    return pool.submit(total(items)).result(PATIENCE_S)


def sync_stream(pool: SyncPool, items: Any) -> list[int]:
    return list(pool.stream(doubled(items)))


STREAMING = (of_run, of_gather, of_stream, sync_run, sync_submit, sync_stream)


def expected_of(consumer: Callable[..., Any], error: type[BaseException] | None) -> type[BaseException] | None:
    """A call that is cancelled by its input is a failed one: whoever awaits it was not cancelled."""
    if error is asyncio.CancelledError:
        is_sync = consumer.__name__.startswith("sync")
        return TaskFailed if consumer in STREAMING else FutureCancelled if is_sync else error
    return error


def check(consumer: Callable[..., Any], case: tuple[str, str], outcome: Outcome) -> None:
    _, error = made(*case, COUNT)
    error = expected_of(consumer, error)
    result, raised = outcome
    assert raised is error, (consumer.__name__, case)
    if error is None:
        assert result in (sum(range(COUNT)), [2 * n for n in range(COUNT)]), (consumer.__name__, case)


@pytest.mark.anyio
@pytest.mark.parametrize("consumer", [of_map, of_as_completed, of_run, of_gather, of_stream])
async def test_caller_learns_how_an_input_has_ended(pool: Pool, consumer: Callable[..., Awaitable[Any]]) -> None:
    for case in CASES:
        items, _ = made(*case, COUNT)
        try:
            async with asyncio.timeout(PATIENCE_S):  # in this task: one of its own that exits would end the loop
                outcome: Outcome = await consumer(pool, items), None
        except BaseException as error:  # noqa: BLE001
            outcome = None, type(error)
        check(consumer, case, outcome)


@pytest.fixture(scope="module")
def sync_pool() -> Iterator[SyncPool]:
    with Pool(provider=Local(), console="silent", run=False) as pool:
        yield pool
        assert pool.run(double(2)) == 4


@pytest.mark.parametrize("consumer", [sync_map, sync_as_completed, sync_run, sync_submit, sync_stream])
def test_calling_thread_learns_how_an_input_has_ended(sync_pool: SyncPool, consumer: Callable[..., Any]) -> None:
    for case in CASES:
        items, _ = made(*case, COUNT)
        try:
            outcome: Outcome = consumer(sync_pool, items), None
        except BaseException as error:  # noqa: BLE001
            outcome = None, type(error)
        check(consumer, case, outcome)
        assert sync_pool.run(double(2)) == 4


@pytest.mark.anyio
async def test_results_of_the_items_before_an_error_come_first(pool: Pool) -> None:
    for kind in KINDS:
        if kind == "list":
            continue
        results: list[int] = []
        items, _ = made(kind, "error", COUNT)
        with pytest.raises(KeyError, match="torn"):
            async for result in pool.map(double, items):
                results.append(result)  # noqa: PERF401
        assert results == [2 * n for n in range(COUNT)], kind

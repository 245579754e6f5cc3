"""`Pool.as_completed`: a bounded number of calls on their way, each result as it is ready, and turns for others."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import pytest

from outrider import Call, ItemOutcome, Local, Pool, SerializationError, SpecError, compute
from outrider.engine.client.mapping import TURN
from outrider.errors import NotACall

pytestmark = pytest.mark.anyio


@compute
def tenfold(n: Any) -> int:
    if n == 3:
        raise ValueError("bad luck")
    return 10 * int(n)


async def test_each_call_gives_its_result_and_no_more_than_the_limit_are_on_their_way(pool: Pool) -> None:
    taken, most, results = 0, 0, []

    def calls() -> Iterator[Call[int]]:
        nonlocal taken, most
        for number in range(4, 204):
            taken += 1
            most = max(most, taken - len(results))
            yield tenfold(number)

    async for result in pool.as_completed(calls(), limit=10):
        results.append(result)  # noqa: PERF401 - what has come so far counts
    assert sorted(results) == [10 * number for number in range(4, 204)]
    assert 5 < most <= 10


async def test_without_a_limit_there_are_a_thousand(pool: Pool) -> None:
    taken = 0

    def calls() -> Iterator[Call[int]]:
        nonlocal taken
        for _ in range(5_000):
            taken += 1
            yield tenfold(1)

    async with aclosing(pool.as_completed(calls())) as results:
        assert await anext(results) == 10
        await asyncio.sleep(0.05)
        assert taken <= 1_000


async def test_the_first_result_is_there_before_the_slow_one(pool: Pool) -> None:
    @compute
    def ordered(name: str) -> str:
        if name == "slow":
            threading.Event().wait()
        return name

    async with aclosing(pool.as_completed([ordered("slow"), ordered("quick")])) as results:
        assert await anext(results) == "quick"
    assert await pool.broadcast(tenfold(1)) == [10] * 4  # what was left is ended, and its slot is free


async def test_an_error_names_its_call_and_ends_the_others(pool: Pool) -> None:
    @compute
    def waits() -> None:
        threading.Event().wait()

    with pytest.raises(ValueError, match="bad luck") as caught:
        async for _ in pool.as_completed([waits(), tenfold(1), tenfold(3)]):
            pass
    assert "call 2 of pool.as_completed" in caught.value.__notes__
    assert await pool.broadcast(tenfold(1)) == [10] * 4


async def test_with_errors_returned_every_call_has_its_outcome(pool: Pool) -> None:
    def calls() -> Iterator[Any]:
        yield from (tenfold(2), tenfold(3), tenfold(threading.Lock()), "no call", tenfold(5))

    outcomes: dict[int, ItemOutcome[int]] = {
        each.index: each async for each in pool.as_completed(calls(), errors="return")
    }
    assert {index: each.value for index, each in outcomes.items() if each.error is None} == {0: 20, 4: 50}
    kinds = {index: type(each.error) for index, each in outcomes.items() if each.error is not None}
    assert kinds == {1: ValueError, 2: SerializationError, 3: NotACall}


async def test_calls_may_come_from_an_async_generator_whose_error_is_raised(pool: Pool) -> None:
    async def calls() -> AsyncIterator[Call[int]]:
        for number in range(5, 10):
            await asyncio.sleep(0)
            yield tenfold(number)
        raise OSError("the source is gone")

    results: list[int] = []
    with pytest.raises(OSError, match="the source is gone"):
        async for result in pool.as_completed(calls(), limit=2):
            results.append(result)  # noqa: PERF401 - what has come so far counts
    assert set(results) <= {50, 60, 70, 80, 90}
    assert len(results) >= 3


async def test_submitting_gives_the_rest_of_the_event_loop_its_turn(pool: Pool) -> None:
    turn = 0

    async def turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    taken_in: Counter[int] = Counter()

    def calls() -> Iterator[Call[int]]:
        for number in range(10 * TURN):
            taken_in[turn] += 1
            yield tenfold(number + 4)

    counting = asyncio.ensure_future(turns())
    count = len([None async for _ in pool.as_completed(calls(), limit=100 * TURN)])
    counting.cancel()
    assert count == 10 * TURN
    assert max(taken_in.values()) <= 2 * TURN  # the counting task may miss a turn


async def test_another_pool_of_the_loop_is_served_beside_an_endless_one(pool: Pool) -> None:
    async def endless() -> None:
        async for _ in pool.as_completed(tenfold(1) for _ in itertools.count()):
            pass

    async with Pool(provider=Local(), nodes=1, console="silent") as other:
        endlessly = asyncio.ensure_future(endless())
        assert [await other.run(tenfold(number)) for number in range(4, 24)] == [10 * n for n in range(4, 24)]
        assert not endlessly.done()
        endlessly.cancel()
        await asyncio.wait([endlessly])
    assert await pool.run(tenfold(4)) == 40


@pytest.mark.parametrize("given", [tenfold(1), 7, None])
async def test_what_gives_no_calls_is_refused(pool: Pool, given: Any) -> None:
    with pytest.raises(NotACall, match=r"pool\.as_completed takes"):
        pool.as_completed(given)


async def test_options_that_cannot_be_are_refused(pool: Pool) -> None:
    with pytest.raises(SpecError, match="limit must be at least 1"):
        pool.as_completed([], limit=0)
    with pytest.raises(SpecError, match="errors takes"):
        pool.as_completed([], errors="ignore")  # type: ignore[call-overload]
    assert [each async for each in pool.as_completed([])] == []


def test_without_async_it_is_an_iterator() -> None:
    with Pool(provider=Local(), nodes=1, console="silent") as pool:
        assert sorted(pool.as_completed(tenfold(n) for n in (4, 5, 6))) == [40, 50, 60]
        first = pool.as_completed((tenfold(n) for n in itertools.count(4)), limit=5)
        assert next(first) % 10 == 0
        first.close()  # type: ignore[attr-defined]
        outcomes = list(pool.as_completed([tenfold(3)], errors="return"))
        assert isinstance(outcomes[0].error, ValueError)
        with pytest.raises(ValueError, match="bad luck"):
            list(pool.as_completed([tenfold(3)]))

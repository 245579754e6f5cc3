"""Virtual time: it jumps, it keeps its order, and what will never end is told from what waits."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from outrider.testing.simulator.clock import Spinning, Stuck, VirtualLoop


def test_a_year_takes_no_time():
    loop = VirtualLoop()

    async def sleep():
        await anyio.sleep(365 * 86_400)
        return anyio.current_time()

    assert loop.run(sleep()) == 365 * 86_400
    assert loop.steps == 1


def test_timers_of_one_time_ring_in_the_order_in_which_they_were_set():
    loop = VirtualLoop()
    rang = []

    async def main():
        for number in range(100):
            loop.call_at(5.0, rang.append, number)
        loop.call_at(5.0, rang.append, "cancelled").cancel()
        loop.call_at(4.0, rang.append, "first")
        await asyncio.sleep(6)

    loop.run(main())
    assert rang == ["first", *range(100)]


def test_time_stands_still_while_anything_can_run():
    loop = VirtualLoop()
    seen = []

    async def main():
        for _ in range(50):
            await asyncio.sleep(0)
            seen.append(loop.now)

    loop.run(main())
    assert set(seen) == {0.0}


def test_whoever_waits_for_nothing_is_told():
    async def main():
        await asyncio.Event().wait()

    with pytest.raises(Stuck):
        VirtualLoop().run(main())


def test_what_spins_at_one_instant_is_told():
    async def main():
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Spinning):
        VirtualLoop().run(main())


def test_rest_is_looked_at_once_per_instant_and_may_end_the_run():
    loop = VirtualLoop()
    rests = []

    def look():
        rests.append(loop.now)
        if loop.now >= 3.0:
            raise ValueError

    loop.at_rest = look

    async def main():
        while True:
            await anyio.sleep(1.0)
            await anyio.lowlevel.checkpoint()

    with pytest.raises(ValueError):  # noqa: PT011
        loop.run(main())
    assert rests == [0.0, 1.0, 2.0, 3.0]


def test_what_is_left_is_ended_in_order():
    ended = []

    async def stays(number):
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(3.0)
            ended.append(number)

    async def main():
        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(stays, number)
            await anyio.sleep(1.0)
            raise KeyError

    with pytest.raises(ExceptionGroup):
        VirtualLoop().run(main())
    assert ended == list(range(5))

"""A pool in a loop that `asyncio.run` made, and not anyio: its callbacks have no current task, and anyio no clue."""

from __future__ import annotations

import asyncio
import threading

import pytest

from outrider import Local, Pool, compute


@compute
def one():
    return 1


@compute(on_loss="restart")
def takes(seconds):
    import time

    time.sleep(seconds)


async def use_it():
    """Reports that make the pool set its alarm: a stack behind a long task, and a notice that asks for a machine."""
    async with Pool(provider=Local(), nodes=2, console="silent") as pool:
        await asyncio.gather(*[pool.run(one()) for _ in range(200)])
        jobs = [pool.submit(one()) for _ in range(50)]
        jobs.append(pool.submit(takes(0.5)))
        jobs += [pool.submit(one()) for _ in range(500)]
        for job in jobs:
            await job
        return await pool.run(one())


def test_the_pool_knows_its_loop_in_callbacks_too():
    pytest.importorskip("sniffio")
    came: list[object] = []

    def run():  # a thread's context is empty, unlike that of a test
        try:
            came.append(asyncio.run(use_it()))
        except BaseException as error:  # noqa: BLE001 (shown by the assertion)
            came.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert came == [1]

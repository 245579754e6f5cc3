"""Bad networks and busy machines that are no reason to give a node up."""

from __future__ import annotations

import asyncio
import time
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from outrider import Pool, events

from . import tasks
from .losses import STALL_S
from .site import provider, watched, written

if TYPE_CHECKING:
    from netlab import Host, Lab

LOSS = 0.05
DELAY_S, JITTER_S = 0.02, 0.01  # one way


class Weather(NamedTuple):
    lasted_s: float
    tasks: int
    stalls: int
    suspected: int


async def storm(lab: Lab, *, lasts_s: float, nodes: int = 3, seed: int = 1) -> Weather:
    """5 % loss each way all the time, and every few seconds a stall of 3 s of one host or of its link.

    Work goes on meanwhile; each task has run once, whatever connections were lost.

    Raises:
        AssertionError: a node was given up that lived, or a task has run twice.
    """
    dice = Random(seed)
    made = lab.create_many(nodes)
    ends_at = time.monotonic() + lasts_s
    done = stalls = 0
    async with Pool(provider=provider(lab, made), nodes=nodes, console="silent") as pool, watched(pool) as diary:
        for host in made:
            host.distance(delay_s=DELAY_S, jitter_s=JITTER_S, loss=LOSS)

        async def stall() -> None:
            nonlocal stalls
            while time.monotonic() < ends_at - 2 * STALL_S:
                await asyncio.sleep(dice.uniform(2.0, 8.0))
                await _stalled(dice.choice(made), frozen=dice.random() < 0.5)
                stalls += 1

        stalling = asyncio.create_task(stall())
        while time.monotonic() < ends_at:
            numbers = range(done, done + 20 * nodes)
            results = await asyncio.wait_for(pool.gather(*(tasks.mark(number, 0.05) for number in numbers)), 60)
            assert list(results) == list(numbers)
            done = numbers.stop
        await stalling
        suspected, lost = diary.all(events.NodeSuspect), diary.all(events.NodeLost)
    assert not lost, f"given up though they lived, in {done} tasks and {stalls} stalls: {lost}"
    assert sorted(map(int, written(made, "ran"))) == list(range(done)), "each ran once"
    return Weather(lasts_s, done, stalls, len(suspected))


async def _stalled(host: Host, *, frozen: bool) -> None:
    if frozen:
        await asyncio.to_thread(host.freeze)
    else:
        host.drop(incoming=True, outgoing=True)
    await asyncio.sleep(STALL_S)
    if frozen:
        await asyncio.to_thread(host.thaw)
    else:
        host.heal()

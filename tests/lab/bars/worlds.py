"""Broadcasts that lose a rank, in the middle of an all-reduce and before: how soon the next generation runs."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from outrider import Image, Nodes, Pool, events, plugins

from . import tasks
from .losses import CLOSED_S, SILENT_S, kill_executor
from .site import Diary, named, provider, states, until, watched

if TYPE_CHECKING:
    from netlab import Host, Lab

RUNNING_S = 5.0  # the median, from a loss that is seen to the first line of all ranks
RANKS = 4
LASTS_S = 3.0  # a generation that nothing happens to; losses come within
HERE = Image(python=sys.executable)  # this machine's torch, at the same path

KILLED = "its processes are killed"
RESET = "power off, with a reset"
SILENT = "power off, in silence"


def reset(host: Host) -> None:
    """Its kernel closes what it had open, and then it is gone."""
    host.stop_sshd(sessions=True)
    host.power_off(silent=True)


FAULTS: Mapping[str, Callable[[Host], object]] = {
    KILLED: kill_executor,
    RESET: reset,
    SILENT: lambda host: host.power_off(silent=True),
}
SEEN_S: Mapping[str, float] = {KILLED: CLOSED_S, RESET: CLOSED_S, SILENT: SILENT_S}
SEEN: Mapping[str, type[events.NodeSuspect | events.NodeLost]] = {
    KILLED: events.NodeLost,
    RESET: events.NodeSuspect,  # it could come back, and has some seconds
    SILENT: events.NodeLost,
}


class Restart(NamedTuple):
    fault: str
    rank: int  # that was lost
    after_s: float  # of the broadcast
    to_seen_s: float | None  # from the fault, see `SEEN`; None: it came before the broadcast or after it
    to_running_s: float | None  # from the loss to the last rank's first line
    took_s: float  # from the fault to the right end


async def broadcasts(lab: Lab, times: int, *, seed: int = 1, told: Callable[[Restart], None] = print) -> list[Restart]:
    """Four ranks with a warm spare all-reduce; any of them is lost at any moment; so many times in one pool.

    Every broadcast ends, in one consistent world of four, and every sum was right. A host that had no power gets it
    back, and is the next spare.
    """
    dice = Random(seed)
    made = lab.create_many(RANKS + 2)
    gloo = plugins.torch(backend="gloo")
    done: list[Restart] = []
    async with (
        Pool(
            provider=provider(lab, made),
            nodes=Nodes(RANKS, spare=1),
            image=HERE,
            plugins=[gloo],
            console="silent",
        ) as pool,
        watched(pool) as diary,
    ):
        for number in range(times):
            await until(lambda: _warm(pool), 120, what=f"four nodes and a spare: {states(pool)}")
            fault = (SILENT, KILLED, RESET, KILLED)[number % RANKS]
            rank = 0 if fault == SILENT else dice.randrange(RANKS)
            restart = await _one(pool, diary, made, Blow(fault, rank, dice.uniform(0.0, LASTS_S)))
            done.append(restart)
            told(restart)
    return done


class Blow(NamedTuple):
    """What is going to happen."""

    fault: str
    rank: int  # that is lost
    after_s: float  # of the broadcast


async def _one(pool: Pool, diary: Diary, made: list[Host], blow: Blow) -> Restart:
    fault, rank, after_s = blow
    names = {node.rank: node.hostname for node in pool.snapshot().nodes if node.state == "ready"}
    victim = named(made, names[rank])
    node = next(node.node for node in pool.snapshot().nodes if node.hostname == victim.name and node.state == "ready")
    since = len(diary.events)
    work = asyncio.create_task(pool.broadcast(tasks.reduces(LASTS_S)))
    await asyncio.sleep(after_s)
    began = time.time()
    await asyncio.to_thread(FAULTS[fault], victim)
    results = await asyncio.wait_for(work, 120)
    took_s = time.time() - began
    assert [result.rank for result in results] == list(range(RANKS))
    assert {result.world_size for result in results} == {RANKS}
    assert len({result.head for result in results}) == 1
    assert len({result.generation for result in results}) == 1
    assert len({result.host for result in results}) == RANKS
    assert [result.sums for result in results] == [()] * RANKS
    assert len({result.steps for result in results}) == 1
    lost = await diary.first(events.NodeLost, 60, where=lambda event: event.node == node, since=since)
    seen = await diary.first(SEEN[fault], 0, where=lambda event: event.node == node, since=since)
    again = results[0].generation > 1
    if again:
        assert victim.name not in {result.host for result in results}
        assert victim.address != results[0].head
    await _return(victim, fault)
    return Restart(
        fault,
        rank,
        after_s,
        seen.at - began if again else None,
        max(result.first_line_at for result in results) - lost.at if again else None,
        took_s,
    )


async def _return(victim: Host, fault: str) -> None:
    if fault != KILLED:
        await asyncio.to_thread(victim.power_on)
        await asyncio.to_thread(victim.wait_up)


def _warm(pool: Pool) -> bool:
    return [state for state in states(pool) if state in {"ready", "standby"}] == ["ready"] * RANKS + ["standby"]

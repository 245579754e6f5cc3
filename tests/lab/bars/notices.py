"""How soon a notice is acted on, and that one which is withdrawn leaves no trace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from outrider import Pool, events

from . import tasks
from .site import Diary, named, provider, states, watched

if TYPE_CHECKING:
    from netlab import Host, Lab

ACTED_S = 5.0


class Acted(NamedTuple):
    """Seconds from the file on the host until ..."""

    told: float  # the task has read it
    noticed: float  # the pool knows, and gives the node nothing new
    requested: float  # a replacement has been asked for
    replaced: float  # it is ready


async def notice(lab: Lab) -> Acted:
    """Of two nodes one is noticed, and a third host stands free: what comes later runs elsewhere."""
    async with _noticed(lab) as (pool, diary, victim, file):
        job = pool.submit(tasks.told(), on=1)
        await diary.started(2, since=0)
        since, began = len(diary.events), time.time()
        file.write_text("120")
        told_at = await asyncio.wait_for(job, 60)
        noticed = await diary.first(events.NodeNoticed, 60, since=since)
        requested = await diary.first(events.NodesRequested, 60, since=since)
        ready = await diary.first(events.NodeReady, 60, since=since)
        assert (noticed.source, requested.count) == ("file", 1)
        assert victim.name not in await pool.gather(*(tasks.where() for _ in range(8)))
        assert len(diary.all(events.NodeLaunching)) == 1
        return Acted(*(at - began for at in (told_at, noticed.at, requested.at, ready.at)))


async def withdrawn(lab: Lab) -> float:
    """Seconds from the end of the file until the node works again; nothing is replaced twice, nothing runs twice.

    Its task goes on meanwhile, and the replacement that had come is the one too many.
    """
    async with _noticed(lab) as (pool, diary, victim, file):
        job = pool.submit(tasks.kept(), on=1)
        await diary.started(2, since=0)
        file.write_text("120")
        noticed = await diary.first(events.NodeNoticed, 60)
        replacement = await diary.first(events.NodeReady, 60)
        began = time.time()
        file.unlink()
        back = await diary.first(events.NodeNoticeWithdrawn, 60)
        assert await asyncio.wait_for(job, 60) == 1, "its task went on"
        gone = await diary.first(events.NodeDismissed, 60)
        assert (back.node, gone.node) == (noticed.node, replacement.node)
        assert set(await pool.broadcast(tasks.where())) >= {victim.name}
        assert len(diary.all(events.NodeLaunching)) == 1, "nothing was replaced twice"
        assert states(pool) == ["ready", "ready"]
        return back.at - began


@asynccontextmanager
async def _noticed(lab: Lab) -> AsyncIterator[tuple[Pool, Diary, Host, Path]]:
    """A pool of two nodes on three hosts, its second node's host, and the file that is a notice there."""
    made = lab.create_many(3)
    async with Pool(provider=provider(lab, made), nodes=2, console="silent") as pool, watched(pool) as diary:
        victim = named(made, (await pool.broadcast(tasks.where()))[1])
        folder = await pool.run(tasks.folder(), on=1)
        yield pool, diary, victim, victim.path(folder) / "preempt"

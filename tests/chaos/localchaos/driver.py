"""The client of one life: ``python -m localchaos.driver FOLDER``. It opens the pool, works, and tells what it finds."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from outrider import Local, Nodes, OutriderError, Pool, Worker, events

from . import kinds, threads
from .journal import Journal
from .lane import Client, Own, calls_of
from .plan import RAISE, from_json
from .tasks import Early, place, square
from .told import told

SETTLED_S = 60.0  # for threads and descriptors to go when the pool has ended
WORK_MIB = 16  # of each node's tasks, where disks are filled
QUIET = (events.TaskSubmitted, events.TaskStarted, events.TaskFinished, events.TaskOutput, events.UnfinishedLine)


def main(folder: Path) -> None:
    import json

    life = from_json(json.loads((folder / "life.json").read_text()))
    client = Client(life, folder, Journal(folder / "journal"))
    logging.getLogger("asyncio").addFilter(lambda record: not record.getMessage().startswith("Executing "))  # slowly
    stacks = (folder / "stacks").open("w")
    faulthandler.register(signal.SIGUSR2, file=stacks, all_threads=True)
    if life.limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (life.limit, life.limit))
    before = _descriptors()
    try:
        if life.threads:
            threads.live(client, pool_of(client))
        else:
            asyncio.run(_live(client))
    except Own:
        pass
    except BaseException as error:
        client.journal.write("raised", **told(error))
        if not isinstance(error, OutriderError | OSError):
            raise
    finally:
        _tell_what_is_left(client, before)
    client.journal.write("end")


def pool_of(client: Client) -> Pool:
    life = client.life
    full = "full-work" in life.faults and os.geteuid() == 0
    return Pool(
        provider=Local(shared_memory=life.shared_memory, as_remote=life.as_remote, work_mib=WORK_MIB if full else None),
        nodes=Nodes(life.nodes, spare=life.spare),
        worker=Worker(life.slots),
        plugins=[Early()] if life.template else [],
        checkpoints=client.folder / "checkpoints",
        replace_timeout=30.0,
        boot_timeout=60.0,
        lease=life.lease_s,
        console="silent",
    )


async def _live(client: Client) -> None:
    client.journal.write("opening")
    async with pool_of(client) as pool:
        watching = asyncio.create_task(_watch(client, pool))
        client.begin()
        stalls = [
            asyncio.get_running_loop().call_later(strike.at_s, _stall, client, strike.seconds)
            for strike in client.life.strikes
            if strike.fault == "stall"
        ]
        child = forked(client)
        lanes = [asyncio.create_task(_lane(client, pool, number)) for number in range(client.life.lanes)]
        work = asyncio.create_task(_worked(client, pool, lanes))
        try:
            done, _ = await asyncio.wait([work], timeout=client.life.end_s if client.life.ending == RAISE else None)
            if not done:
                raise Own
            work.result()
        finally:
            client.journal.write("closing")  # before the first of them is cancelled: the referee goes by that
            for task in (work, *lanes, watching):
                task.cancel()
            await asyncio.gather(work, *lanes, watching, return_exceptions=True)
            for stall in stalls:
                stall.cancel()
            if child is not None:
                child.kill()
                child.join()
    client.journal.write("closed", tasks=[task.get_name() for task in asyncio.all_tasks()][1:])


def forked(client: Client) -> multiprocessing.process.BaseProcess | None:
    """A process such as data loaders have: it holds what we held when it was forked."""
    if client.life.ending != "end-fork":
        return None
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600.0,), daemon=True)
    child.start()
    client.journal.write("forked", pid=child.pid)
    return child


async def _worked(client: Client, pool: Pool, lanes: list[asyncio.Task[None]]) -> None:
    await asyncio.gather(*lanes)
    await _probed(client, pool)


async def _lane(client: Client, pool: Pool, number: int) -> None:
    for call in calls_of(client, number, kinds.KINDS):
        ground = kinds.Ground(pool, call.dice, client.folder / "marks", client.life, call.number)
        await _called(client, call.kind, call.number, kinds.KINDS[call.kind](ground))
        await asyncio.sleep(call.dice.choice((0.0, 0.05, 0.3)))


async def _called(client: Client, kind: str, number: int, running: Any) -> None:
    client.journal.write("call", number=number, kind=kind)
    task = asyncio.ensure_future(running)
    try:
        done, _ = await asyncio.wait([task], timeout=client.life.hang_s)
        if not done:
            client.journal.write("hang", number=number, kind=kind, stacks=_stacks())
            threading.Event().wait()  # the supervisor looks at what there is, and ends us
    finally:
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            client.journal.write("cancelled", number=number, kind=kind)
        except BaseException as error:  # noqa: BLE001 - the referee decides what it means
            what = "wrong" if isinstance(error, kinds.WrongError) else "error"
            client.journal.write(what, number=number, kind=kind, **told(error))
        else:
            client.journal.write("right", number=number, kind=kind)


async def _probed(client: Client, pool: Pool) -> None:
    """When everything is as it was: does the pool work?"""
    over_s = max((strike.at_s + strike.seconds for strike in client.life.strikes), default=0.0) + 0.5
    await asyncio.sleep(max(0.0, client.began_at + over_s - time.monotonic()))

    async def runs() -> None:
        kinds.same(await pool.run(square.with_(retries=3)(7)), 49)

    async def broadcasts() -> None:
        kinds.same(len(await pool.broadcast(place.with_(retries=10)())), client.life.nodes)

    await _called(client, "probe_run", -1, runs())
    await _called(client, "probe_broadcast", -2, broadcasts())
    state = pool.snapshot()
    client.journal.write("state", state=state.state, nodes=[str(node.state) for node in state.nodes])


async def _watch(client: Client, pool: Pool) -> None:
    async for event in pool.events():
        if not isinstance(event, QUIET):
            client.journal.write("event", event=str(event)[:500])


def _stall(client: Client, seconds: float) -> None:
    client.journal.write("stall", seconds=seconds)
    time.sleep(seconds)


def _stacks() -> list[str]:
    """Where each task of the loop waits, the innermost last."""
    found = []
    for task in asyncio.all_tasks():
        places: list[str] = []
        waiting: Any = task.get_coro()
        while waiting is not None:
            frame: Any = getattr(waiting, "cr_frame", None) or getattr(waiting, "ag_frame", None)
            if frame is not None:
                places.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}")
            waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "ag_await", None)
        found.append(f"{task.get_name()}: {' < '.join(reversed(places))}")
    return found


def _descriptors() -> dict[int, str]:
    found = {}
    for link in list(Path("/proc/self/fd").iterdir()):
        try:
            found[int(link.name)] = str(link.readlink())
        except OSError:  # the listing's own
            pass
    return found


def _tell_what_is_left(client: Client, before: dict[int, str]) -> None:
    """Of the pool in this process: some of it may take a moment to go."""
    until = time.monotonic() + SETTLED_S
    while True:
        gc.collect()  # errors refer to frames, and those to values
        alive = [thread.name for thread in threading.enumerate() if not _may_stay(thread)]
        more = [where for fd, where in _descriptors().items() if before.get(fd) != where]
        if not (alive or more) or time.monotonic() > until:
            break
        time.sleep(0.05)
    me = os.getpid()
    below = Path(f"/proc/{me}/task/{me}/children").read_text().split()
    client.journal.write("left", threads=alive, descriptors=more, children=below)


def _may_stay(thread: threading.Thread) -> bool:
    """Those for calls that block are the program's, for all of its pools: they wait for work, and for nobody's end."""
    return thread is threading.main_thread() or (thread.daemon and thread.name.startswith("outrider-"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

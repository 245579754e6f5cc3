"""How soon a loss is seen: of a task's process, of a machine with its connections, and of one that falls silent."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from netlab import Host, Lab

from outrider import Pool, TaskKilled, events

from . import tasks
from .site import daemon, named, provider, running, watched

PROCESS_S = CLOSED_S = 1.0
SILENT_S = 10.0
STALL_S = 3.0  # is no death

Fault = Callable[[Host], object]


def kill_executor(host: Host) -> None:
    """The daemon and all that it runs, at once: as when a machine is reset, its channels end."""
    for pid in running(host):
        with suppress(ProcessLookupError):  # it ends with the one before
            os.kill(pid, signal.SIGKILL)


def freeze_executor(host: Host) -> None:
    """The daemon alone stands still; sshd and the kernel go on."""
    os.kill(daemon(host), signal.SIGSTOP)


SILENT: Mapping[str, Fault] = {
    "power off, LAN": Host.power_off,
    "power off, cloud": lambda host: host.power_off(silent=True),
    "partition": Host.partition,
    "black hole": Host.blackhole,
    "nothing arrives": lambda host: host.drop(incoming=True),
    "nothing leaves": lambda host: host.drop(outgoing=True),
    "frozen host": Host.freeze,
    "frozen daemon": freeze_executor,
}
KILLED = "daemon killed"
CLOSED: Mapping[str, Fault] = {
    KILLED: kill_executor,
    "sshd and its sessions gone": lambda host: host.stop_sshd(sessions=True),
}


async def process_dies(lab: Lab, times: int = 1) -> dict[str, list[float]]:
    """From the end of a task's process to its typed error at the caller; by how it ended."""
    made = lab.create_many(1)
    took: dict[str, list[float]] = {"exit": [], "kill": [], "segv": []}
    async with Pool(provider=provider(lab, made), nodes=1, console="silent") as pool:
        await pool.run(tasks.where())
        for _ in range(times):
            for how, figures in took.items():
                with suppress(TaskKilled):
                    await pool.run(tasks.dies(how))
                    raise AssertionError(f"{how}: the task had no error")
                figures.append(time.time() - float(made[0].path("/root/died").read_text()))
    return took


class Loss(NamedTuple):
    """Seconds from the fault until ..."""

    suspected_s: float  # the node gets nothing new
    lost_s: float  # its work is run again elsewhere


async def machines_go(lab: Lab, faults: Mapping[str, Fault]) -> dict[str, Loss]:
    """One node each, at once, in a pool of which two more stay well.

    What ran there runs again on one of the well, and nobody else is given up.
    """
    made = lab.create_many(len(faults) + 2)
    async with (
        Pool(provider=provider(lab, made), nodes=len(made), console="silent") as pool,
        watched(pool) as diary,
    ):
        jobs = [pool.submit(tasks.waits()) for _ in made]
        await diary.started(len(made), since=0)
        nodes = {node.hostname: node.node for node in pool.snapshot().nodes}
        began: dict[int, tuple[str, float]] = {}
        for (name, fault), victim in zip(faults.items(), made, strict=False):
            began[nodes[victim.name]] = name, time.time()
            await asyncio.to_thread(fault, victim)
        took: dict[str, Loss] = {}
        for node, (name, at) in began.items():
            suspect = await diary.first(events.NodeSuspect, 60, where=_of(node))
            lost = await diary.first(events.NodeLost, 60, where=_of(node))
            took[name] = Loss(suspect.at - at, lost.at - at)
        for well in made[len(faults) :]:
            well.path("/root/enough").touch()
        assert sorted([await asyncio.wait_for(job, 120) for job in jobs]) == [1, 1] + [2] * len(faults)
        assert {event.node for event in diary.all(events.NodeLost)} == set(began)
    return took


async def only_node_goes(lab: Lab, fault: Fault, *, hosts: int) -> tuple[float, int]:
    """A pool of one node, which falls silent: when it is lost, and on which attempt its task ended, on another host."""
    made = lab.create_many(hosts)
    async with Pool(provider=provider(lab, made), nodes=1, console="silent") as pool, watched(pool) as diary:
        victim = named(made, await pool.run(tasks.where()))
        job = pool.submit(tasks.waits())
        await diary.started(2, since=0)
        began = time.time()
        await asyncio.to_thread(fault, victim)
        lost = await diary.first(events.NodeLost, 60)
        return lost.at - began, await asyncio.wait_for(job, 120)


def _of(node: int) -> Callable[[events.NodeSuspect | events.NodeLost], bool]:
    return lambda event: event.node == node

"""What each fault does to a machine, as a context: it strikes on entry, and leaving puts back what can be.

Only the pool's own processes, directories and connections are touched, each proved to be its own when it is.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from . import disk, processes
from .faults import Fault, Freeze, FullDisk, HoldGil, Kill, KillDaemon, KillRank, Partition, Preempt, SlowLink
from .processes import Process
from .report import Strike
from .wires import Wire

NOTICE = "preempt"  # the file in a node's directory that says so
NOTICED_S = 10.0  # a node looks for it once a second


class Place(NamedTuple):
    """A machine of the pool."""

    node: int
    rank: int
    machine: str
    group: Process  # its fork server
    daemon: Process
    directory: Path

    @property
    def roots(self) -> tuple[Process, Process]:
        return self.group, self.daemon


class Struck(Protocol):
    """A task's process on it."""

    @property
    def process(self) -> Process: ...

    def say(self, **message: object) -> None: ...


class Blow(NamedTuple):
    """What a fault needs to know of where it strikes."""

    place: Place
    wire: Wire
    tasks: Sequence[Struck]
    strike: Strike
    noticed: Callable[[], Awaitable[object]]  # returns when the pool has heard of the notice


def hit(fault: Fault, blow: Blow) -> AbstractAsyncContextManager[None]:  # noqa: PLR0911 (a table)
    match fault:
        case Kill():
            return _killed(blow.place.roots)
        case KillDaemon():
            return _killed([blow.place.daemon])
        case KillRank():
            return _killed(task.process for task in blow.tasks)
        case Preempt():
            return _preempted(fault, blow)
        case Freeze():
            return _frozen(blow.place)
        case Partition():
            return _parted(blow.wire)
        case SlowLink():
            return _slowed(fault, blow.wire)
        case FullDisk():
            return _filled(blow.place)
        case HoldGil():
            return _held(fault, blow.tasks)
    raise AssertionError(f"{fault!r} is a fault that nobody carries out")


@asynccontextmanager
async def _killed(victims: Iterable[Process]) -> AsyncIterator[None]:
    for process in victims:
        processes.send(process, signal.SIGKILL)
    yield


@asynccontextmanager
async def _preempted(fault: Preempt, blow: Blow) -> AsyncIterator[None]:
    """Left early, the notice is withdrawn."""
    file = blow.place.directory / NOTICE
    with suppress(FileNotFoundError):  # the machine is gone
        file.write_text(f"{fault.notice}")
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(NOTICED_S):
                await blow.noticed()
                blow.strike.noticed_at = time.time()
        yield
        await asyncio.sleep(fault.notice)
        async with _killed(blow.place.roots):
            pass
    except BaseException:
        file.unlink(missing_ok=True)
        raise


@asynccontextmanager
async def _frozen(place: Place) -> AsyncIterator[None]:
    stopped = processes.stop(place.roots)
    try:
        yield
    finally:
        processes.resume(stopped)


@asynccontextmanager
async def _parted(wire: Wire) -> AsyncIterator[None]:
    wire.hold()
    try:
        yield
    finally:
        wire.release()


@asynccontextmanager
async def _slowed(fault: SlowLink, wire: Wire) -> AsyncIterator[None]:
    wire.slow(fault.latency, fault.kib_per_s)
    try:
        yield
    finally:
        wire.slow(None)


@asynccontextmanager
async def _filled(place: Place) -> AsyncIterator[None]:
    with disk.full(place.directory / "work", place.group):
        yield


@asynccontextmanager
async def _held(fault: HoldGil, tasks: Sequence[Struck]) -> AsyncIterator[None]:
    for task in tasks:
        task.say(gil=fault.seconds)
    yield  # ended early, our end of the task's line closes, which it waits for

"""One context manager for each type of fault: it injects the fault on entry, and undoes the fault on exit if possible.

An injection touches only processes, folders and connections of the pool itself, and verifies this before each action.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from . import disk, processes
from .faults import Fault, Freeze, FullDisk, HoldGil, Kill, KillDaemon, KillRank, Partition, Preempt, SlowLink
from .processes import Process
from .report import Strike
from .wires import Wire

NOTICE = "preempt"  # the file in a node's directory that holds a preemption notice
NOTICED_S = 10.0  # seconds to wait until the node reports the notice; the node looks for the file once a second


class TargetNode(NamedTuple):
    node: int
    rank: int
    machine: str
    group: Process  # the fork server, the parent of the node's workers
    daemon: Process
    directory: Path

    @property
    def roots(self) -> tuple[Process, Process]:
        return self.group, self.daemon


class TargetTask:
    """A task's process, and the connection to its agent."""

    def __init__(self, process: Process, writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
        self.process, self._writer = process, writer
        self.job: int = message["job"]
        self.rank: int = message["rank"]
        self.world: int = message["world"]
        self.generation: int = message["generation"]

    async def hang_up(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    def send(self, **message: object) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")


class Injection(NamedTuple):
    """The arguments of one injection: the target and everything else that the injection needs."""

    target: TargetNode
    wire: Wire
    tasks: Sequence[TargetTask]
    strike: Strike
    noticed: Callable[[], Awaitable[object]]  # returns when the pool has received the preemption notice


def inject(fault: Fault, injection: Injection) -> AbstractAsyncContextManager[None]:  # noqa: PLR0911 (a table)
    match fault:
        case Kill():
            return _killed(injection.target.roots)
        case KillDaemon():
            return _killed([injection.target.daemon])
        case KillRank():
            return _killed(task.process for task in injection.tasks)
        case Preempt():
            return _preempted(fault, injection)
        case Freeze():
            return _frozen(injection.target)
        case Partition():
            return _parted(injection.wire)
        case SlowLink():
            return _slowed(fault, injection.wire)
        case FullDisk():
            return _filled(injection.target)
        case HoldGil():
            return _held(fault, injection.tasks)
    raise AssertionError(f"{fault!r} is a fault that nobody carries out")


@asynccontextmanager
async def _killed(victims: Iterable[Process]) -> AsyncIterator[None]:
    for process in victims:
        processes.send(process, signal.SIGKILL)
    yield


@asynccontextmanager
async def _preempted(fault: Preempt, injection: Injection) -> AsyncIterator[None]:
    """Send the node a preemption notice, then kill the node. If the block ends before the kill, withdraw the notice."""
    file = injection.target.directory / NOTICE
    with suppress(FileNotFoundError):  # the node and its folder are gone
        file.write_text(f"{fault.notice}")
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(NOTICED_S):
                await injection.noticed()
                injection.strike.noticed_at = time.time()
        yield
        await asyncio.sleep(fault.notice)
        async with _killed(injection.target.roots):
            pass
    except BaseException:
        file.unlink(missing_ok=True)
        raise


@asynccontextmanager
async def _frozen(target: TargetNode) -> AsyncIterator[None]:
    stopped = processes.stop(target.roots)
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
async def _filled(target: TargetNode) -> AsyncIterator[None]:
    with disk.full(target.directory / "work", target.group):
        yield


@asynccontextmanager
async def _held(fault: HoldGil, tasks: Sequence[TargetTask]) -> AsyncIterator[None]:
    for task in tasks:
        task.send(gil=fault.seconds)
    # if injection ends before the time is over, the client closes the task's socket, and the task releases the GIL
    yield

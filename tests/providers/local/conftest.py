"""Local machines with the real executor on them, as the engine embeds it, and the process table to look at."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from outrider.engine.client.opening import ENTRY_POINTS
from outrider.engine.transport.ssh import new_key
from outrider.providers.base import EntryPoints, LaunchRequest, Machine
from outrider.providers.local import processes
from outrider.providers.local.fleet import LocalFleet
from outrider.providers.local.provider import Local


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def entry_points() -> EntryPoints:
    return ENTRY_POINTS


@pytest.fixture
def request_() -> LaunchRequest:
    return LaunchRequest(new_key().export_public_key().decode().strip(), 2)


@pytest.fixture
def provider(tmp_path: Path) -> Local:
    return Local(state=tmp_path)


@pytest.fixture
def opened(provider: Local) -> Callable[..., AbstractAsyncContextManager[LocalFleet]]:
    """Open a pool's fleet: ``async with opened() as fleet``."""
    return lambda entry_points=ENTRY_POINTS: provider.open("p", entry_points)


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    group: int
    session: int


class Table:
    """The living processes below this one. By pid: a test never means a process by its name."""

    def __init__(self) -> None:
        self.before = frozenset(self.below())

    def below(self, root: int | None = None) -> dict[int, Process]:
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        everything = [process for process in map(_process, pids) if process is not None]
        found: dict[int, Process] = {}
        todo = [root or os.getpid()]
        while todo:
            parent = todo.pop()
            for process in everything:
                if process.parent == parent:
                    found[process.pid] = process
                    todo.append(process.pid)
        return found

    def supervisors(self) -> list[int]:
        """What the watchdogs of this test have forked."""
        watchdogs = self.watchdogs()
        return [p.pid for p in self.below().values() if p.parent in watchdogs and p.pid == p.group]

    def watchdogs(self) -> list[int]:
        """Sessions of their own right below us, and of this test."""
        me = os.getpid()
        below = self.below().values()
        return [p.pid for p in below if p.parent == me and p.session == p.pid and p.pid not in self.before]

    def groups(self) -> set[int]:
        """The machines: process groups led by a supervisor's child."""
        supervisors = self.supervisors()
        return {p.pid for p in self.below().values() if p.parent in supervisors and p.group == p.pid}

    def of(self, machine: Machine) -> set[int]:
        """Every process of a machine: its group and whatever is below its fork server, in sessions of their own."""
        group = int(machine.facts["group"])
        return {p.pid for p in self.below().values() if p.group == group} | set(self.below(group))

    async def until(self, condition: Callable[[], object], within_s: float = 60.0) -> None:
        """Poll with a deadline."""
        with anyio.fail_after(within_s):
            while not condition():
                await anyio.sleep(0.005)

    def alive(self, pids: set[int]) -> set[int]:
        return {pid for pid in pids if _process(pid) is not None}


def _process(pid: int) -> Process | None:
    try:
        state, parent, group, session, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state == "Z" else Process(pid, int(parent), int(group), int(session))


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    """At the end nothing that was started is left, neither process nor file."""
    processes.adopt_orphans()  # what outlives its pool is below us then, and seen
    table = Table()
    yield table
    deadline = time.monotonic() + 60
    while (left := table.below().keys() - table.before) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert not left
    assert list(tmp_path.rglob("local/*")) == []

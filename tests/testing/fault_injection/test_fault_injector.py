"""When faults come, and what is left of chaos that is over: on a pool that is acted, of processes that sleep."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from outrider import Local, SpecError
from outrider.actors import events as ev
from outrider.actors.interfaces import NodeId
from outrider.engine.api.settings import Nodes
from outrider.engine.client.observer import Observer
from outrider.engine.client.open_pool import OpenPool
from outrider.engine.record.sinks import PoolSinks
from outrider.providers.base import Machine, MachineId
from outrider.testing.fault_injection import disk, processes
from outrider.testing.fault_injection.chaos import chaos
from outrider.testing.fault_injection.fault_injector import FaultInjector
from outrider.testing.fault_injection.faults import Fault, Freeze, FullDisk, HoldGil, Kill, KillRank, Partition
from outrider.testing.fault_injection.options import Chaos
from outrider.testing.fault_injection.plan import LEAST
from outrider.testing.fault_injection.processes import Process
from outrider.testing.fault_injection.report import InitialNode
from outrider.testing.fault_injection.wires import Wires

pytestmark = pytest.mark.anyio

NODES = 2
FIRST: dict[str, Any] = {"rank": 0, "world": 1, "job": 1, "generation": 1, "attempt": 1}


class ActedCore:
    """What chaos needs of a `OpenPool`: two ready nodes, each of two processes that sleep."""

    def __init__(self, sleepers: list[int], directory: Path) -> None:
        self.settings = SimpleNamespace(provider=Local(work_mib=16), nodes=Nodes.of(NODES))
        self.observer = Observer(PoolSinks("silent"), slots=1)
        self.interpose: Wires | None = None
        self.plugins: tuple[Any, ...] = ()
        self.connector = SimpleNamespace(cut=self._cut)
        self.machines: list[Machine] = []
        self.cuts: list[int] = []
        self.closing: list[Any] = []
        for node in range(NODES):
            group, pid = sleepers[2 * node : 2 * node + 2]
            facts = {"group": str(group), "pid": str(pid), "directory": str(directory)}
            self.machines.append(Machine(MachineId(f"m{node}"), None, "", facts=facts))
            self.observer(ev.NodeLaunching(node, self.machines[node].id, facts=facts))
            self.ready(node)

    def ready(self, node: int) -> None:
        self.observer(ev.NodeReady(node, node, NODES, NODES))

    def set_outer_plugins(self, plugins: tuple[Any, ...]) -> None:
        self.plugins = tuple(plugins)

    def _cut(self, node: NodeId, cause: str) -> None:
        """It comes back over the wire."""
        self.cuts.append(node)
        self.observer(ev.NodeSuspect(node))
        self.closing.append(asyncio.ensure_future(self._rejoin(node)))

    async def _rejoin(self, node: int) -> None:
        assert self.interpose is not None
        near, far = socket.socketpair()
        near.setblocking(False)
        self.closing += [await self.interpose(self.machines[node], near), far]
        self.observer(ev.NodeResumed(node))

    @property
    def is_as_it_was(self) -> bool:
        return self.interpose is None and not self.plugins and not self.observer.tasks

    def close(self) -> None:
        for each in self.closing:
            if not isinstance(each, asyncio.Future):
                each.close()


@pytest.fixture(scope="module")
def sleepers() -> Iterator[list[int]]:
    started = [subprocess.Popen(["sleep", "600"]) for _ in range(2 * NODES)]
    yield [each.pid for each in started]
    for each in started:
        each.kill()
        each.wait()


@pytest.fixture
async def core(sleepers: list[int], tmp_path: Path) -> AsyncIterator[ActedCore]:
    acted = ActedCore(sleepers, tmp_path)
    yield acted
    acted.close()
    for _ in range(3):  # what was closed says so
        await asyncio.sleep(0)


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Nobody sleeps: these are the seconds that it would have been."""
    slept: list[float] = []
    turn = asyncio.sleep

    async def sleep(seconds: float) -> None:
        if seconds:
            slept.append(seconds)
        await turn(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return slept


def injector(core: ActedCore, plan: Chaos) -> FaultInjector:
    return FaultInjector(plan, cast("OpenPool", core))


@asynccontextmanager
async def started(core: ActedCore, plan: Chaos) -> AsyncIterator[FaultInjector]:
    given = injector(core, plan)
    await given.begin()
    given.start()
    try:
        yield given
    finally:
        await given.leave()


async def turns(enough: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not enough():
            await asyncio.sleep(0)


class Line:
    """A task's end of its line; the process is this one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def to(cls, given: FaultInjector) -> Line:
        return cls(*await asyncio.open_unix_connection(f"\0{given._address}"))

    def send(self, **message: Any) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def hear(self) -> Any:
        """None: they have hung up."""
        async with asyncio.timeout(60):
            line = await self._reader.readline()
        return json.loads(line) if line else None

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


@pytest.fixture
def _everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is a task on every node."""
    me = processes.owned(os.getpid())
    assert me is not None
    monkeypatch.setattr(processes, "children", lambda _: [me])


# --- when -----------------------------------------------------------------------------------------------------------


async def test_a_fault_without_a_victim_holds_up_no_other(core: ActedCore, sleeps: list[float]) -> None:
    async with started(core, Chaos(1, faults=[KillRank(), HoldGil(), Freeze(7)])) as given:
        await turns(lambda: len(given.report.strikes) >= 3)
    assert {strike.kind for strike in given.report.strikes} == {"freeze"}
    assert sleeps


async def test_skipped_fault_is_not_injected_later(core: ActedCore, sleeps: list[float]) -> None:
    core.observer(ev.NodeSuspect(0))
    async with started(core, Chaos(1, faults=[Freeze(7, rank=0)])) as given:
        await turns(lambda: len(sleeps) > 50)
        assert given.report.strikes == []
        core.ready(0)
        slept_before = len(sleeps)
        await turns(lambda: len(given.report.strikes) == 5)
    gaps = [seconds for seconds in sleeps[slept_before:] if seconds != 7]
    assert len(gaps) >= 4
    assert min(gaps) >= LEAST


@pytest.mark.usefixtures("sleeps")
async def test_no_more_happen_than_so_many_and_those_that_were_passed_over_do_not_count(core: ActedCore) -> None:
    core.observer(ev.NodeSuspect(0))
    core.observer(ev.NodeSuspect(1))
    async with started(core, Chaos(1, faults=[Freeze(7)], most=3)) as given:
        for _ in range(100):
            await asyncio.sleep(0)
        core.ready(1)
        await turns(lambda: not given._work)  # it has nothing more to do
    assert len(given.report.strikes) == 3


@pytest.mark.usefixtures("sleeps", "_everywhere")
async def test_a_held_gil_is_one_of_a_task(core: ActedCore) -> None:
    async with started(core, Chaos(1, faults=[HoldGil(7)], most=1)) as given:
        for _ in range(100):
            await asyncio.sleep(0)
        assert given.report.strikes == []
        line = await Line.to(given)
        line.send(**FIRST)
        assert await line.hear() == {"watch": []}
        assert await line.hear() == {"gil": 7}
        assert [strike.kind for strike in given.report.strikes] == ["gil"]
        await line.close()


@pytest.mark.usefixtures("sleeps")
async def test_connection_from_before_is_rewired_and_cut_off(core: ActedCore) -> None:
    async with started(core, Chaos(1, faults=[Partition(7, rank=1)], most=2)) as given:
        assert core.cuts == []
        await turns(lambda: len(given.report.strikes) == 2)
        assert given._wires.of("m1").used
        assert core.cuts == [1]


@pytest.mark.usefixtures("sleeps")
async def test_node_lost_while_being_wired_is_skipped(core: ActedCore, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(node: NodeId, cause: str) -> None:
        core.cuts.append(node)
        core.observer(ev.NodeLost(node, cause))

    monkeypatch.setattr(core.connector, "cut", lost)
    async with started(core, Chaos(1, faults=[Partition(7, rank=1), Freeze(7, rank=0)])) as given:
        await turns(lambda: len(given.report.strikes) >= 3)
    assert {strike.kind for strike in given.report.strikes} == {"freeze"}
    assert core.cuts == [1]


def test_a_disk_is_filled_by_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    me = Process(os.getpid(), 0)
    assert not disk.has_room(tmp_path, me)  # it is no disk of its own
    monkeypatch.setattr(disk, "_is_own", lambda _: True)
    monkeypatch.setattr(disk, "_fill", Path.touch)
    assert disk.has_room(tmp_path, me)
    with disk.full(tmp_path, me):
        assert not disk.has_room(tmp_path, me)
        with disk.full(tmp_path, me):
            pass
        assert not disk.has_room(tmp_path, me)  # the first one's time is not over
    assert disk.has_room(tmp_path, me)


# --- what is left ---------------------------------------------------------------------------------------------------


async def test_chaos_that_is_cancelled_as_it_begins_leaves_nothing(core: ActedCore) -> None:
    given = injector(core, Chaos(1))
    beginning = asyncio.ensure_future(given.begin())
    await asyncio.sleep(0)
    assert not core.is_as_it_was
    beginning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beginning
    assert core.is_as_it_was
    with pytest.raises(ConnectionRefusedError):
        await Line.to(given)


async def test_chaos_that_is_left_by_a_cancellation_leaves_nothing(core: ActedCore) -> None:
    pool: Any = SimpleNamespace(_opened=lambda: core)
    with anyio.CancelScope() as scope:
        async with chaos(pool, Chaos(600, faults=[Freeze()])):
            scope.cancel()
            await anyio.sleep(600)
    assert scope.cancelled_caught
    assert core.is_as_it_was


@pytest.mark.parametrize("again", [1, 5])
@pytest.mark.usefixtures("_everywhere")
async def test_a_task_that_stands_at_its_step_goes_on_when_the_end_is_cancelled(core: ActedCore, again: int) -> None:
    async with started(core, Chaos(None, faults=[HoldGil(600, at_step=3)])) as given:
        line = await Line.to(given)
        line.send(**FIRST)
        assert await line.hear() == {"watch": [3]}
        ending = asyncio.ensure_future(given.end())
        for _ in range(again):
            await asyncio.sleep(0)
            ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        assert await line.hear() is None
        await line.close()


@pytest.mark.usefixtures("_everywhere")
async def test_nothing_begins_after_the_end(core: ActedCore) -> None:
    async with started(core, Chaos(None, faults=[HoldGil(600, at_step=3)])) as given:
        early, late = await Line.to(given), await Line.to(given)
        early.send(**FIRST)
        assert await early.hear() == {"watch": [3]}
        ending = asyncio.ensure_future(given.end())
        early.send(step=3)
        late.send(**FIRST)
        await ending
        assert await late.hear() is None
        await asyncio.gather(early.close(), late.close())
    assert given.report.strikes == []


async def test_a_report_says_who_was_there_and_how_long_it_took(core: ActedCore) -> None:
    async with started(core, Chaos(600)) as given:
        assert given.report.initial_nodes == [InitialNode(0, "ready", 0), InitialNode(1, "ready", 1)]
        assert given.report.began_at is not None
        assert given.report.ended_at is None
    assert given.report.ended_at is not None


async def test_a_pool_has_one_chaos_at_a_time(core: ActedCore) -> None:
    async with started(core, Chaos(600)):
        interpose, plugins = core.interpose, core.plugins
        with pytest.raises(SpecError, match="has chaos already"):
            await injector(core, Chaos(1)).begin()
        assert (core.interpose, core.plugins) == (interpose, plugins)
    async with started(core, Chaos(600)):
        assert core.interpose is not None


@pytest.mark.parametrize("fault", [Kill(rank=NODES), Freeze(rank=NODES), FullDisk(rank=NODES)])
async def test_a_rank_that_the_pool_never_has_is_refused(core: ActedCore, fault: Fault) -> None:
    with pytest.raises(SpecError, match="last rank is 1"):
        await injector(core, Chaos(1, faults=[fault])).begin()
    assert core.is_as_it_was

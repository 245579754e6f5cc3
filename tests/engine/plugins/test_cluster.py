"""A framework's cluster: who is told to start what, when nodes come, go and fail. The framework is a small script."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from outrider import BootstrapError, Local, Plugin, Pool, compute, plugins
from outrider.actors.interfaces import NodeFacts, NodeId
from outrider.engine.api.plugin import Heard, Joined, Left, News, NodeSide, PluginContext, Setup
from outrider.engine.plugins import cluster as module
from outrider.engine.plugins.cluster import Cluster, Framework, Order, Program, address_variable, node_half, opened
from outrider.engine.plugins.dask import Certificate, DaskFramework

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Script:
    """A site whose nodes a test plays."""

    def __init__(self) -> None:
        self.told: list[tuple[int, Order]] = []
        self._news: asyncio.Queue[News] = asyncio.Queue()

    def tell(self, node: NodeId, message: Any) -> None:
        self.told.append((node, message))

    async def news(self) -> AsyncIterator[News]:
        while True:
            yield await self._news.get()

    def joined(self, *nodes: int, hostname: str = "") -> None:
        for node in nodes:
            facts = NodeFacts(hostname or f"h{node}", f"10.0.0.{node}", ())
            self._news.put_nowait(Joined(NodeId(node), facts))

    def left(self, node: int) -> None:
        self._news.put_nowait(Left(NodeId(node)))

    def up(self, node: int, order: Order, **facts: str) -> None:
        self._news.put_nowait(Heard(NodeId(node), ("up", order, facts)))

    def down(self, node: int, order: Order, *log: str) -> None:
        self._news.put_nowait(Heard(NodeId(node), ("down", order, 1, list(log))))

    async def settled(self) -> list[tuple[int, Order]]:
        """What was told since the last time, when all news has been taken."""
        while not self._news.empty():
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        told, self.told = self.told, []
        return told


RUNNING = """
import os, time
with open('pid.new', 'w') as file:
    file.write(str(os.getpid()))
os.rename('pid.new', 'pid')  # whole, and there before the word: that of a program before this one may be there still
print('I am there', flush=True)
time.sleep(600)
"""


@dataclass(frozen=True)
class Toys(Framework):
    """A head that writes its address, workers that say they are there."""

    broken: bool = False

    name: ClassVar[str] = "toy"
    head_works: ClassVar[bool] = False
    file_variable: ClassVar[str] = "TOY_FILE"
    ready_marker: ClassVar[str] = "there"

    def program(self, order: Order, side: NodeSide, directory: Path) -> Program:
        if self.broken:
            return Program([sys.executable, "-c", "print('no such module'); raise SystemExit(3)"], {})
        return Program([sys.executable, "-c", RUNNING], {"TOY_HEAD": order.head})

    def up(self, order: Order, directory: Path, markers: int) -> Mapping[str, str] | None:
        pid = directory / "pid"
        if not markers or not pid.exists():
            return None
        return {"address": f"toy:{pid.read_text()}"}


@dataclass(frozen=True)
class HeadWorks(Toys):
    head_works: ClassVar[bool] = True


@asynccontextmanager
async def playing(framework: Framework) -> AsyncIterator[tuple[Script, Cluster]]:
    context: Any = Script()
    cluster = Cluster(context, framework)
    async with asyncio.TaskGroup() as tasks:
        listening = tasks.create_task(cluster.listen())
        yield context, cluster
        listening.cancel()


HEAD = Order("head", "", 1)


def worker(head: str, sharing: int = 1) -> Order:
    return Order("worker", head, sharing)


async def test_the_first_node_is_head_and_all_work_when_it_is_up() -> None:
    async with playing(Toys()) as (context, cluster):
        context.joined(1, 2)
        assert await context.settled() == [(1, HEAD)]
        with pytest.raises(BootstrapError, match="no head just now"):
            cluster.check()
        context.up(1, HEAD, address="a:1")
        assert await context.settled() == [(1, worker("a:1")), (2, worker("a:1"))]
        context.up(1, worker("a:1"))
        assert (await context.settled(), cluster.workers) == ([], 1)
        context.joined(3)
        assert await context.settled() == [(3, worker("a:1"))]
        context.up(2, worker("a:1"))
        context.up(3, worker("a:1"))
        await cluster.wait(within_s=60)
        assert cluster.workers == 3


async def test_a_head_may_be_a_worker_itself() -> None:
    async with playing(HeadWorks()) as (context, cluster):
        context.joined(1, 2, hostname="one")
        assert await context.settled() == [(1, HEAD)]
        context.up(1, HEAD, address="a:1")
        assert await context.settled() == [(2, worker("a:1", 2))]
        assert cluster.workers == 1


async def test_with_the_heads_node_the_cluster_begins_anew() -> None:
    async with playing(Toys()) as (context, cluster):
        context.joined(1, 2, 3)
        context.up(1, HEAD, address="a:1")
        context.up(2, worker("a:1"))
        await context.settled()
        context.left(1)
        assert await context.settled() == [(2, HEAD)]
        assert (cluster.workers, dict(cluster.head)) == (0, {})
        context.up(3, worker("a:1"))  # of the old head: late news
        context.up(2, HEAD, address="b:1")
        assert await context.settled() == [(2, worker("b:1")), (3, worker("b:1"))]
        assert cluster.workers == 0
        for node in (2, 3):
            context.left(node)
        context.joined(4)
        assert await context.settled() == [(3, HEAD), (4, HEAD)]


async def test_ended_program_is_restarted_until_it_failed_too_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RESTART_S", 0)
    with pytest.raises(ExceptionGroup) as raised:
        async with playing(Toys()) as (context, _):
            context.joined(1, 2)
            context.up(1, HEAD, address="a:1")
            await context.settled()
            context.down(2, worker("a:1"), "out of memory")
            assert await context.settled() == [(2, worker("a:1"))]
            context.up(2, worker("a:1"))  # a success: it counts anew
            for _ in range(module.MAX_FAILURES - 1):
                context.down(2, worker("a:1"), "out of memory")
                assert await context.settled() == [(2, worker("a:1"))]
            context.down(2, worker("a:1"), "no space left", "on device")
            await asyncio.sleep(60)
    (error,) = raised.value.exceptions
    assert isinstance(error, ExceptionGroup)
    (told,) = error.exceptions
    assert isinstance(told, BootstrapError)
    assert "The toy worker on node 2 ended 5 times, with status 1:\n  no space left\n  on device" in str(told)
    assert told.log == ("no space left", "on device")


async def test_wait_timeout_names_what_is_missing() -> None:
    async with playing(Toys()) as (context, cluster):
        context.joined(1)
        with pytest.raises(BootstrapError, match=r"cluster's head is not up after 0\.01 s"):
            await cluster.wait(within_s=0.01)
        context.up(1, HEAD, address="a:1")
        with pytest.raises(BootstrapError, match="cluster's workers are not up"):
            await cluster.wait(within_s=0.01)


# --- on real nodes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Toy(Plugin):
    framework: Toys = Toys()

    name: ClassVar[str] = "toy"

    def env(self, info: Any) -> Mapping[str, str]:
        return address_variable(self.framework, "TOY_ADDRESS")

    def node(self, side: NodeSide) -> AbstractContextManager[Setup]:
        return node_half(side, self.framework, {"TOY": "yes"})

    @asynccontextmanager
    async def attach(self, context: PluginContext) -> AsyncIterator[Cluster]:
        cluster = Cluster(context, self.framework)
        async with opened(cluster):
            yield cluster


@compute
def addressed() -> tuple[str | None, str | None]:
    return os.environ.get("TOY"), os.environ.get("TOY_ADDRESS")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path))


@pytest.fixture
def gone() -> Callable[[int], bool]:
    return lambda pid: not Path(f"/proc/{pid}").exists()


async def test_programs_live_as_long_as_the_pool(state: None, gone: Callable[[int], bool]) -> None:
    async with Pool(provider=Local(), nodes=2, plugins=[Toy()], console="silent") as pool:
        cluster = pool.handle("toy")
        assert cluster.workers == 2
        assert await pool.broadcast(addressed()) == [("yes", cluster.head["address"])] * 2
        head = int(cluster.head["address"].removeprefix("toy:"))
        assert not gone(head)
        os.kill(head, signal.SIGKILL)
        async with asyncio.timeout(60):
            while cluster.head.get("address") in (None, f"toy:{head}"):
                await asyncio.sleep(0)
        await cluster.wait()
        again = int(cluster.head["address"].removeprefix("toy:"))
        assert again != head
        assert await pool.broadcast(addressed()) == [("yes", f"toy:{again}")] * 2
    assert gone(again)


async def test_programs_that_do_not_come_up_are_the_pools_error(state: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESTART_S", 0)
    with pytest.raises(BootstrapError, match=r"toy head on node \d ended 5 times, with status 3:\n  no such module"):
        async with Pool(provider=Local(), plugins=[Toy(Toys(broken=True))], console="silent"):
            pass


DASK_WORKERS = """
import time
for worker in range(16):
    for line in ('Start worker at', 'Listening to', 'Worker name', 'Waiting to connect to', 'Threads', 'Memory'):
        print('distributed.worker - INFO -', line)
    print('distributed.worker - INFO -         Registered to:   tls://10.0.0.1:8786')
    print('distributed.worker - INFO - -------------------------------------------------', flush=True)
time.sleep(600)
"""


@dataclass(frozen=True)
class ManyWorkers(DaskFramework):
    def program(self, order: Order, side: NodeSide, directory: Path) -> Program:
        return Program([sys.executable, "-c", DASK_WORKERS], {})


async def test_dask_is_up_when_all_workers_of_a_node_have_said_so(tmp_path: Path) -> None:
    told: queue.Queue[Any] = queue.Queue()
    side = NodeSide("pool", 1, "h1", "10.0.0.1", (), tmp_path, told.put)
    framework = ManyWorkers(plugins.dask(workers_per_node=16, tls=False))
    with node_half(side, framework, {}):
        side.heard(worker("a:1"))
        assert told.get(timeout=60) == ("up", worker("a:1"), {})


# --- secrets ----------------------------------------------------------------------------------------------------------


def test_every_cluster_has_secrets_of_its_own_that_are_not_shown() -> None:
    one, other = plugins.dask(), plugins.dask()
    assert one.certificate is not None
    assert other.certificate is not None
    assert one.certificate.key != other.certificate.key
    assert "PRIVATE" not in repr(one) + repr(one.certificate)
    assert plugins.dask(tls=False).tls_variables == {}
    assert plugins.ray().token != plugins.ray().token
    assert plugins.ray().token not in repr(plugins.ray())
    assert Certificate.new().cert.startswith("-----BEGIN CERTIFICATE-----")

"""A plugin's halves beside the tasks: on each node from before its first task, at the client while the pool is open."""

from __future__ import annotations

import asyncio
import os
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from outrider import BootstrapError, Local, Nodes, Plugin, Pool, SpecError, TaskKilled, Worker, compute, instance_info
from outrider.actors.interfaces import NodeId
from outrider.engine.api.plugin import Heard, Joined, Left, News, NodeSide, PluginContext, Setup
from outrider.engine.integrations import using
from outrider.engine.transport import plugin_hosts
from outrider.engine.transport.connection import Forwards, NodeConnection
from outrider.engine.transport.plugin_hosts import AHEAD, PluginInbox

pytestmark = pytest.mark.anyio


class Handle:
    """What the plugin gives its users: what its half at the client has heard, and a way to ask a node."""

    def __init__(self, site: PluginContext) -> None:
        self.site = site
        self.news: list[News] = []
        self.changed = asyncio.Condition()

    async def listen(self) -> None:
        async for each in self.site.news():
            async with self.changed:
                self.news.append(each)
                self.changed.notify_all()

    async def until(self, count: int, kind: type[News]) -> list[Any]:
        async with self.changed:
            await self.changed.wait_for(lambda: len([x for x in self.news if isinstance(x, kind)]) >= count)
        return [each for each in self.news if isinstance(each, kind)]


@dataclass(frozen=True)
class Echo(Plugin):
    """Its node's half answers, and writes down when it was taken down."""

    log: str
    name: ClassVar[str] = "echo"

    @contextmanager
    def node(self, side: NodeSide) -> Iterator[Setup]:
        side.heard = lambda message: side.tell((message, os.getpid(), side.node, side.pool))
        try:
            yield Setup(env={"ECHO_NODE": str(side.node)}, accelerators=(("slice", 10.0), ("slice", 10.0)))
        finally:
            with Path(self.log).open("a") as log:
                log.write(f"down {side.node}\n")

    @asynccontextmanager
    async def attach(self, site: PluginContext) -> AsyncIterator[Handle]:
        handle = Handle(site)
        async with asyncio.TaskGroup() as tasks:
            listening = tasks.create_task(handle.listen())
            yield handle
            listening.cancel()


@compute
def surroundings() -> tuple[str | None, int, str | None, int]:
    info = instance_info()
    kind = None if info.accelerator is None else info.accelerator.type
    return os.environ.get("ECHO_NODE"), info.accelerators, kind, os.getpid()


@compute
def forever() -> None:
    import time

    while True:
        time.sleep(60)


@pytest.mark.parametrize("kind", ["process", "thread"])
async def test_halves_are_there_before_the_first_task_and_taken_down_after_the_last(tmp_path: Path, kind: Any) -> None:
    log = tmp_path / "log"
    plugin = Echo(str(log))
    async with Pool(provider=Local(), nodes=2, worker=Worker(2, kind), plugins=[plugin], console="silent") as pool:
        handle = pool.handle(plugin)
        assert handle is pool.handle("echo")
        joined = await handle.until(2, Joined)
        seen = await pool.gather(*(surroundings() for _ in range(8)))
        assert {env for env, *_ in seen} == {str(each.node) for each in joined}
        assert {(count, accelerator) for _, count, accelerator, _ in seen} == {(2, "slice")}

        for each in joined:
            handle.site.tell(each.node, {"to": each.node})
        answers = {each.node: each.message for each in await handle.until(2, Heard)}
        for node, (message, pid, at, name) in answers.items():
            assert message == {"to": node}
            assert (at, name) == (node, instance_info().pool or name)
            assert pid not in {pid for *_, pid in seen}  # a process of its own
        pool.submit(forever())
        assert not log.exists()
    assert sorted(log.read_text().splitlines()) == sorted(f"down {each.node}" for each in joined)


async def test_the_half_takes_no_slot(tmp_path: Path) -> None:
    async with Pool(provider=Local(), plugins=[Echo(str(tmp_path / "log"))], console="silent") as pool:
        assert (await pool.run(surroundings()))[1] == 2
        assert len(await pool.broadcast(surroundings())) == 1


@dataclass(frozen=True)
class Stays(Plugin):
    """Its node's half is not taken down before a file is there. Its handle is the address of a forwarded port."""

    go: str
    port: int
    name: ClassVar[str] = "stays"

    @contextmanager
    def node(self, side: NodeSide) -> Iterator[Setup]:
        try:
            yield Setup()
        finally:
            while not Path(self.go).exists():
                time.sleep(0.01)

    @asynccontextmanager
    async def attach(self, site: PluginContext) -> AsyncIterator[str]:
        joined = await anext(aiter(site.news()))
        yield await site.forward(joined.node, self.port, loopback=True)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        writer.write(line)
    writer.close()


async def test_forwarded_ports_are_closed_before_the_halves_on_nodes_are_taken_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forward(self: NodeConnection, host: str, port: int, forwards: Forwards) -> str:
        return await forwards.open(asyncio.open_connection, host, port)

    monkeypatch.setattr(NodeConnection, "forward", forward)  # to a node of this computer nothing has to be forwarded
    there = await asyncio.start_server(echo, "127.0.0.1", 0)
    plugin = Stays(str(tmp_path / "go"), there.sockets[0].getsockname()[1])
    pool = Pool(provider=Local(), plugins=[plugin], console="silent")
    await pool.__aenter__()
    host, _, port = pool.handle("stays").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"hello\n")
    assert await reader.readline() == b"hello\n"
    ending = asyncio.create_task(pool.__aexit__(None, None, None))
    try:
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        with pytest.raises(OSError, match=r"refused|failed"):
            await asyncio.open_connection(host, int(port))
        assert not ending.done()
    finally:
        writer.close()
        Path(plugin.go).touch()
        await ending
        there.close()


@dataclass(frozen=True)
class Flood(Plugin):
    """Its node's half tells 2000 messages at once; its half at the client reads when its user does."""

    log: str
    name: ClassVar[str] = "flood"

    @contextmanager
    def node(self, side: NodeSide) -> Iterator[Setup]:
        for number in range(2000):
            side.tell(number)
        yield Setup()
        Path(self.log).write_text("down")

    @asynccontextmanager
    async def attach(self, site: PluginContext) -> AsyncIterator[PluginContext]:
        yield site


class Watched(PluginInbox):
    """An inbox that says when it is full, and how full it ever was."""

    made: ClassVar[list[Watched]] = []

    def __init__(self) -> None:
        super().__init__()
        self.made.append(self)
        self.most, self.full = 0, asyncio.Event()

    async def put_message(self, node: NodeId, message: object, size_bytes: int) -> None:
        await super().put_message(node, message, size_bytes)
        self.most = max(self.most, self._news.qsize())
        if self.most >= AHEAD:
            self.full.set()


@pytest.mark.parametrize("read", [True, False])
async def test_messages_that_nobody_reads_wait_on_their_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: bool
) -> None:
    """In order when they are read; when they are not, the node's half is taken down all the same."""
    monkeypatch.setattr(plugin_hosts, "PluginInbox", Watched)
    log = tmp_path / "log"
    async with Pool(provider=Local(), plugins=[Flood(str(log))], console="silent") as pool:
        site, box = pool.handle("flood"), Watched.made[-1]
        await box.full.wait()
        for _ in range(20):
            await pool.run(surroundings())
        assert AHEAD <= box.most <= AHEAD + 1  # and that the node has joined
        if read:
            news = site.news()
            told = [await anext(news) for _ in range(2001)]
            assert [each.message for each in told if isinstance(each, Heard)] == [*range(2000)]
            assert box.most <= AHEAD + 1
    assert log.read_text() == "down"


@compute
def kill_the_node() -> None:
    import signal

    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()


async def test_a_lost_node_leaves_and_its_replacement_joins(tmp_path: Path) -> None:
    plugin = Echo(str(tmp_path / "log"))
    async with Pool(provider=Local(), nodes=2, plugins=[plugin], console="silent") as pool:
        handle = pool.handle(plugin)
        await handle.until(2, Joined)
        job = pool.submit(kill_the_node().with_(retry="never"))
        (left,) = await handle.until(1, Left)
        joined = await handle.until(3, Joined)
        assert left.node in {each.node for each in joined[:2]}
        assert joined[2].node not in {each.node for each in joined[:2]}
        handle.site.tell(left.node, "nobody hears it")
        handle.site.tell(joined[2].node, "hello")
        (answer,) = await handle.until(1, Heard)
        assert answer.node == joined[2].node
        with pytest.raises(Exception, match="lost"):
            await job


@dataclass(frozen=True)
class Refusing(Plugin):
    name: ClassVar[str] = "refusing"

    @contextmanager
    def node(self, side: NodeSide) -> Iterator[None]:
        raise SpecError("this node has no such device") if self.known else OSError("no space left on device")
        yield

    known: bool = True


async def test_what_a_half_raises_ends_the_pool_with_that_error() -> None:
    with pytest.raises(SpecError, match="no such device"):
        async with Pool(provider=Local(), plugins=[Refusing()], console="silent"):
            pass
    with pytest.raises(BootstrapError, match=r"plugin refusing could not be set up.*no space left") as raised:
        async with Pool(provider=Local(), plugins=[Refusing(known=False)], console="silent"):
            pass
    assert raised.value.phase == "plugins"


@dataclass(frozen=True)
class Broken(Plugin):
    name: ClassVar[str] = "broken"

    @asynccontextmanager
    async def attach(self, site: PluginContext) -> AsyncIterator[None]:
        raise SpecError("not at this client")
        yield


async def test_a_client_half_that_fails_leaves_no_pool() -> None:
    with pytest.raises(SpecError, match="not at this client"):
        async with Pool(provider=Local(), plugins=[Broken()], console="silent"):
            pass


async def test_a_plugin_with_halves_is_no_functions_own() -> None:
    @compute
    @using(Broken())
    def function() -> None: ...

    async with Pool(provider=Local(), console="silent") as pool:
        with pytest.raises(SpecError, match="give it to the pool"):
            await pool.run(function())
        with pytest.raises(SpecError, match="no plugin 'echo' with a handle; it has none"):
            pool.handle("echo")


async def test_an_elastic_pools_drained_node_takes_its_halves_down(tmp_path: Path) -> None:
    log = tmp_path / "log"
    plugin = Echo(str(log))
    async with Pool(provider=Local(), nodes=Nodes(2, min=1, max=2), plugins=[plugin], console="silent") as pool:
        handle = pool.handle(plugin)
        await handle.until(2, Joined)
        pool.resize(1)
        (left,) = await handle.until(1, Left)
        assert log.read_text() == f"down {left.node}\n"


async def test_a_half_whose_process_ends_has_left() -> None:
    class Fragile(Plugin):
        name: ClassVar[str] = "fragile"

        @contextmanager
        def node(self, side: NodeSide) -> Iterator[None]:
            side.heard = lambda _: os._exit(3)
            yield

        attach = Echo.attach

    async with Pool(provider=Local(), plugins=[Fragile()], console="silent") as pool:
        handle = pool.handle("fragile")
        (joined,) = await handle.until(1, Joined)
        handle.site.tell(joined.node, "end")
        assert await handle.until(1, Left) == [Left(joined.node)]
        assert (await pool.run(surroundings()))[0] is None  # functions run all the same
        with pytest.raises(TaskKilled):
            await pool.run(gone())


@compute
def gone() -> None:
    os._exit(1)


@dataclass(frozen=True)
class Unreadable:
    """Is pickled on the node, and cannot be unpickled anywhere."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


async def test_a_half_whose_message_cannot_be_unpickled_has_left() -> None:
    class Garbled(Plugin):
        name: ClassVar[str] = "garbled"

        @contextmanager
        def node(self, side: NodeSide) -> Iterator[None]:
            side.heard = lambda _: side.tell(Unreadable())
            yield

        attach = Echo.attach

    async with Pool(provider=Local(), plugins=[Garbled()], console="silent") as pool:
        handle = pool.handle("garbled")
        (joined,) = await handle.until(1, Joined)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            handle.site.tell(joined.node, "say something")
            assert await asyncio.wait_for(handle.until(1, Left), 60) == [Left(joined.node)]
        (said,) = [str(each.message) for each in caught if "half on node 0 cannot be read" in str(each.message)]
        assert "(ValueError: invalid literal for int() with base 10: 'no number')" in said
        assert (await pool.run(surroundings()))[0] is None  # functions run all the same


async def test_a_half_that_is_set_up_with_what_cannot_be_unpickled_ends_the_pool() -> None:
    class Garbled(Plugin):
        name: ClassVar[str] = "garbled"

        @contextmanager
        def node(self, side: NodeSide) -> Iterator[Setup]:
            yield Setup(accelerators=(Unreadable(),))  # type: ignore[arg-type]

    async with asyncio.timeout(60):
        with pytest.raises(BootstrapError, match=r"plugin garbled could not be set up: .*no number") as raised:
            async with Pool(provider=Local(), plugins=[Garbled()], console="silent"):
                pass
    assert raised.value.phase == "plugins"
    assert isinstance(raised.value.__cause__, ValueError)

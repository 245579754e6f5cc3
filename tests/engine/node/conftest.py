"""A node as its client sees it: a fork server and workers behind an `ExecutorServer`, and a channel that can be cut."""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from outrider.engine.node import forkserver, process, worker_pool
from outrider.engine.node.server import ExecutorServer
from outrider.engine.wire import messages as m
from outrider.engine.wire import values
from outrider.engine.wire.codec import Splitter, decode, encode
from outrider.engine.wire.session import Session

PATIENCE_S = 60.0  # of a test, on a busy machine


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _no_kills_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node counts none of the kernel's kills for memory: those of other tests would be among them."""
    monkeypatch.setattr(worker_pool, "own_counter", lambda: Path("/none"))


@pytest.fixture
def forks() -> Iterator[socket.socket]:
    """The control socket of a fork server. Whatever it leaves behind fails the test."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        forkserver.serve(theirs)
    theirs.close()
    process.adopt_orphans()  # what outlives the fork server becomes our child
    before = set(process.children(os.getpid()))
    yield ours
    ours.close()
    os.waitpid(pid, 0)
    left = set(process.children(os.getpid())) - before
    assert not left, "processes outlived their node"


class Channel(asyncio.Transport):
    """A connection in memory: what the server writes reaches ``received`` in the loop's next turn, unless held."""

    def __init__(self, server: ExecutorServer, received: Callable[[bytes], None]) -> None:
        self._protocol: Any = server.channel()
        self.closed = False
        self.is_cut = False  # what is on its way does not arrive
        self.held: list[bytes] | None = None
        self._received = received
        self._loop = asyncio.get_running_loop()
        one, _other = socket.socketpair()
        with one, _other:
            super().__init__({"socket": one})
            self._protocol.connection_made(self)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0, "it pauses who writes as soon as it holds anything"

    def receive(self, data: bytes) -> None:
        """What the client sends arrives."""
        if not self.closed:
            self._protocol.data_received(data)

    def lose(self) -> None:
        self.closed = True
        self._protocol.connection_lost(None)

    def write(self, data: Any) -> None:
        if self.held is not None:
            self.held.append(data)
            self._protocol.pause_writing()
        else:
            self._loop.call_soon(self._arrive, data)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._loop.call_soon(self._protocol.connection_lost, None)

    abort = close

    def hold(self) -> None:
        """The client reads no more: the channel's buffer is full."""
        self.held = []
        self._protocol.pause_writing()

    def release(self) -> None:
        held, self.held = self.held or [], None
        for data in held:
            self.write(data)
        self._protocol.resume_writing()

    def _arrive(self, data: bytes) -> None:
        if not self.is_cut:
            self._received(data)


class Client:
    """A client of one node, with everything it heard."""

    def __init__(self, server: ExecutorServer, setup: dict[str, Any]) -> None:
        self.server = server
        self.setup = setup
        self.session = Session()
        self.name = "session"
        self.heard: list[m.Message] = []
        self.lease_s = 60.0
        self.attempts = 0
        self.functions: dict[Any, bytes] = {}
        self._changed = asyncio.Condition()
        self._flushing = False

    # --- connections ---------------------------------------------------------------------------------------------

    async def connect(self, **changes: Any) -> m.Welcome | m.Refused:
        self.channel = Channel(self.server, self._received)
        hello = m.Hello(
            m.PROTOCOL_VERSION, self.name, self.session.received, ".".join(platform.python_version_tuple()[:2]),
            cloudpickle.__version__, self.lease_s, self.setup,
        )._replace(**changes)  # fmt: skip
        since = len(self.heard)
        self.channel.receive(encode(hello))
        answer = await self.until(lambda: next(
            (x for x in self.heard[since:] if isinstance(x, m.Welcome | m.Refused)), None))  # fmt: skip
        assert isinstance(answer, m.Welcome | m.Refused)
        return answer

    def cut(self) -> None:
        self.channel.is_cut = True
        self.session.lost()
        self.channel.lose()

    def _received(self, data: bytes) -> None:
        for message in self.session.feed(data):
            self.heard.append(message)
            if isinstance(message, m.Welcome):
                self.session.resume(message.received)
        self._flush()
        asyncio.ensure_future(self._tell())  # noqa: RUF006 - a condition's waiters; awaited by them

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def send(self, *messages: m.Message) -> None:
        for message in messages:
            self.session.send(message)
        self._flush()

    def _flush(self) -> None:
        if data := self.session.flush():
            asyncio.get_running_loop().call_soon(self.channel.receive, data)

    # --- tasks ---------------------------------------------------------------------------------------------------

    def define(self, function: Callable[..., Any]) -> bytes:
        if function not in self.functions:
            digest = self.functions[function] = f"f{len(self.functions)}".encode()
            self.send(m.Define(digest, cloudpickle.dumps(partial(_call, function))))
        return self.functions[function]

    def order(self, function: Callable[..., Any] | bytes, /, *args: Any, **fields: Any) -> m.Run:
        digest = function if isinstance(function, bytes) else self.define(function)
        self.attempts += 1
        value = values.inline(values.dump((args, {})))
        return m.Run(self.attempts, digest, value, 7, 1, None, 0, None)._replace(**fields)

    def run(self, function: Callable[..., Any] | bytes, /, *args: Any, **fields: Any) -> int:
        run = self.order(function, *args, **fields)
        self.send(run)
        return run.attempt

    async def call(self, function: Callable[..., Any] | bytes, /, *args: Any, **fields: Any) -> Any:
        """The result, or the message that came instead of it."""
        return self.result(await self.answer(self.run(function, *args, **fields)))

    def result(self, answer: m.Message) -> Any:
        return values.load(answer.value.data, answer.value.sizes) if isinstance(answer, m.Done) else answer

    async def answer(self, attempt: int) -> Any:
        found = await self.until(lambda: self.of(attempt, m.Done, m.Failed, m.Ended))
        assert len(found) == 1, "one answer"
        return found[0]

    def of(self, attempt: int, *kinds: type[m.Message]) -> list[Any]:
        return [x for x in self.heard if isinstance(x, kinds) and getattr(x, "attempt", None) == attempt]

    def printed(self, attempt: int, stream: int = 1) -> bytes:
        return b"".join(x.text for x in self.of(attempt, m.Output) if x.stream == stream)

    async def expect(self, kind: type[Any]) -> Any:
        found = await self.until(lambda: [x for x in self.heard if isinstance(x, kind)])
        return found[-1]

    async def turn(self) -> None:
        """Let the node do something."""
        self.send(m.Ping(0))
        await asyncio.sleep(0.001)

    async def until(self, found: Callable[[], Any]) -> Any:
        async with asyncio.timeout(PATIENCE_S), self._changed:
            while not (result := found()):
                await self._changed.wait()
        return result


class Bulk:
    """A bulk channel: the first frame of the answer, and the bytes behind it."""

    def __init__(self, server: ExecutorServer) -> None:
        self.channel = Channel(server, self._received)
        self.data = b""
        self._splitter = Splitter()
        self.answer: asyncio.Future[m.Message] = asyncio.get_running_loop().create_future()

    def _received(self, data: bytes) -> None:
        if self.answer.done():
            self.data += data
        elif (body := self._splitter.first(data)) is not None:
            self.answer.set_result(decode(body))
            self.data = self._splitter.tail

    async def ask(self, message: m.Message, data: bytes = b"") -> m.Message:
        self.channel.receive(encode(message) + data)
        async with asyncio.timeout(PATIENCE_S):
            return await self.answer


def _call(function: Callable[..., Any], load: Callable[[], Any]) -> Any:
    args, kwargs = load()
    return function(*args, **kwargs)


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Nothing that other tests have left is closed meanwhile: for who counts the descriptors of this process."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def bulk() -> type[Bulk]:
    return Bulk


@pytest.fixture
async def make(forks: socket.socket, tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Start the node: ``client = await make(slots=2)``, connected. No descriptor may be left open."""
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
    servers: list[ExecutorServer] = []

    async def start(*, slots: int = 1, kind: str = "process", env: dict[str, str] | None = None,
                    preload: Sequence[str] = (), connect: bool = True, **options: Any) -> Client:  # fmt: skip
        options.setdefault("same_host", False)
        server = ExecutorServer(forks, directory=tmp_path, address="127.0.0.1", **options)
        servers.append(server)
        client = Client(server, {"slots": slots, "kind": kind, "env": env or {}, "preload": list(preload)})
        if connect:
            assert isinstance(await client.connect(), m.Welcome)
        return client

    yield start
    for server in servers:
        await server.close()
    async with asyncio.timeout(PATIENCE_S):  # a thread that reads samples may be about to end
        while len(set(os.listdir("/proc/self/fd")) - before) > 1:  # noqa: PTH208 - the listing's own
            await asyncio.sleep(0.01)

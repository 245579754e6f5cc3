"""One node's connection: SSH, the control channel with its heartbeats, bulk channels, and coming back after a loss."""

from __future__ import annotations

import asyncio
import platform
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import asyncssh
import cloudpickle

from ...actors.ports import ConnectFailed, Lost, NodeFacts, NodeId, Order, Report
from ...providers.base import Machine
from ..payload import Blob, Part, huge_buffer
from ..wire import messages as wire
from ..wire.codec import ProtocolError, Splitter, decode, encode
from ..wire.session import Session
from . import ssh
from .link import NodeLink

HEARTBEAT_S = 2.5
SILENCE_S = 8.0  # black hole or frozen daemon: seen in 10 s; a stall of 3 s or 5 % loss is not one
GREETING_S = 10.0
SLICE_BYTES = 256 << 10


class Connector:
    """Implements `actors.ports.Connect` for one pool."""

    def __init__(self, *, pool: str, key: asyncssh.SSHKey, setup: dict[str, Any], lease_s: float,
                 printed: Callable[[NodeId, Order | None, wire.Output], None]) -> None:  # fmt: skip
        self._pool, self._key, self._setup, self._lease_s, self._printed = pool, key, setup, lease_s, printed
        self.links: dict[NodeId, NodeLink] = {}

    async def __call__(
        self, node: NodeId, machine: Machine, reports: Callable[[Sequence[Report]], None]
    ) -> NodeConnection:
        connection = NodeConnection(
            node, machine, self._pool, self._key, self._setup, self._lease_s, reports, self._printed
        )
        await connection.open()
        self.links[node] = connection.link
        return connection

    def drop(self, blob: Blob) -> None:
        """No attempt will read this blob any more, on any node."""
        for link in self.links.values():
            link.drop(blob)
        blob.close()

    def forget(self, node: NodeId) -> None:
        self.links.pop(node, None)


class NodeConnection:
    """Implements `actors.ports.Connection`."""

    def __init__(self, node: NodeId, machine: Machine, pool: str, key: asyncssh.SSHKey, setup: dict[str, Any], lease_s: float,
                 reports: Callable[[Sequence[Report]], None],
                 printed: Callable[[NodeId, Order | None, wire.Output], None]) -> None:  # fmt: skip
        self._machine, self._key, self._setup, self._lease_s = machine, key, setup, lease_s
        self._session_id = secrets.token_hex(16)
        self._session = Session()
        self.link = NodeLink(node, pool, self._session, same_host=machine.same_host, bulk=self, reports=reports,
                             printed=lambda order, output: printed(node, order, output))  # fmt: skip
        self._connection: asyncssh.SSHClientConnection | None = None
        self._control: _Control | None = None
        self._lost: asyncio.Future[Lost] = asyncio.get_running_loop().create_future()
        self._beat: asyncio.TimerHandle | None = None
        self._facts: NodeFacts | None = None

    @property
    def facts(self) -> NodeFacts:
        assert self._facts is not None, "a connection is handed out only after the node's welcome"
        return self._facts

    async def open(self) -> None:
        welcome = await self._greet()
        said = welcome.facts
        self._facts = NodeFacts(
            hostname=said["hostname"],
            address=said["addresses"][0],
            ports=tuple(welcome.ports),
            accelerators=tuple((kind, memory_gb) for kind, memory_gb in said["accelerators"]),
        )

    async def resume(self) -> bool:
        welcome = await self._greet()
        return welcome.resumed

    async def wait_lost(self) -> Lost:
        return await asyncio.shield(self._lost)

    async def close(self) -> None:
        """Say goodbye; a machine that is a process of ours is ended by its provider right after, so nobody waits for it."""
        if self._connection is None:
            return
        if not self._lost.done():
            self.link.send(wire.Bye())
            self.link._flush()
            if not self._machine.embedded:
                async with asyncio.timeout(1.0):
                    await self.wait_lost()
        self.link.close()
        self._drop("closed")

    # --- the control channel ------------------------------------------------------------------------------------

    async def _greet(self) -> wire.Welcome:
        """Connect, say hello, and attach the session to what answers. Leaves nothing open when it fails or is cancelled."""
        self._drop("reconnecting")
        self._lost = asyncio.get_running_loop().create_future()
        try:
            self._connection, transport = await ssh.connect(self._machine, self._key)
            control = _Control()
            async with asyncio.timeout(GREETING_S):
                await self._connection.create_unix_connection(
                    lambda: control,
                    self._machine.door,
                    encoding=None,
                    window=ssh.WINDOW_BYTES,
                    max_pktsize=ssh.PACKET_BYTES,
                )
                control.chan.write(encode(self._hello()))
                welcome = await control.first
            welcome = self._accepted(welcome)
        except BaseException as error:
            self._drop("not reached")
            if isinstance(error, ConnectFailed) or not isinstance(error, Exception):
                raise
            raise _refused(self._machine, error) from error
        control.attach(self._received, self._drop)
        self._control = control
        self._session.resume(welcome.received)
        self._heard_at = time.monotonic()

        def write(data: bytes) -> None:
            control.chan.write(data)
            transport.flush()

        self.link.attach(write)
        if control.rest:
            self._received(control.rest)
        self._beat = asyncio.get_running_loop().call_later(HEARTBEAT_S, self._heartbeat)
        return welcome

    def _hello(self) -> wire.Hello:
        return wire.Hello(
            wire.PROTOCOL_VERSION,
            self._session_id,
            self._session.received,
            ".".join(platform.python_version_tuple()[:2]),
            cloudpickle.__version__,
            self._lease_s,
            self._setup,
        )

    def _accepted(self, answer: wire.Message) -> wire.Welcome:
        if isinstance(answer, wire.Refused):
            facts = ", ".join(f"{k} {v}" for k, v in answer.facts.items())
            raise ConnectFailed(f"node {self._machine.id} refused this client: {answer.reason} ({facts})", fatal=True)
        if not isinstance(answer, wire.Welcome):
            raise ProtocolError(f"{type(answer).__name__} where a welcome belongs")
        return answer

    def _received(self, data: bytes) -> None:
        self._heard_at = time.monotonic()
        try:
            self.link.received(data)
        except ProtocolError as error:
            self._drop(f"it sent what is not the protocol: {error}")

    def _heartbeat(self) -> None:
        if time.monotonic() - self._heard_at > SILENCE_S:
            self._drop(f"silent for {SILENCE_S:g} s", silent=True)
            return
        self.link.send(wire.Ping(int(time.monotonic() * 1000)))
        self._beat = asyncio.get_running_loop().call_later(HEARTBEAT_S, self._heartbeat)

    def _drop(self, cause: str, *, silent: bool = False) -> None:
        """Let go of the present SSH connection, whatever state it is in."""
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None
        if self._control is not None:
            self._control.detach()
            self._control = None
        if self._connection is not None:
            self.link.detach()
            self._connection.abort()
            self._connection = None
        if not self._lost.done():
            self._lost.set_result(Lost(cause, silent))

    # --- bulk channels ------------------------------------------------------------------------------------------

    async def put(self, blob: Blob) -> None:
        sending = _Sending(blob.parts)
        await self._transfer(sending, wire.Put(blob.name, blob.size_bytes))

    async def get(self, name: str) -> Part:
        receiving = _Receiving()
        await self._transfer(receiving, wire.Get(name))
        return receiving.buffer

    async def _transfer(self, transfer: _Transfer, request: wire.Put | wire.Get) -> None:
        """One channel for one blob. A cancelled open would leak the channel: a late arrival closes itself."""
        if self._connection is None:
            raise ConnectionResetError("the connection was lost")
        opening = asyncio.ensure_future(
            self._connection.create_unix_connection(
                lambda: transfer,
                self._machine.door,
                encoding=None,
                window=ssh.WINDOW_BYTES,
                max_pktsize=ssh.PACKET_BYTES,
            )
        )
        try:
            await asyncio.shield(opening)
            transfer.chan.write(encode(request))
            transfer.begin()
            await transfer.done
        except asyncssh.Error as error:
            raise ConnectionResetError(str(error)) from error
        finally:
            opening.add_done_callback(_close_late)


class _Control(asyncssh.SSHUNIXSession[bytes]):
    """The control channel: the first message answers the hello, everything after it is the session's."""

    def __init__(self) -> None:
        self.first: asyncio.Future[wire.Message] = asyncio.get_running_loop().create_future()
        self._splitter = Splitter()
        self.rest = b""
        self._receive: Callable[[bytes], None] | None = None
        self._lose: Callable[[str], None] | None = None

    def connection_made(self, chan: asyncssh.SSHUNIXChannel[bytes]) -> None:
        self.chan = chan

    def attach(self, receive: Callable[[bytes], None], lose: Callable[[str], None]) -> None:
        self._receive, self._lose = receive, lose

    def detach(self) -> None:
        self._receive = self._lose = None

    def data_received(self, data: bytes, datatype: int | None = None) -> None:  # noqa: ARG002
        if self._receive is not None:
            self._receive(data)
        else:
            self._greeting(data)

    def _greeting(self, data: bytes) -> None:
        """The connection attaches itself a tick later: what comes behind the first message until then is kept with it."""
        if self.first.done():
            self.rest += data
            return
        try:
            head = self._splitter.first(data)
            if head is not None:
                self.rest = self._splitter.tail
                self.first.set_result(decode(head))
        except ProtocolError as error:
            self.first.set_exception(error)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        cause = str(exc) or type(exc).__name__ if exc else "the connection was closed"
        if self._lose is not None:
            self._lose(cause)
        elif not self.first.done():
            self.first.set_exception(ConnectionResetError(cause))


class _Transfer(asyncssh.SSHUNIXSession[bytes]):
    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, chan: asyncssh.SSHUNIXChannel[bytes]) -> None:
        self.chan = chan

    def begin(self) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionResetError(str(exc or "the channel was closed")))

    def finish(self, error: Exception | None = None) -> None:
        if not self.done.done():
            if error is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(error)


class _Sending(_Transfer):
    """A blob out, a slice at a time while the channel takes it."""

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__()
        self._parts = [memoryview(part).cast("B") for part in parts]
        self._paused = False

    def begin(self) -> None:
        self._pump()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._pump()

    def _pump(self) -> None:
        while self._parts and not self._paused:
            part = self._parts[0]
            self.chan.write(bytes(part[:SLICE_BYTES]))
            if len(part) > SLICE_BYTES:
                self._parts[0] = part[SLICE_BYTES:]
            else:
                del self._parts[0]

    def data_received(self, data: bytes, datatype: int | None = None) -> None:  # noqa: ARG002
        self.finish()  # Have: it is all in place


class _Receiving(_Transfer):
    """A blob in: one frame, then the bytes, straight into their place."""

    def __init__(self) -> None:
        super().__init__()
        self._splitter = Splitter()
        self._view: memoryview | None = None
        self._at = 0

    def data_received(self, data: bytes, datatype: int | None = None) -> None:  # noqa: ARG002
        if self._view is None:
            head = self._splitter.first(data)
            if head is None:
                return
            answer = decode(head)
            if not isinstance(answer, wire.Have):
                self.finish(LookupError(f"the node does not have what it promised: {answer}"))
                return
            self.buffer = huge_buffer(answer.size_bytes)
            self._view, data = memoryview(self.buffer), self._splitter.tail
        end = self._at + len(data)
        self._view[self._at : end] = data
        self._at = end
        if end == len(self._view):
            self.finish()


def _close_late(opening: asyncio.Future[Any]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[0].close()


def _refused(machine: Machine, error: Exception) -> ConnectFailed:
    match error:
        case asyncssh.HostKeyNotVerifiable():
            return ConnectFailed(
                f"machine {machine.id} shows another host key than the one pinned for it: {error}", fatal=True
            )
        case asyncssh.PermissionDenied():
            return ConnectFailed(f"machine {machine.id} does not accept this pool's key: {error}", fatal=True)
        case ProtocolError():
            return ConnectFailed(f"machine {machine.id} does not speak the protocol: {error}", fatal=True)
        case TimeoutError():
            return ConnectFailed(f"machine {machine.id} did not answer within {GREETING_S:g} s")
        case _:
            return ConnectFailed(f"machine {machine.id} cannot be reached: {error}")

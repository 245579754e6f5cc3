"""One node's connection: SSH, the control channel with its heartbeats, bulk channels, and coming back after a loss."""

from __future__ import annotations

import asyncio
import platform
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import asyncssh
import cloudpickle

from ...actors.ports import ConnectFailed, Lost, NodeFacts, NodeId, Order, Report
from ...providers.base import Machine
from ..errors import version_mismatch
from ..payload import Blob, Part
from ..wire import messages as wire
from ..wire.codec import ProtocolError, encode
from ..wire.session import Session
from . import ssh
from .channels import Control, Receiving, Sending, Transfer
from .link import NodeLink
from .views import Views

HEARTBEAT_S = 2.0
SILENCE_S = 6.0  # with the time for reconnecting, a black hole is seen in 9 s; a stall of 3 s is nothing
GREETING_S = 10.0
FAREWELL_S = 1.0


@dataclass(frozen=True, slots=True)
class Terms:
    """What all connections of a pool have in common."""

    views: Views
    key: asyncssh.SSHKey
    setup: dict[str, Any]  # as in `Hello`
    lease_s: float
    printed: Callable[[NodeId, Order | None, wire.Output], None]


class Connector:
    """Implements `actors.ports.Connect` for one pool."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._links: dict[NodeId, NodeLink] = {}

    async def __call__(
        self, node: NodeId, machine: Machine, reports: Callable[[Sequence[Report]], None]
    ) -> NodeConnection:
        connection = NodeConnection(node, machine, self._terms, reports, closed=lambda: self._links.pop(node, None))
        await connection.open()
        self._links[node] = connection.link
        return connection

    @property
    def facts(self) -> list[NodeFacts]:
        """Of the nodes that are ready, by rank."""
        return self._terms.views.facts

    def drop(self, blob: Blob) -> None:
        """No attempt will read this blob any more, on any node."""
        for link in self._links.values():
            link.drop(blob)
        blob.close()


class NodeConnection:
    """Implements `actors.ports.Connection`."""

    def __init__(
        self,
        node: NodeId,
        machine: Machine,
        terms: Terms,
        reports: Callable[[Sequence[Report]], None],
        closed: Callable[[], object],
    ) -> None:
        self._machine, self._terms, self._closed = machine, terms, closed
        self._session_id = secrets.token_hex(16)
        self._session = Session()
        self.link = NodeLink(
            node,
            self._session,
            views=terms.views,
            same_host=machine.same_host,
            bulk=self,
            reports=reports,
            printed=lambda order, output: terms.printed(node, order, output),
        )
        self._connection: asyncssh.SSHClientConnection | None = None
        self._control: Control | None = None
        self._lost: asyncio.Future[Lost] = asyncio.get_running_loop().create_future()
        self._beat: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
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
        """Say goodbye. Nobody waits for a machine that is a process of ours: its provider ends it right after."""
        if self._connection is not None and not self._lost.done():
            self.link.send(wire.Bye())
            self.link.flush()
            if not self._machine.embedded:
                await asyncio.wait([self._lost], timeout=FAREWELL_S)
        self.link.close()
        self._closed()
        self._drop("closed")

    # --- the control channel ------------------------------------------------------------------------------------

    async def _greet(self) -> wire.Welcome:
        """Connect, say hello, and attach the session to what answers. Failed or cancelled, it leaves nothing open."""
        self._drop("reconnecting")
        self._lost = asyncio.get_running_loop().create_future()
        try:
            self._connection, transport = await ssh.connect(self._machine, self._terms.key)
            control = Control()
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
        self.link.attach(partial(transport.together, control.chan.write))
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
            self._terms.lease_s,
            self._terms.setup,
        )

    def _accepted(self, answer: wire.Message) -> wire.Welcome:
        if isinstance(answer, wire.Refused):
            hello = self._hello()
            here = {"python": hello.python, "cloudpickle": hello.cloudpickle}
            mismatch = version_mismatch(answer.reason, here, answer.facts)
            raise ConnectFailed(
                f"node {self._machine.id} refused this client: {answer.reason}", fatal=True
            ) from mismatch
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
        left = self._heard_at + SILENCE_S - time.monotonic()
        if left <= 0:
            # On this very computer it is not the network that is silent.
            self._drop(f"silent for {SILENCE_S:g} s", silent=not self._machine.embedded)
            return
        self.link.send(wire.Ping(int(time.monotonic() * 1000)))
        self._beat = asyncio.get_running_loop().call_later(min(HEARTBEAT_S, left), self._heartbeat)

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
        sending = Sending(blob.parts)
        await self._transfer(sending, wire.Put(blob.name, blob.size_bytes))

    async def get(self, name: str) -> Part:
        receiving = Receiving()
        await self._transfer(receiving, wire.Get(name))
        return receiving.buffer

    async def _transfer(self, transfer: Transfer, request: wire.Put | wire.Get) -> None:
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

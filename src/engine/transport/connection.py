"""A pool's connections to its nodes, and local ports that lead through them.

Each connection has a control channel with a heartbeat, and further channels for blobs (large values). If the connection
is lost, the session continues on a new connection.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import cloudpickle

from ...actors.events import VersionsDiffer
from ...actors.interfaces import ConnectFailed, Lost, NodeFacts, NodeId, Report
from ...providers.base import Machine
from ..api.errors import SpecError
from ..node.notices import sources
from ..objects.blob_transfers import TransferProgress
from ..serialization import versions
from ..serialization.payload import Blob, Part
from ..wire import messages as wire
from ..wire.codec import ProtocolError, encode
from ..wire.session import KEPT_BYTES, Session
from . import requirement_check
from .channels import Control, Farewell, Receiving, Sending, Transfer
from .connection_settings import ConnectionSettings
from .diagnostics import SampleIntake
from .heartbeat import SILENCE_S, Heartbeat
from .link import NodeLink
from .memory_checkpoints import MemoryCheckpoints
from .route import ExecutorGone, Route, UnixRoute

LOOPBACK = "127.0.0.1"
PIECE_BYTES = 256 << 10

Dial = Callable[[str, int], Awaitable[tuple[Any, Any]]]


class Forwards:
    """The forwarded ports of a pool.

    `open` adds a port, which listens until `close`. A forwarded connection ends with the SSH connection that carries
    it; the next one uses the node's SSH connection at that time.
    """

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []
        self._piping: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._piping:
            task.cancel()
        if self._piping:
            await asyncio.wait(self._piping)

    async def open(self, dial: Dial, host: str, port: int) -> str:
        """Return the address of a new local port that leads to ``host:port`` on the node's network."""

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None, "asyncio's servers run their callbacks in tasks"
            self._piping.add(task)
            task.add_done_callback(self._piping.discard)
            try:
                await _joined(reader, writer, dial, host, port)
            finally:
                writer.close()

        server = await asyncio.start_server(accepted, LOOPBACK, 0)
        self._servers.append(server)
        local: tuple[str, int] = server.sockets[0].getsockname()
        return f"{local[0]}:{local[1]}"


async def _joined(near_in: Any, near_out: Any, dial: Dial, host: str, port: int) -> None:
    import asyncssh  # pools on this computer do not need this import

    try:
        far_in, far_out = await dial(host, port)
    except (OSError, asyncssh.Error):  # the local program sees its connection closed at once
        return
    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(_piped(near_in, far_out))
            both.create_task(_piped(far_in, near_out))
    except* (OSError, asyncssh.Error):
        pass
    finally:
        far_out.close()


async def _piped(reader: Any, writer: Any) -> None:
    while data := await reader.read(PIECE_BYTES):
        writer.write(data)
        await writer.drain()
    with suppress(OSError):
        writer.write_eof()


AGAIN_S = 0.7  # seconds between tries to resume the session of a node while its plugins are set up
GREETING_S = 10.0
EVICT_AGAIN_S = 2.0
UNFIT_S = 10.0  # seconds for an executor to exit after it reported an internal error; it gives its workers 6 s to end
FAREWELL_S = 4.0  # seconds for a host to end the process trees of its tasks, and then its executor


class Connector:
    """The implementation of `actors.interfaces.Connect` for one pool."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._connections: dict[NodeId, NodeConnection] = {}
        # connections to nodes that were not reached yet; the next try reuses the object and its state
        self._opening: dict[NodeId, NodeConnection] = {}
        self._evictions: set[asyncio.Task[None]] = set()
        self._forwards = Forwards()

    async def __call__(
        self,
        node: NodeId,
        machine: Machine,
        reports: Callable[[Sequence[Report]], None],
        answered: Callable[[], None],
    ) -> NodeConnection:
        connection = self._opening.get(node)
        if connection is None:
            connection = NodeConnection(node, machine, self._settings, reports, owner=self)
            self._opening[node] = connection
        await connection.open(answered)
        del self._opening[node]
        await connection.set_up_plugins()
        self._connections[node] = connection
        return connection

    def closed(self, node: NodeId) -> None:
        if self._connections.pop(node, None) is not None:
            self._settings.plugins.left(node)

    def evict(self, connection: NodeConnection) -> None:
        task = asyncio.ensure_future(connection.evict())
        self._evictions.add(task)
        task.add_done_callback(self._evictions.discard)

    async def close(self) -> None:
        """Close all connections. Stop trying to reach nodes that were given up: they end when their lease expires."""
        await self._forwards.close()
        for task in self._evictions:
            task.cancel()
        await asyncio.gather(*self._evictions, return_exceptions=True)

    async def stop_forwarding(self) -> None:
        """Close all local ports that `forward` has opened, and the connections through them."""
        await self._forwards.close()

    async def forward(self, node: NodeId, port: int, *, loopback: bool = False) -> str:
        """See `api.plugin.PluginContext.forward`."""
        connection = self._connections.get(node)
        if connection is None:
            raise ConnectionResetError(f"node {node} has gone")
        return await connection.forward(LOOPBACK if loopback else connection.facts.address, port, self._forwards)

    def link(self, node: NodeId) -> NodeLink | None:
        connection = self._connections.get(node)
        return None if connection is None else connection.link

    @property
    def links(self) -> list[NodeLink]:
        """The links of all reached nodes."""
        return [connection.link for connection in self._connections.values()]

    @property
    def facts(self) -> list[NodeFacts]:
        """The facts of the ready nodes, in the order of their ranks.

        If the pool is so large that most nodes get no list of the others: the facts of all reached nodes.
        """
        ready = self._settings.views.facts
        return [connection.facts for connection in self._connections.values()] if ready is None else ready

    def cut(self, node: NodeId, cause: str) -> None:
        """Drop the connection to a node. The pool reconnects, as after any lost connection."""
        if (connection := self._connections.get(node)) is not None:
            connection.cut(cause)

    def forget(self, function: bytes) -> None:
        """Forget a function that no caller refers to and no running attempt uses."""
        for connection in self._connections.values():
            connection.link.forget(function)

    @property
    def checkpoints(self) -> MemoryCheckpoints:
        return self._settings.checkpoints

    def drop(self, blob: Blob) -> None:
        """Drop a blob on all nodes; no attempt will read it any more."""
        for connection in self._connections.values():
            connection.link.drop(blob)
        blob.close()


def route_to(node: NodeId, machine: Machine, settings: ConnectionSettings) -> Route:
    if machine.inside:
        from .container_route import route_to_container  # most pools do not need this import

        return route_to_container(node, machine, settings)
    if not machine.ssh:
        return UnixRoute(machine, settings.interpose)
    from .ssh_route import SSHRoute  # pools on this computer do not need this import

    return SSHRoute(node, machine, settings)


class ConnectionOwner(Protocol):
    """The interface of the object that owns a pool's connections, which each connection calls."""

    def closed(self, node: NodeId, /) -> None: ...

    def evict(self, connection: NodeConnection, /) -> None:
        """Register a node that was given up while unreachable. Its tasks are ended as soon as it is reached again."""


class NodeConnection:
    """The implementation of `actors.interfaces.Connection` for one node."""

    def __init__(
        self,
        node: NodeId,
        machine: Machine,
        settings: ConnectionSettings,
        reports: Callable[[Sequence[Report]], None],
        *,
        owner: ConnectionOwner,
    ) -> None:
        self._node, self._machine, self._settings = node, machine, settings
        self._reports, self._owner = reports, owner
        self._session_id = os.urandom(16).hex()
        self._session = Session(keeps_bytes=KEPT_BYTES)
        self.link = NodeLink(
            node,
            self._session,
            machine=machine.id,
            views=settings.views,
            checkpoints=settings.checkpoints,
            same_host=machine.same_host,
            bulk=self,
            reports=self._report_while_running if settings.plugins.present else reports,
            prints=settings.prints,
            logs=settings.logs,
            keys=settings.keys,
            peers=settings.peers,
            observe=settings.observe,
            sampled=SampleIntake(node, settings.setup.get("sample_every"), settings.observe).received,
            answered=self._answered,
        )
        self._route = route_to(node, machine, settings)
        self._control: Control | None = None
        self._lost: Lost | None = None  # how the current connection was lost; None: it is not lost
        self._watcher: Callable[[Lost], object] | None = None
        self._heartbeat = Heartbeat(self._route, self, same_host=self.on_this_computer, beats=settings.beats)
        self._silence = self._heartbeat.silence
        self._facts: NodeFacts | None = None
        self._uploads = 0  # number of running uploads
        self._gone = False  # whether the executor has certainly ended
        self._failure = ""  # an error of the executor for which the node is given up; empty: no such error

    @property
    def facts(self) -> NodeFacts:
        assert self._facts is not None, "a connection is handed out only after the node's welcome"
        return self._facts

    async def open(self, answered: Callable[[], None]) -> None:
        try:
            sources.named(self._machine.notices)
        except ValueError as error:
            raise ConnectFailed(str(error), systematic=True) from SpecError(f"notices: {error}.")
        welcome = await self._greet(answered)
        raw_facts = welcome.facts
        try:
            self._facts = facts = requirement_check.facts(welcome)
        except ValueError as error:
            self.cut("its welcome is not the protocol")
            raise ConnectFailed(f"node {self._machine.id} sent a welcome without its facts", fatal=True) from error
        self.link.learn_facts(facts, self._settings.object_bytes)
        if not self.on_this_computer:
            await self._check(facts, raw_facts)

    async def set_up_plugins(self) -> None:
        """Set up the pool's plugins once on this node; resume lost connections meanwhile. On an error, call `close`."""
        plugins = self._settings.plugins
        starting: asyncio.Future[Any] = asyncio.ensure_future(
            plugins.start(self._node, self.link, self.facts, systematic=self.on_this_computer)
        )
        try:
            while not starting.done():
                losing = self._losing()
                await asyncio.wait([starting, losing], return_when=asyncio.FIRST_COMPLETED)
                losing.cancel()
                if not starting.done() and not await self._resumed():
                    raise ConnectFailed("its executor was lost while plugins were set up")
            self._facts = starting.result()
        except BaseException:
            starting.cancel()
            await self.close()
            raise

    async def _resumed(self) -> bool:
        """Try to resume the session until a try succeeds or fails for good. Return whether it was resumed.

        A new session is not possible: the executor would refuse it.
        """
        while True:
            try:
                return await self.resume()
            except ConnectFailed as failed:
                if failed.fatal:
                    raise
            await asyncio.sleep(AGAIN_S)

    @property
    def on_this_computer(self) -> bool:
        return self._machine.on_this_computer

    async def forward(self, host: str, port: int, forwards: Forwards) -> str:
        if self.on_this_computer:
            return f"{host}:{port}"
        return await forwards.open(self._route.open_connection, host, port)

    async def _check(self, facts: NodeFacts, raw_facts: Mapping[str, Any]) -> None:
        node, settings, packages = self._node, self._settings, raw_facts.get("packages", {})
        wanted, mismatches = settings.wanted(self._machine), requirement_check.differences(packages)
        objection = requirement_check.too_small(facts, raw_facts, wanted) or requirement_check.misfit(
            facts, mismatches, node
        )
        if objection is not None:
            await self.close()
            failed = ConnectFailed(str(objection), fatal=True, systematic=self._machine.is_like_its_siblings)
            failed.kind = str(objection).replace(facts.hostname, "")
            raise failed from objection
        rows = tuple(each.row for each in mismatches)
        # nodes with equal differences between package versions: report these differences once
        if rows and rows not in settings.reported_differences:
            settings.reported_differences.add(rows)
            settings.observe(VersionsDiffer(node, rows, versions.table(mismatches)))

    async def resume(self) -> bool:
        if self._failure:
            raise ConnectFailed(self._failure, fatal=True)
        try:
            welcome = await self._greet()
        except ConnectFailed as failed:
            self._gone = self._gone or isinstance(failed.__cause__, ExecutorGone)
            raise
        self._gone = not welcome.resumed
        return welcome.resumed

    def watch(self, lost: Callable[[Lost], object]) -> None:
        """See `actors.interfaces.Connection.watch`. A second watcher replaces the first."""
        if self._lost is None:
            self._watcher = lost
        else:
            lost(self._lost)

    def _losing(self) -> asyncio.Future[Any]:
        """Return a future whose result is set when the current connection is lost. The caller may cancel the future."""
        losing: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.watch(lambda lost: None if losing.done() else losing.set_result(lost))
        return losing

    async def close(self) -> None:
        """End the session: end the tasks and plugins, send `Bye` to the executor, and wait until it closes the channel.

        For a node on this computer, do not wait: its provider ends the executor's process right after.
        """
        self._watcher = None
        lost, control = not self._route.reached or self._lost is not None, self._control
        try:
            if not lost:
                await self._settings.plugins.retire(self._node)
                self.link.send(wire.Bye())
                self.link.flush()
                if not self.on_this_computer:
                    await asyncio.wait([self._losing()], timeout=FAREWELL_S)
                    # an executor that has not closed the channel may not have received `Bye`
                    lost = control is None or not control.ended
        finally:
            self.link.close()
            self._owner.closed(self._node)
            self.cut("closed")
            self._route.begin_no_other()
        if lost and self._route.bootstrapped and self._facts is not None and not self._gone:
            self._owner.evict(self)

    async def evict(self) -> None:
        """Reach a node that was given up while unreachable, and end its tasks.

        Stop trying when its lease has run out.
        """
        until = time.monotonic() + self._settings.lease_s
        while time.monotonic() < until:
            if await self._evicted():
                return
            await asyncio.sleep(EVICT_AGAIN_S)

    async def _evicted(self) -> bool:
        """Try once to end an executor.

        Return True if the executor has ended, by this call or before. The executor's messages are ignored.
        """
        control, farewell = Control(), Farewell()
        try:
            await self._route.reach(again=False)
            async with asyncio.timeout(GREETING_S):
                if isinstance(await self._answer(control), wire.Welcome):
                    control.attach(farewell)
                    control.write(encode(wire.Bye()))
                    await farewell.heard.wait()
        except ExecutorGone:
            return True
        except Exception:  # noqa: BLE001  any error: the call is repeated
            return False
        finally:
            self.cut("given up")
        return True

    # --- the control channel ------------------------------------------------------------------------------------

    async def _greet(self, answered: Callable[[], None] = lambda: None) -> wire.Welcome:
        """Connect, send the hello, and attach the session to the executor. On an error, drop the connection."""
        self.cut("reconnecting")
        self._lost = None
        try:
            await self._route.reach(again=self._facts is not None)
            answered()
            await self._route.prepare()
            control = Control()
            async with asyncio.timeout(GREETING_S):
                welcome = self._accepted(await self._answer(control))
            if self._facts is None or welcome.resumed:
                self._session.resume(welcome.received)
            self._route.greeted()
        except Exception as error:  # noqa: BLE001  any error is translated below
            self.cut("not reached")
            if self._facts is None:  # the node was never reached: check again whether it still has an executor
                self._route.forget()
            failed = await self._route.refused(error)
            raise failed from failed.__cause__ or error
        except BaseException:
            self.cut("not reached")
            raise
        # a new executor must not get the messages for the earlier executor
        if self._facts is not None and not welcome.resumed:
            self.cut("its executor started anew")
            return welcome
        control.attach(self)
        self._control = control
        self._answered()
        self.link.attach(control.write)
        self.ping()  # a first measurement of the offset of the node's clock
        if control.rest:
            self.received(control.rest)
        self._heartbeat.start()
        return welcome

    async def _answer(self, control: Control) -> wire.Message:
        await self._route.open_channel(control)
        control.write(encode(self._hello()))
        assert control.first is not None, "it is attached later"
        return await control.first

    def _hello(self) -> wire.Hello:
        machine, setup = self._machine, self._settings.setup
        return wire.Hello(
            wire.PROTOCOL_VERSION,
            self._session_id,
            self._session.received,
            ".".join(map(str, sys.version_info[:2])),
            cloudpickle.__version__,
            self._settings.lease_s,
            {**setup, "env": {**machine.env, **setup["env"]}, "notices": list(machine.notices)},
        )

    def _accepted(self, answer: wire.Message) -> wire.Welcome:
        if isinstance(answer, wire.Refused):
            hello = self._hello()
            here = {"python": hello.python, "cloudpickle": hello.cloudpickle}
            mismatch = versions.version_mismatch(answer.reason, here, answer.facts)
            raise ConnectFailed(
                f"node {self._machine.id} refused this client: {answer.reason}", fatal=True
            ) from mismatch
        if not isinstance(answer, wire.Welcome):
            raise ProtocolError(f"{type(answer).__name__} where a welcome belongs")
        return answer

    def ping(self) -> None:
        self.link.ping()

    def received(self, data: bytes) -> None:
        if self._silence.received(len(data), math.inf if self._uploads else self._session.kept_bytes):
            self._answered()
        try:
            self.link.received(data)
        except ProtocolError as error:  # a new connection would not help: the node would send the same message again
            self._failure = f"it sent what is not the protocol: {error}"
            self.cut(self._failure)
        # the executor has reported an internal error and will exit: limit the wait for its exit
        if self.link.executor_error and not self._failure:
            self._failure = self.link.executor_error
            asyncio.get_running_loop().call_later(UNFIT_S, self.cut, self._failure)

    def _answered(self) -> None:
        self._silence.answered(time.monotonic())

    def _report_while_running(self, batch: Sequence[Report]) -> None:
        """Pass the reports to the pool, unless its plugins are being stopped: then an ended task must free no slot."""
        if reports := self._settings.plugins.reported(batch):
            self._reports(reports)

    def cut(self, cause: str, *, silent: bool = False, early_s: float = 0.0) -> None:
        """Drop the current connection, whatever state it is in.

        If the route to the machine is lost, the machine counts as silent from now on: no further data can arrive.
        """
        if not silent and self._route.way_is_lost:
            silent, early_s = True, SILENCE_S
        self._heartbeat.stop()
        if self._control is not None:
            self._control.detach()
            self._control = None
        if self._route.reached:
            self.link.detach()
        self._route.abort()
        if self._lost is None:
            self._lost = Lost(cause, silent, early_s)
            watcher, self._watcher = self._watcher, None
            if watcher is not None:
                watcher(self._lost)

    # --- bulk channels ------------------------------------------------------------------------------------------

    async def put(self, blob: Blob, progress: TransferProgress, at: int) -> None:
        sending = Sending(blob.parts, progress, at, blob.filled)
        request = wire.PutRest(blob.name, blob.size_bytes, at) if at else wire.Put(blob.name, blob.size_bytes)
        self._uploads += 1
        try:
            with self._settings.uploads.watched(self._node, blob.size_bytes - at, progress):
                await self._transfer(sending, request)
        finally:
            sending.release()
            self._uploads -= 1
            self.link.count_bytes(sent=progress.at_bytes)

    async def get(self, name: str, progress: TransferProgress) -> Part:
        receiving = Receiving(progress)
        try:
            await self._transfer(receiving, wire.Get(name))
            return receiving.buffer
        finally:
            receiving.release()
            self.link.count_bytes(received=progress.at_bytes)

    async def _transfer(self, transfer: Transfer, request: wire.Put | wire.PutRest | wire.Get) -> None:
        async with self._route.turn():
            try:
                async with asyncio.timeout(GREETING_S):
                    await self._route.open_channel(transfer)
                transfer.write(encode(request))
                transfer.begin()
                await transfer.wait()
            except TimeoutError as error:
                raise ConnectionResetError(f"its channel was not opened within {GREETING_S:g} s") from error
            finally:
                transfer.close()

"""One node's connection: SSH, the executor behind it, its channel with heartbeats, and coming back after a loss.

A machine of ours has its executor already; on any other the image and the executor are put first, by `image.bootstrap`.
"""

from __future__ import annotations

import asyncio
import platform
import secrets
import shlex
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import asyncssh
import cloudpickle

from ...actors.ports import ConnectFailed, Lost, NodeFacts, NodeId, Order, Report
from ...providers.base import Machine
from ..api.errors import BootstrapError, SpecError, version_mismatch
from ..api.printable import plainly
from ..node.notices import settings
from ..serialization.payload import Blob, Part
from ..wire import messages as wire
from ..wire.codec import ProtocolError, encode
from ..wire.session import KEPT_BYTES, Session
from . import hedge, hostkeys, lease, requirement_check, ssh
from .channels import Channel, Control, Receiving, Sending, Transfer
from .connect_errors import refusal
from .forward import Forwards
from .link import NodeLink
from .shell import RemoteShell
from .transfer_progress import TransferProgress
from .views import Views

if TYPE_CHECKING:
    from ..image.bootstrap import Bootstrapped, Phase, Prepared
    from ..serialization.versions import Mismatch

HEARTBEAT_S = 2.0
QUIET_S = 3.5  # after so much silence another connection is begun beside the one there is: TCP's own pauses double
SILENCE_S = 6.0  # with the time for reconnecting, a black hole is seen in 9 s; a stall of 3 s is nothing
ANEW_S, TRIES = 0.7, 5  # to reach a node that was: another try beside one that hangs
GREETING_S = 10.0
ROTATE_S = 30.0
BOOTSTRAPS = 50  # at once; the machines that wait are connected to, and their leases renewed
BRIDGES = 8  # for blobs at a time: sshd's MaxSessions is 10, and the control channel is one
_NOT_CONNECTED = 2  # SSH_OPEN_CONNECT_FAILED, RFC 4254 5.1
EVICT_AGAIN_S = 2.0
UNFIT_S = 10.0  # for an executor that has said so to have ended: its workers have 6 s
FAREWELL_S = 4.0  # for a host to end its tasks' process trees, and then its executor


class NodePlugins(Protocol):
    """The plugins' halves on the nodes, as a connection needs them: see `client.plugin_hosts`."""

    @property
    def present(self) -> bool: ...

    async def start(self, node: NodeId, link: NodeLink, facts: NodeFacts, *, systematic: bool) -> NodeFacts: ...

    def reported(self, node: NodeId, reports: Sequence[Report]) -> Sequence[Report]: ...

    def left(self, node: NodeId) -> None: ...

    async def retire(self, node: NodeId) -> None: ...


@dataclass(frozen=True, slots=True)
class Terms:
    """The settings that all connections of a pool have in common."""

    pool: str
    views: Views
    key: asyncssh.SSHKey
    setup: dict[str, Any]  # as in `Hello`
    wanted: Callable[[Machine], requirement_check.Wanted]
    lease_s: float
    image: Callable[[], Awaitable[Prepared]]  # made once, when the first machine needs it
    progress: Callable[[NodeId, Phase], None]
    differing: Callable[[NodeId, Sequence[Mismatch]], None]
    printed: Callable[[NodeId, Order | None, wire.Output], None]
    plugins: NodePlugins
    bootstraps: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(BOOTSTRAPS))
    wiring: Callable[[], ssh.Wiring | None] = lambda: None
    turn: str = ""  # which of the pool's clients this is, where one took it over from another
    pinned: Callable[[Machine], tuple[str, ...]] = lambda _: ()  # keys that its host may show, where it was replaced
    rotated: Callable[[Machine, tuple[str, ...]], Awaitable[None]] | None = None  # told of them before they are in use


class Connector:
    """Implements `actors.ports.Connect` for one pool."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._links: dict[NodeId, NodeLink] = {}
        self._connections: dict[NodeId, NodeConnection] = {}
        self._opening: dict[NodeId, NodeConnection] = {}  # tried and not reached: what was agreed on there stays agreed
        self._evictions: set[asyncio.Task[None]] = set()

    async def __call__(
        self,
        node: NodeId,
        machine: Machine,
        reports: Callable[[Sequence[Report]], None],
        answered: Callable[[], None],
    ) -> NodeConnection:
        connection = self._opening.get(node)
        if connection is None:
            connection = NodeConnection(
                node, machine, self._terms, reports, closed=lambda: self._closed(node), evict=self._evict
            )
            self._opening[node] = connection
        await connection.open(answered)
        del self._opening[node]
        await connection.set_up_plugins()
        self._links[node] = connection.link
        self._connections[node] = connection
        return connection

    def _closed(self, node: NodeId) -> None:
        self._connections.pop(node, None)
        if self._links.pop(node, None) is not None:
            self._terms.plugins.left(node)

    def _evict(self, connection: NodeConnection) -> None:
        task = asyncio.ensure_future(connection.evict())
        self._evictions.add(task)
        task.add_done_callback(self._evictions.discard)

    async def close(self) -> None:
        """Nodes that were given up and not reached since end with their lease."""
        for task in self._evictions:
            task.cancel()
        await asyncio.gather(*self._evictions, return_exceptions=True)

    async def forward(self, node: NodeId, port: int, forwards: Forwards) -> str:
        """See `api.plugin_sides.PluginContext.forward`.

        Raises:
            ConnectionError: the node has gone.
        """
        connection = self._connections.get(node)
        if connection is None:
            raise ConnectionResetError(f"node {node} has gone")
        if connection.on_this_computer:
            return f"{connection.facts.address}:{port}"
        return await forwards.open(connection.dial, connection.facts.address, port)

    @property
    def facts(self) -> list[NodeFacts]:
        """The facts of the ready nodes, by rank."""
        return self._terms.views.facts

    def cut(self, node: NodeId, cause: str) -> None:
        """Drop the connection to a node; like any lost connection, it is tried again."""
        if (connection := self._connections.get(node)) is not None:
            connection.cut(cause)

    def forget(self, function: bytes) -> None:
        """Nobody has this function any more, and no attempt of it is under way."""
        for link in self._links.values():
            link.forget(function)

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
        *,
        closed: Callable[[], object],
        evict: Callable[[NodeConnection], object],
    ) -> None:
        self._node, self._machine, self._terms, self._closed, self._evict = node, machine, terms, closed, evict
        self._session_id = secrets.token_hex(16)
        self._session = Session(keeps_bytes=KEPT_BYTES)
        self.link = NodeLink(
            node,
            self._session,
            machine=machine.id,
            views=terms.views,
            same_host=machine.same_host,
            bulk=self,
            reports=_without_plugins(terms.plugins, node, reports) if terms.plugins.present else reports,
            printed=lambda order, output: terms.printed(node, order, output),
        )
        self._ssh: ssh.Connected | None = None
        self._executor: Bootstrapped | None = None
        self._host_keys = terms.pinned(machine)  # in place of the machine's, from when it was replaced
        self._bridges = asyncio.Semaphore(BRIDGES)
        self._bridged: bool | None = None  # the host's SSH server does not forward sockets; None: not tried yet
        self._nudge: asyncio.Task[object] | None = None
        self._renewal: lease.Renewal | None = None  # of the machine's lease, until the executor takes over
        self._control: Control | None = None
        self._lost: asyncio.Future[Lost] = asyncio.get_running_loop().create_future()
        self._beat: asyncio.TimerHandle | None = None
        self._anew: asyncio.Task[ssh.Connected] | None = None  # in place of one that is silent
        self._heard_at = 0.0
        self._facts: NodeFacts | None = None
        self._gone = False  # the executor, for certain
        self._errs = ""  # how, where it did: it is given up

    @property
    def facts(self) -> NodeFacts:
        assert self._facts is not None, "a connection is handed out only after the node's welcome"
        return self._facts

    async def open(self, answered: Callable[[], None]) -> None:
        try:
            settings.sources(self._machine.notices)
        except ValueError as error:
            raise ConnectFailed(str(error), systematic=True) from SpecError(f"notices: {error}.")
        welcome = await self._greet(answered)
        said = welcome.facts
        try:
            self._facts = facts = requirement_check.facts(welcome)
        except ValueError as error:
            self._drop("its welcome is not the protocol")
            raise ConnectFailed(f"node {self._machine.id} sent a welcome without its facts", fatal=True) from error
        if not self._machine.embedded:
            await self._check(facts, said)

    async def set_up_plugins(self) -> None:
        """Set up the pool's plugins once on each node, through a loss of the connection. If cancelled or failed, it
        leaves nothing open.

        Raises:
            ConnectFailed
        """
        plugins = self._terms.plugins
        starting = asyncio.ensure_future(
            plugins.start(self._node, self.link, self.facts, systematic=self.on_this_computer)
        )
        try:
            while not starting.done():
                losing = asyncio.ensure_future(self.wait_lost())
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
        """Tried until it is known. Another connection in its place would be another session, which is refused."""
        while True:
            try:
                return await self.resume()
            except ConnectFailed as failed:
                if failed.fatal:
                    raise
            await asyncio.sleep(ANEW_S)

    @property
    def on_this_computer(self) -> bool:
        return self._machine.embedded

    async def dial(self, host: str, port: int) -> tuple[asyncssh.SSHReader[bytes], asyncssh.SSHWriter[bytes]]:
        """A stream to what the node reaches there, over the present connection.

        Raises:
            OSError, asyncssh.Error
        """
        if self._ssh is None:
            raise ConnectionResetError("the connection was lost")
        return await self._ssh.connection.open_connection(host, port, encoding=None)

    async def _check(self, facts: NodeFacts, said: Mapping[str, Any]) -> None:
        """
        Raises:
            ConnectFailed: the host has not what the pool needs.
        """
        node, terms, packages = self._node, self._terms, said.get("packages", {})
        wanted = terms.wanted(self._machine)
        objection = requirement_check.too_small(facts, said, wanted) or requirement_check.misfit(facts, packages, node)
        if objection is not None:
            await self.close()
            raise ConnectFailed(str(objection), fatal=True) from objection
        if mismatches := requirement_check.differences(packages):
            terms.differing(node, mismatches)

    async def resume(self) -> bool:
        if self._errs:
            raise ConnectFailed(self._errs, fatal=True)
        try:
            welcome = await self._greet()
        except ConnectFailed as failed:
            cause = failed.__cause__
            if self._bridged is False and isinstance(cause, asyncssh.ChannelOpenError) and cause.code == _NOT_CONNECTED:
                # The host is there and forwards to sockets; nobody listens at this one any more, nor will again.
                self._gone = True
                raise ConnectFailed("its executor is gone", fatal=True) from cause
            raise
        self._gone = not welcome.resumed
        return welcome.resumed

    async def wait_lost(self) -> Lost:
        return await asyncio.shield(self._lost)

    def cut(self, cause: str) -> None:
        self._drop(cause)

    async def close(self) -> None:
        """Say goodbye. Nobody waits for a machine that is a process of ours: its provider ends it right after."""
        lost, control = self._ssh is None or self._lost.done(), self._control
        try:
            if not lost:
                await self._terms.plugins.retire(self._node)
                self.link.send(wire.Bye())
                self.link.flush()
                if not self._machine.embedded:
                    await asyncio.wait([self._lost], timeout=FAREWELL_S)
                    lost = control is None or not control.ended  # else it may not have heard that
        finally:
            self.link.close()
            self._closed()
            self._drop("closed")
            self._begin_none_anew()
        if lost and self._executor is not None and self._facts is not None and not self._gone:
            self._evict(self)

    async def evict(self) -> None:
        """End what runs on a node that was given up while out of reach, as soon as it is reached. Try for as
        long as its lease, after which the node ends itself.
        """
        until = time.monotonic() + self._terms.lease_s
        while time.monotonic() < until:
            if await self._evicted():
                return
            await asyncio.sleep(EVICT_AGAIN_S)

    async def _evicted(self) -> bool:
        """Return whether the executor is gone, ended by this client or not. What it may still say is ignored."""
        control, ended = Control(), asyncio.Event()
        try:
            self._ssh = await ssh.connect(self._machine, self._terms.key, self._host_keys)
            async with asyncio.timeout(GREETING_S):
                await self._open_channel(control)
                control.chan.write(encode(self._hello()))
                if isinstance(await control.first, wire.Welcome):
                    control.attach(lambda _: None, lambda _: ended.set())
                    control.chan.write(encode(wire.Bye()))
                    await ended.wait()
        except asyncssh.ChannelOpenError as error:
            return self._bridged is False and error.code == _NOT_CONNECTED
        except Exception:  # noqa: BLE001  the edge: it is tried again
            return False
        finally:
            self._drop("given up")
        return True

    # --- the control channel ------------------------------------------------------------------------------------

    async def _greet(self, answered: Callable[[], None] = lambda: None) -> wire.Welcome:
        """Connect, say hello, and attach the session to what answers. Failed or cancelled, it leaves nothing open."""
        self._drop("reconnecting")
        self._lost = asyncio.get_running_loop().create_future()
        try:
            self._ssh = reached = await self._reach()
            answered()
            if self._machine.lease:
                shell, lease_s = RemoteShell(reached.connection), self._terms.lease_s
                self._renewal = lease.Renewal(shell, self._machine.lease, lease_s, checked=self._executor is None)
            if self._machine.rotate_host_key and len(self._host_keys) != 1:
                await self._rotate(RemoteShell(reached.connection))
            if self._machine.embedded:
                pass
            elif self._executor is None:
                async with self._terms.bootstraps:
                    self._executor = await self._armed(self._bootstrapped(reached.connection))
            else:
                self._nudge = asyncio.ensure_future(_nudged(reached.connection))
            control = Control()
            async with asyncio.timeout(GREETING_S):
                await self._open_channel(control)
                control.chan.write(encode(self._hello()))
                welcome = await control.first
            welcome = self._accepted(welcome)
            if self._facts is None or welcome.resumed:
                self._session.resume(welcome.received)
            self._renewed_there()
        except Exception as error:  # noqa: BLE001  the edge
            self._drop("not reached")
            if self._facts is None:  # nor was it before: whether there still is an executor is seen to again
                self._executor = self._bridged = None
            failed = await refusal(self._machine, error)
            raise failed from failed.__cause__ or error
        except BaseException:
            self._drop("not reached")
            raise
        if self._facts is not None and not welcome.resumed:  # what the one before had been sent is not for this one
            self._drop("its executor started anew")
            return welcome
        control.attach(self._received, self._drop)
        self._control = control
        self._heard_at = time.monotonic()
        self.link.attach(control.chan.write)
        if control.rest:
            self._received(control.rest)
        self._beat = asyncio.get_running_loop().call_later(HEARTBEAT_S, self._heartbeat)
        return welcome

    async def _reach(self) -> ssh.Connected:
        if self._facts is None or self._machine.embedded:
            return await self._dial()
        anew, self._anew = self._anew, None
        return await (self._dial_anew() if anew is None else anew)

    async def _dial_anew(self) -> ssh.Connected:
        """Soon after a network is back: there are seconds until the node is given up."""
        return await hedge.first(self._dial, ssh.Connected.abort, every_s=ANEW_S, at_once=TRIES)

    async def _dial(self) -> ssh.Connected:
        return await ssh.connect(self._machine, self._terms.key, self._host_keys, self._terms.wiring())

    async def _rotate(self, shell: RemoteShell) -> None:
        """
        Raises:
            BootstrapError, ConnectionError
        """
        machine = self._machine
        async with asyncio.timeout(ROTATE_S):
            if not self._host_keys:
                self._host_keys = (await hostkeys.make(shell, machine), machine.host_key)
            await self._tell_host_keys()
            await hostkeys.place(shell, machine)
        self._host_keys = self._host_keys[:1]
        await self._tell_host_keys()

    async def _tell_host_keys(self) -> None:
        if self._terms.rotated is not None:
            await self._terms.rotated(self._machine, self._host_keys)

    async def _armed(self, bootstrap: Coroutine[Any, Any, Bootstrapped]) -> Bootstrapped:
        """Beside it, not before it: the answer of the check takes no time of its own."""
        if self._renewal is None:
            return await bootstrap
        return await self._renewal.during(bootstrap, self._machine.id)

    async def _bootstrapped(self, connection: asyncssh.SSHClientConnection) -> Bootstrapped:
        """
        Raises:
            BootstrapError: with the machine it happened on.
        """
        from ..image.bootstrap import bootstrap  # which pools on this computer do without

        terms, machine = self._terms, self._machine
        try:
            return await bootstrap(
                RemoteShell(connection),
                await terms.image(),
                pool=terms.pool,
                machine=machine.id.rpartition("/")[2],
                node=f"{terms.turn}{self._node}",
                address=machine.private_address or None,
                lease_s=terms.lease_s,
                lease_file=machine.lease,
                progress=lambda phase: terms.progress(self._node, phase),
            )
        except BootstrapError as error:
            raise error.at(machine.id.rpartition("/")[2], self._node) from error.__cause__

    async def _open_channel(self, channel: Channel) -> None:
        """A channel to the executor's socket; over a command there, where the server forbids forwarding."""
        assert self._ssh is not None, "first the connection, then channels"
        connection, executor = self._ssh.connection, self._executor
        how: dict[str, Any] = {"encoding": None, "window": ssh.WINDOW_BYTES, "max_pktsize": ssh.PACKET_BYTES}
        if not self._bridged:
            door = self._machine.door if executor is None else executor.door
            try:
                await connection.create_unix_connection(lambda: channel, door, **how)
            except asyncssh.ChannelOpenError as error:
                if connection.is_closed():  # asyncssh gives it the code that servers give where nobody listens
                    raise ConnectionResetError("the connection was lost") from plainly(error)
                # sshd says "open failed" where it forbids forwarding, as where nobody listens: whether sockets are
                # forwarded shows the first time, when the executor has just answered the bootstrap.
                if executor is None or self._bridged is False:
                    raise
                self._bridged = True
            else:
                self._bridged = False
                return
        assert executor is not None, "only hosts that were bootstrapped have bridges"
        bridge = (executor.python, "-I", executor.runtime, "bridge", executor.door)
        channel.bridged()
        await connection.create_session(lambda: channel, shlex.join(bridge), **how)

    def _hello(self) -> wire.Hello:
        machine, setup = self._machine, self._terms.setup
        return wire.Hello(
            wire.PROTOCOL_VERSION,
            self._session_id,
            self._session.received,
            ".".join(platform.python_version_tuple()[:2]),
            cloudpickle.__version__,
            self._terms.lease_s,
            {**setup, "env": {**machine.env, **setup["env"]}, "notices": list(machine.notices)},
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
        except ProtocolError as error:  # over SSH nothing is garbled on its way, and it would say the same again
            self._errs = f"it sent what is not the protocol: {error}"
            self._drop(self._errs)
        if self.link.unfit and not self._errs:  # it is about to end, and is not waited for without end
            self._errs = self.link.unfit
            asyncio.get_running_loop().call_later(UNFIT_S, self._drop, self._errs)

    def _heartbeat(self) -> None:
        silent_s = time.monotonic() - self._heard_at
        if silent_s >= SILENCE_S:
            # On this very computer it is not the network that is silent.
            self._drop(f"silent for {SILENCE_S:g} s", silent=not self._machine.embedded)
            return
        if silent_s < QUIET_S:
            self._begin_none_anew()
        elif self._anew is None and not self._machine.embedded:
            self._anew = asyncio.ensure_future(self._dial_anew())
            self._anew.add_done_callback(self._begun_anew)
        self.link.send(wire.Ping(int(time.monotonic() * 1000)))
        left = [limit_s - silent_s for limit_s in (QUIET_S, SILENCE_S) if silent_s < limit_s]
        self._beat = asyncio.get_running_loop().call_later(min(HEARTBEAT_S, *left), self._heartbeat)

    def _begun_anew(self, anew: asyncio.Task[ssh.Connected]) -> None:
        """Reached, while the present connection was silent: change over, unless that has come back or was dropped."""
        if anew is not self._anew or anew.cancelled():
            return
        silent_s = time.monotonic() - self._heard_at
        if anew.exception() is not None:
            self._anew = None  # the next heartbeat begins another
        elif silent_s < QUIET_S:
            self._begin_none_anew()
        elif self._control is not None:
            self._drop(f"silent for {silent_s:.0f} s, and reached anew", early_s=SILENCE_S - silent_s)

    def _begin_none_anew(self) -> None:
        anew, self._anew = self._anew, None
        if anew is not None and not anew.cancel() and not anew.cancelled() and anew.exception() is None:
            anew.result().abort()

    def _drop(self, cause: str, *, silent: bool = False, early_s: float = 0.0) -> None:
        """Let go of the present SSH connection, whatever state it is in."""
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None
        if self._control is not None:
            self._control.detach()
            self._control = None
        if self._nudge is not None:
            self._nudge.cancel()
            self._nudge = None
        self._renewed_there()
        if self._ssh is not None:
            self.link.detach()
            self._ssh.abort()
            self._ssh = None
        if not self._lost.done():
            self._lost.set_result(Lost(cause, silent, early_s))

    def _renewed_there(self) -> None:
        if self._renewal is not None:
            self._renewal.close()
            self._renewal = None

    # --- bulk channels ------------------------------------------------------------------------------------------

    async def put(self, blob: Blob, course: TransferProgress) -> None:
        sending = Sending(blob.parts, course)
        await self._transfer(sending, wire.Put(blob.name, blob.size_bytes))

    async def get(self, name: str, course: TransferProgress) -> Part:
        receiving = Receiving(course)
        await self._transfer(receiving, wire.Get(name))
        return receiving.buffer

    async def _transfer(self, transfer: Transfer, request: wire.Put | wire.Get) -> None:
        """One channel for one blob. A cancelled open would leak the channel: a late arrival closes itself."""
        if self._ssh is None:
            raise ConnectionResetError("the connection was lost")
        async with self._bridges if self._bridged else nullcontext():
            opening = asyncio.ensure_future(self._open_channel(transfer))
            try:
                async with asyncio.timeout(GREETING_S):
                    await asyncio.shield(opening)
                transfer.chan.write(encode(request))
                transfer.begin()
                await transfer.wait()
            except TimeoutError as error:
                raise ConnectionResetError(f"its channel was not opened within {GREETING_S:g} s") from error
            except asyncssh.Error as error:
                raise ConnectionResetError(str(plainly(error))) from error
            finally:
                opening.add_done_callback(partial(_close_late, transfer))


def _without_plugins(
    plugins: NodePlugins, node: NodeId, reports: Callable[[Sequence[Report]], None]
) -> Callable[[Sequence[Report]], None]:
    def reported(batch: Sequence[Report]) -> None:
        if others := plugins.reported(node, batch):
            reports(others)

    return reported


def _close_late(transfer: Transfer, opening: asyncio.Future[None]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        transfer.chan.close()


async def _nudged(connection: asyncssh.SSHClientConnection) -> None:
    """sshd sets TCP_NODELAY when a command starts: a connection that only forwards answers in bursts of 42 ms."""
    with suppress(ConnectionError, asyncssh.Error):
        await RemoteShell(connection).run(["true"])

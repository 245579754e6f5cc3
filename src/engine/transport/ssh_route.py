"""The way to a machine by SSH: connected to, its executor put there where there is none, and channels to its socket.

A channel is forwarded to the socket; or it leads to a bridge, a command whose standard streams are that socket.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import asyncssh

from ...actors.events import NodePreparing
from ...actors.interfaces import ConnectFailed, NodeId
from ...providers.base import Machine
from ..api.errors import BootstrapError
from ..api.printable import plainly
from ..node.bridge import BEGINS
from . import host_key_rotation, ssh
from .channels import Channel
from .connection_settings import ConnectionSettings
from .lease_renewal import LeaseRenewal
from .login import ssh_refusal
from .route import ExecutorGone, Route
from .ssh import RemoteShell

if TYPE_CHECKING:
    from ..image.bootstrap import Bootstrapped, Phase

ANEW_S, TRIES = 0.7, 5  # to reach a node that was: another try beside one that hangs
ROTATE_S = 30.0
BRIDGES = 8  # for blobs at a time: sshd's MaxSessions is 10, and the control channel is one
_NOT_CONNECTED = 2  # SSH_OPEN_CONNECT_FAILED, RFC 4254 5.1


class SSHRoute(Route):
    def __init__(self, node: NodeId, machine: Machine, settings: ConnectionSettings) -> None:
        super().__init__(machine)
        self._node, self._settings = node, settings
        self._ssh: ssh.Connected | None = None
        self._executor: Bootstrapped | None = None
        self._bridged: bool | None = None  # the host's SSH server does not forward sockets; None: not tried yet
        self._bridges = asyncio.Semaphore(BRIDGES)
        self._host_keys = settings.pinned(machine)  # in place of the machine's, from when it was replaced
        self._nudge: asyncio.Task[object] | None = None
        self._renewal: LeaseRenewal | None = None  # of the machine's lease, until the executor takes over
        self._another: asyncio.Task[ssh.Connected] | None = None  # in place of one that is silent

    @property
    def reached(self) -> bool:
        return self._ssh is not None

    @property
    def bootstrapped(self) -> bool:
        return self._executor is not None

    @property
    def way_is_lost(self) -> bool:
        return self._ssh is not None and self._ssh.way_is_lost

    async def reach(self, *, again: bool) -> None:
        if not again or self._machine.on_this_computer:
            self._ssh = await self._dial()
            return
        another, self._another = self._another, None
        self._ssh = await (self._dial_anew() if another is None else another)

    async def prepare(self) -> None:
        connection, machine = self._connection, self._machine
        if machine.lease:
            shell, lease_s = RemoteShell(connection), self._settings.lease_s
            checked = self._executor is None
            self._renewal = LeaseRenewal(shell, machine.lease, lease_s, checked=checked)
        if machine.rotate_host_key and len(self._host_keys) != 1:
            await self._rotate(RemoteShell(connection))
        if machine.on_this_computer:
            return
        if self._executor is None:
            async with self._settings.bootstraps:
                bootstrap = self._bootstrapped(connection)
                if self._renewal is not None:  # beside it, not before it: the check takes no time of its own
                    bootstrap = self._renewal.during(bootstrap, machine.id)
                self._executor = await bootstrap
        else:
            self._nudge = asyncio.ensure_future(_nudged(connection))

    def greeted(self) -> None:
        if self._renewal is not None:
            self._renewal.close()
            self._renewal = None

    def forget(self) -> None:
        self._executor = self._bridged = None

    async def refused(self, error: BaseException) -> ConnectFailed:
        return await ssh_refusal(self._machine, error)

    def abort(self) -> None:
        if self._nudge is not None:
            self._nudge.cancel()
            self._nudge = None
        self.greeted()
        if self._ssh is not None:
            self._ssh.abort()
            self._ssh = None

    # --- another connection, beside one that is silent ------------------------------------------------------------

    def begin_another(self, reached: Callable[[], None]) -> None:
        if self._another is None and not self._machine.on_this_computer:
            self._another = asyncio.ensure_future(self._dial_anew())
            self._another.add_done_callback(partial(self._begun, reached))

    def begin_no_other(self) -> None:
        another, self._another = self._another, None
        if another is not None and not another.cancel():
            ssh.discard_result(lambda unused: unused.abort(), another)

    def _begun(self, reached: Callable[[], None], another: asyncio.Task[ssh.Connected]) -> None:
        if another is not self._another or another.cancelled():
            return
        if another.exception() is not None:
            self._another = None  # the next heartbeat begins another
        else:
            reached()

    async def _dial_anew(self) -> ssh.Connected:
        """Soon after a network is back: there are seconds until the node is given up."""
        return await ssh.hedged(self._dial, ssh.Connected.abort, every_s=ANEW_S, at_once=TRIES)

    async def _dial(self) -> ssh.Connected:
        key = self._settings.key
        assert key is not None, "a pool that has machines with SSH has a key"
        machine, interpose = self._machine, self._settings.interpose()
        if machine.address is not None and machine.address.command:
            from . import command_stream  # which most pools do without

            logins = self._settings.logins
            return await command_stream.connect(machine, key, self._host_keys, logins, interpose)
        return await ssh.connect(machine, key, self._host_keys, interpose)

    # --- what is seen to before an executor is spoken to ------------------------------------------------------------

    async def _rotate(self, shell: RemoteShell) -> None:
        machine = self._machine
        async with asyncio.timeout(ROTATE_S):
            if not self._host_keys:
                self._host_keys = (await host_key_rotation.make_host_key(shell, machine), machine.host_key)
            await self._tell_host_keys()
            await host_key_rotation.use_host_key(shell, machine)
        self._host_keys = self._host_keys[:1]
        await self._tell_host_keys()

    async def _tell_host_keys(self) -> None:
        if self._settings.rotated is not None:
            await self._settings.rotated(self._machine, self._host_keys)

    async def _bootstrapped(self, connection: asyncssh.SSHClientConnection) -> Bootstrapped:
        """Put the image and an executor there. A BootstrapError says on which machine it failed."""
        from ..image.bootstrap import bootstrap  # which pools on this computer do without

        settings, machine = self._settings, self._machine
        try:
            return await bootstrap(
                RemoteShell(connection),
                await settings.image(),
                pool=settings.pool,
                machine=machine.id.rpartition("/")[2],
                node=f"{settings.turn}{self._node}",
                address=machine.private_address or None,
                lease_s=settings.lease_s,
                lease_file=machine.lease,
                progress=self._progress,
            )
        except BootstrapError as error:
            raise error.at(machine.id.rpartition("/")[2], self._node) from error.__cause__

    def _progress(self, phase: Phase) -> None:
        took_s = phase.seconds if phase.state == "finished" else None
        self._settings.observe(NodePreparing(self._node, phase.name, phase.text, took_s))

    # --- channels ---------------------------------------------------------------------------------------------------

    @property
    def _connection(self) -> asyncssh.SSHClientConnection:
        if self._ssh is None:
            raise ConnectionResetError("the connection was lost")
        return self._ssh.connection

    def turn(self) -> AbstractAsyncContextManager[object]:
        return self._bridges if self._bridged else super().turn()

    async def open_channel(self, channel: Channel) -> None:
        """Open a channel to the executor's socket; over a command there, where the server forbids forwarding."""
        try:
            await ssh.opened(self._opened(channel), lambda _: channel.close())
        except asyncssh.Error as error:
            raise ConnectionResetError(str(plainly(error))) from error

    async def _opened(self, channel: Channel) -> None:
        connection, executor = self._connection, self._executor
        how: dict[str, Any] = {"encoding": None, "window": ssh.WINDOW_BYTES, "max_pktsize": ssh.PACKET_BYTES}
        if not self._bridged:
            path = self._machine.executor_socket if executor is None else executor.executor_socket
            try:
                await connection.create_unix_connection(lambda: _SSHChannel(channel), path, **how)
            except asyncssh.ChannelOpenError as error:
                if connection.is_closed():  # asyncssh gives it the code that servers give where nobody listens
                    raise ConnectionResetError("the connection was lost") from plainly(error)
                if self._bridged is False and error.code == _NOT_CONNECTED:
                    raise ExecutorGone(str(plainly(error))) from error
                # sshd says "open failed" where it forbids forwarding, as where nobody listens: whether sockets are
                # forwarded shows the first time, when the executor has just answered the bootstrap.
                if executor is None or self._bridged is False:
                    raise
                self._bridged = True
            else:
                self._bridged = False
                return
        assert executor is not None, "only hosts that were bootstrapped have bridges"
        bridge = (executor.python, "-I", executor.runtime, "bridge", executor.executor_socket)
        await connection.create_session(lambda: _SSHChannel(channel, bridged=True), shlex.join(bridge), **how)

    async def open_connection(
        self, host: str, port: int
    ) -> tuple[asyncssh.SSHReader[bytes], asyncssh.SSHWriter[bytes]]:
        return await self._connection.open_connection(host, port, encoding=None)


class _SSHChannel(asyncssh.SSHUNIXSession[bytes], asyncssh.SSHClientSession[bytes]):
    """An SSH channel that carries one of ours. A command's standard error is heard by nobody."""

    def __init__(self, channel: Channel, *, bridged: bool = False) -> None:
        self._channel = channel
        self._skipped: bytearray | None = bytearray() if bridged else None  # None: the bridge has begun

    def connection_made(self, chan: Any) -> None:
        self._channel.connection_made(chan)

    def data_received(self, data: bytes, datatype: int | None = None) -> None:
        if datatype is None and (self._skipped is None or (data := self._begun(self._skipped, data))):
            self._channel.data_received(data)

    def _begun(self, skipped: bytearray, data: bytes) -> bytes:
        """Skip what the login shell that starts a bridge may print first. Return what comes behind that."""
        skipped += data
        before, begun, rest = bytes(skipped).partition(BEGINS)
        if begun:
            self._skipped = None
        else:
            del skipped[: max(0, len(before) - len(BEGINS))]
        return rest

    def pause_writing(self) -> None:
        self._channel.pause_writing()

    def resume_writing(self) -> None:
        self._channel.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._channel.connection_lost(exc)


async def _nudged(connection: asyncssh.SSHClientConnection) -> None:
    """sshd sets TCP_NODELAY when a command starts: a connection that only forwards answers in bursts of 42 ms."""
    with suppress(ConnectionError, asyncssh.Error):
        await RemoteShell(connection).run(["true"])

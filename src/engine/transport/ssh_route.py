"""The route to a machine by SSH: connect, bootstrap an executor if there is none, and open channels to its socket.

SSH forwards a channel to the socket, or runs a bridge: a command that connects its standard streams to the socket.

Rotation of the host key: a machine's first host key is in its launch data, which others may be able to read. A key that
is made on the machine, and never leaves it, replaces the first key. Rotation first makes and reports the new key, then
puts it in place: if the connection is lost in between, the next connection sees one of two pinned keys.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import Any

import asyncssh

from ...actors.interfaces import ConnectFailed, NodeId
from ...providers.base import Machine
from ..api.errors import BootstrapError
from ..api.printable import plainly
from ..image.commands import CommandResult, CommandRunner
from . import ssh
from .bootstrapped_route import BootstrappedRoute, BridgeOutput
from .channels import Channel, Receiving, Sending
from .connection_settings import ConnectionSettings
from .flow_control import ReceiveWindow, SendAhead
from .login import ssh_refusal
from .route import ExecutorGone
from .ssh import RemoteShell

# The scripts run as root, directly or by sudo. sh reads them on stdin, so they need no quoting for a login shell. Where
# systemd starts one sshd for each connection (socket activation), sshd need not be reloaded.
_MAKE = b"""\
set -eu
umask 077
rm -f /etc/ssh/outrider_new /etc/ssh/outrider_new.pub
ssh-keygen -q -t ed25519 -N '' -C outrider -f /etc/ssh/outrider_new </dev/null
cat /etc/ssh/outrider_new.pub
"""
_PLACE = b"""\
set -eu
if [ -e /etc/ssh/outrider_new ]; then
    mv -f /etc/ssh/outrider_new.pub /etc/ssh/ssh_host_ed25519_key.pub
    mv -f /etc/ssh/outrider_new /etc/ssh/ssh_host_ed25519_key
fi
if [ -d /run/systemd/system ]; then
    systemctl reload ssh 2>/dev/null || systemctl reload sshd 2>/dev/null || true
else
    pid=$$ listener=
    while [ "$pid" -gt 1 ]; do
        read -r name </proc/"$pid"/comm
        if [ "$name" = sshd ]; then listener=$pid; fi
        pid=$(sed 's/.*) . //; s/ .*//' /proc/"$pid"/stat)
    done
    kill -HUP "${listener:?no sshd above this command}"
fi
"""


async def make_host_key(shell: CommandRunner, machine: Machine) -> str:
    """Make a new key on the machine, not in use yet, and return its public part. Raise a BootstrapError on failure."""
    ended = await _as_root(shell, _MAKE)
    kind, *rest = ended.stdout.decode(errors="replace").split()[:2] or [""]
    if ended.status != 0 or kind != "ssh-ed25519" or not rest:
        raise _failed("a new host key could not be made", ended, machine)
    return f"{kind} {rest[0]}"


async def use_host_key(shell: CommandRunner, machine: Machine) -> None:
    """Put the new key in use for all later connections. Raise a BootstrapError on failure."""
    ended = await _as_root(shell, _PLACE)
    if ended.status != 0:
        raise _failed("the new host key could not be put in place", ended, machine)


async def _as_root(shell: CommandRunner, script: bytes) -> CommandResult:
    return await shell.run(
        ["sh", "-c", 'if [ "$(id -u)" = 0 ]; then exec sh -s; else exec sudo -n sh -s; fi'], stdin=script
    )


def _failed(reason: str, ended: CommandResult, machine: Machine) -> BootstrapError:
    log = ended.stderr.decode(errors="replace").splitlines()[-20:]
    story = "".join(f"\n  | {line}" for line in log)
    hint = "use an image whose login user is root or may use sudo without a password, with OpenSSH's server"
    return BootstrapError(
        f"machine {machine.id}: {reason} ({ended.how}). Next: {hint}.{story}",
        phase="probe",
        command="ssh-keygen",
        exit_status=ended.status,
        log=log,
        hint=hint,
        machine=str(machine.id),
    )


# To reach a node again: seconds between the starts of tries to connect, and the number of tries at the same time.
ANEW_S, TRIES = 0.7, 5
ROTATE_S = 30.0
BRIDGES = 8  # concurrent channels for blobs: sshd's MaxSessions is 10, and the control channel takes one
_NOT_CONNECTED = 2  # SSH_OPEN_CONNECT_FAILED (RFC 4254, section 5.1)


class SSHRoute(BootstrappedRoute):
    def __init__(self, node: NodeId, machine: Machine, settings: ConnectionSettings) -> None:
        super().__init__(node, machine, settings)
        self._ssh: ssh.Connected | None = None
        # True: the host's SSH server does not forward sockets, so bridges are used; None: not tried yet
        self._bridged: bool | None = None
        self._bridges: asyncio.Semaphore | None = None  # None: no bridge was used yet
        # pinned keys that replace the machine's own host key after its rotation
        self._host_keys = settings.pinned(machine)
        self._nudge: asyncio.Task[object] | None = None
        self._another: asyncio.Task[ssh.Connected] | None = None  # a second connection, to replace a silent one

    @property
    def reached(self) -> bool:
        return self._ssh is not None

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
        shell, machine = self._shell(), self._machine
        self._renew_lease(shell)
        if machine.rotate_host_key and len(self._host_keys) != 1:
            await self._rotate(shell)
        if machine.on_this_computer:
            return
        if not await self._bootstrap(shell):
            self._nudge = asyncio.ensure_future(_nudged(shell))

    def _shell(self) -> CommandRunner:
        """Return a runner of commands on the machine."""
        return RemoteShell(self._connection)

    def forget(self) -> None:
        super().forget()
        self._bridged = None

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

    # --- a second connection beside a silent one ------------------------------------------------------------------

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
            self._another = None  # the second connection failed: the next heartbeat begins another
        else:
            reached()

    async def _dial_anew(self) -> ssh.Connected:
        """Connect again soon after the network is back: the node is given up within seconds."""
        return await ssh.hedged(self._dial, ssh.Connected.abort, every_s=ANEW_S, at_once=TRIES)

    async def _dial(self) -> ssh.Connected:
        key = self._settings.key
        assert key is not None, "a pool that has machines with SSH has a key"
        machine, interpose = self._machine, self._settings.interpose()
        if machine.address is not None and machine.address.command:
            from . import command_stream  # most pools do not need this import

            logins = self._settings.logins
            return await command_stream.connect(machine, key, self._host_keys, logins, interpose)
        return await ssh.connect(machine, key, self._host_keys, interpose)

    # --- host key rotation, before the executor is used -------------------------------------------------------------

    async def _rotate(self, shell: CommandRunner) -> None:
        machine = self._machine
        async with asyncio.timeout(ROTATE_S):
            if not self._host_keys:
                self._host_keys = (await make_host_key(shell, machine), machine.host_key)
            await self._tell_host_keys()
            await use_host_key(shell, machine)
        self._host_keys = self._host_keys[:1]
        await self._tell_host_keys()

    async def _tell_host_keys(self) -> None:
        if self._settings.rotated is not None:
            await self._settings.rotated(self._machine, self._host_keys)

    # --- channels ---------------------------------------------------------------------------------------------------

    @property
    def _connection(self) -> asyncssh.SSHClientConnection:
        if self._ssh is None:
            raise ConnectionResetError("the connection was lost")
        return self._ssh.connection

    def turn(self) -> AbstractAsyncContextManager[object]:
        if not self._bridged:
            return super().turn()
        if self._bridges is None:
            self._bridges = asyncio.Semaphore(BRIDGES)
        return self._bridges

    async def open_channel(self, channel: Channel) -> None:
        """Open a channel to the executor's socket, by a bridge command if the server forbids forwarding."""
        try:
            await ssh.opened(self._opened(channel), lambda _: channel.close())
        except asyncssh.Error as error:
            raise ConnectionResetError(str(plainly(error))) from error

    async def _opened(self, channel: Channel) -> None:
        connection, executor = self._connection, self._executor
        how = self._how(channel)
        if not self._bridged:
            path = self._machine.executor_socket if executor is None else executor.executor_socket
            try:
                await connection.create_unix_connection(lambda: _SSHChannel(channel), path, **how)
            except asyncssh.ChannelOpenError as error:
                # for a lost connection, asyncssh reports the same error code as for a socket on which nothing listens
                if connection.is_closed():
                    raise ConnectionResetError("the connection was lost") from plainly(error)
                if self._bridged is False and error.code == _NOT_CONNECTED:
                    raise ExecutorGone(str(plainly(error))) from error
                # sshd reports "open failed" both if it forbids forwarding and if nothing listens. The first channel
                # shows whether sockets are forwarded, as the executor has just answered the bootstrap.
                if executor is None or self._bridged is False:
                    raise
                self._bridged = True
            else:
                self._bridged = False
                return
        assert executor is not None, "only hosts that were bootstrapped have bridges"
        await self._open_bridge(channel, (executor.executor_socket,))

    def _bridge_command(self, to: Sequence[str]) -> str:
        return shlex.join([*self._machine.inside, *self._bridge(to)])

    async def _open_bridge(self, channel: Channel, to: Sequence[str]) -> None:
        """Open a channel to a command on the machine that bridges to a socket."""
        bridge = self._bridge_command(to)
        await self._connection.create_session(lambda: _SSHChannel(channel, bridged=True), bridge, **self._how(channel))

    def _how(self, channel: Channel) -> dict[str, Any]:
        window = ssh.blob_window(self._connection) if isinstance(channel, Receiving) else ssh.WINDOW_BYTES
        return {"encoding": None, "window": window, "max_pktsize": ssh.PACKET_BYTES}

    async def open_connection(
        self, host: str, port: int
    ) -> tuple[asyncssh.SSHReader[bytes], asyncssh.SSHWriter[bytes]]:
        return await self._connection.open_connection(host, port, encoding=None)


class _SSHChannel(asyncssh.SSHUNIXSession[bytes], asyncssh.SSHClientSession[bytes]):
    """An SSH channel that carries a `Channel`. A command's standard error is dropped."""

    def __init__(self, channel: Channel, *, bridged: bool = False) -> None:
        self._channel = channel
        self._bridge = BridgeOutput() if bridged else None

    def connection_made(self, chan: Any) -> None:
        ssh.log_no_packets(chan)
        if isinstance(self._channel, Sending) and (trip_s := ssh.round_trip_s(chan.get_connection())) is not None:
            self._channel.limit(SendAhead(trip_s))
            ssh.tell_taken(chan, self._channel.taken)
        if isinstance(self._channel, Receiving):
            window = ReceiveWindow(chan.get_recv_window(), ssh.round_trip_s(chan.get_connection()))
            ssh.take_data(chan, self._take, window)
        self._channel.connection_made(chan)

    def _take(self, data: memoryview) -> None:
        if isinstance(self._channel, Receiving) and self._channel.has_answer:
            self._channel.data_received(data)  # the data is written to its final place without a further copy
        else:
            self.data_received(bytes(data))

    def data_received(self, data: bytes, datatype: int | None = None) -> None:
        if datatype is None and (self._bridge is None or (data := self._bridge.begun(data))):
            self._channel.data_received(data)

    def pause_writing(self) -> None:
        self._channel.pause_writing()

    def resume_writing(self) -> None:
        self._channel.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._channel.connection_lost(exc)


async def _nudged(shell: CommandRunner) -> None:
    """Run a command, because sshd then sets TCP_NODELAY; without that, forwarded data arrives up to 42 ms late."""
    with suppress(ConnectionError, asyncssh.Error):
        await shell.run(["true"])

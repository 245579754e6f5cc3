"""SSH over the standard streams of a command, such as ``srun -u --overlap`` or ``docker exec``.

The command runs on this computer, or on the last jump host of the login, over a connection that machines share. Its
standard streams are the transport of the SSH connection, without a process that copies bytes in between.

asyncssh writes an empty packet before each packet, and Slurm's sockets delay the second of two small writes until the
first is acknowledged, which takes 40 ms. So all writes of one turn of the event loop are sent together.
"""

from __future__ import annotations

import asyncio
import shlex
import signal as signals
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import asyncssh

from ...providers.base import Login, Machine
from ...providers.shared.local_command import SAID_BYTES, LocalCommand
from ..api.printable import one_line
from . import login
from .connection_settings import SharedLogin, SharedLogins
from .flow_control import ReceiveWindow
from .login import CONNECT_S
from .route import Interpose
from .ssh import (
    PACKET_BYTES,
    WINDOW_BYTES,
    Client,
    Connected,
    common,
    log_no_packets,
    opened,
    take_data,
    through,
    with_key,
)

ENDS_S = 1.0  # seconds for a command to exit after its connection is lost, so that the error can name the exit status
REUSE_S = 1.0  # seconds for a shared connection to open a session; a dead connection never does
TRIES = 4  # number of shared connections to try; `REUSE_S` does not limit the last of them, which may be new
TOGETHER_BYTES = 256 << 10
SHOWN = 160  # characters of the command to show in an error
_ITS_OWN = (asyncssh.HostKeyNotVerifiable, asyncssh.PermissionDenied, asyncssh.KeyImportError)


class CommandFailed(ConnectionError):
    """The error for a command that did not reach an SSH server: how the command ended, and its stderr."""


async def connect(
    machine: Machine,
    key: asyncssh.SSHKey,
    host_keys: Sequence[str],
    logins: SharedLogins,
    interpose: Interpose | None = None,
) -> Connected:
    """Connect as `ssh.connect` does, to a machine whose address has a command. A cancelled call ends the command.

    Raises:
        CommandFailed: the command did not reach an SSH server.
        JumpFailed: the host that should run the command was not reached.
    """
    assert machine.address is not None
    way = machine.login
    if way is None or not way.jump:
        return await _here(machine, key, host_keys, interpose)
    for left in reversed(range(TRIES)):
        shared = await logins.take(way, lambda: _dialled(machine, way))
        session = _Session(machine.address.command, shared, patient=not left)
        try:
            connection = await _over(machine, key, host_keys, tunnel=session)
            return Connected(connection, release=_once(shared.leave), carrier=shared.connected)
        except _Unusable:
            shared.leave(refused=True)
        except _ITS_OWN:
            shared.leave()
            raise
        except (OSError, asyncssh.Error) as error:
            shared.leave()
            raise await _story(machine, error, session, f" on {way.jump.rpartition(',')[2]}") from error
        except BaseException:
            shared.leave()
            raise
    raise AssertionError("the last try is patient")


async def _here(
    machine: Machine, key: asyncssh.SSHKey, host_keys: Sequence[str], interpose: Interpose | None
) -> Connected:
    assert machine.address is not None
    argv = machine.address.command
    try:
        command = LocalCommand(argv)
    except OSError as error:
        raise CommandFailed(f"`{_shown(argv)}` cannot be started here: {error.strerror or error}") from error
    sock = command.socket
    try:
        if interpose is not None:
            sock = await interpose(machine, sock)
        connection = await _over(machine, key, host_keys, tunnel=_Streams(sock))
        return Connected(connection, release=_once(command.end))
    except _ITS_OWN:
        sock.close()
        command.end()
        raise
    except (OSError, asyncssh.Error) as error:
        sock.close()
        try:
            raise await _story(machine, error, command, "") from error
        finally:  # end the command also if this call is cancelled while it waits for the command's error
            command.end()
    except BaseException:
        sock.close()
        command.end()
        raise


async def _over(machine: Machine, key: asyncssh.SSHKey, host_keys: Sequence[str], **how: Any) -> Any:
    assert machine.address is not None
    how |= with_key(machine, key, host_keys)
    return await asyncssh.connect(machine.address.host or machine.id, 22, client_factory=Client, **how)


async def _dialled(machine: Machine, way: Login) -> Connected:
    return await through(await login.jumps(way), common(machine))


def _once(call: Callable[[], object]) -> Callable[[], None]:
    calls = [call]

    def called() -> None:
        while calls:
            calls.pop()()

    return called


class _Together:
    """A transport that sends all writes of one turn of the event loop together."""

    def __init__(self, carrier: Any) -> None:
        self._carrier = carrier
        self._parts: list[bytes] = []
        self._bytes = 0

    def write(self, data: bytes) -> None:
        if not self._parts:
            asyncio.get_running_loop().call_soon(self._flush)
        self._parts.append(data)
        self._bytes += len(data)
        if self._bytes >= TOGETHER_BYTES:
            self._flush()

    def _flush(self) -> None:
        parts, self._parts, self._bytes = self._parts, [], 0
        if parts and not self._carrier.is_closing():
            self._carrier.write(b"".join(parts))

    def close(self) -> None:
        self._flush()
        self._carrier.close()

    def abort(self) -> None:
        self._parts.clear()
        self._carrier.abort()

    def is_closing(self) -> bool:
        return bool(self._carrier.is_closing())

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._carrier.get_extra_info(name, default)


# --- a command on this computer ---------------------------------------------------------------------------------------


class _Streams:
    """A stand-in for the tunnel connection of asyncssh: connects through the socket of a local command."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    async def create_connection(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]:
        del host, port
        loop = asyncio.get_running_loop()
        transport, carrier = await loop.create_connection(lambda: _StreamCarrier(factory()), sock=self._sock)
        return transport, carrier.connection


class _StreamCarrier(asyncio.Protocol):
    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.connection.connection_made(_Together(transport))

    def data_received(self, data: bytes) -> None:
        self.connection.data_received(data)

    def eof_received(self) -> None:
        self.connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.connection.connection_lost(exc)


# --- a command on a login host ----------------------------------------------------------------------------------------


class _Unusable(Exception):
    """The error for a shared connection that opens no session. Another connection may open one."""


class _Session:
    """A stand-in for the tunnel connection of asyncssh: runs the command in an SSH session and connects through it."""

    def __init__(self, argv: Sequence[str], shared: SharedLogin, *, patient: bool) -> None:
        self._argv, self._shared, self._patient = argv, shared, patient
        self._carrier: _Carrier | None = None

    async def create_connection(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]:
        """Return the session's channel, and the SSH connection inside it."""
        del host, port
        alone = self._patient or self._shared.users == 1
        carriers: list[_Carrier] = []
        try:
            async with asyncio.timeout(None if alone else REUSE_S):
                channel, carrier = await opened(self._opened(factory, carriers), lambda late: _hang_up(late[0]))
        except TimeoutError:
            self._shared.silent = True
            raise _Unusable from None
        except asyncssh.ChannelOpenError:
            if alone:
                raise
            raise _Unusable from None
        finally:
            for each in carriers:
                each.wanted = False  # this call no longer waits for the sessions that have not started
        self._carrier = carrier
        return channel, carrier.connection

    async def _opened(self, factory: Callable[[], Any], carriers: list[_Carrier]) -> tuple[Any, _Carrier]:
        def carrier() -> _Carrier:
            carriers.append(new := _Carrier(factory))
            return new

        opened: tuple[Any, Any] = await self._shared.connected.connection.create_session(
            carrier,
            shlex.join(self._argv),
            encoding=None,
            window=WINDOW_BYTES,
            max_pktsize=PACKET_BYTES,
        )
        return opened

    @property
    def said(self) -> bytes:
        return b"" if self._carrier is None else bytes(self._carrier.stderr)

    async def status(self, within_s: float) -> int | None:
        """Return the command's exit status, as `LocalCommand.status` does."""
        if self._carrier is None:
            return None
        try:
            async with asyncio.timeout(within_s):
                await self._carrier.over.wait()
        except TimeoutError:
            return None
        return self._carrier.status


class _SessionTransport(_Together):
    def abort(self) -> None:
        self._parts.clear()
        _hang_up(self._carrier)


def _hang_up(channel: Any) -> None:
    """Close a session, and end its command by a signal.

    Without the signal, a command that waits for a switched-off host would stay on the login host: it reads nothing, so
    it does not notice that its streams are closed.
    """
    with suppress(OSError):  # the session may be closed already
        channel.send_signal("TERM")
    channel.abort()


class _Carrier(asyncssh.SSHClientSession[bytes]):
    """The SSH session on a login host whose command carries the inner SSH connection to the machine.

    The inner connection is created only when the command has started: the connection's login timeout begins at its
    creation, and from then on a caller must wait for the connection, to get its error.
    """

    wanted = True  # whether the opening call still waits for this session

    def __init__(self, factory: Callable[[], Any]) -> None:
        self._factory = factory
        self.connection: Any = None
        self.stderr = bytearray()
        self.status: int | None = None
        self.over = asyncio.Event()
        self._channel: Any = None

    def connection_made(self, chan: Any) -> None:
        self._channel = chan
        log_no_packets(chan)
        take_data(chan, self._take, ReceiveWindow(chan.get_recv_window(), None))

    def _take(self, data: memoryview) -> None:
        self.data_received(bytes(data))

    def session_started(self) -> None:
        """Begin the inner connection. Bytes written before the command starts would be dropped."""
        if not self.wanted:
            return
        self.connection = self._factory()
        self.connection.connection_made(_SessionTransport(self._channel))

    def data_received(self, data: bytes, datatype: int | None = None) -> None:
        if datatype is None:
            if self.connection is not None:
                self.connection.data_received(data)
        else:
            self.stderr += data
            del self.stderr[:-SAID_BYTES]

    def eof_received(self) -> bool:
        """Keep the channel open: the command's exit status arrives next."""
        return True

    def exit_status_received(self, status: int) -> None:
        self.status = status

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        del core_dumped, msg, lang
        self.status = -getattr(signals, f"SIG{signal}", 0)

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set()
        if self.connection is not None:
            self.connection.connection_lost(exc)


# --- errors -----------------------------------------------------------------------------------------------------------


async def _story(machine: Machine, error: Exception, command: LocalCommand | _Session, where: str) -> CommandFailed:
    assert machine.address is not None
    shown = f"`{_shown(machine.address.command)}`{where}"
    lost = not isinstance(error, TimeoutError) and "timeout" not in str(error)
    status = await command.status(ENDS_S if lost else 0.0)
    output = one_line(command.said.decode(errors="replace"))
    words = f", and said: {output}" if output else ", and said nothing"
    if status is not None:
        how = f"ended with status {status}" if status >= 0 else f"was ended by signal {-status}"
        return CommandFailed(f"{shown} {how} before an SSH server was reached{words}")
    if not lost:
        within_s = machine.patience_s or CONNECT_S
        advice = "run it by hand, and see that it prints a line that begins with SSH-"
        return CommandFailed(f"{shown} has reached no SSH server within {within_s:g} s{words}: {advice}")
    return CommandFailed(f"{shown} has reached no SSH server ({error}){words}")


def _shown(argv: Sequence[str]) -> str:
    text = shlex.join(argv)
    return text if len(text) <= SHOWN else f"{text[: SHOWN // 2]} [and so on] {text[-SHOWN // 2 :]}"

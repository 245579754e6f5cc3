"""The route to one machine's executor: the base class of all routes, the errors for machines that cannot be reached,
and the route to an executor on this computer.

An executor is Outrider's process on the machine. The route on this computer is the executor's unix socket: each channel
has its own connection.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from ...actors.interfaces import ConnectFailed
from ...providers.base import Machine
from ...providers.shared.inherited_files import keep_here
from ..api.errors import BootstrapError, OutriderError
from ..api.printable import plainly
from ..node.client_channels import peer_uid
from ..wire.codec import ProtocolError
from .channels import Channel

# Concurrent transfers of blobs (large values): each takes a file descriptor in the executor and one in the process that
# forwards data to it, and all share one connection.
TRANSFERS = 16


class ExecutorGone(ConnectionError):
    """The error for a machine that responds, but whose executor has ended: nothing listens at the executor's socket."""


class Route:
    """The route to one machine, with at most one connection.

    Methods raise low-level errors, which `refused` explains.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._transfers: asyncio.Semaphore | None = None  # None: there was no transfer yet

    @property
    def reached(self) -> bool:
        raise NotImplementedError

    @property
    def bootstrapped(self) -> bool:
        """Return whether a bootstrap started the executor. If so, it may still run while the machine is unreachable."""
        return False

    @property
    def way_is_lost(self) -> bool:
        """Return whether a host on the way closed the connection, which proves nothing about the machine itself."""
        return False

    async def reach(self, *, again: bool) -> None:
        """Connect to the machine.

        ``again``: the machine was reached before, so the pool gives it up if it is not reached within seconds.
        """
        raise NotImplementedError

    async def prepare(self) -> None:
        """Start an executor on the machine unless one runs. After an error or a cancellation, call `abort`."""

    def greeted(self) -> None:
        """Handle the executor's first answer: from now on, the executor renews the machine's time-limited lease."""

    def forget(self) -> None:
        """Forget an executor that never answered and may have ended: the next `prepare` starts a new one."""

    def turn(self) -> AbstractAsyncContextManager[object]:
        """Return a context manager that limits the channels for blobs to `TRANSFERS` at the same time.

        Enter it before a channel for a blob is opened.
        """
        if self._transfers is None:
            self._transfers = asyncio.Semaphore(TRANSFERS)
        return self._transfers

    async def open_channel(self, channel: Channel) -> None:
        """Open a channel to the executor. Cancel-safe. Raise `ExecutorGone` or another OSError."""
        raise NotImplementedError

    async def open_connection(self, host: str, port: int) -> tuple[Any, Any]:
        """Return a reader and a writer for a TCP stream from the node to ``host:port``, over the current connection.

        Raises:
            OSError, asyncssh.Error: the connection failed.
        """
        raise ConnectionRefusedError(f"{host}:{port} is reached from here as from a node on this computer")

    async def refused(self, error: BaseException) -> ConnectFailed:
        """Return the public error for ``error``, which a method of this class has raised."""
        return refusal(self._machine, error)

    def begin_another(self, reached: Callable[[], None]) -> None:
        """Begin a second connection, as the current one is silent, unless one was begun. The next `reach` uses it."""

    def begin_no_other(self) -> None: ...

    def abort(self) -> None:
        raise NotImplementedError


def refusal(machine: Machine, error: BaseException, place: str = "") -> ConnectFailed:  # noqa: PLR0911  a table
    """Return the error that `actors.interfaces.Connect` raises for ``error``.

    The cause of the returned error, if set, is the error that users get. ``place``: the machine's name in the text.
    """
    error, place = plainly(error), place or f"machine {machine.id}"
    match error:
        case ConnectFailed():
            return error
        case BootstrapError():
            failed = because(error, systematic=error.systematic)
            failed.kind = f"{error.phase}: {error.command}: {error.exit_status}: {error.hint}"
            return failed
        case OutriderError():
            return because(error, systematic=True)
        case ExecutorGone():
            return ConnectFailed("its executor is gone", fatal=True)
        case ProtocolError():
            return ConnectFailed(f"machine {machine.id} does not speak the protocol: {error}", systematic=True)
        case TimeoutError(errno=None):
            return ConnectFailed(f"{place} did not answer in time")
        case _ if _is_from_outside(error):
            return ConnectFailed(f"{place} cannot be reached: {error}")
        case _:  # an internal error: further tries would fail in the same way
            story = (
                f"{place} could not be prepared, by a defect of Outrider: report it ({type(error).__name__}: {error})."
            )
            defect = OutriderError(story)
            defect.__cause__ = error
            return because(defect, systematic=True)


def _is_from_outside(error: BaseException) -> bool:
    """Return whether the network, the system or the other side may have caused the error: else it is internal."""
    libraries = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return isinstance(error, OSError | EOFError) or "asyncssh" in libraries


def because(error: OutriderError, *, systematic: bool = False) -> ConnectFailed:
    failed = ConnectFailed(str(error), fatal=True, systematic=systematic)
    failed.__cause__ = error
    return failed


# puts a proxy between the client and a machine; used by `testing.fault_injection`
Interpose = Callable[[Machine, socket.socket], Awaitable[socket.socket]]


class UnixRoute(Route):
    """The route to an executor that the machine's provider started on this computer.

    While a node is silent, no second connection is tried: it would reveal nothing more about the node.
    """

    def __init__(self, machine: Machine, interpose: Callable[[], Interpose | None]) -> None:
        super().__init__(machine)
        self._interpose = interpose
        self._socket: socket.socket | None = None  # socket for the first channel, once the machine is reached
        self._channels: list[Channel] | None = None  # None: the machine is not reached

    @property
    def reached(self) -> bool:
        return self._channels is not None

    async def reach(self, *, again: bool) -> None:  # noqa: ARG002
        self._socket, self._channels = await self._connected(), []

    async def _connected(self) -> socket.socket:
        sock, interpose = connected(self._machine.executor_socket), self._interpose()
        if interpose is not None:
            sock = await interpose(self._machine, sock)
        keep_here(sock)
        return sock

    async def open_channel(self, channel: Channel) -> None:
        channels, sock = self._channels, self._socket
        if channels is None:
            raise ConnectionResetError("the connection was lost")
        self._socket = None
        try:
            sock = sock or await self._connected()
        except OSError as error:  # nothing listens any more, or this process has no free descriptor: try again
            raise ConnectionResetError(f"there is no other connection to the node ({error})") from error
        await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=sock)
        if channels is not self._channels:
            channel.abort()
            raise ConnectionResetError("the connection was lost")
        channels[:] = [each for each in channels if each.is_open]
        channels.append(channel)

    def abort(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        channels, self._channels = self._channels, None
        for channel in channels or ():
            channel.abort()


def connected(path: str) -> socket.socket:
    """Return a socket that is connected to ``path``, if a process of this process's user listens there.

    The path may be longer than the 107 bytes of ``sun_path``: the code connects through a descriptor of its directory.

    Raises:
        OSError: nothing listens, or no connection is accepted at present; the call never waits.
    """
    sock = socket.socket(socket.AF_UNIX)
    sock.setblocking(False)
    try:
        anchor = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)  # noqa: PTH120
        try:
            sock.connect(f"/proc/self/fd/{anchor}/{os.path.basename(path)}")  # noqa: PTH119
        finally:
            os.close(anchor)
        if (uid := peer_uid(sock)) != os.geteuid():
            raise PermissionError(f"user {uid} listens at {path}, and not the user of this program")
    except BaseException:
        sock.close()
        raise
    return sock

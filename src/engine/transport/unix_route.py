"""The route to an executor on this computer: its unix socket. Each channel has its own connection."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable

from ...providers.base import Machine
from ...providers.shared.inherited_files import keep_here
from ..node.client_channels import peer_uid
from .channels import Channel
from .route import Route

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

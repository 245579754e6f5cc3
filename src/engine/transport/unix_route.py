"""The way to an executor on this computer: its unix socket. Each channel is a connection of its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from ...actors.ports import ConnectFailed
from ...providers.base import Machine
from ...providers.inherited import keep_here
from .channels import Channel
from .connect_errors import refusal
from .unix_socket import Interpose, connected


class UnixRoute:
    """Implements `connection.Route`."""

    bootstrapped = False

    def __init__(self, machine: Machine, interpose: Callable[[], Interpose | None]) -> None:
        self._machine, self._interpose = machine, interpose
        self._socket: socket.socket | None = None  # of the first channel, from when the machine is reached
        self._channels: list[Channel] | None = None  # None: it is not reached

    @property
    def reached(self) -> bool:
        return self._channels is not None

    async def reach(self, *, again: bool) -> None:
        del again
        self._socket, self._channels = await self._connected(), []

    async def _connected(self) -> socket.socket:
        sock, interpose = connected(self._machine.executor_socket), self._interpose()
        if interpose is not None:
            sock = await interpose(self._machine, sock)
        keep_here(sock)
        return sock

    async def prepare(self) -> None:
        """The executor has been started by who made the machine."""

    def greeted(self) -> None: ...

    def forget(self) -> None: ...

    def turn(self) -> AbstractAsyncContextManager[object]:
        return nullcontext()

    async def open_channel(self, channel: Channel) -> None:
        channels, sock = self._channels, self._socket
        if channels is None:
            raise ConnectionResetError("the connection was lost")
        self._socket = None
        try:
            sock = sock or await self._connected()
        except OSError as error:  # nobody listens any more, or this program has no descriptor left: it is tried again
            raise ConnectionResetError(f"there is no other connection to the node ({error})") from error
        await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=sock)
        if channels is not self._channels:
            channel.abort()
            raise ConnectionResetError("the connection was lost")
        channels[:] = [each for each in channels if each.is_open]
        channels.append(channel)

    async def open_connection(self, host: str, port: int) -> tuple[Any, Any]:
        raise ConnectionRefusedError(f"{host}:{port} is reached from here as from a node on this computer")

    async def refused(self, error: BaseException) -> ConnectFailed:
        return refusal(self._machine, error)

    def begin_another(self, reached: Callable[[], None]) -> None:
        """Do nothing: on this very computer another connection would find out no more."""

    def begin_no_other(self) -> None: ...

    def abort(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        channels, self._channels = self._channels, None
        for channel in channels or ():
            channel.abort()

"""Connections to login hosts. Each carries the commands of several machines, as many as the host allows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import field
from typing import TYPE_CHECKING

from ...lazy_dataclass import dataclass
from ...providers.base import Login

if TYPE_CHECKING:
    from .ssh import Connected  # pools on this computer do not need this import


@dataclass(slots=True, eq=False)
class SharedLogin:
    """A shared connection. It closes as soon as it has no users."""

    connected: Connected
    users: int = 0
    full: bool = False  # the host opens no more sessions at present: sshd's MaxSessions
    silent: bool = False  # the host has not answered: the connection may be dead, and gets no new users

    @property
    def usable(self) -> bool:
        return not (self.full or self.silent or self.connected.connection.is_closed())

    def taken(self) -> SharedLogin:
        self.users += 1
        return self

    def leave(self, *, refused: bool = False) -> None:
        """End one use of the connection.

        ``refused``: the host opened no session. Otherwise a session has ended, so there is room for another.
        """
        self.users -= 1
        self.full = refused and bool(self.users)
        if not self.users:  # the end of the last session is still being sent: close after that
            asyncio.get_running_loop().call_soon(self._close)

    def _close(self) -> None:
        if not self.users:
            self.connected.abort()


@dataclass(slots=True)
class _Place:
    """All shared connections to one login host as one user."""

    open: list[SharedLogin] = field(default_factory=list)
    dialling: asyncio.Task[Connected] | None = None
    waiting: int = 0  # number of calls that wait for `dialling`


class SharedLogins:
    """The shared login connections of one pool."""

    def __init__(self) -> None:
        self._places: dict[Login, _Place] = {}

    async def take(self, way: Login, dial: Callable[[], Awaitable[Connected]]) -> SharedLogin:
        """Return a connection that can carry another command, until `SharedLogin.leave`.

        If there is no such connection, open one by ``dial`` for all callers that wait. Cancel-safe if ``dial`` is.

        Raises:
            Exception: any error of ``dial``.
        """
        place = self._places.setdefault(way, _Place())
        place.open = [shared for shared in place.open if not shared.connected.connection.is_closed()]
        for shared in place.open:
            if shared.usable:
                return shared.taken()
        if place.dialling is None:
            place.dialling = asyncio.ensure_future(dial())
        dialling = place.dialling
        place.waiting += 1
        try:
            connected = await asyncio.shield(dialling)
        except asyncio.CancelledError:
            if place.waiting == 1 and place.dialling is dialling:  # no other call waits for this connection
                place.dialling = None
                dialling.add_done_callback(_discard)
                dialling.cancel()
            raise
        except BaseException:
            if place.dialling is dialling:
                place.dialling = None
            raise
        finally:
            place.waiting -= 1
        if place.dialling is dialling:  # of the calls that waited for `dialling`, this call is the first to continue
            place.dialling = None
            place.open.append(SharedLogin(connected))
        for shared in place.open:
            if shared.connected is connected:
                return shared.taken()
        raise ConnectionResetError("the connection to the login host was lost")


def _discard(over: asyncio.Future[Connected]) -> None:
    if not over.cancelled() and over.exception() is None:
        over.result().abort()

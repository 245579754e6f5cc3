"""The way to one machine's executor: the base of all ways, and the errors for machines that cannot be reached."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from ...actors.interfaces import ConnectFailed
from ...providers.base import Machine
from ..api.errors import BootstrapError, OutriderError
from ..api.printable import plainly
from ..wire.codec import ProtocolError
from .channels import Channel

TRANSFERS = 16  # at a time: each takes a descriptor of the executor and of its forwarder, and all share one way


class ExecutorGone(ConnectionError):
    """The error for a machine that is there while its executor has gone for good: nothing listens at its socket."""


class Route:
    """The way to one machine, with one connection at most. Methods raise low-level errors, which `refused` explains."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._transfers: asyncio.Semaphore | None = None  # until there are any

    @property
    def reached(self) -> bool:
        raise NotImplementedError

    @property
    def bootstrapped(self) -> bool:
        """Return whether the executor was started by a bootstrap, and may go on while out of reach."""
        return False

    @property
    def way_is_lost(self) -> bool:
        """Return whether a host on the way closed the connection, which proves nothing about the machine."""
        return False

    async def reach(self, *, again: bool) -> None:
        """Connect to the machine. ``again``: it was met before, and there are seconds until it is given up."""
        raise NotImplementedError

    async def prepare(self) -> None:
        """Start an executor there unless one runs. After an error or a cancellation, call `abort`."""

    def greeted(self) -> None:
        """Handle that the executor has answered: it renews the machine's lease itself from now on."""

    def forget(self) -> None:
        """Forget an executor that never answered and may be gone: the next `prepare` starts another one."""

    def turn(self) -> AbstractAsyncContextManager[object]:
        """Enter before a channel for a blob is opened, and leave when it is closed: there may be few of them."""
        if self._transfers is None:
            self._transfers = asyncio.Semaphore(TRANSFERS)
        return self._transfers

    async def open_channel(self, channel: Channel) -> None:
        """Open a channel to the executor. Cancel-safe. Raises `ExecutorGone` or another OSError."""
        raise NotImplementedError

    async def open_connection(self, host: str, port: int) -> tuple[Any, Any]:
        """Return a reader and a writer of a stream to ``host:port`` as seen from the node, over the present connection.
        Raises an OSError or an `asyncssh.Error`.
        """
        raise ConnectionRefusedError(f"{host}:{port} is reached from here as from a node on this computer")

    async def refused(self, error: BaseException) -> ConnectFailed:
        """Return the public error for ``error``, which one of these methods has raised."""
        return refusal(self._machine, error)

    def begin_another(self, reached: Callable[[], None]) -> None:
        """Begin another connection beside one that is silent, if there is none. The next `reach` takes it over."""

    def begin_no_other(self) -> None: ...

    def abort(self) -> None:
        raise NotImplementedError


def refusal(machine: Machine, error: BaseException, place: str = "") -> ConnectFailed:  # noqa: PLR0911  a table
    """Return the error that `actors.interfaces.Connect` raises for ``error``. Its cause, if any, is the public error.

    ``place``: how people call the machine.
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
        case _:  # another try would fail in the same way
            story = (
                f"{place} could not be prepared, by a defect of Outrider: report it ({type(error).__name__}: {error})."
            )
            defect = OutriderError(story)
            defect.__cause__ = error
            return because(defect, systematic=True)


def _is_from_outside(error: BaseException) -> bool:
    """Return whether the network, the system or the other side may be the cause, and not this program."""
    libraries = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return isinstance(error, OSError | EOFError) or "asyncssh" in libraries


def because(error: OutriderError, *, systematic: bool = False) -> ConnectFailed:
    failed = ConnectFailed(str(error), fatal=True, systematic=systematic)
    failed.__cause__ = error
    return failed

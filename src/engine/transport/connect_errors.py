"""Say why a machine could not be reached; and whether it ever will be reachable."""

from __future__ import annotations

from ...actors.ports import ConnectFailed
from ...providers.base import Machine
from ..api.errors import BootstrapError, OutriderError
from ..api.printable import plainly
from ..wire.codec import ProtocolError


class ExecutorGone(ConnectionError):
    """The machine is there, and nobody listens at its executor's socket any more, nor will again."""


def refusal(machine: Machine, error: BaseException, place: str = "") -> ConnectFailed:  # noqa: PLR0911  a table
    """Return the error that `actors.ports.Connect` raises for ``error``. Its cause, if any, is what users catch.

    ``place``: how people call the machine.
    """
    error, place = plainly(error), place or f"machine {machine.id}"
    match error:
        case ConnectFailed():
            return error
        case BootstrapError():
            return because(error, systematic=error.systematic)
        case OutriderError():
            return because(error, systematic=True)
        case ExecutorGone():
            return ConnectFailed("its executor is gone", fatal=True)
        case ProtocolError():
            return ConnectFailed(f"machine {machine.id} does not speak the protocol: {error}", systematic=True)
        case TimeoutError(errno=None):
            return ConnectFailed(f"{place} did not answer in time")
        case _:
            return ConnectFailed(f"{place} cannot be reached: {error}")


def because(told: OutriderError, *, systematic: bool = False) -> ConnectFailed:
    failed = ConnectFailed(str(told), fatal=True, systematic=systematic)
    failed.__cause__ = told
    return failed

"""The keeper's end of the foundry: orders SSH servers, and makes another foundry when it has ended or stands still."""

from __future__ import annotations

import importlib
import json
import select
import socket
from typing import Any

from . import processes

COLLECT_S = 5.0  # its sockets close a moment before it can be collected


class Servers:
    def __init__(self, home: str, poll: select.poll) -> None:
        self._home, self._poll = home, poll
        self._owed: set[str] = set()  # machines that have been ordered one, and did not get it yet
        self._start()

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = processes.fork(lambda: _run(theirs, self._home), theirs)
        theirs.close()
        ours.settimeout(processes.STILL_S)  # for an order, which it does not take when it stands still
        self._control: socket.socket | None = ours
        self._how, self._stood_still = "", False
        self._stands = processes.Standstill()
        self._poll.register(ours, select.POLLIN)
        return ours

    @property
    def how(self) -> str:
        """Return how the foundry has ended, or an empty text if that is not known."""
        if self._how and self._stood_still:
            return f"stood still for {processes.STILL_S:g} s and was killed"
        return self._how

    def fileno(self) -> int:
        return -1 if self._control is None else self._control.fileno()

    def order(self, machine: str, order: dict[str, Any], forks: socket.socket) -> None:
        """Answered by a message, see `hear`; ``forks``: where its machine's fork server listens.

        Raises:
            OSError: there cannot be another foundry.
        """
        control = self._control or self._start()
        if not self._owed:
            self._stands = processes.Standstill()
        self._owed.add(machine)
        try:
            socket.send_fds(control, [json.dumps(order).encode()], [forks.fileno()])
        except TimeoutError:
            self._kill()
        except OSError:
            pass  # it is gone; its end of file says so

    def hear(self) -> dict[str, Any] | None:
        """Return the foundry's message about a machine. None: the foundry and every SSH server have ended; the next
        order starts another foundry.
        """
        assert self._control is not None
        try:
            data = self._control.recv(processes.FRAME_BYTES)
        except OSError:
            data = b""
        if data:
            message: dict[str, Any] = json.loads(data)
            self._owed.discard(message["id"])
            return message
        self._poll.unregister(self._control)
        self.close()
        self._control = None
        self._owed.clear()
        return None

    @property
    def owes(self) -> bool:
        return bool(self._owed)

    def look(self) -> None:
        """Now and then while it `owes`: is it frozen?"""
        if self._owed and self._stands.lasts(self.pid):
            self._kill()

    def _kill(self) -> None:
        """Kill the foundry, which is frozen. Its end of file follows."""
        self._stood_still = True
        self._owed.clear()
        processes.kill(self.pid)

    def reaped(self, pid: int, status: int) -> None:
        if pid == self.pid:
            self._how = processes.describe(status)

    def close(self) -> None:
        if self._control is not None:
            self._control.close()
        if not self._how:
            processes.kill(self.pid)


def _run(control: socket.socket, home: str) -> None:
    from .foundry import foundry

    foundry(control, resolve(home))


def resolve(name: str) -> Any:
    """The object at ``package.module:name``."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)

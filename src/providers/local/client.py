"""The client's end of one supervisor, until that has ended: requests, what it says, and that it stands still."""

from __future__ import annotations

import itertools
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio

from ..errors import ProviderError
from .supervisor_start import LOG, StartedSupervisor

CLOSE_DEADLINE_S = 10.0
KILL_DEADLINE_S = 8.0  # for the watchdog to end what a supervisor had, which has 5 s to be gone
READ_BYTES = 64 * 1024


class SupervisorGone(ProviderError):
    """The supervisor has ended, and with it every machine."""


class SupervisorClient:
    """``heard`` gets each of its messages; ``over`` is called once, when it has ended. `listen` runs beside."""

    def __init__(
        self,
        directory: Path,
        started: StartedSupervisor,
        *,
        worked: bool,
        heard: Callable[[dict[str, Any]], None],
        over: Callable[[], None],
    ) -> None:
        """``worked``: whether a supervisor of this pool has ever done so, as another will then, too."""
        self._log = directory / LOG
        self._heard, self._over = heard, over
        self._control, self._pid = started
        self._supervisor = self._pid  # that is the watchdog's; until the supervisor says its own
        self.worked = worked
        self._numbers = itertools.count(1)
        self._taken: dict[int, anyio.Event] = {}
        self._unsent, self._unread = b"", b""
        self._sending, self._listening = anyio.Lock(), anyio.Lock()
        self._done = anyio.Event()
        self._why = ""  # it was killed
        self.how = "has not ended"

    @property
    def ended(self) -> bool:
        return self._done.is_set()

    async def request(self, message: dict[str, object]) -> None:
        """Return when the supervisor has taken it. One that stands still is killed.

        Raises:
            SupervisorGone
        """
        import json  # when the supervisor has been started

        from . import process_state

        if self.ended:
            raise self.gone()
        number = next(self._numbers)
        self._taken[number] = taken = anyio.Event()
        self._unsent += json.dumps({**message, "request": number}).encode() + b"\n"
        stands = process_state.Standstill()
        try:
            while not taken.is_set():
                with anyio.move_on_after(process_state.LOOK_S):
                    await self._send()
                    await taken.wait()
                if not taken.is_set() and stands.lasts(self._supervisor):
                    await self._kill(f"stood still for {process_state.STILL_S:g} s")
        finally:
            del self._taken[number]
        if self.ended:
            raise self.gone()

    async def _send(self) -> None:
        """Send all that waits to be sent, also what a cancelled `_send` has left."""
        async with self._sending:
            while self._unsent and not self.ended:
                try:
                    self._unsent = self._unsent[self._control.send(self._unsent) :]
                except BlockingIOError:
                    await anyio.wait_writable(self._control)
                except OSError:  # it is ending, which `listen` hears
                    return

    async def listen(self) -> None:
        """Receive the supervisor's messages until its end. A second call goes on where a cancelled one stopped."""
        import json

        async with self._listening:
            if self.ended:
                return
            while data := await self._read():
                *lines, self._unread = (self._unread + data).split(b"\n")
                for line in lines:
                    self._hear(json.loads(line))
            self._end(_collect(self._pid))

    async def _read(self) -> bytes:
        while True:
            try:
                return self._control.recv(READ_BYTES)
            except BlockingIOError:
                await anyio.wait_readable(self._control)
            except OSError:
                return b""

    def _hear(self, message: dict[str, Any]) -> None:
        match message["op"]:
            case "supervisor":
                self._supervisor = message["pid"]
            case "taken":
                self.worked = True
                taken = self._taken.get(message["request"])
                if taken is not None:
                    taken.set()
            case _:
                self._heard(message)

    def _end(self, how: str) -> None:
        self.how = f"{self._why} and was killed" if self._why else how
        self._control.close()
        self._done.set()
        for taken in self._taken.values():
            taken.set()
        self._over()

    async def _kill(self, why: str) -> None:
        """End the supervisor by its watchdog, which ends all it had. The wait is bounded: a frozen one is killed.

        A dead watchdog ends nobody. Its supervisor then ends all by itself as soon as it is woken, if it stands still:
        it may have been stopped just after the kernel had looked whether anybody of an orphaned group stands still.
        """
        self._why = self._why or why
        if self._watchdog_lives():
            await self._signal(self._pid, signal.SIGTERM, signal.SIGKILL)
        if self._supervisor != self._pid and not self._watchdog_lives():  # else it may have collected the supervisor
            await self._signal(self._supervisor, signal.SIGCONT, signal.SIGKILL)
        if not self.ended:  # both are in the kernel's hands
            self._end("")

    async def _signal(self, pid: int, *signals: signal.Signals) -> None:
        """Send each in turn, until the supervisor has ended."""
        for number in signals:
            if self.ended:
                return
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            with anyio.move_on_after(KILL_DEADLINE_S):
                await self.listen()

    def _watchdog_lives(self) -> bool:
        try:
            return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:  # the application has collected it
            return False

    async def close(self) -> None:
        """Every process of it ends; it closes its own end when that is so. Bounded."""
        try:
            self._control.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        with anyio.move_on_after(CLOSE_DEADLINE_S):
            await self.listen()  # who did may have been cancelled: the end of `asyncio.run` cancels every task
        if not self.ended:
            await self._kill(f"did not end within {CLOSE_DEADLINE_S:g} s")

    def gone(self) -> SupervisorGone:
        """Return the error for the ended supervisor. It may be retried if one of this pool has ever worked."""
        what = f"the process that keeps the local nodes {self.how}{self.last_words()}"
        return SupervisorGone(what, retry_after_s=1.0 if self.worked else None)

    def last_words(self) -> str:
        try:
            words = self._log.read_text()[-2000:].strip()
        except OSError:
            words = ""
        return f": {words}" if words else ""


def _collect(pid: int) -> str:
    """Collect the process and return how it ended. It closes its socket only by ending, so this takes no time."""
    from .process_state import describe

    try:
        return describe(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # the application collects every child, or ignores SIGCHLD
        return "died"

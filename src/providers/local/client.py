"""The client's connection to one supervisor: it sends requests, receives messages, and detects a frozen supervisor."""

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
# Seconds in which the watchdog kills the supervisor, waits up to 5 s for the end of all other processes, and exits.
KILL_DEADLINE_S = 8.0
READ_BYTES = 64 * 1024


class SupervisorGone(ProviderError):
    """The supervisor has ended, and with it every machine."""


class SupervisorClient:
    """The connection to one supervisor. Run `listen` in a task of its own.

    ``heard`` is called with each message; ``over`` is called once, when the supervisor has ended.
    """

    def __init__(
        self,
        directory: Path,
        started: StartedSupervisor,
        *,
        worked: bool,
        heard: Callable[[dict[str, Any]], None],
        over: Callable[[], None],
    ) -> None:
        """``worked``: whether any supervisor of this pool has worked so far. If so, a new supervisor will probably
        work, too.
        """
        self._log = directory / LOG
        self._heard, self._over = heard, over
        self._control, self._pid = started
        self._supervisor = self._pid  # the watchdog's pid, until the supervisor reports its own
        self.worked = worked
        self._numbers = itertools.count(1)
        self._taken: dict[int, anyio.Event] = {}
        self._unsent, self._unread = b"", b""
        self._sending, self._listening = anyio.Lock(), anyio.Lock()
        self._done = anyio.Event()
        self._why = ""  # why this client killed the supervisor; empty: it did not
        self.how = "has not ended"

    @property
    def ended(self) -> bool:
        return self._done.is_set()

    async def request(self, message: dict[str, object]) -> None:
        """Send a request; return when the supervisor has read it. If the supervisor is frozen, kill it.

        Raises:
            SupervisorGone
        """
        import json  # imported here, after the supervisor was started, so that the supervisor starts earlier

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
        """Send all queued data, including the data that a cancelled `_send` has left."""
        async with self._sending:
            while self._unsent and not self.ended:
                try:
                    self._unsent = self._unsent[self._control.send(self._unsent) :]
                except BlockingIOError:
                    await anyio.wait_writable(self._control)
                except OSError:  # the supervisor is ending; `listen` detects this
                    return

    async def listen(self) -> None:
        """Receive the supervisor's messages until the supervisor ends. If this call is cancelled, another call
        continues.
        """
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
        """End the supervisor and all its processes, by a signal to its watchdog. The wait is bounded.

        If the watchdog is dead, the supervisor ends everything itself as soon as it runs. If the supervisor is stopped,
        it needs a SIGCONT from here: the kernel sends SIGCONT only to processes that were already stopped when their
        group became orphaned.
        """
        self._why = self._why or why
        if self._watchdog_lives():
            await self._signal(self._pid, signal.SIGTERM, signal.SIGKILL)
        # Only if the watchdog is dead: a living watchdog may have reaped the supervisor, and another process may have
        # its pid.
        if self._supervisor != self._pid and not self._watchdog_lives():
            await self._signal(self._supervisor, signal.SIGCONT, signal.SIGKILL)
        if not self.ended:  # watchdog and supervisor have received SIGKILL, so only the kernel can delay their end
            self._end("")

    async def _signal(self, pid: int, *signals: signal.Signals) -> None:
        """Send the signals one after the other, with a pause for the effect of each, until the supervisor has ended."""
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
        except ChildProcessError:  # other code of this program has reaped the process
            return False

    async def close(self) -> None:
        """Ask the supervisor to end all its processes, and wait until it closes its socket. The wait is bounded."""
        try:
            self._control.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        with anyio.move_on_after(CLOSE_DEADLINE_S):
            # Another task usually runs `listen`, but that task may be cancelled: the end of `asyncio.run` cancels every
            # task.
            await self.listen()
        if not self.ended:
            await self._kill(f"did not end within {CLOSE_DEADLINE_S:g} s")

    def gone(self) -> SupervisorGone:
        """Return the error for a supervisor that has ended. It allows a retry if any supervisor of this pool has
        worked.
        """
        what = f"the process that keeps the local nodes {self.how}{self.last_words()}"
        return SupervisorGone(what, retry_after_s=1.0 if self.worked else None)

    def last_words(self) -> str:
        try:
            words = self._log.read_text()[-2000:].strip()
        except OSError:
            words = ""
        return f": {words}" if words else ""


def _collect(pid: int) -> str:
    """Reap the watchdog process, and return how it ended. The caller has seen that the process's socket is closed,
    which happens only when the process ends, so this call does not block.
    """
    from .process_state import describe

    try:
        return describe(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # other code of this program has reaped the process, or the program ignores SIGCHLD
        return "died"

"""A local command whose standard input and output are one end of a socket pair, so this process copies no bytes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress

SAID_BYTES = 4096  # kept bytes from the end of stderr, for the error message
READ_BYTES = 65536
LEAVES_S, OBEYS_S = 3.0, 3.0  # seconds for a command to exit after its streams end, and after SIGTERM
LOOK_S = 0.02


class LocalCommand:
    """A running command. ``socket`` is the caller's end of the pair; the caller closes it, which ends the command.

    The command has `LEAVES_S` to exit by itself; then it gets SIGTERM, and SIGKILL `OBEYS_S` later.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        """Start the command in its own session, which Ctrl-C does not reach. Raises OSError if it cannot be started."""
        self.socket, theirs = socket.socketpair()
        self._stderr = bytearray()
        self._ended = False
        self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        try:
            with theirs:
                end = theirs.fileno()
                self._process = subprocess.Popen(  # noqa: S603
                    argv, stdin=end, stdout=end, stderr=subprocess.PIPE, start_new_session=True, bufsize=0
                )
        except BaseException:  # also on KeyboardInterrupt: no other code closes this end of the pair
            self.socket.close()
            raise
        self.socket.setblocking(False)
        assert self._process.stderr is not None
        self._errors = self._process.stderr
        os.set_blocking(self._errors.fileno(), False)
        self._loop.add_reader(self._errors.fileno(), self._hear)

    @property
    def said(self) -> bytes:
        return bytes(self._stderr)

    def _hear(self) -> bool:
        """Read the available stderr; return whether more may be available at once."""
        try:
            data = os.read(self._errors.fileno(), READ_BYTES)
        except BlockingIOError:
            return False
        self._stderr += data
        del self._stderr[:-SAID_BYTES]
        if not data:
            self._hear_no_more()
        return bool(data)

    def _hear_no_more(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._errors.fileno())

    async def status(self, within_s: float) -> int | None:
        """Return the exit status, or the negative number of the signal that ended the command; None: it still runs."""
        until = asyncio.get_running_loop().time() + within_s
        status: int | None
        while (status := self._process.poll()) is None and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)  # polling, because asyncio reports a process's end only in some threads
        while self._loop is not None and self._hear():
            pass
        return status

    def end(self) -> None:
        """Wait for the command's end in a thread, as the loop may close next. The socket is closed, or about to be."""
        if self._ended:
            return
        self._ended = True
        self._hear_no_more()
        if self._process.poll() is None:
            threading.Thread(target=self._see_to_its_end, name="outrider-command", daemon=True).start()
        else:
            self._errors.close()

    def _see_to_its_end(self) -> None:
        with self._errors:  # stderr is no longer read: its output is lost, and too much of it blocks the command
            for number, within_s in ((signal.SIGTERM, LEAVES_S), (signal.SIGKILL, OBEYS_S)):
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(within_s)
                    return
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)
            self._process.wait()

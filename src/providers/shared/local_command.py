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

SAID_BYTES = 4096  # bytes to keep from the end of stderr, for the error message
READ_BYTES = 65536
LEAVES_S, OBEYS_S = 3.0, 3.0  # seconds that a command has to exit: after the end of its streams, and after SIGTERM
LOOK_S = 0.02


class LocalCommand:
    """A running command. ``socket`` is the caller's end of the socket pair. The caller closes it to end the command.

    The command has `LEAVES_S` to exit by itself; then it gets SIGTERM, and `OBEYS_S` later SIGKILL.
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
        except BaseException:  # also on KeyboardInterrupt: no other code closes this end of the socket pair
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
        """Read the available stderr; return whether there may be more to read now."""
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
            await asyncio.sleep(LOOK_S)  # poll, because asyncio reports the end of a process only in some threads
        while self._loop is not None and self._hear():
            pass
        return status

    def end(self) -> None:
        """Wait for the command's end in a thread, because the event loop may be closed next. The caller closes the
        socket at about the same time.
        """
        if self._ended:
            return
        self._ended = True
        self._hear_no_more()
        if self._process.poll() is None:
            threading.Thread(target=self._see_to_its_end, name="outrider-command", daemon=True).start()
        else:
            self._errors.close()

    def _see_to_its_end(self) -> None:
        # Nobody reads stderr any more: its output is lost, and the command blocks if it writes too much.
        with self._errors:
            for number, within_s in ((signal.SIGTERM, LEAVES_S), (signal.SIGKILL, OBEYS_S)):
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(within_s)
                    return
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)
            self._process.wait()

"""A command of this computer whose standard input and output are one end of a socket pair: no byte is copied here."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress

SAID_BYTES = 4096  # of stderr, its end: what an error shows
READ_BYTES = 65536
LEAVES_S, OBEYS_S = 3.0, 3.0  # for a command to end when its streams have, and after SIGTERM
LOOK_S = 0.02


class LocalCommand:
    """``socket`` is the other end, and whoever connects by it closes it. That ends the command, for which it is given
    `LEAVES_S`; then it is sent SIGTERM, and SIGKILL `OBEYS_S` later.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        """Start it, in a session of its own: no Ctrl-C reaches it. An OSError says why it cannot be started."""
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
        except BaseException:  # also an interrupt: our end of the pair is nobody else's to close
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
        """Read what it says, and return whether there may be more at once."""
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
        """Return its exit status, or the negative number of the signal that ended it; None: it goes on meanwhile."""
        until = asyncio.get_running_loop().time() + within_s
        status: int | None
        while (status := self._process.poll()) is None and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)  # no event of asyncio's tells of a process's end in every thread
        while self._loop is not None and self._hear():
            pass
        return status

    def end(self) -> None:
        """See to its end, in a thread, as the loop may be closed next. The socket is closed, or about to be."""
        if self._ended:
            return
        self._ended = True
        self._hear_no_more()
        if self._process.poll() is None:
            threading.Thread(target=self._see_to_its_end, name="outrider-command", daemon=True).start()
        else:
            self._errors.close()

    def _see_to_its_end(self) -> None:
        with self._errors:  # what it still says is heard by nobody, and breaks if it says too much
            for number, within_s in ((signal.SIGTERM, LEAVES_S), (signal.SIGKILL, OBEYS_S)):
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(within_s)
                    return
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)
            self._process.wait()

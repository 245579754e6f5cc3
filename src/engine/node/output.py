"""Output of tasks, on the worker's side: standard streams that know whether something was written."""

from __future__ import annotations

import array
import fcntl
import io
import sys
import termios
from collections.abc import Callable
from typing import Any

STDOUT, STDERR = 1, 2


class Printed:
    """The process's standard streams, with a record of whether the present task has used them."""

    def __init__(self) -> None:
        self._wrote = False
        self._waiting = array.array("i", [0])
        self._streams = [_Tap(fd, self._note) for fd in (STDOUT, STDERR)]
        sys.stdout, sys.stderr = (tap.text() for tap in self._streams)

    def _note(self) -> None:
        self._wrote = True

    def settle(self) -> bool:
        """Flush; return True when anything was written since the last time, or lies in the pipes unread.

        Child processes and C code write past Python's streams: only the pipe itself knows.
        """
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:  # noqa: BLE001, S110 - the task may have replaced or closed it
                pass
        wrote, self._wrote = self._wrote, False
        return bool(wrote or self._pending(STDOUT) or self._pending(STDERR))

    def _pending(self, fd: int) -> int:
        try:
            fcntl.ioctl(fd, termios.FIONREAD, self._waiting)
        except OSError:  # the task has closed it, or put something else in its place
            return 0
        return self._waiting[0]


class _Tap(io.FileIO):
    def __init__(self, fd: int, note: Callable[[], None]) -> None:
        super().__init__(fd, "w", closefd=False)
        self._note = note

    def write(self, data: Any, /) -> int:
        self._note()
        return super().write(data)

    def text(self) -> io.TextIOWrapper:
        return io.TextIOWrapper(
            io.BufferedWriter(self), encoding="utf-8", errors="backslashreplace", line_buffering=True
        )

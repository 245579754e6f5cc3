"""Output of tasks: streams that detect output (in a worker); its division into lines, and a queue (in the executor)."""

from __future__ import annotations

import array
import fcntl
import io
import os
import sys
import termios
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from ..wire import log_records
from ..wire.messages import LOST, Logged, Message, Output

STDOUT, STDERR = 1, 2
PIECE_BYTES = 64 * 1024
UNFINISHED_S = 0.5  # interval at which the beginning of a line without an end is sent
# limits of the prints and of the log records that wait for the client, while it is away or slow
AWAY_BYTES, AWAY_RECORDS_BYTES = 1 << 20, 16 << 20


class Printed:
    """The standard streams of a worker process, which record whether the current task has written to them.

    Each task begins with these streams, even if an earlier task has closed or replaced them.
    """

    def __init__(self, pipes: Mapping[int, int] | None = None) -> None:
        """Replace `sys.stdout` and `sys.stderr`. ``pipes``: descriptor 1 or 2 -> a duplicate, to restore it."""
        self._wrote = False
        self._waiting = array.array("i", [0])
        self._pipes = pipes or {}
        self._marks = {fd: _marked(fd) for fd in (STDOUT, STDERR)}
        self.is_redirected = False  # whether a task has redirected descriptor 1 or 2 to another file
        # referenced here so that they are not closed, which could print their buffers
        self._originals = sys.__stdout__, sys.__stderr__
        self._out, self._err = self._make(STDOUT), self._make(STDERR)

    def _note(self) -> None:
        self._wrote = True

    def _make(self, fd: int) -> io.TextIOWrapper:
        stream = _text_stream(_Tap(fd, self._note))
        name = "stdout" if fd == STDOUT else "stderr"
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
        return stream

    def settle(self) -> bool:
        """Flush and restore the streams; return whether the task has written output, or unread output is in a pipe.

        Child processes and C code bypass Python's streams: their output is detected only as unread data in the pipe.
        """
        if sys.stdout is not self._out or sys.__stdout__ is not self._out:
            self._replace("stdout", self._out)
        if sys.stderr is not self._err or sys.__stderr__ is not self._err:
            self._replace("stderr", self._err)
        self.restore_descriptors()
        try:
            self._out.flush()
        except (ValueError, OSError):  # the stream is closed, or its file accepts no data
            self._out = self._make(STDOUT)
        try:
            self._err.flush()
        except (ValueError, OSError):
            self._err = self._make(STDERR)
        wrote, self._wrote = self._wrote, False
        return bool(wrote or self.is_redirected or self._pending(STDOUT) or self._pending(STDERR))

    def restore_descriptors(self) -> None:
        """Restore descriptors 1 and 2 if a task has closed them; set `is_redirected` if it has redirected one."""
        self.is_redirected = False
        for fd, (command, mark) in self._marks.items():
            try:
                if fcntl.fcntl(fd, command) != mark:
                    self.is_redirected = True
            except OSError:
                self._reopen(fd)

    def _replace(self, name: str, own: io.TextIOWrapper) -> None:
        for alias in (name, f"__{name}__"):
            if (stream := getattr(sys, alias, None)) is not own:
                try:
                    stream.flush()  # type: ignore[union-attr]
                except Exception:  # noqa: BLE001, S110 - the task may have set any object
                    pass
                setattr(sys, alias, own)

    def _reopen(self, fd: int) -> None:
        """Restore a descriptor that the task has closed."""
        try:
            os.dup2(self._pipes[fd], fd)
        except (KeyError, OSError):  # the duplicate is closed as well
            self.is_redirected = True

    def _pending(self, fd: int) -> int:
        try:
            fcntl.ioctl(fd, termios.FIONREAD, self._waiting)
        except OSError:  # the task has closed or replaced the descriptor
            return 0
        return self._waiting[0]


_MARK = 61  # a signal's number, used as a mark; the kernel never sends the signal, because O_ASYNC is not set


def _marked(fd: int) -> tuple[int, int]:
    """Mark the open file of a descriptor, to detect later whether the descriptor still refers to it.

    The detection takes 0.15 us; `fstat` would take 0.7 us (measured).

    Returns:
        (a command for `fcntl`, its result while the descriptor refers to the marked file).
    """
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, _MARK)
        return fcntl.F_GETSIG, fcntl.fcntl(fd, fcntl.F_GETSIG)
    except OSError:  # the kernel lacks F_SETSIG: detect only that the descriptor is closed
        return fcntl.F_GETFD, fcntl.fcntl(fd, fcntl.F_GETFD)


class _Tap(io.FileIO):
    def __init__(self, fd: int, note: Callable[[], None]) -> None:
        super().__init__(fd, "w", closefd=False)
        self._note = note

    def write(self, data: Any, /) -> int:
        self._note()
        return super().write(data)


def _text_stream(tap: _Tap) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BufferedWriter(tap), encoding="utf-8", errors="backslashreplace", line_buffering=True)


class Lines:
    """The splitter of a worker's stdout or stderr into lines.

    `feed` returns complete lines; the beginning of a line is returned by `unfinished`, or once it is longer than
    `PIECE_BYTES`.
    """

    def __init__(self, stream: int) -> None:
        self._stream = stream
        self._attempt = 0
        self._tail = b""

    def feed(self, attempt: int, data: bytes) -> list[Output]:
        """Split ``data`` of an attempt into messages, after a message with the last attempt's unfinished line."""
        out = self.unfinished() if attempt != self._attempt else []
        self._attempt = attempt
        whole, newline, tail = (self._tail + data).rpartition(b"\n")
        whole += newline
        if len(tail) > PIECE_BYTES:
            whole, tail = whole + tail, b""
        self._tail = tail
        return out + self._cut(whole)

    @property
    def holds(self) -> bool:
        """Return whether the beginning of a line has not been returned yet."""
        return bool(self._tail)

    def unfinished(self) -> list[Output]:
        """Return the beginning of the line that has no end yet; later output continues the line."""
        tail, self._tail = self._tail, b""
        return self._cut(tail)

    def _cut(self, text: bytes) -> list[Output]:
        out: list[Output] = []
        start = 0
        while start < len(text):
            stop = start + PIECE_BYTES
            if stop < len(text):
                stop = text.rfind(b"\n", start, stop) + 1 or stop
            out.append(Output(self._attempt, self._stream, text[start:stop], 0))
            start = stop
        return out


class Backlog:
    """The queue of messages that wait while the client is away or slow.

    BACKLOG-1: of the prints and of the log records, the newest are kept, up to a limit for each; all other messages are
    kept.
    BACKLOG-2: dropped prints are counted for each attempt and stream, dropped records for each attempt. The number is
    in the next kept message of the same attempt and stream, or in an empty message.
    """

    def __init__(self, limit_bytes: int = AWAY_BYTES, records_bytes: int = AWAY_RECORDS_BYTES) -> None:
        self._limit, self._records_limit = limit_bytes, records_bytes
        self._added = 0
        self._entries: dict[int, Message | bytes] = {}
        self._outputs: OrderedDict[int, Output] = OrderedDict()  # those `_entries` that are `Output` messages
        self._records: OrderedDict[int, Logged] = OrderedDict()  # those `_entries` that are `Logged`, without a blob
        self._bytes = self._records_bytes = 0
        self._lost: dict[tuple[int, int], int] = {}  # (attempt, stream) -> number of dropped bytes
        self._lost_records: dict[int, int] = {}  # attempt -> number of dropped records

    def __bool__(self) -> bool:
        return bool(self._entries)

    def add(self, entry: Message | bytes) -> None:
        """Add a message, or the encoded body of a worker's message."""
        self._added += 1
        self._entries[self._added] = entry
        if isinstance(entry, Output):
            self._outputs[self._added] = entry
            self._bytes += len(entry.text)
            while self._bytes > self._limit:
                self._lose_output()
        elif isinstance(entry, Logged) and (entry.blob is None or entry.blob.startswith(LOST)):
            self._records[self._added] = entry
            self._records_bytes += len(entry.records)
            while self._records_bytes > self._records_limit:
                self._lose_records()

    def _lose_output(self) -> None:
        number, output = self._outputs.popitem(last=False)
        del self._entries[number]
        self._bytes -= len(output.text)
        stream = output.attempt, output.stream
        self._lost[stream] = self._lost.get(stream, 0) + len(output.text) + output.dropped

    def _lose_records(self) -> None:
        number, (attempt, records, dropped, _) = self._records.popitem(last=False)
        del self._entries[number]
        self._records_bytes -= len(records)
        self._lost_records[attempt] = self._lost_records.get(attempt, 0) + log_records.count(records) + dropped

    def take(self) -> list[Message | bytes]:
        """Return all messages, with the numbers of losses, and clear the queue."""
        entries: list[Message | bytes] = []
        for entry in self._entries.values():
            match entry:
                case Output(attempt, stream):
                    lost = self._lost.pop((attempt, stream), 0)
                    entries.append(entry._replace(dropped=entry.dropped + lost))
                case Logged(attempt, blob=None):
                    lost = self._lost_records.pop(attempt, 0)
                    entries.append(entry._replace(dropped=entry.dropped + lost))
                case _:
                    entries.append(entry)
        silenced = [Output(attempt, stream, b"", lost) for (attempt, stream), lost in self._lost.items()]
        unlogged = [Logged(attempt, log_records.NONE, lost) for attempt, lost in self._lost_records.items()]
        self.__init__(self._limit, self._records_limit)  # type: ignore[misc]
        return [*silenced, *unlogged, *entries]

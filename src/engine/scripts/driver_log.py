"""The log of a driver: its terminal output, in files of limited size, however long the run lasts.

It has parts like the logs of ranks: a full part is continued by the next, and the first and the newest parts stay.
Output that bypasses Python's streams is counted when Python writes its next line.

A line that cannot be written, as on a full disk, is lost, and the run goes on. The next line that can be written says
how many are missing.
"""

from __future__ import annotations

import atexit
import fcntl
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from ..runs.log_parts import NEWEST, PART_BYTES, part_path

DRIVER_LOG = "driver.log"
LINE_CHARS = 1024 * 1024  # of a line kept until it ends; of a longer line only
SHOWN_CHARS = 64 * 1024  # are written: a secret that begins there is complete in the kept line


def redirect(log: Path, clean: Callable[[str], str]) -> None:
    """Detach this process from the terminal: Python's streams write cleaned lines to the log.

    Raises:
        OSError: the log cannot be created.
    """
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    if nothing:
        os.close(nothing)
    parts = StandardOutput(log)
    sys.stdout, sys.stderr = (CleanLines(Descriptor(file), clean, parts.make_room) for file in (1, 2))
    for stream in (sys.stdout, sys.stderr):
        atexit.register(stream.close)


class Descriptor(io.TextIOBase):
    """A text stream that writes to a descriptor at once; text that it cannot write is not kept."""

    def __init__(self, file: int) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Write. OSError: a part of the text may have been written."""
        left = memoryview(text.encode(errors="backslashreplace"))
        while left:
            left = left[os.write(self._file, left) :]
        return len(text)

    def fileno(self) -> int:
        return self._file

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"


class StandardOutput:
    """The file, in parts, behind the descriptors 1 and 2 of this process."""

    def __init__(self, path: Path, part_bytes: int = PART_BYTES, standard: tuple[int, ...] = (1, 2)) -> None:
        self._path, self._part_bytes, self._standard = path, part_bytes, standard
        self._part, self._lock = 0, threading.Lock()
        self._file = _opened(path)
        for each in standard:
            os.dup2(self._file, each)

    def make_room(self, size_bytes: int) -> None:
        """Begin the next part, unless the present one is empty or has room for ``size_bytes``. If the disk fails, keep
        the present part.
        """
        with self._lock, suppress(OSError):
            present = os.fstat(self._file)
            if present.st_size and present.st_size + size_bytes > self._part_bytes:
                self._go_on(present)

    def _go_on(self, present: os.stat_result) -> None:
        following = self._part + 1
        file = _opened(self._named(following))
        notice = (
            f"outrider: part {following + 1} of this log: of its parts the first and the newest {NEWEST} are kept\n"
        )
        try:
            os.write(file, notice.encode())
            for each in self._standard:
                with suppress(OSError):  # the program has closed it
                    if os.path.samestat(os.fstat(each), present):
                        os.dup2(file, each)
        except BaseException:  # as of a full disk: the next line tries again
            os.close(file)
            raise
        before, self._file, self._part = self._file, file, following
        with suppress(OSError):  # its descriptor is closed all the same
            os.close(before)
        if following > NEWEST:
            self._named(following - NEWEST).unlink(missing_ok=True)

    def _named(self, part: int) -> Path:
        return self._path.with_name(part_path(self._path.name, part))


def _opened(path: Path) -> int:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    if file > 2:
        return file
    try:  # this process has closed one of the standard ones, which others may open again
        return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(file)


class CleanLines(io.TextIOBase):
    """A text stream that writes whole, cleaned lines.

    An unfinished line waits for its end, or for the stream's: a part of it could be half a secret. Of a line longer
    than `LINE_CHARS` only the beginning is written.
    """

    def __init__(self, stream: io.TextIOBase, clean: Callable[[str], str], make_room: Callable[[int], object]) -> None:
        """Wrap ``stream``. ``make_room``: called with the number of bytes before each write."""
        self._stream, self._clean, self._make_room = stream, clean, make_room
        self._rest: list[str] = []  # of an unfinished line
        self._rest_chars = 0
        self._skipping = False  # the rest of a too long line
        self._missing = 0  # lines that could not be written
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        with self._lock:
            self._take(text)
        return len(text)

    def _take(self, text: str) -> None:
        if self._skipping:
            _, newline, text = text.partition("\n")
            self._skipping = not newline
            if not newline:
                return
        whole, newline, rest = text.rpartition("\n")
        if newline:
            self._put(f"{''.join(self._rest)}{whole}\n")
            self._rest, self._rest_chars = [], 0
        if rest:
            self._rest.append(rest)
            self._rest_chars += len(rest)
            if self._rest_chars > LINE_CHARS:
                self._cut()

    def _cut(self) -> None:
        beginning = _beginning(self._clean("".join(self._rest)))
        self._rest, self._rest_chars, self._skipping = [], 0, True
        self._write(beginning)

    def _put(self, text: str) -> None:
        for piece in _pieces(self._clean(text)):
            self._write(piece)

    def _write(self, text: str) -> None:
        self._make_room(len(text.encode(errors="backslashreplace")))
        notice = f"\noutrider: up to {self._missing:,} lines are missing here, which could not be written\n"
        try:
            self._stream.write(f"{notice if self._missing else ''}{text}")
            self._stream.flush()
        except OSError:
            self._missing += text.count("\n") or 1
        else:
            self._missing = 0

    def close(self) -> None:
        if not self.closed:
            self._put("".join(self._rest))
        super().close()

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding


def _pieces(text: str) -> Iterator[str]:
    """Yield a cleaned text: a few whole lines at a time, and only the beginning of a too long line."""
    at = 0
    while at < len(text):
        end = len(text) if len(text) - at <= SHOWN_CHARS else text.rfind("\n", at, at + SHOWN_CHARS) + 1
        end = end or text.find("\n", at) + 1 or len(text)  # a long line
        piece = text[at:end]
        yield _beginning(piece) if len(piece) > LINE_CHARS + 1 else piece  # 1: its end
        at = end


def _beginning(line: str) -> str:
    return f"{line[:SHOWN_CHARS]}\noutrider: the rest of this line is left out, as it is longer than {LINE_CHARS:,}\n"

"""The driver of a detached run: a process in a session of its own, which continues when the terminal is closed.

The command `outrider run --detach` checks all options and then forks the driver, so that mistakes in options are
reported before the prompt returns. The command also waits for the first moments of the run, to report a failing start.
The driver owns the run's record (its folder) from the run's beginning to the end of the driver's process.

The driver's log is its terminal output, in files of limited size. The log has parts, like the logs of ranks: when a
part is full, the next part begins; the first and the newest parts are kept. Output that bypasses Python's streams
counts toward a part's size when Python writes its next line. If a line cannot be written, for example because the disk
is full, the line is dropped, and the run continues. The next line that can be written begins with the number of missing
lines.
"""

from __future__ import annotations

import atexit
import fcntl
import io
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...lazy_dataclass import dataclass
from ...providers.shared.pool_lock import Lock, Owner
from ..record.runs.files import RecordFiles
from ..record.runs.names import runs_folder
from ..record.runs.reader import run_of
from ..record.runs.status import RunStatus
from ..record.runs.writer import NEWEST, PART_BYTES, RUN, STATUS, part_path
from .failures import OUTRIDER

DRIVER_LOG = "driver.log"
LINE_CHARS = 1024 * 1024  # most characters that are kept of a line without an end
# Only this many characters of a line longer than `LINE_CHARS` are written. A secret that begins in them also ends
# before `LINE_CHARS`, so it is found.
SHOWN_CHARS = 64 * 1024


def redirect(log: Path, clean: Callable[[str], str]) -> None:
    """Detach this process from the terminal. Python's standard streams then write lines without secrets to the log.

    Raises:
        OSError: The log cannot be created.
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
    """A text stream that writes to a file descriptor without a buffer."""

    def __init__(self, file: int) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Write the text.

        Raises:
            OSError: Only a part of the text, or nothing, was written.
        """
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
    """A log file in parts. The file descriptors 1 and 2 of this process refer to its newest part."""

    def __init__(self, path: Path, part_bytes: int = PART_BYTES, standard: tuple[int, ...] = (1, 2)) -> None:
        self._path, self._part_bytes, self._standard = path, part_bytes, standard
        self._part, self._lock = 0, threading.Lock()
        self._file = _opened(path)
        for each in standard:
            os.dup2(self._file, each)

    def make_room(self, size_bytes: int) -> None:
        """Begin the next part if the newest part is not empty and has no room for ``size_bytes`` bytes.

        After a disk error, continue with the newest part.
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
                with suppress(OSError):  # the program has closed this descriptor
                    if os.path.samestat(os.fstat(each), present):
                        os.dup2(file, each)
        except BaseException:  # for example, the disk is full; the next line will try again
            os.close(file)
            raise
        before, self._file, self._part = self._file, file, following
        with suppress(OSError):  # even if `close` raises, the descriptor is closed
            os.close(before)
        if following > NEWEST:
            self._named(following - NEWEST).unlink(missing_ok=True)

    def _named(self, part: int) -> Path:
        return self._path.with_name(part_path(self._path.name, part))


def _opened(path: Path) -> int:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    if file > 2:
        return file
    try:  # the program closed descriptor 0, 1 or 2; do not use its number, as the program may use it again
        return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(file)


class CleanLines(io.TextIOBase):
    """A text stream that writes complete lines, from which secrets were removed.

    A line is kept in memory until it is complete or the stream is closed, because an incomplete line may contain half
    of a secret. Of a line longer than `LINE_CHARS`, only the beginning is written.
    """

    def __init__(self, stream: io.TextIOBase, clean: Callable[[str], str], make_room: Callable[[int], object]) -> None:
        """Wrap ``stream``.

        ``clean``: removes secrets from a text. ``make_room``: called before each write, with the number of bytes.
        """
        self._stream, self._clean, self._make_room = stream, clean, make_room
        self._rest: list[str] = []  # the pieces of a line without an end so far
        self._rest_chars = 0
        self._skipping = False  # True: the present line was too long, so its remaining text is dropped
        self._missing = 0  # number of lines that could not be written since the last successful write
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
    """Yield a text in pieces of a few complete lines. Of a line that is too long, yield only the beginning."""
    at = 0
    while at < len(text):
        end = len(text) if len(text) - at <= SHOWN_CHARS else text.rfind("\n", at, at + SHOWN_CHARS) + 1
        end = end or text.find("\n", at) + 1 or len(text)  # a single long line is one piece
        piece = text[at:end]
        yield _beginning(piece) if len(piece) > LINE_CHARS + 1 else piece  # 1 more character for the line's end
        at = end


def _beginning(line: str) -> str:
    return f"{line[:SHOWN_CHARS]}\noutrider: the rest of this line is left out, as it is longer than {LINE_CHARS:,}\n"


RECORD_S = 30.0  # seconds within which the driver must create the record, for slow disks
FIRST_MOMENTS_S = 0.4  # seconds for which the command waits after the run's start, to report an early failure


@dataclass(frozen=True, slots=True)
class Start:
    """The result of starting a detached run, for the command.

    ``run``: the run's id; "": the run could not start. ``code``: the exit code, if the run has already ended; None: the
    run continues. ``message``: the reason why it has ended.
    """

    run: str = ""
    code: int | None = None
    message: str = ""


class Starter:
    """Reports from the driver, through a pipe, to the command that waits for the start of the run."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def recorded(self, run: str) -> None:
        self._tell(run=run)

    def opened(self) -> None:
        """Report that the pool is open. The command then stops waiting."""
        self._tell(open=True)
        self._close()

    def failed(self, code: int, message: str) -> None:
        self._tell(code=code, said=message)
        self._close()

    def _tell(self, **facts: Any) -> None:
        with suppress(OSError):  # the command has already stopped waiting
            os.write(self._pipe, json.dumps(facts).encode() + b"\n")

    def _close(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1


def detach(name: str, drive: Callable[[RecordFiles, Starter], int], clean: Callable[[str], str] = str) -> Start:
    """Fork a driver, and return the result of starting its run.

    Args:
        name: The name of the run.
        drive: Runs the program; called in the driver with the run's record. Returns the exit code.
        clean: Removes secrets from each printed line, as the driver's log keeps all lines.

    Raises:
        SystemExit: In the driver, when ``drive`` has returned its exit code.
    """
    ours, its = os.pipe()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    # Block Ctrl-C until the driver's process id is known: otherwise a driver could remain that nothing can end.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        driver = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    if driver == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(ours)
        raise SystemExit(_drive(name, drive, Starter(its), clean))
    os.close(its)
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return _heard(ours)
    except KeyboardInterrupt:  # end the driver: the user does not know the run's id, which `outrider stop` needs
        os.kill(driver, signal.SIGTERM)
        raise
    finally:
        os.close(ours)


def _drive(
    name: str, drive: Callable[[RecordFiles, Starter], int], starter: Starter, clean: Callable[[str], str]
) -> int:
    os.setsid()
    began = time.time()
    try:
        files = RecordFiles.make(runs_folder(), name, began)
        # Take the record's lock a second time: the first lock is released when the record is closed, but this process
        # must hold a lock until the process ends.
        Lock.take(files.directory)
        files.replace(STATUS, RunStatus(files.directory.name, name, began, changed=began).facts(began, 0.0, 0.0))
        about = {"id": files.directory.name, "name": name, "began": began, "owner": asdict(Owner.this(files.directory))}
        files.replace(RUN, about)
        redirect(files.directory / DRIVER_LOG, clean)
    except OSError as error:
        starter.failed(OUTRIDER, f"its record cannot be written: {error.filename or runs_folder()}: {error.strerror}")
        return OUTRIDER
    starter.recorded(files.directory.name)
    code = 1
    try:
        code = drive(files, starter)
    finally:
        if not run_of(files.directory).ended:  # the run failed before its pool began, or by an internal error
            status = RunStatus(files.directory.name, name, began)
            status.end(time.time(), code, "")
            files.replace(STATUS, status.facts(time.time(), 0.0, 0.0))
    return code


def _heard(pipe: int) -> Start:
    """Return the result of starting the run, as the driver reports it.

    If it reports nothing in time, return a failure.
    """
    run, text, until = "", b"", time.monotonic() + RECORD_S
    try:
        while select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
            if not (piece := os.read(pipe, 4096)):
                return Start(run, OUTRIDER, "its process has ended without a word")
            *lines, text = (text + piece).split(b"\n")
            for facts in map(json.loads, lines):
                if "open" in facts:
                    return Start(run)
                if "code" in facts:
                    return Start(run, facts["code"], facts["said"])
                run, until = facts["run"], time.monotonic() + FIRST_MOMENTS_S
    except KeyboardInterrupt:  # Ctrl-C does not end the driver, which is in another session: return its run, if any
        if not run:
            raise
    return Start(run) if run else Start("", OUTRIDER, f"its record was not made within {RECORD_S:g} s")

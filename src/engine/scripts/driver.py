"""The driver of a detached run: a process in a session of its own, which goes on when the terminal is closed.

It is forked from the command after the check of all options: so the prompt is back at once, and mistakes in the options
are reported there. The command waits for the first moments of the run, to report a failing start at the prompt, too.
The driver owns the record from the run's beginning to the end of its own process.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from ...lazy_dataclass import dataclass
from ...providers.pool_lock import Lock, Owner
from ..runs.files import RecordFiles
from ..runs.names import runs_folder
from ..runs.reader import run_of
from ..runs.status import RunStatus
from ..runs.writer import RUN, STATUS
from .driver_log import DRIVER_LOG, redirect
from .exit_codes import OUTRIDER

RECORD_S = 30.0  # for the creation of the record on a slow disk
FIRST_MOMENTS_S = 0.4  # of the run, for which the command waits


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a detached run, for its command. ``run``: its id; "": it could not begin. ``code``: its exit code,
    if it has ended already, and ``message`` the reason; None: it goes on.
    """

    run: str = ""
    code: int | None = None
    message: str = ""


class Starter:
    """The driver's end of the pipe to its command, which waits for the start of the run."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def recorded(self, run: str) -> None:
        self._tell(run=run)

    def opened(self) -> None:
        """Report that the pool is open: the command stops waiting."""
        self._tell(open=True)
        self._close()

    def failed(self, code: int, message: str) -> None:
        self._tell(code=code, said=message)
        self._close()

    def _tell(self, **facts: Any) -> None:
        with suppress(OSError):  # the command has stopped waiting
            os.write(self._pipe, json.dumps(facts).encode() + b"\n")

    def _close(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1


def detach(name: str, drive: Callable[[RecordFiles, Starter], int], clean: Callable[[str], str] = str) -> Start:
    """Fork a driver, and return its start. The driver runs ``drive`` with its own record. ``clean``: hides secrets in
    each printed line, because all are kept.

    Raises:
        SystemExit: in the driver, with the exit code that ``drive`` returns.
    """
    ours, its = os.pipe()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C right after the fork: a lost driver
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
    except KeyboardInterrupt:  # the user would not know the run's id
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
        Lock.take(files.directory)  # once more: the end of the record releases it once, and the process keeps it
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
        if not run_of(files.directory).ended:  # it failed before its pool began, or by an internal error
            status = RunStatus(files.directory.name, name, began)
            status.end(time.time(), code, "")
            files.replace(STATUS, status.facts(time.time(), 0.0, 0.0))
    return code


def _heard(pipe: int) -> Start:
    """Return the driver's report of its first moments, or the start that its silence means."""
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
    except KeyboardInterrupt:  # the driver, in another session, is not interrupted
        if not run:
            raise
    return Start(run) if run else Start("", OUTRIDER, f"its record was not made within {RECORD_S:g} s")

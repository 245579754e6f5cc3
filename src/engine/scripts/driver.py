"""The driver of a detached run: a process in a session of its own, which goes on when the terminal is closed.

It is forked from the command, which has checked all options by then: so the prompt is back at once, and what is wrong
with them is told there. The command waits for the first moments of the run, so that a start which fails is told there
too. The driver owns the record from the run's beginning to the end of its own process.
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

MADE_S = 30.0  # in which the record is made: a disk may be slow
FIRST_MOMENTS_S = 0.4  # of the run, that the command waits for


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a detached run, as its command hears of it. ``run``: its id; "": it could not begin. ``code``: the
    exit code with which it has ended already, and ``said`` why; None: it goes on.
    """

    run: str = ""
    code: int | None = None
    said: str = ""


class Starter:
    """The driver's end of the pipe to its command, which waits for how the run starts."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def made(self, run: str) -> None:
        self._tell(run=run)

    def opened(self) -> None:
        """The pool is there: the command need not wait any longer."""
        self._tell(open=True)
        self._close()

    def failed(self, code: int, said: str) -> None:
        self._tell(code=code, said=said)
        self._close()

    def _tell(self, **facts: Any) -> None:
        with suppress(OSError):  # it waits no longer; or the pipe is closed
            os.write(self._pipe, json.dumps(facts).encode() + b"\n")

    def _close(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1


def detach(name: str, drive: Callable[[RecordFiles, Starter], int], clean: Callable[[str], str] = str) -> Start:
    """Fork a driver, and return how it has started. It runs ``drive``, with the record that it owns. ``clean``: of each
    line that it prints, as all of them are kept: hides secrets.

    Raises:
        SystemExit: in the driver, with the exit code that ``drive`` returns.
    """
    ours, its = os.pipe()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # just after the fork it would leave a driver
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
    except KeyboardInterrupt:  # nobody would know its id
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
        Lock.take(files.directory)  # again: whoever ends the record gives it back once, and the process holds it
        files.replace(STATUS, RunStatus(files.directory.name, name, began, changed=began).facts(began, 0.0, 0.0))
        about = {"id": files.directory.name, "name": name, "began": began, "owner": asdict(Owner.this(files.directory))}
        files.replace(RUN, about)
        redirect(files.directory / DRIVER_LOG, clean)
    except OSError as error:
        starter.failed(OUTRIDER, f"its record cannot be written: {error.filename or runs_folder()}: {error.strerror}")
        return OUTRIDER
    starter.made(files.directory.name)
    code = 1
    try:
        code = drive(files, starter)
    finally:
        if not run_of(files.directory).ended:  # it has failed before its pool began, or by a defect
            status = RunStatus(files.directory.name, name, began)
            status.end(time.time(), code, "")
            files.replace(STATUS, status.facts(time.time(), 0.0, 0.0))
    return code


def _heard(pipe: int) -> Start:
    """Return what the driver tells in its first moments, or what follows from its silence."""
    run, text, until = "", b"", time.monotonic() + MADE_S
    try:
        while select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
            if not (piece := os.read(pipe, 4096)):
                return Start(run, OUTRIDER, "its process has ended without a word")
            *lines, text = (text + piece).split(b"\n")
            for said in map(json.loads, lines):
                if "open" in said:
                    return Start(run)
                if "code" in said:
                    return Start(run, said["code"], said["said"])
                run, until = said["run"], time.monotonic() + FIRST_MOMENTS_S
    except KeyboardInterrupt:  # it is in another session, and has not been interrupted
        if not run:
            raise
    return Start(run) if run else Start("", OUTRIDER, f"its record was not made within {MADE_S:g} s")

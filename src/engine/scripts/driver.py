"""The driver of a detached run: a process in a session of its own, which continues when the terminal is closed.

The command checks all options and then forks the driver, so that mistakes in options are reported before the prompt
returns. The command also waits for the first moments of the run, to report a failing start. The driver owns the record
from the run's beginning to the end of the driver's process.
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

RECORD_S = 30.0  # timeout for the creation of the record on a slow disk
FIRST_MOMENTS_S = 0.4  # seconds after the run's start that the command waits for a failure


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a detached run, as reported to the command. ``run``: the run's id; empty: the run could not start.
    ``code``: the exit code, if the run has ended already, with the reason in ``message``; None: the run continues.
    """

    run: str = ""
    code: int | None = None
    message: str = ""


class Starter:
    """The driver's end of a pipe to the command, which waits for the start of the run."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def recorded(self, run: str) -> None:
        self._tell(run=run)

    def opened(self) -> None:
        """Report that the pool is open, which ends the command's wait."""
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
    """Fork a driver, and return the start of its run. The driver calls ``drive`` with the run's record.

    ``clean``: removes secrets from each printed line, because the log keeps all lines.

    Raises:
        SystemExit: in the driver, with the exit code that ``drive`` returns.
    """
    ours, its = os.pipe()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    # Ctrl-C right after the fork would leave a driver whose process id is lost
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
    except KeyboardInterrupt:  # without the run's id, the user could not stop the run
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
        # a second lock: the end of the record releases the first, and the process holds this one until its end
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
    """Return the driver's report of the run's start. If the driver sends none, return the start that this means."""
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
    except KeyboardInterrupt:  # the driver is in another session, so Ctrl-C does not interrupt it
        if not run:
            raise
    return Start(run) if run else Start("", OUTRIDER, f"its record was not made within {RECORD_S:g} s")

"""The driver of a detached run: a process in a session of its own, which continues when the terminal is closed.

The command `outrider run --detach` checks all options and then forks the driver, so that mistakes in options are
reported before the prompt returns. The command also waits for the first moments of the run, to report a failing start.
The driver owns the run's record (its folder) from the run's beginning to the end of the driver's process.
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
from ...providers.shared.pool_lock import Lock, Owner
from ..runs.files import RecordFiles
from ..runs.names import runs_folder
from ..runs.reader import run_of
from ..runs.status import RunStatus
from ..runs.writer import RUN, STATUS
from .driver_log import DRIVER_LOG, redirect
from .exit_codes import OUTRIDER

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
        # Take the lock a second time: the end of the record releases the first lock, but this process must hold one to
        # its end.
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
    except KeyboardInterrupt:  # the driver continues, as it is in another session: return its run if there is one
        if not run:
            raise
    return Start(run) if run else Start("", OUTRIDER, f"its record was not made within {RECORD_S:g} s")

"""The pool's side of the process for a run's trackers: the process is started, restarted if it died, and ended.

A thread waits for the process, so that the pool does not wait; an error here is no failure of the run.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ..api.checks import refuse
from ..api.secrets import allow_secrets
from ..api.settings import RunOption
from ..wire import pickler
from .base import Tracker, check_trackers
from .state_file import FOLDER, LOG

DELAY_S = 0.5  # pause after the record is created: a pool that is opening needs the processor
# pause before a dead process is restarted; the pause doubles each time, up to the second value
AGAIN_S, AGAIN_MOST_S = 1.0, 60.0
CLOSING_AGAIN_S = 0.5  # pause before a restart while the program waits in the end of the `with Pool` block
END_S = 1.0  # time between SIGTERM and SIGKILL


def checked_trackers(trackers: object, run: RunOption) -> tuple[Tracker, ...]:
    """Check a pool's ``trackers=``, and that they can be pickled for another process.

    Raises:
        SpecError: a tracker is not valid, or cannot be pickled.
    """
    checked = check_trackers(trackers)
    if checked and run is False:
        refuse("trackers send what the record of the run has, and run=False leaves none: leave out one of the two.")
    for each in checked:
        try:
            packed([each], 0.0)
        except Exception as error:  # noqa: BLE001  a user's own class may raise anything
            refuse(f"the tracker {each.name} cannot go to the process that sends, as it cannot be pickled: {error}")
    return checked


def packed(trackers: Sequence[Tracker], flush_s: float) -> bytes:
    """Return the input of the process. A class of the program's own script is sent as a copy.

    Each tracker is a pickle of its own beside its name, so that a tracker that cannot be loaded does not stop the
    others.

    Raises:
        Exception: a tracker cannot be pickled.
    """
    with allow_secrets():
        each = [(tracker.name, pickler.dumps(tracker)) for tracker in trackers]
    return pickle.dumps((each, flush_s), protocol=pickle.HIGHEST_PROTOCOL)


class TrackerProcess:
    """The process for one record, once `start` is called. ``order``: the result of `packed`."""

    def __init__(self, order: bytes) -> None:
        self._order = order
        self._closing = threading.Event()
        self._done = threading.Event()  # set when no process is left, and none will be started
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._killing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, directory: Path) -> None:
        """Start, in a thread. If the system has no thread or process left, nothing is sent."""
        self._thread = threading.Thread(target=self._run, args=(directory,), name="outrider-trackers", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._done.set()

    def close(self, within_s: float) -> None:
        """Wait up to ``within_s`` for the process to end by itself after the run; then end it.

        On return it has ended.
        """
        self._closing.set()
        if self._thread is None:
            return
        if within_s <= 0 or not self._done.wait(within_s):
            self.kill()
            self._done.wait(END_S)

    def kill(self) -> None:
        """End the process and its children, if it runs, and start no other process."""
        with self._lock:
            self._killing.set()
            process = self._process
        self._closing.set()
        if process is not None:
            for word, wait_s in ((signal.SIGTERM, END_S), (signal.SIGKILL, END_S)):
                with self._lock:
                    if self._process is not process:  # the process has already been reaped
                        return
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, word)
                if self._done.wait(wait_s):
                    return

    def _run(self, directory: Path) -> None:
        pause = AGAIN_S
        try:
            self._closing.wait(DELAY_S)
            while self._once(directory) != 0:
                if self._killing.is_set():
                    return
                if self._closing.is_set():
                    self._killing.wait(CLOSING_AGAIN_S)
                else:
                    self._closing.wait(pause)
                pause = min(2 * pause, AGAIN_MOST_S)
        finally:
            self._done.set()

    def _once(self, directory: Path) -> int:
        """Run the process to its end; return its exit code. Its process group ends with it."""
        with self._lock:
            if self._killing.is_set():
                return 0
            try:
                process = self._process = _started(directory)
            except OSError:  # the system has no memory or no process left
                return 1
        assert process.stdin is not None
        with suppress(OSError), process.stdin as stdin:  # the process may be dead already
            stdin.write(self._order)
        with suppress(ChildProcessError):  # the application reaps every child itself
            # without reaping, so that its id is not reused before the next lines
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
            self._process = None
        return code


def _started(directory: Path) -> subprocess.Popen[bytes]:
    """Start the process in a session of its own.

    So Ctrl-C in the terminal ends only the pool, and the process sends the end of the run.
    """
    folder = directory / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)  # noqa: PTH100  "" is our directory
    try:
        return subprocess.Popen(  # noqa: S603  fixed arguments
            [sys.executable, "-P", "-m", __name__.rpartition(".")[0], str(directory)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,
        )
    finally:
        os.close(log)

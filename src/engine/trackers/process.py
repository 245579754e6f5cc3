"""The pool's side of the process of a run's trackers: it is started, started again if it died, and ended.

A thread of its own waits for it, so that the pool does not; an error here is no failure of the run.
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

DELAY_S = 0.5  # after the record is made: a pool that opens has better use for the processor
AGAIN_S, AGAIN_MOST_S = 1.0, 60.0  # before another one, where it has died; doubles
CLOSING_AGAIN_S = 0.5  # the same, while the end of the block waits
END_S = 1.0  # between SIGTERM and SIGKILL


def checked_trackers(trackers: object, run: RunOption) -> tuple[Tracker, ...]:
    """Check a pool's ``trackers=``, also that they can go to another process.

    Raises:
        SpecError
    """
    checked = check_trackers(trackers)
    if checked and run is False:
        refuse("trackers send what the record of the run has, and run=False leaves none: leave out one of the two.")
    for each in checked:
        try:
            packed([each], 0.0)
        except Exception as error:  # noqa: BLE001  what a class of the user's own raises
            refuse(f"the tracker {each.name} cannot go to the process that sends, as it cannot be pickled: {error}")
    return checked


def packed(trackers: Sequence[Tracker], flush_s: float) -> bytes:
    """Return the input of the process. A class of the program's own script goes along as a copy.

    Each tracker is a pickle of its own beside its name, so that one that cannot be loaded there does not stop the
    others.

    Raises:
        Exception: a tracker cannot be pickled.
    """
    with allow_secrets():
        each = [(tracker.name, pickler.dumps(tracker)) for tracker in trackers]
    return pickle.dumps((each, flush_s), protocol=pickle.HIGHEST_PROTOCOL)


class TrackerProcess:
    """The process for one record, once `start` is called. ``order``: by `packed`."""

    def __init__(self, order: bytes) -> None:
        self._order = order
        self._closing = threading.Event()
        self._done = threading.Event()  # no process is left, and none will be started
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._killing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, directory: Path) -> None:
        """Begin, in a thread. A system that has no other thread or process has no trackers."""
        self._thread = threading.Thread(target=self._run, args=(directory,), name="outrider-trackers", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._done.set()

    def close(self, within_s: float) -> None:
        """Wait up to ``within_s`` for the process to end by itself after the run; then end it. It is gone on return."""
        self._closing.set()
        if self._thread is None:
            return
        if within_s <= 0 or not self._done.wait(within_s):
            self.kill()
            self._done.wait(END_S)

    def kill(self) -> None:
        """End the process and what it has started, if it runs, and start no other."""
        with self._lock:
            self._killing.set()
            process = self._process
        self._closing.set()
        if process is not None:
            for word, wait_s in ((signal.SIGTERM, END_S), (signal.SIGKILL, END_S)):
                with self._lock:
                    if self._process is not process:  # it has been waited for
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
        """Run the process to its end; return its exit code. Its group ends with it."""
        with self._lock:
            if self._killing.is_set():
                return 0
            try:
                process = self._process = _started(directory)
            except OSError:  # no memory, or no process for it
                return 1
        assert process.stdin is not None
        with suppress(OSError), process.stdin as stdin:  # it may be dead already
            stdin.write(self._order)
        with suppress(ChildProcessError):  # the application collects every child
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # its id stays its own until the next lines
        with self._lock:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
            self._process = None
        return code


def _started(directory: Path) -> subprocess.Popen[bytes]:
    """Start the process in a session of its own: Ctrl-C in the terminal ends only the pool, and the process sends that
    end.
    """
    folder = directory / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)  # noqa: PTH100  "" is our directory
    try:
        return subprocess.Popen(  # noqa: S603  the words are ours
            [sys.executable, "-P", "-m", __name__.rpartition(".")[0], str(directory)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,
        )
    finally:
        os.close(log)

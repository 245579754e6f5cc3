"""The supervision, in the pool's program, of the process that sends a run to trackers.

The process is started, restarted if it dies, and ended. A thread waits for it, so that the pool does not wait. An error
here does not fail the run.
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

from ...api.checks import refuse
from ...api.secrets import allow_secrets
from ...api.settings import RunOption
from ...wire import pickler
from .base import Tracker, check_trackers
from .state_file import FOLDER, LOG

DELAY_S = 0.5  # start the process this long after the run began, as an opening pool needs the CPU
# Pause before a dead process is restarted, in seconds: the first pause, and the longest. The pause doubles each time.
AGAIN_S, AGAIN_MOST_S = 1.0, 60.0
# pause before a restart, in seconds, while the end of the `with Pool` block waits for the process
CLOSING_AGAIN_S = 0.5
END_S = 1.0  # seconds between SIGTERM and SIGKILL


def checked_trackers(trackers: object, run: RunOption) -> tuple[Tracker, ...]:
    """Check the argument ``trackers=`` of a pool, and that each tracker can be pickled for another process.

    Raises:
        SpecError: A tracker is not valid, or cannot be pickled.
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
    """Return the bytes that the sending process reads from stdin: (name, pickled tracker) of each tracker, and
    ``flush_s``.

    Each tracker is pickled separately, so that a tracker that cannot be loaded does not stop the other trackers. A
    class that the program's own script defines is pickled as a copy.

    Raises:
        Exception: A tracker cannot be pickled.
    """
    with allow_secrets():
        each = [(tracker.name, pickler.dumps(tracker)) for tracker in trackers]
    return pickle.dumps((each, flush_s), protocol=pickle.HIGHEST_PROTOCOL)


class TrackerProcess:
    """The process that sends one run to its trackers, started by `start`.

    ``order``: the process's input, as `packed` returns it.
    """

    def __init__(self, order: bytes) -> None:
        self._order = order
        self._closing = threading.Event()
        self._done = threading.Event()  # set when the process has ended and will not be started again
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._killing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, directory: Path) -> None:
        """Start the process, from a thread. If the system can start no further thread or process, no data is sent."""
        self._thread = threading.Thread(target=self._run, args=(directory,), name="outrider-trackers", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._done.set()

    def close(self, within_s: float) -> None:
        """Wait up to ``within_s`` seconds until the process has sent the rest of the run. Then end it if it still
        runs.
        """
        self._closing.set()
        if self._thread is None:
            return
        if within_s <= 0 or not self._done.wait(within_s):
            self.kill()
            self._done.wait(END_S)

    def kill(self) -> None:
        """End the process and its children, and do not start another process."""
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
        """Run the sending process until it ends, then kill its process group. Return its exit code."""
        with self._lock:
            if self._killing.is_set():
                return 0
            try:
                process = self._process = _started(directory)
            except OSError:  # the system cannot start another process or lacks memory
                return 1
        assert process.stdin is not None
        with suppress(OSError), process.stdin as stdin:  # the process may already have died
            stdin.write(self._order)
        with suppress(ChildProcessError):  # raised if the application itself has reaped all its child processes
            # wait without reaping: the process id must not be reused before the next lines
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
            self._process = None
        return code


def _started(directory: Path) -> subprocess.Popen[bytes]:
    """Start the sending process in a session of its own.

    Then Ctrl-C in the terminal ends only the pool's program, and the process can still send the end of the run.
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

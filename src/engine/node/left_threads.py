"""The daemon threads that a task's own code has started and that still run at the task's end.

Other threads do not count. A non-daemon thread may continue after its task, like a child process. A thread that a
library, the standard library (executors, progress bars, trackers) or an import has started belongs to the process, not
to the task.
"""

from __future__ import annotations

import functools
import site
import sys
import sysconfig
import threading
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType

_PATHS = sysconfig.get_paths()
_LIBRARIES = (
    *{_PATHS[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")},
    *site.getsitepackages(),
    site.getusersitepackages(),
    str(Path(__file__).parents[2]),  # the folder of the Outrider package
    "<frozen ",
)


class LeftThreads:
    """The daemon threads that the current task's own code has started."""

    def __init__(self, task: CodeType) -> None:
        """Replace `threading.Thread.start` by a function that records the threads which tasks start.

        Args:
            task: the code object of the function that runs each task; a thread that is started during a call of this
                function belongs to the task.
        """
        self._task = task
        self._started: list[threading.Thread] = []
        start = threading.Thread.start

        @functools.wraps(start)
        def start_and_note(thread: threading.Thread) -> None:
            start(thread)
            if thread.daemon and self._is_tasks_own(sys._getframe(1)):
                self._started.append(thread)

        setattr(threading.Thread, "start", start_and_note)  # noqa: B010 - type checkers refuse a plain assignment

    def take(self) -> Sequence[threading.Thread]:
        """Return the recorded threads that still run, and clear the record for the next task."""
        if not self._started:
            return ()
        started, self._started = self._started, []
        return [thread for thread in started if thread.is_alive()]

    def _is_tasks_own(self, caller: FrameType) -> bool:
        if caller.f_code.co_filename.startswith(_LIBRARIES):
            return False
        frame: FrameType | None = caller
        while frame is not None and frame.f_code is not self._task:
            if frame.f_code.co_name == "<module>":
                return False
            frame = frame.f_back
        return frame is not None

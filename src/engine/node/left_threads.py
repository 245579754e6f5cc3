"""Threads that a task's own code has started and not ended.

Only daemon threads count, as Python may end them at any time. Other threads continue, like child processes. Threads
started by libraries and the standard library (executors, progress bars, trackers) or by an import also continue: they
belong to the process, not to the task.
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
    str(Path(__file__).parents[2]),  # the folder of Outrider
    "<frozen ",
)


class LeftThreads:
    """The threads that the current task has started."""

    def __init__(self, task: CodeType) -> None:
        """Watch `threading.Thread.start` from now on.

        Args:
            task: the code object of the function that runs each task; threads started below its frame are the task's.
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
        """Return the threads that the task has left running, and start with an empty list for the next task."""
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

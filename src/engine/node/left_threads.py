"""Threads that a task's own code has started and left running.

Only daemon threads count: they may be ended at any time, by definition. Others go on, as child processes do. Threads of
libraries and of the standard library (executors, progress bars, trackers) stay, and so do those that an import has
started: they belong to the process, not to the task.
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
    str(Path(__file__).parents[2]),  # Outrider
    "<frozen ",
)


class LeftThreads:
    """The threads that the present task has started."""

    def __init__(self, task: CodeType) -> None:
        """Watch `threading.Thread.start` from now on. ``task``: the code below whose frame a task runs."""
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
        """Return the threads that the task has left running, and forget them."""
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

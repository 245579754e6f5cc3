"""The cleanup after a task in a process worker: context variables, the event loop and leftover threads.

Other modules restore what this module does not: `output` the standard streams, `modes` the process's settings,
`limits` its resource limits.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, cast

from . import context
from .left_threads import LeftThreads

_HAS_IMPLICIT_LOOP = sys.version_info < (3, 14)  # before 3.14, `asyncio.get_event_loop()` creates a loop
_NAMED = 3  # number of leftover threads that the message names


class BetweenTasks:
    """A runner of tasks, one after the other; each task starts as in a new process."""

    def __init__(self, task: CodeType, stderr: int) -> None:
        """Prepare this process.

        Args:
            task: the code object of the function that runs each task; a thread that is started during a call of this
                function belongs to the task.
            stderr: a descriptor of stderr that tasks do not redirect.
        """
        self._stderr = stderr
        self._context = context.of_tasks()
        self._threads = LeftThreads(task)
        self.has_threads = False  # whether a thread of an ended task still runs, so that the process must be replaced
        if _HAS_IMPLICIT_LOOP and (asyncio := cast("Any", sys.modules.get("asyncio"))) is not None:
            asyncio.set_event_loop_policy(None)  # the policy inherited by the fork refers to the parent process's loop

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a task in a copy of the context, then look for leftover threads and a leftover loop."""
        result = context.run_in_copy(self._context, function, *arguments)
        if (asyncio := sys.modules.get("asyncio")) is not None:
            forget_ended_loop(asyncio)
        # a process with results of `setup=` is not replaced: a new setup costs more than a leftover thread
        if (threads := self._threads.take()) and not context.has_setups():
            self.has_threads = True
            names = ", ".join(thread.name for thread in threads[:_NAMED]) + ", ..." * (len(threads) > _NAMED)
            self._print(
                f"outrider: a daemon thread of this task still runs at its end ({names}): its process is replaced, "
                "which ends the thread. Join it in the function, or start it in setup= to keep it."
            )
        return result

    def _print(self, line: str) -> None:
        try:
            os.write(self._stderr, f"{line}\n".encode(errors="backslashreplace"))
        except OSError:  # the task has closed the descriptor
            pass


def forget_ended_loop(asyncio: Any) -> None:
    """Make `asyncio.get_event_loop()` work in the next task as in a new process.

    Up to Python 3.13, the first `get_event_loop()` in the main thread of a new process creates a loop. After
    `asyncio.run` it fails, and after other code it may return a closed loop. An open current loop is kept.
    """
    if not _HAS_IMPLICIT_LOOP:
        return
    # `_local` is a private attribute of asyncio's policies; uvloop's policy inherits it
    state = getattr(asyncio.get_event_loop_policy(), "_local", None)
    loop = getattr(state, "_loop", None)
    if state is not None and (loop is None or loop.is_closed()):
        state._loop, state._set_called = None, False

"""The cleanup after a task in a process worker: context variables, the event loop and leftover threads.

Other modules restore the rest: `output` the standard streams, `modes` the settings, `limits` the limits.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, cast

from . import context
from .left_threads import LeftThreads

_HAS_IMPLICIT_LOOP = sys.version_info < (3, 14)  # `asyncio.get_event_loop()` creates a loop in the main thread
_NAMED = 3  # at most so many thread names are shown in the message


class BetweenTasks:
    """A runner of tasks, one after the other; each task starts as in a new process."""

    def __init__(self, task: CodeType, stderr: int) -> None:
        """Prepare this process.

        Args:
            task: the code object of the function that runs each task; threads started below its frame are the task's.
            stderr: a descriptor that tasks do not redirect.
        """
        self._stderr = stderr
        self._context = context.of_tasks()
        self._threads = LeftThreads(task)
        self.has_threads = False  # whether a task has left threads that run until the process ends
        if _HAS_IMPLICIT_LOOP and (asyncio := cast("Any", sys.modules.get("asyncio"))) is not None:
            asyncio.set_event_loop_policy(None)  # the old policy refers to the parent process's loop

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a task in a copy of the context, then look for leftover threads and a leftover loop."""
        result = context.run_in_copy(self._context, function, *arguments)
        if (asyncio := sys.modules.get("asyncio")) is not None:
            forget_ended_loop(asyncio)
        # a replacement process would run its setups again, which costs more than a leftover thread
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
    """Make `asyncio.get_event_loop()` in the next task work as in a new process.

    `asyncio.run` leaves the thread without a current loop; other code leaves a closed loop. Up to Python 3.13 the main
    thread of a new process gets a loop when it first needs one. An open current loop is kept.
    """
    if not _HAS_IMPLICIT_LOOP:
        return
    # the policies of asyncio and of uvloop have this attribute
    state = getattr(asyncio.get_event_loop_policy(), "_local", None)
    loop = getattr(state, "_loop", None)
    if state is not None and (loop is None or loop.is_closed()):
        state._loop, state._set_called = None, False

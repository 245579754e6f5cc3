"""The cleanup after a task in a process worker: context variables, the event loop and threads that it leaves.

Its standard streams are restored in `output`, its settings in `modes`, its limits in `limits`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, cast

from . import context
from .left_threads import LeftThreads

_HAS_IMPLICIT_LOOP = sys.version_info < (3, 14)  # `asyncio.get_event_loop()` makes one in the main thread
_NAMED = 3  # threads in the line about them


class BetweenTasks:
    """A runner of tasks, one after the other, each as if it were the first."""

    def __init__(self, task: CodeType, stderr: int) -> None:
        """``task``: the code below whose frame a task runs. ``stderr``: a descriptor that tasks do not redirect."""
        self._stderr = stderr
        self._context = context.of_tasks()
        self._threads = LeftThreads(task)
        self.has_threads = False  # threads that go on after the task, until the process ends
        if _HAS_IMPLICIT_LOOP and (asyncio := cast("Any", sys.modules.get("asyncio"))) is not None:
            asyncio.set_event_loop_policy(None)  # the old policy has the loop of the parent process

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a task in a copy of the context, then look for threads and loops that it has left."""
        result = context.run_in_copy(self._context, function, *arguments)
        if (asyncio := sys.modules.get("asyncio")) is not None:
            forget_ended_loop(asyncio)
        if (threads := self._threads.take()) and not context.has_setups():  # their loss would cost more than a thread
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
        except OSError:  # the task has closed it
            pass


def forget_ended_loop(asyncio: Any) -> None:
    """Let `asyncio.get_event_loop()` of the next task work as in a new process.

    `asyncio.run` leaves the thread without a current loop, other code leaves a closed one; up to Python 3.13 the main
    thread of a new process gets a loop when it first needs one. A current loop that is open stays.
    """
    if not _HAS_IMPLICIT_LOOP:
        return
    state = getattr(asyncio.get_event_loop_policy(), "_local", None)  # of asyncio's own policies, and of uvloop's
    loop = getattr(state, "_loop", None)
    if state is not None and (loop is None or loop.is_closed()):
        state._loop, state._set_called = None, False

"""The context manager `profile`, by which a task takes a profile of its own code."""

from __future__ import annotations

import re
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING

from ..node import context
from ..node.signal_requests import ProfileRequest
from ..wire.messages import Profiled

if TYPE_CHECKING:
    from ..node.task_profile import TaskProfile

_NAME_CHARS = 64


def _safe(name: str) -> str:
    """Return a name in a form that can be part of a file name."""
    return re.sub(r"[^A-Za-z0-9_]+", "-", name[:_NAME_CHARS]).strip("-") or "block"


class profile:  # noqa: N801  used like a verb: `with profile():`
    """Take a profile of the block, in a task: ``with profile(skip=10, steps=5):``.

    Each rank takes its own profile; `outrider profile RUN --last` merges the profiles of all ranks of a broadcast into
    one trace. A step is an optimizer step of torch, a `log_metrics` with another ``step``, or a call of `should_stop`.
    If the loop has none of these, call ``step()`` at the end of each step.

    The block has no effect if no profile can be taken: outside of tasks, in a process that a task has started, in pools
    without a record, and while another profile of the process is running. It never raises an error of its own.

    Args:
        skip: The number of steps before the profile begins.
        steps: The number of steps that the profile contains. 0: until the end of the block.
        seconds: The largest duration of the profile in seconds.
        name: A part of the trace's name.
    """

    def __init__(self, *, skip: int = 0, steps: int = 0, seconds: float = 60.0, name: str = "block") -> None:
        for option, value in (("skip", skip), ("steps", steps), ("seconds", seconds)):
            if not isinstance(value, int | float):
                raise TypeError(f"profile: {option} takes a number, not {value!r:.60}")
        if not isinstance(name, str):
            raise TypeError(f"profile: name takes a text, not {name!r:.60}")
        self._skip, self._steps, self._seconds, self._name = max(0, skip), max(0, steps), seconds, name
        self._taken: TaskProfile | None = None

    def __enter__(self) -> profile:
        profiling, task = context.profiling(), context.current()
        if profiling is not None and task is not None and task.log is not None and task.log.here and task.log.wanted:
            number = task.info.get("generation") or task.number
            name = f"{_safe(self._name)}-{task.job}.{number}.{profiling.next_block(task)}"
            request = ProfileRequest(task.attempt, name, self._steps, self._seconds, self._skip)
            try:
                self._taken = profiling.begin(request, task, get_ident())
                why = "" if self._taken is not None else "another profile of its process is under way"
            except Exception as error:  # noqa: BLE001  for example, no thread can be started
                why = f"it did not begin: {error}"
            if why:
                profiling.say(Profiled(task.attempt, name, "", why))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._taken is not None:
            self._taken.task_ended()

    def step(self) -> None:
        """Mark the end of a step of the loop. Once this was called, only these marks count as steps."""
        if context.on_profile_step is not None:
            context.on_profile_step("step", None)

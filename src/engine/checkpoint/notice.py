"""Save at once because a machine will be taken: `urgent` gives every rank the same answer at the same step."""

from __future__ import annotations

from ..node.context import current
from ..runtime.preemption import stopping


def urgent(*, alone: bool) -> bool:
    if alone:
        return stopping(everywhere=False)
    return current() is not None and stopping(everywhere=True)  # without a task nobody counts this process's steps

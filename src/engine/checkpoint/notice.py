"""Whether to save at once because a machine will be taken: on every rank at the same question, asked once per step."""

from __future__ import annotations

from ..node.context import current
from ..runtime.preemption import stopping


def urgent(*, alone: bool) -> bool:
    if alone:
        return stopping(everywhere=False)
    return current() is not None and stopping(everywhere=True)  # else nobody counts the steps of this process

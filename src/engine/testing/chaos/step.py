"""`step`: for loops that neither save nor ask whether to stop, and whose steps faults may wait for all the same."""

from __future__ import annotations

from ...node import context


def step() -> None:
    """The task's loop has come round once more: a fault with this ``at_step`` strikes here. Else it costs nothing."""
    if context.on_step:
        context.stepped("step")

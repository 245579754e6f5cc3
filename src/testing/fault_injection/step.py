"""The function `step`: counts steps for faults with ``at_step``, in loops without ``save`` and ``should_stop``."""

from __future__ import annotations

from ...engine.node import context


def step() -> None:
    """Count one step at the end of an iteration. A fault whose ``at_step`` is this step is injected here.

    Without fault injection, the call costs next to nothing.
    """
    context.stepped("step")

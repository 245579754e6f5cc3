"""`step`: marks a step in loops without checkpoints and stop checks, so that faults can wait for it."""

from __future__ import annotations

from ...node import context


def step() -> None:
    """Mark the end of an iteration: a fault whose ``at_step`` is this step is injected here. No cost without faults."""
    context.stepped("step")

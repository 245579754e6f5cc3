"""`step`: marks a step in loops without checkpoints and stop checks, so that faults can wait for it."""

from __future__ import annotations

from ...node import context


def step() -> None:
    """Mark the end of one iteration: a fault with this ``at_step`` is injected here. Costs nothing otherwise."""
    context.stepped("step")

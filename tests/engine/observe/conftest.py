"""Events of a small pool, as the engine reports them."""

from __future__ import annotations

import pytest

from outrider.engine import events as ev


@pytest.fixture
def story() -> list[ev.Event]:
    """Two nodes, one task that prints, one node lost and replaced."""
    return [
        ev.PoolStarting(0.0, "p1", "local", 2, 2),
        ev.NodeLaunching(0.0, 0, "m0"),
        ev.NodeLaunching(0.0, 1, "m1"),
        ev.NodeReady(0.1, 0, 0, 1, 2, "m0", "here"),
        ev.NodeReady(0.2, 1, 1, 2, 2, "m1", "here"),
        ev.PoolReady(0.2, 2, 2, 0.2),
        ev.TaskSubmitted(1.0, 1, 1, "train"),
        ev.TaskStarted(1.0, 1, 1, 0),
        ev.TaskOutput(1.5, 1, 0, 0, "stdout", "loss 0.5\nloss 0.4\n", "train"),
        ev.NodeLost(2.0, 0, "killed by signal 9"),
        ev.TaskRetried(2.0, 1, 1, 0, 2, "killed by signal 9"),
        ev.TaskStarted(2.0, 1, 1, 1),
        ev.NodeLaunching(2.1, 2, "m2"),
        ev.TaskFinished(3.0, 1, 1, 1, 2, "returned", 1.0),
        ev.NodeReady(3.1, 2, 1, 2, 2, "m2", "here"),
        ev.PoolClosing(4.0),
        ev.PoolClosed(4.25),
    ]

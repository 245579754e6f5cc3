"""Events of a small pool, as the engine reports them."""

from __future__ import annotations

import pytest

from outrider.actors import events as ev
from outrider.engine.record.display.writer import Writer
from outrider.engine.record.runs.writer import RunWriter


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """At its end a pool waits two seconds for what writes to its console and its record. On a busy computer a thread
    stands still for longer now and then, and what it has written is looked at here.
    """
    monkeypatch.setattr(Writer.close, "__defaults__", (60.0,))
    monkeypatch.setattr(RunWriter.close, "__defaults__", (60.0,))


@pytest.fixture
def story() -> list[ev.Event]:
    """Two nodes, one task that prints, one node lost and replaced."""
    return [
        ev.PoolStarting("p1", "local", 2, 2),
        ev.NodeLaunching(0, "m0"),
        ev.NodeLaunching(1, "m1"),
        ev.NodeReady(0, 0, 1, 2, "m0", "here", at=0.1),
        ev.NodeReady(1, 1, 2, 2, "m1", "here", at=0.2),
        ev.PoolReady(2, 2, 0.2, at=0.2),
        ev.TaskSubmitted(1, 1, "train", at=1.0),
        ev.TaskStarted(1, 1, 0, at=1.0),
        ev.TaskOutput(1, 0, 0, "stdout", "loss 0.5\nloss 0.4\n", "train", at=1.5),
        ev.NodeLost(0, "killed by signal 9", at=2.0),
        ev.TaskRetried(1, 1, 0, 2, "killed by signal 9", at=2.0),
        ev.TaskStarted(1, 1, 1, at=2.0),
        ev.NodeLaunching(2, "m2", at=2.1),
        ev.TaskFinished(1, 1, 1, 2, "returned", 1.0, at=3.0),
        ev.NodeReady(2, 1, 2, 2, "m2", "here", at=3.1),
        ev.PoolClosing(at=4.0),
        ev.PoolClosed(at=4.25),
    ]

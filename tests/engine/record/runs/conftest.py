"""Events of a small run, and a folder of records."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.actors import events as ev
from outrider.engine.record.runs.writer import Happened

BROADCAST = [
    ev.PoolStarting("p1", "local", 2, 2, at=100.0),
    ev.NodeReady(0, 0, 1, 2, at=101.0),
    ev.NodeReady(1, 1, 2, 2, at=101.0),
    ev.PoolReady(2, 2, at=101.5),
    ev.BroadcastSubmitted(1, "train", at=102.0),
    ev.GenerationStarted(1, 1, (0, 1), (0, 1, 2, 3), at=102.0),
    ev.TaskOutput(1, 0, 1, "stdout", "loss 0.5\nloss 0.4\n", "train", 0, 4, at=103.0),
    ev.NodeLost(0, "killed by signal 9", at=104.0),
    ev.GenerationLost(1, 1, (0,), "killed by signal 9", at=104.0),
    ev.NodeReady(2, 0, 2, 2, at=105.0),
    ev.GenerationStarted(1, 2, (2, 1), (0, 1, 2, 3), at=105.0),
    ev.TaskOutput(1, 1, 3, "stderr", "done\n", "train", 7, 4, at=106.0),
    ev.BroadcastFinished(1, 2, ("returned",) * 4, at=106.0),
    ev.TaskOutput(2, 1, 0, "stdout", "alone\n", "f", at=107.0),
    ev.UnfinishedLine(2, 1, 0, "stdout", "42%", "f", at=107.0),
    ev.PoolClosing(at=108.0),
]


@pytest.fixture
def broadcast() -> list[Happened]:
    """A broadcast of four ranks on two nodes that loses one of them, and a task that prints."""
    return [Happened(event, event.at) for event in BROADCAST]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of records, in which there are none yet."""
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    return tmp_path / "state" / "runs"

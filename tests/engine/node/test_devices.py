"""What asks the driver, and what becomes of it where the driver hangs."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.engine.node import daemon

if TYPE_CHECKING:
    import pytest


def test_a_driver_that_does_not_answer_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tool cannot be killed while it is in the kernel: here, somebody else keeps its output open."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n(exec sleep 600) & echo $! > {tmp_path}/pid; wait\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(Path, "glob", lambda *_: iter([tmp_path]))
    monkeypatch.setattr(daemon, "_GPUS_WITHIN_S", 0.5)
    query = daemon.GpuQuery()
    while not (tmp_path / "pid").exists() or not (pid := (tmp_path / "pid").read_text().strip()):
        pass
    found = query.answer()
    assert found == []
    os.kill(int(pid), signal.SIGKILL)  # it goes on
    assert query._running is not None
    query._running.wait()

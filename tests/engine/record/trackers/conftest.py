"""Records in a folder of the test's own, though tests leave none otherwise."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from outrider.engine.record.display.writer import Writer
from outrider.engine.record.runs.writer import RunWriter

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("OUTRIDER_RUNS")
    for name in ("URI", "TOKEN", "USERNAME", "PASSWORD"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)
    return tmp_path / "state"


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """At its end a pool waits two seconds for what writes its record and to its console. Both are read here."""
    monkeypatch.setattr(RunWriter.close, "__defaults__", (60.0,))
    monkeypatch.setattr(Writer.close, "__defaults__", (60.0,))

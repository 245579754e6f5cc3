"""`outrider runs` shows every record, and tells the living from the dead."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from outrider.engine.cli.runs import cells
from outrider.engine.record.runs.files import RecordFiles
from outrider.engine.record.runs.reader import Run
from outrider.engine.record.runs.status import RunStatus
from outrider.providers.shared.pool_lock import Lock

if TYPE_CHECKING:
    from .conftest import Outrider


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "state" / "runs"


def record(folder: Path, name: str, began: float, **facts: Any) -> RecordFiles:
    made = RecordFiles.make(folder, name, began)
    said = RunStatus(made.directory.name, name, began).facts(began + 10.0, 0.0, 0.0)
    made.replace("status.json", said | facts)
    return made


@pytest.mark.parametrize("terminal", [False, True])
def test_no_column_is_cut_for_the_name_of_an_error(
    folder: Path, outrider: Outrider, monkeypatch: pytest.MonkeyPatch, *, terminal: bool
) -> None:
    """In a file each run has a line; on a terminal the error goes on below."""
    monkeypatch.setenv("COLUMNS", "75")
    monkeypatch.setenv("FORCE_COLOR" if terminal else "NO_COLOR", "1")
    facts = {"state": "ended", "ended": 160.0, "exit": 130, "error": "KeyboardInterrupt", "spent_usd": 12.5}
    record(folder, "train", 100.0, **facts).close()
    assert outrider("runs") == 0
    head, row, *more = re.sub(r"\x1b\[[\d;]*m", "", outrider.said()).splitlines()
    assert head.split() == ["run", "state", "took", "nodes", "USD", "exit"]
    assert row.split()[1:6] == ["ended", "1:00", "0", "12.50", "130"]
    assert "".join([row, *more]).split()[-1] == "KeyboardInterrupt"
    assert len(more) == terminal


def test_runs_are_shown_with_their_end(folder: Path, outrider: Outrider) -> None:
    now = time.time()
    record(folder, "done", now - 100, state="ended", ended=now - 40, exit=0, most_nodes=4, spent_usd=1.5).close()
    record(folder, "bad", now - 90, state="ended", ended=now - 80, exit=1, error="ValueError").close()
    record(folder, "killed", now - 80, state="running").close()
    alive = record(folder, "alive", now - 70, state="running", nodes=3, wanted_nodes=4)
    assert outrider("runs") == 0
    rows = outrider.said().splitlines()[1:]
    assert [row.split()[1:] for row in rows[:3]] == [
        ["ended", "1:00", "4", "1.50", "0"],
        ["ended", "10.0", "s", "0", "0.00", "1", "ValueError"],
        ["its", "owner", "died", "10.0", "s", "0", "0.00"],
    ]
    assert rows[3].split()[1] == "running"
    assert "3 of 4" in rows[3]
    told = outrider.json("runs")
    assert [(each["name"], each["owner"]) for each in told] == [
        ("done", None),
        ("bad", None),
        ("killed", "dead"),
        ("alive", "alive"),
    ]
    assert told[3]["directory"] == str(alive.directory)
    alive.close()


def test_the_cost_of_a_living_run_goes_on(tmp_path: Path) -> None:
    said = {"state": "running", "began": 0.0, "written": 100.0, "spent_usd": 1.0, "hourly_usd": 3600.0}
    run = Run("id", "name", tmp_path, said)
    assert cells(run, "alive", 101.0)[4] == "2.00"
    assert cells(run, "dead", 101.0)[4] == "1.00"
    assert cells(run, "elsewhere", 101.0)[1] == "of another computer"


def test_a_record_that_cannot_be_read_is_shown(folder: Path, outrider: Outrider) -> None:
    (folder / "20261125-031113-train-1a2b").mkdir(parents=True)
    assert outrider("runs") == 0
    assert "20261125-031113-train-1a2b  its owner died" in outrider.said()
    assert outrider.json("runs")[0]["name"] == "train"


def test_no_runs_are_no_error(folder: Path, outrider: Outrider) -> None:
    assert outrider("runs") == 0
    assert outrider.said() == f"No runs in {folder}.\n"
    assert outrider.json("runs") == []


def test_a_lock_that_cannot_be_opened_is_told(
    folder: Path, outrider: Outrider, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(folder, "train", 1.0, state="running").close()

    def refuse(directory: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(directory / "lock"))

    monkeypatch.setattr(Lock, "is_taken", refuse)
    assert outrider("runs") == 0
    assert "its lock cannot be read" in outrider.said()
    assert outrider.json("runs")[0]["owner"] == "unknown"


def test_the_newest_runs_and_the_failed_ones(folder: Path, outrider: Outrider) -> None:
    now = time.time()
    record(folder, "done", now - 100, state="ended", ended=now - 40, exit=0).close()
    record(folder, "bad", now - 90, state="ended", ended=now - 80, exit=1, error="ValueError").close()
    record(folder, "killed", now - 80, state="running").close()
    assert [each["name"] for each in outrider.json("runs", "--failed")] == ["bad", "killed"]
    assert [each["name"] for each in outrider.json("runs", "--limit", "1")] == ["killed"]
    assert [each["name"] for each in outrider.json("runs", "--failed", "-n", "9")] == ["bad", "killed"]
    assert outrider("runs", "bad", "done") == 2
    assert outrider("runs", "-n", "0") == 2


def test_records_of_ended_runs_are_removed(folder: Path, outrider: Outrider) -> None:
    now = time.time()
    record(folder, "done", now - 100, state="ended", ended=now - 40, exit=0).close()
    alive = record(folder, "alive", now - 70, state="running")
    assert outrider("runs", "rm", "done") == 0
    assert outrider.said().startswith("removed ")
    assert outrider("runs", "rm", "alive") == 2
    outrider.said()
    assert "still runs: `outrider stop" in outrider.errors
    assert outrider("runs", "rm", "nothing") == 2
    assert [each["name"] for each in outrider.json("runs")] == ["alive"]
    alive.close()

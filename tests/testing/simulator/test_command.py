"""`outrider sim` from the outside: what it says, what it writes, how it exits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.actors.fleet_controller import FleetController
from outrider.actors.generations import Gang
from outrider.actors.pool import PoolActor
from outrider.engine.cli.main import app
from outrider.testing.simulator import campaign


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exited:
        app(["sim", *arguments])
    assert isinstance(exited.value.code, int)
    return exited.value.code


def test_seeds_that_hold_exit_with_0(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    assert run("--seeds", "5", "--seed", "10", "--processes", "1", "--report", str(report)) == 0
    said = capsys.readouterr().out
    assert "5 seeds" in said
    assert "SIM-20" in said
    told = json.loads(report.read_text())
    assert (told["seeds"], told["broken"]) == (5, {})


def test_number_of_processes_does_not_change_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "CHUNK", 3)  # each process has two of them
    reports = [tmp_path / "one.json", tmp_path / "two.json"]
    for processes, report in zip(("1", "2"), reports, strict=True):
        assert run("--seeds", "12", "--processes", processes, "--report", str(report)) == 0
    one, two = (json.loads(report.read_text()) for report in reports)
    assert one["digest"] == two["digest"]


def test_a_broken_promise_exits_with_1_and_is_made_small(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gang, "size", lambda self: 1)
    assert run("--seeds", "4", "--seed", "36", "--processes", "1") == 1
    said = capsys.readouterr().out
    assert "breaks SIM-10" in said
    assert "are enough:" in said
    assert "outrider sim --seed" in said


def test_one_seed_can_be_read_line_by_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "trace.txt"
    assert run("--seed", "7", "--trace", str(trace)) == 0
    lines = trace.read_text().splitlines()
    assert any("nodes_requested" in line for line in lines)
    assert "every promise held" in capsys.readouterr().out
    assert run("--seeds", "7", "--trace", str(trace)) == 2


@pytest.mark.parametrize("option", ["--report", "--trace"])
def test_a_file_that_cannot_be_written_is_said_before_anything_is_played(
    option: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "draw", None)  # nothing can be
    file = tmp_path / "no" / "such" / "folder"
    assert run("--seed", "7", option, str(file)) == 2
    assert capsys.readouterr().out == f"{file} cannot be written: No such file or directory.\n"


def test_a_seed_that_does_not_end_is_written_as_far_as_it_came(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spins(*_: object) -> None:
        while True:
            pass

    monkeypatch.setattr(campaign, "ENOUGH_S", 0.1)
    monkeypatch.setattr(PoolActor, "receive", spins)
    trace = tmp_path / "trace.txt"
    assert run("--seed", "7", "--trace", str(trace)) == 1
    assert "SIM-9 at" in capsys.readouterr().out
    assert "rule=SIM-9" in trace.read_text().splitlines()[-1]


def test_a_size_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--seed", "3", "--nodes", "100", "--span", "20") == 0
    assert "1 seeds" in capsys.readouterr().out


def test_a_storm_can_be_asked_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "trace.txt"
    storm = ("--nodes", "10", "--tasks", "30", "--storm", "0.3")
    assert run(*storm, "--trace", str(trace)) == 0
    assert "10 nodes (10 to 10, 0 spare), 1 slots each, 30 jobs" in capsys.readouterr().out
    assert sum(" machine_lost " in line for line in trace.read_text().splitlines()) == 3
    assert run(*storm, "--report", str(tmp_path / "report.json")) == 0
    assert json.loads((tmp_path / "report.json").read_text())["seeds"] == 1, "large pools are played once"


def test_a_broken_promise_of_a_storm_says_how_to_see_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FleetController, "node_lost", lambda *_, **__: None)
    assert run("--nodes", "4", "--tasks", "9", "--storm", "0.5", "--processes", "1") == 1
    assert "all of it: outrider sim --seed 0 --nodes 4 --tasks 9 --storm 0.5 --trace" in capsys.readouterr().out


def test_nonsense_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--seeds", "0") != 0
    assert run("--sead", "1") != 0
    assert run("--storm", "30") != 0
    assert run("--nodes", "9" * 400) != 0
    assert run("--tasks", "9" * 400) != 0

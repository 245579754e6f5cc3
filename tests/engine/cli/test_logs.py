"""`outrider logs` shows what tasks have printed: all of it or a choice, and goes on while the run lives."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from outrider.engine.record.runs.files import RecordFiles
from outrider.engine.record.runs.lines import log_line

if TYPE_CHECKING:
    from .conftest import Outrider


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordFiles]:
    """A living run that has printed an hour ago, and just now."""
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "200")
    made, now = RecordFiles.make(tmp_path / "state" / "runs", "train", 1e9), time.time()
    made.append(
        {
            "logs/rank-000.log": log_line(now - 3600, "outrider", "train: generation 1 begins, rank 0 on node 4")
            + log_line(now, "stdout", "loss 0.5"),
            "logs/rank-001.log": log_line(now - 3500, "stderr", "a warning"),
            "logs/node-002.log": log_line(now - 3400, "stdout", "[f #7] alone"),
        }
    )
    yield made
    made.close()


def test_lines_are_shown_in_order_with_where_they_come_from(run: RecordFiles, outrider: Outrider) -> None:
    assert outrider("logs", "train") == 0
    assert outrider.said().splitlines() == [
        "[rank 0] --- train: generation 1 begins, rank 0 on node 4 ---",
        "[rank 1] a warning",
        "[node 2] [f #7] alone",
        "[rank 0] loss 0.5",
    ]


def test_each_line_is_an_object_for_programs(run: RecordFiles, outrider: Outrider) -> None:
    run.append({"logs/node-002.log": b"somebody-was-here-Z stdout x\n"})
    assert outrider("logs", "train", "--json") == 0
    lines = [json.loads(line) for line in outrider.said().splitlines()]
    assert [(each["rank"], each["node"], each["stream"], each["text"]) for each in lines] == [
        (0, None, "outrider", "train: generation 1 begins, rank 0 on node 4"),
        (1, None, "stderr", "a warning"),
        (None, 2, "stdout", "[f #7] alone"),
        (0, None, "stdout", "loss 0.5"),
        (None, 2, "stdout", "x"),
    ]
    assert time.time() - 3600 <= lines[0]["at"] + 60 < lines[3]["at"] <= time.time()
    assert lines[4]["at"] is None


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (("--rank", "1"), ["a warning"]),
        (("--rank", "1", "--rank", "0", "--since", "5m"), ["loss 0.5"]),
        (("--node", "2"), ["[f #7] alone"]),
        (
            (
                "--since",
                "0.5h",
            ),
            ["loss 0.5"],
        ),
        (("--since", "2h", "--grep", r"loss \d|warn"), ["a warning", "loss 0.5"]),
        (("--since", "99999999999999d", "--grep", r"loss \d|warn"), ["a warning", "loss 0.5"]),
    ],
)
def test_a_choice_of_lines(run: RecordFiles, outrider: Outrider, options: tuple[str, ...], shown: list[str]) -> None:
    assert outrider("logs", "train", *options) == 0
    assert [line.split("] ", 1)[1] for line in outrider.said().splitlines()] == shown


def test_times_are_shown_when_they_are_asked_for(run: RecordFiles, outrider: Outrider) -> None:
    assert outrider("logs", run.directory.name, "--json", "--rank", "1") == 0
    at = json.loads(outrider.said())["at"]  # not an hour ago from now: that may be another day already
    assert outrider("logs", run.directory.name, "--times", "--rank", "1") == 0
    assert time.strftime("%Y-%m-%dT", time.gmtime(at)) in outrider.said()


def test_following_goes_on_until_the_run_has_ended(
    run: RecordFiles, outrider: Outrider, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = iter(["first", "second", ""])

    def later(_: float) -> None:
        """Between two looks the run prints a line, or ends."""
        if line := next(steps):
            run.append({"logs/rank-003.log": log_line(time.time(), "stdout", line)})
        else:
            run.append({"logs/rank-003.log": log_line(time.time(), "stdout", "the last")})
            run.close()

    monkeypatch.setattr(time, "sleep", later)
    assert outrider("logs", "train", "-f", "--rank", "3") == 0
    assert outrider.said().splitlines() == ["[rank 3] first", "[rank 3] second", "[rank 3] the last"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("other",), "there is no run 'other'"),
        (("2001",), "is the beginning of 2 runs"),
        (("train", "--since", "yesterday"), "--since takes a time such as 30s"),
        (("train", "--grep", "("), "--grep takes a regular expression"),
    ],
)
def test_what_cannot_be_meant_is_an_error_with_a_next_step(
    run: RecordFiles, outrider: Outrider, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    other = RecordFiles.make(run.directory.parent, "beside", 1e9)
    assert outrider("logs", *arguments) == 2
    assert said in capsys.readouterr().err
    other.close()


def test_a_reader_that_leaves_early_is_told_nothing(run: RecordFiles) -> None:
    run.append({"logs/rank-000.log": log_line(1.0, "stdout", "x" * 1000) * 1000})
    command = [sys.executable, "-c", "from outrider.engine.cli.main import main; main()", "logs", "train"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert (process.stderr.read(), process.wait(60)) == (b"", 141)


def test_the_last_lines(run: RecordFiles, outrider: Outrider) -> None:
    assert outrider("logs", "train", "-n", "2") == 0
    assert outrider.said().splitlines() == ["[node 2] [f #7] alone", "[rank 0] loss 0.5"]
    assert outrider("logs", "train", "--lines", "1", "--rank", "1") == 0
    assert outrider.said().splitlines() == ["[rank 1] a warning"]
    assert outrider("logs", "train", "-n=-1") == 2


def test_a_rank_without_a_log_is_named_with_those_that_have_one(run: RecordFiles, outrider: Outrider) -> None:
    assert outrider("logs", "train", "--rank", "9") == 2
    assert outrider.said() == ""
    assert "has no log of rank 9: it has those of rank 0, 1" in outrider.errors
    assert outrider("logs", "train", "--node", "1") == 2
    outrider.said()
    assert "no log of node 1: it has those of node 2" in outrider.errors

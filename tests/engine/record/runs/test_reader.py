"""Runs are found by id, name or the beginning of an id, and logs are merged by time."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from outrider.engine.record.runs import reader
from outrider.engine.record.runs.files import RecordFiles
from outrider.engine.record.runs.lines import log_line
from outrider.engine.record.runs.reader import Logs, runs_in, runs_meant
from outrider.providers.shared.pool_lock import Owner


def record(folder: Path, name: str, began: float, state: str = "ended") -> RecordFiles:
    made = RecordFiles.make(folder, name, began)
    made.replace("status.json", {"state": state, "began": began})
    return made


def test_runs_are_listed_in_the_order_of_their_beginning(folder: Path) -> None:
    for name, began in (("b", 2e9), ("a", 1e9)):
        record(folder, name, began).close()
    (folder / "notes").mkdir()
    assert [run.name for run in runs_in(folder)] == ["a", "b"]
    assert runs_in(folder / "nowhere") == []


def test_the_cost_of_a_living_run_goes_on(folder: Path) -> None:
    made = record(folder, "train", 1e9)
    for facts, cost, now in (
        ({}, None, 1e9 + 3600),
        ({"spent_usd": 2.0, "hourly_usd": 0.5, "written": 1e9}, 2.5, 1e9 + 3600),
        ({"spent_usd": 2.0, "hourly_usd": 0.5, "written": 1e9}, 2.0, None),
        ({"spent_usd": 2.0, "hourly_usd": 0.5}, 2.0, 1e9 + 3600),  # it is not known since when
    ):
        made.replace("status.json", {"state": "running", **facts})
        assert runs_in(folder)[0].spent_usd(now) == cost
    made.close()


def test_a_run_is_meant_by_its_id_its_name_or_the_beginning_of_its_id(folder: Path) -> None:
    for name, began in (("train", 1e9), ("train", 2e9), ("2001", 1.5e9)):
        record(folder, name, began).close()
    old, named, new = runs_in(folder)
    runs = [old, named, new]
    assert runs_meant(old.id, runs) == [old]
    assert runs_meant("train", runs) == [new]
    assert runs_meant("2001", runs) == [named]
    assert runs_meant("200109", runs) == [old]
    assert runs_meant("20", runs) == runs
    assert runs_meant("other", runs) == []


def test_the_lock_says_who_lives(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = record(folder, "train", 1e9, "running")
    (run,) = runs_in(folder)
    assert run.owner == "alive"
    made.replace("run.json", {"owner": asdict(Owner.this(made.directory))})
    made.close()
    assert run.owner == "dead"
    elsewhere = replace(Owner.this(made.directory), host="other", boot="other", inode=0)
    made.replace("run.json", {"owner": asdict(elsewhere)})
    assert run.owner == "elsewhere"
    made.replace("run.json", {"owner": {"of": "a newer version"}})
    assert run.owner == "dead"


def test_a_lock_is_free_when_its_process_was_killed(folder: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from outrider.engine.record.runs.files import RecordFiles
made = RecordFiles.make(Path({str(folder)!r}), "train", 1e9)
made.replace("status.json", {{"state": "running"}})
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    (run,) = runs_in(folder)
    assert (run.ended, run.owner) == (False, "dead")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"state": "run'])
def test_a_status_that_cannot_be_read_is_empty(folder: Path, content: str) -> None:
    made = record(folder, "train", 1e9)
    (made.directory / "status.json").write_text(content)
    made.close()
    (run,) = runs_in(folder)
    assert run.status == {}


def test_logs_are_read_in_the_order_of_time_and_then_further(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "CHUNK", 7)  # every line is in several chunks
    made = record(folder, "train", 1e9, "running")
    made.append({"logs/rank-000.log": log_line(1.0, "stdout", "a") + log_line(3.0, "stdout", "c")})
    made.append({"logs/rank-001.log": log_line(2.0, "stdout", "b") + log_line(4.0, "stdout", "d")[:-3]})
    (run,) = runs_in(folder)
    logs = Logs(run)
    assert [(each.origin, each.line.text) for each in logs.new_lines()] == [
        ("rank 0", "a"),
        ("rank 1", "b"),
        ("rank 0", "c"),
    ]
    assert list(logs.new_lines()) == []
    made.append(
        {"logs/rank-001.log": log_line(4.0, "stdout", "d")[-3:], "logs/node-012.log": log_line(5.0, "stdout", "e")}
    )
    assert [(each.origin, each.line.text) for each in logs.new_lines()] == [("rank 1", "d"), ("node 12", "e")]
    made.close()


def test_only_the_logs_that_are_asked_for_are_read(folder: Path) -> None:
    made = record(folder, "train", 1e9)
    for path in ("rank-000", "rank-001", "node-000", "node-001"):
        made.append({f"logs/{path}.log": log_line(1.0, "stdout", path)})
    made.close()
    (run,) = runs_in(folder)
    assert [each.line.text for each in Logs(run, ranks=[1], nodes=[0]).new_lines()] == ["node-000", "rank-001"]
    assert [each.line.text for each in Logs(run, ranks=[7]).new_lines()] == []
    assert len(list(Logs(run).new_lines())) == 4


def test_a_run_of_many_ranks_is_read_with_few_descriptors(folder: Path) -> None:
    files = record(folder, "wide", 1e9)
    files.append({f"logs/rank-{rank:03}.log": log_line(1e9 + rank, "stdout", str(rank)) for rank in range(100)})
    files.close()
    (run,) = runs_in(folder)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 8, before[1]))  # noqa: PTH208
    try:
        said = [int(each.line.text) for each in Logs(run).new_lines()]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert said == list(range(100))


def test_the_parts_of_a_log_are_read_in_order_and_go_away(folder: Path) -> None:
    made = record(folder, "train", 1e9, "running")
    (run,) = runs_in(folder)
    logs = Logs(run)
    for part in ("", ".9", ".10"):
        made.append({f"logs/rank-001{part}.log": log_line(1.0, "stdout", f"part {part}")})
    seen = [(printed.origin, printed.line.text) for printed in logs.new_lines()]
    assert seen == [("rank 1", "part "), ("rank 1", "part .9"), ("rank 1", "part .10")]
    made.remove(["logs/rank-001.9.log", "logs/rank-001.8.log"])
    made.append({"logs/rank-001.11.log": log_line(2.0, "stdout", "part .11")})
    assert [printed.line.text for printed in logs.new_lines()] == ["part .11"]
    made.close()

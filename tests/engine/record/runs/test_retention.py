"""Old records go, by number and size; those of the living stay."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.record.runs import retention
from outrider.engine.record.runs.files import RecordFiles
from outrider.engine.record.runs.retention import StoredRun, outdated, sweep, sweep_at_times
from outrider.providers.shared.pool_lock import Owner

Decide = Callable[..., Sequence[StoredRun]]
RUNS = st.lists(st.tuples(st.integers(0, 100), st.booleans()), max_size=12).map(
    lambda drawn: [StoredRun(Path(str(n)), float(n), size, alive) for n, (size, alive) in enumerate(drawn)]
)


def check(decide: Decide, runs: Sequence[StoredRun], most: int, most_bytes: int) -> None:
    gone = decide(runs, most=most, most_bytes=most_bytes)
    stay = [run for run in runs if run not in gone]
    ended = sorted((run for run in runs if not run.alive), key=lambda run: run.began)
    assert not any(run.alive or run is ended[-1] for run in gone), "RETAIN-1"
    for run in gone:
        newer = [each for each in stay if each.began > run.began]
        exceeds = len(newer) + 1 > most or sum(each.size_bytes for each in newer) + run.size_bytes > most_bytes
        assert exceeds, "RETAIN-2"
    kept = [run for run in stay if not run.alive and run is not (ended[-1] if ended else None)]
    if kept:
        newest_first = sorted(stay, key=lambda run: run.began, reverse=True)
        counted = newest_first[: newest_first.index(min(kept, key=lambda run: run.began)) + 1]
        assert len(counted) <= most, "RETAIN-3"
        assert sum(run.size_bytes for run in counted) <= most_bytes, "RETAIN-3"


@given(RUNS, st.integers(0, 6), st.integers(0, 300))
def test_only_old_records_of_ended_runs_go_and_only_as_many_as_must(
    runs: list[StoredRun], most: int, most_bytes: int
) -> None:
    check(outdated, runs, most, most_bytes)
    check(outdated, runs[::-1], most, most_bytes)


def old(runs: Sequence[StoredRun], **limits: int) -> Sequence[StoredRun]:
    """All but the newest two, whoever they are."""
    return sorted(runs, key=lambda run: run.began)[:-2]


def every(runs: Sequence[StoredRun], **limits: int) -> Sequence[StoredRun]:
    return [run for run in runs if not run.alive][:-1]


def none(runs: Sequence[StoredRun], **limits: int) -> Sequence[StoredRun]:
    return []


@pytest.mark.parametrize(("broken", "rule"), [(old, "RETAIN-1"), (every, "RETAIN-2"), (none, "RETAIN-3")])
def test_the_rules_are_held_by_the_test_which_notices_when_they_are_broken(broken: Decide, rule: str) -> None:
    runs = [StoredRun(Path(str(n)), float(n), 1, alive=n == 0) for n in range(6)]
    with pytest.raises(AssertionError, match=rule):
        check(broken, runs, 8 if rule == "RETAIN-2" else 3, 100)


def test_sweeping_removes_what_is_outdated_and_nothing_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "outdated", lambda runs: outdated(runs, most=2))
    living = RecordFiles.make(folder, "living", 1e9)
    ended = [RecordFiles.make(folder, f"ended{n}", 2e9 + n) for n in range(3)]
    for number, each in enumerate([living, *ended]):
        each.append({"logs/rank-000.log": b"a line\n"})
        each.replace("run.json", {})
        os.utime(each.directory / "run.json", (number, number))
    for each in ended:
        each.close()
    (folder / "notes").mkdir()
    (folder / "20200101-000000-link-0000").symlink_to(folder / "notes")
    sweep(folder)
    left = {each.name for each in folder.iterdir()}
    assert left == {living.directory.name, *(each.directory.name for each in ended[1:])} | {
        "notes",
        "20200101-000000-link-0000",
    }
    living.close()
    sweep(folder)
    assert not living.directory.exists()


def test_a_record_that_is_just_being_made_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "outdated", lambda runs: outdated(runs, most=0))
    made = [folder / f"20261125-03111{n}-train-1a2b" for n in range(2)]
    for each in made:
        each.mkdir(parents=True)
    sweep(folder)
    assert all(each.exists() for each in made)


def test_a_run_that_lives_on_another_computer_keeps_its_record(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lock is free here, as it is where a network file system does not pass locks on."""
    monkeypatch.setattr(retention, "outdated", lambda runs: outdated(runs, most=1))
    states = {"living": "running", "killed": "running", "ended": "ended", "newest": "running"}
    made = {}
    for number, (name, state) in enumerate(states.items()):
        made[name] = record = RecordFiles.make(folder, name, 1e9 + number)
        owner = replace(Owner.this(record.directory), host="other", boot="other", inode=0)
        record.replace("run.json", {"owner": asdict(owner)})
        record.replace("status.json", {"state": state})
        os.utime(record.directory / "run.json", (1e9 + number, 1e9 + number))
        record.close()
    long_ago = time.time() - retention.ELSEWHERE_S - 60
    os.utime(made["killed"].directory / "status.json", (long_ago, long_ago))
    sweep(folder)
    assert {name for name, record in made.items() if record.directory.exists()} == {"living", "ended", "newest"}
    made["living"].replace("status.json", {"state": "ended"})
    sweep(folder)
    assert not made["living"].directory.exists()


def test_records_are_not_looked_at_by_every_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[Path] = []
    monkeypatch.setattr(retention, "sweep", swept.append)
    folder.mkdir(parents=True)
    for _ in range(3):
        sweep_at_times(folder)
    assert len(swept) == 1
    for when in (1e9, 1e11):  # long ago, and by a clock that was wrong
        os.utime(folder / "swept", (when, when))
        sweep_at_times(folder)
    assert len(swept) == 3


def test_no_folder_is_nothing_to_sweep(folder: Path) -> None:
    sweep(folder)
    assert not folder.exists()

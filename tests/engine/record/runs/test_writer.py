"""The writer's thread leaves a whole record, loses what it must, and harms nobody when the disk does."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.actors import events as ev
from outrider.engine.api.sink import Spending
from outrider.engine.record.runs import files, writer
from outrider.engine.record.runs.lines import parsed_events
from outrider.engine.record.runs.reader import Logs, read_json, runs_in
from outrider.engine.record.runs.writer import GitState, Happened, LogParts, Plan, RunEnd, RunWriter

PATIENCE_S = 60.0


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def started(folder: Path, failed: Callable[[], object] = lambda: None, **options: object) -> RunWriter:
    made = RunWriter(Plan(name="train", folder=folder, **options), failed)  # type: ignore[arg-type]
    made.start()
    return made


def test_a_run_that_ends_leaves_all_of_its_record(folder: Path, broadcast: list[Happened]) -> None:
    run = started(folder, describe=lambda: {"argv": ["train.py"]})
    for event, at, function in broadcast:
        run.put(event, at, function)
    run.spending = Spending(1.25)
    run.close(RunEnd(None, {"train": {"calls": 1}}), PATIENCE_S)
    assert run.directory is not None
    assert sorted(each.name for each in run.directory.iterdir()) == [
        "events.jsonl",
        "lock",
        "logs",
        "result.json",
        "run.json",
        "status.json",
    ]
    about, result = read_json(run.directory / "run.json"), read_json(run.directory / "result.json")
    assert (about["argv"], about["owner"]["pid"], about["id"]) == (["train.py"], os.getpid(), run.directory.name)
    assert (result["exit"], result["error"], result["calls"], result["spent_usd"]) == (
        0,
        None,
        {"train": {"calls": 1}},
        1.25,
    )
    assert len(list(parsed_events((run.directory / "events.jsonl").read_bytes()))) == 12
    (found,) = runs_in(folder)
    assert (found.ended, found.owner, found.name) == (True, "dead", "train")
    modes = {stat.S_IMODE(each.stat().st_mode) for each in (run.directory, *run.directory.rglob("*"))}
    assert modes == {0o700, 0o600}


def test_what_is_put_is_on_the_disk_while_the_run_lives(folder: Path) -> None:
    run = started(folder)
    run.put(ev.PoolStarting("p", "local", 1, 1), 1.0)
    until(lambda: [run for run in runs_in(folder) if run.status.get("pool") == "p"])
    (found,) = runs_in(folder)
    assert found.owner == "alive"
    assert b"pool_starting" in (found.directory / "events.jsonl").read_bytes()
    run.close(RunEnd(), PATIENCE_S)


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (ValueError("bad luck"), 1, "ValueError"),
        (SystemExit(3), 3, "SystemExit"),
        (SystemExit(-1), 255, "SystemExit"),
        (SystemExit(256), 0, "SystemExit"),
        (SystemExit("no"), 1, "SystemExit"),
        (SystemExit(), 0, "SystemExit"),
        (KeyboardInterrupt(), 130, "KeyboardInterrupt"),
    ],
)
def test_the_result_says_how_it_ended(folder: Path, error: BaseException, code: int, kind: str) -> None:
    run = started(folder)
    run.close(RunEnd(error), PATIENCE_S)
    assert run.directory is not None
    result, status = read_json(run.directory / "result.json"), read_json(run.directory / "status.json")
    assert (result["exit"], result["error"]["type"], status["exit"], status["error"]) == (code, kind, code, kind)
    assert (status["state"], result["error"]["message"]) == ("ended", str(error))


def test_an_error_that_cannot_be_printed_is_named_all_the_same(folder: Path) -> None:
    class Rude(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    run = started(folder)
    run.close(RunEnd(Rude()), PATIENCE_S)
    assert run.directory is not None
    assert read_json(run.directory / "result.json")["error"]["type"] == "Rude"


def test_a_folder_that_cannot_be_written_is_told_once_and_nobody_waits(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told = []
    run = started(tmp_path / "file" / "runs", lambda: told.append(threading.current_thread().name))
    until(lambda: run.failure)
    run.put(ev.PoolClosed(), 1.0)
    run.close(RunEnd(), PATIENCE_S)
    assert told == ["outrider-record"]
    assert run.directory is None


def test_others_folder_is_refused(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    run = started(folder)
    until(lambda: run.failure)
    assert "others may write in it" in run.failure


def test_a_disk_that_is_full_ends_the_record_and_its_lock_lasts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, broadcast: list[Happened]
) -> None:
    told = []
    run = started(folder, lambda: told.append(1))
    run.put(broadcast[0].event, 1.0)
    until(lambda: runs_in(folder) and runs_in(folder)[0].status.get("pool"))
    full = os.statvfs_result((4096, 4096, 10**6, 0, 0, 1, 1, 1, 0, 255))
    monkeypatch.setattr(files.os, "statvfs", lambda path: full)
    run.put(broadcast[1].event, 2.0)
    until(lambda: told)
    for event, at, _ in broadcast * 10:
        run.put(event, at)
    (found,) = runs_in(folder)
    assert (found.owner, len(run._items), told) == ("alive", 0, [1])
    assert os.strerror(errno.ENOSPC) in run.failure
    run.close(RunEnd(), PATIENCE_S)
    assert runs_in(folder)[0].ended  # there was room for that
    assert len(list(parsed_events((found.directory / "events.jsonl").read_bytes()))) == 1


def test_half_a_write_is_taken_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = files.RecordFiles.make(folder, "train", 1.0)
    record.append({"events.jsonl": b"whole\n"})
    write = os.write

    def half(file: int, content: memoryview) -> int:
        if len(content) < 5:
            raise OSError(errno.ENOSPC, "full")
        return write(file, content[: len(content) // 2])

    monkeypatch.setattr(files.os, "write", half)
    with pytest.raises(OSError, match="full"):
        record.append({"events.jsonl": b"not as a whole\n"})
    monkeypatch.undo()
    assert (record.directory / "events.jsonl").read_bytes() == b"whole\n"
    record.close()


def test_memory_is_bounded_while_the_disk_stands_still(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "BACKLOG", 10)
    monkeypatch.setattr(writer, "BACKLOG_CHARS", 100)
    goes_on, make = threading.Event(), files.RecordFiles.make

    def slowly(*given: object) -> files.RecordFiles:
        assert goes_on.wait(PATIENCE_S)
        return make(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(files.RecordFiles, "make", slowly)
    run = started(folder)
    for _ in range(5):
        run.put(ev.TaskOutput(1, 0, 0, "stdout", "x" * 60), 1.0)  # the third is too much
    for _ in range(20):
        run.put(ev.PoolResized(1), 1.0)
    goes_on.set()
    run.close(RunEnd(), PATIENCE_S)
    assert run.directory is not None
    events = list(parsed_events((run.directory / "events.jsonl").read_bytes()))
    assert [each["event"] for each in events] == ["pool_resized"] * 8 + ["events_dropped"]
    assert events[-1]["count"] == 3 + 12
    assert (run.directory / "logs" / "node-000.log").read_bytes().count(b"\n") == 2


def test_a_closed_disk_keeps_nobody(folder: Path) -> None:
    goes_on = threading.Event()
    run = started(folder, describe=lambda: {"waited": goes_on.wait(PATIENCE_S)})
    run.close(RunEnd(), 0.01)
    assert run._thread.is_alive()
    goes_on.set()
    run.close(RunEnd(), PATIENCE_S)
    assert not run._thread.is_alive()


def test_a_task_that_prints_for_days_fills_no_disk(folder: Path) -> None:
    run = started(folder)
    run._parts = LogParts(1000, 3000, 1000)
    for number in range(1000):
        run.put(ev.TaskOutput(1, 0, 0, "stdout", f"step {number}\n"), float(number))
    run.close(RunEnd(), PATIENCE_S)
    assert run.directory is not None
    paths = list((run.directory / "logs").iterdir())
    assert len(paths) == 3
    assert all(path.stat().st_size <= 1000 for path in paths)
    (found,) = runs_in(folder)
    lines = [printed.line.text for printed in Logs(found).new_lines()]
    assert (lines[0], lines[-1]) == ("[task #1] step 0", "[task #1] step 999")
    assert "[task #1] step 500" not in lines
    assert [line for line in lines if line.startswith("part")]


def test_settings_that_cannot_be_described_cost_no_record(folder: Path) -> None:
    run = started(folder, describe=lambda: {"x": 1 / 0})
    run.close(RunEnd(), PATIENCE_S)
    assert run.directory is not None
    assert read_json(run.directory / "run.json")["undescribed"].startswith("ZeroDivisionError")


def test_the_changes_of_the_program_are_beside_it_without_secrets(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = GitState("/repository", "c0ffee", "main", b"+login = hunter2 \xff\n", cut=False)
    monkeypatch.setattr(writer, "git_state", lambda source: state)
    monkeypatch.setattr(writer, "GIT_S", PATIENCE_S)
    run = started(folder, source=folder, clean=lambda text: text.replace("hunter2", "****"))
    run.close(RunEnd(), PATIENCE_S)
    assert run.directory is not None
    about = read_json(run.directory / "run.json")
    assert about["git"]["commit"] == "c0ffee"
    assert (about["git"]["diff"], about["git"]["diff_is_whole"]) == ("git.diff", True)
    assert (run.directory / "git.diff").read_bytes() == b"+login = **** \xff\n"


def test_what_is_left_to_be_done_is_done_as_soon_as_the_pool_closes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = threading.Event()
    monkeypatch.setattr(writer, "DESCRIBE_S", PATIENCE_S)
    monkeypatch.setattr(writer, "FLUSH_S", PATIENCE_S)
    monkeypatch.setattr(writer, "git_state", lambda source: looked.set())
    run = started(folder, source=folder, describe=lambda: {"argv": ["train.py"]})
    run.put(ev.PoolStarting("p", "local", 1, 1), 1.0)
    until(lambda: runs_in(folder) and runs_in(folder)[0].status.get("pool"))
    assert not looked.is_set()
    run.put(ev.PoolClosing(), 2.0)
    assert looked.wait(PATIENCE_S)
    until(lambda: run.directory is not None and "argv" in read_json(run.directory / "run.json"))
    run.close(RunEnd(), PATIENCE_S)
    assert runs_in(folder)[0].ended


def no_threads(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Have the system no thread for those whose name begins so."""
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name.startswith(name):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)


def test_a_system_without_a_thread_for_it_has_no_record(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_threads(monkeypatch, "outrider-record")
    told: list[int] = []
    run = started(folder, lambda: told.append(1))
    run.put(ev.PoolClosed(), 1.0)
    run.close(RunEnd(), PATIENCE_S)
    assert (run.failure, told, runs_in(folder)) == ("can't start new thread", [1], [])


def test_a_system_without_a_thread_for_git_has_a_record(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_threads(monkeypatch, "outrider-record-git")
    run = started(folder, source=folder)
    run.close(RunEnd(), PATIENCE_S)
    assert run.failure == ""
    assert runs_in(folder)[0].ended


def test_old_records_are_swept_by_a_run_that_is_short(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[Path] = []
    monkeypatch.setattr(writer, "sweep_at_times", swept.append)
    started(folder).close(RunEnd(), PATIENCE_S)
    assert swept == [folder]


def test_two_runs_of_a_second_have_records_of_their_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = iter(["20261125-031113-a-0000", "20261125-031113-a-0000", "20261125-031113-a-0001"])
    monkeypatch.setattr(files, "new_id", lambda name, at: next(ids))
    one, other = (files.RecordFiles.make(folder, "a", 1.0) for _ in range(2))
    assert one.directory != other.directory
    one.close()
    other.close()


def test_status_is_never_seen_half_written(folder: Path) -> None:
    record = files.RecordFiles.make(folder, "train", 1.0)
    record.replace("status.json", {"state": "running"})
    (record.directory / "status.json.new").write_text("left by a writer that was killed")
    record.replace("status.json", {"state": "ended"})
    assert json.loads((record.directory / "status.json").read_text()) == {"state": "ended"}
    record.close()

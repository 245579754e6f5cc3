"""`outrider profile` takes a profile of a living run, or says why there is none; and a task takes one of itself."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from outrider import Local, Pool, SpecError, Worker, compute, instance_info, log_metrics, profile, should_stop
from outrider.engine.cli import control as command
from outrider.engine.cli.control import profile as outrider_profile
from outrider.engine.node import context
from outrider.engine.record.profiles import merge, profiles_in

from .processes import until


@compute
def work(folder: str) -> int:
    """Take steps of 10 ms until it is told to end, or what the folder says to its rank."""
    rank = instance_info().rank
    step = 0
    while not Path(folder, "end").exists():
        if Path(folder, f"leave-{rank}").exists():
            return rank
        if context.on_profile_step is not None:
            Path(folder, f"profiled-{rank}").touch()
        rest()
        log_metrics({"loss": 1.0}, step=step)
        step += 1
    return rank


def rest() -> None:
    time.sleep(0.01)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("OUTRIDER_RUNS", raising=False)
    return tmp_path


@pytest.fixture
def folder(state: Path) -> Iterator[Path]:
    with Pool(provider=Local(), nodes=2, console="silent", run="steps") as pool, ThreadPoolExecutor() as threads:
        results: Future[Any] = threads.submit(lambda: work(str(state)) @ pool)
        while sum("work" in each.text for each in pool.stacks()) < 2:
            time.sleep(0.005)
        yield state
        (state / "end").touch()
        assert results.result() == [0, 1], "no profile has ended anything"


def taken(capsys: pytest.CaptureFixture[str], code: int = 0, **options: Any) -> dict[str, Any]:
    assert outrider_profile("steps", as_json=True, **options) == code
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


def record(folder: Path) -> Path:
    return next((folder / "state" / "runs").glob("*-steps-*"))


def test_all_ranks_are_in_one_trace(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(200):  # on a busy computer one may have taken its steps before the other begins
        said = taken(capsys, steps=4)
        assert [row["rank"] for row in said["ranks"]] == [0, 1]
        if said["steps"] >= 3:
            break
    assert said["steps"] in (3, 4), "those that they took at the same time"
    assert (said["steps_by"], said["missing"], said["stragglers"]) == ("metrics", [], [])
    assert said["clock_error_s"] < 60  # half of how long a node took to answer
    events = json.loads(gzip.decompress(Path(said["trace"]).read_bytes()))["traceEvents"]
    assert [each["name"] for each in events if each["name"].startswith("step ")] == [
        f"step {n}" for n in (1, 2, 3, 4)
    ] * 2
    seen = [each for each in events if each["name"].startswith(("rest", "work"))]
    assert {each["name"].partition(" ")[0] for each in seen} == {"rest", "work"}
    assert not any("worker.py" in each["name"] for each in events), "what Outrider has around the task is left out"
    one = taken(capsys, steps=0, seconds=0.3, ranks="1", output=folder / "copy.json.gz")
    assert [row["rank"] for row in one["ranks"]] == [1]
    assert (folder / "copy.json.gz").read_bytes() == Path(one["trace"]).read_bytes()
    while one["name"] not in profiles_in(record(folder)):
        time.sleep(0.05)  # the record is written each 0.5 s
    assert outrider_profile("steps", last=True) == 0
    assert capsys.readouterr().out.startswith(f"profile {one['name']} of work: 1 rank, ")
    assert outrider_profile("steps", ranks="7") == 2
    assert "nothing runs" in capsys.readouterr().err


def test_a_second_one_meanwhile_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seconds in (1.5, 6.0, 24.0):  # on a busy computer the second one may be asked for after the first
        first = threading.Thread(target=outrider_profile, args=("steps",), kwargs={"steps": 0, "seconds": seconds})
        first.start()
        while first.is_alive() and outrider_profile("steps", steps=1) != 2:
            pass
        first.join()
        if "refuses: a profile is being taken, for" in capsys.readouterr().err:
            break
    else:
        pytest.fail("none was refused")
    assert outrider_profile("steps", steps=1) == 0, "and later it is not"


def test_a_rank_that_ends_is_in_it_as_far_as_it_went(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def leave() -> None:
        until((folder / "profiled-1").exists)
        (folder / "leave-1").touch()

    leaving = threading.Thread(target=leave)
    leaving.start()
    said = taken(capsys, steps=0, seconds=1.5)
    while not (folder / "profiled-1").exists():  # on a busy computer it may have had no turn in that time
        said = taken(capsys, steps=0, seconds=1.5)
    leaving.join()
    assert [row["rank"] for row in said["ranks"]] == [0, 1]
    assert said["missing"] == []
    until(lambda: [row["rank"] for row in taken(capsys, steps=1)["ranks"]] == [0], "it does not end")


def test_tasks_in_threads_have_one_profile_at_a_time(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Pool(provider=Local(), worker=Worker(2, kind="thread"), console="silent", run="steps") as pool:
        calls = [work(str(state)) > pool for _ in range(2)]
        while sum("work" in each.text for each in pool.stacks()) < 2:
            time.sleep(0.005)
        for _ in range(200):  # on a busy computer the first one's may be over when the second one is asked for
            said = taken(capsys, steps=3)
            if said["missing"]:
                break
        (state / "end").touch()
        assert [call.result() for call in calls] == [0, 0]
    (missing,) = said["missing"]
    assert missing["said"] == "another profile of its process is under way"
    events = json.loads(gzip.decompress(Path(said["trace"]).read_bytes()))["traceEvents"]
    assert any(each["name"].startswith("rest") for each in events)


@compute
def measured(fails: bool) -> int:
    with profile(skip=2, steps=3, name="the loop"):
        for _ in range(8):
            rest()
            should_stop()
    with profile() as second:
        for _ in range(3):
            rest()
            second.step()
        with profile():
            pass
        if fails:
            raise ValueError("the task's own")
    return 1


def test_a_task_takes_profiles_of_its_own_blocks(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with profile():
        pass  # outside of tasks it does nothing
    with Pool(provider=Local(), nodes=2, console="silent", run="steps") as pool:
        assert measured(False) @ pool == [1, 1]
        with pytest.raises(ValueError, match="the task's own"):
            measured(True) >> pool
        assert outrider_profile("steps", steps=1) == 2
        assert "nothing runs" in capsys.readouterr().err
    assert outrider_profile("steps") == 2
    assert "has ended: --last shows the newest profile that its record has" in capsys.readouterr().err
    found = profiles_in(record(state))
    assert [*found] == ["the-loop-1.1.1", "block-1.1.3", "block-1.1.2", "the-loop-2.1.1", "block-2.1.3", "block-2.1.2"]
    assert {each.said for each in found["block-1.1.3"]} == {"another profile of its process is under way"}
    said = taken(capsys, last=True)
    assert said["name"] == "block-2.1.2", "the newest, of a task that failed"
    first = merge(record(state), "the-loop-1.1.1", found["the-loop-1.1.1"])
    assert first.table is not None
    assert (first.table.steps, first.steps_by, len(first.table.rows)) == (3, "should_stop", 2)


def test_a_pool_without_a_record_has_none_and_its_tasks_go_on() -> None:
    with Pool(provider=Local(), console="silent", run=False) as pool:
        assert measured(False) >> pool == 1


@pytest.mark.parametrize("ranks", ["x", "3-1", "1,,2", "-1"])
def test_ranks_that_are_none_are_refused(ranks: str) -> None:
    with pytest.raises(SpecError, match="--ranks takes ranks such as 0-3,8"):
        command.rank_spans(ranks)


def test_ranks_are_spans() -> None:
    assert command.rank_spans("0-3, 8") == [(0, 3), (8, 8)]
    assert command.rank_spans("") is None


def test_odd_options_are_refused() -> None:
    with pytest.raises(SpecError, match="up to 600 seconds"):
        outrider_profile("steps", seconds=0)

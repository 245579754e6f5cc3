"""`outrider stop` and `outrider wait` say in clear words what there is to be stopped or waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from outrider.engine.api.errors import SpecError
from outrider.engine.api.sink import Refused
from outrider.engine.cli import control as stop_module
from outrider.engine.cli import follow as wait_module
from outrider.engine.cli.main import app
from outrider.engine.record.runs.control import NoAnswer
from outrider.engine.record.runs.files import RecordFiles
from outrider.engine.record.runs.reader import Run
from outrider.engine.record.runs.status import RunStatus

if TYPE_CHECKING:
    from .conftest import Outrider

ID = "20261125-031113-train-1a2b"


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RecordFiles]:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(stop_module, "PROGRAM_S", 0.1)
    monkeypatch.setattr("outrider.engine.record.runs.files.new_id", lambda name, at: ID)

    def made(**facts: Any) -> RecordFiles:
        files = RecordFiles.make(tmp_path / "state" / "runs", "train", 1.0)
        said = RunStatus(ID, "train", 1.0).facts(11.0, 0.0, 0.0)
        files.replace("status.json", said | {"state": "running", "provider": "local"} | facts)
        files.replace("run.json", {"owner": {"pid": 4711, "host": "elsewhere"}})
        return files

    return made


def answers(monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any] | Exception) -> list[float]:
    asked: list[float] = []

    def ask(run: Run, request: str, *, within_s: float) -> dict[str, Any]:
        asked.append(within_s)
        assert (run.id, request) == (ID, "stop")
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(stop_module, "ask", ask)
    return asked


@pytest.mark.parametrize(
    ("answer", "code", "told"),
    [
        ({"left": None}, 0, f"run {ID} has ended; its program, process 4711, goes on"),
        ({"left": "2 machines may be running"}, 1, f"run {ID} has ended, and 2 machines may be running"),
        (NoAnswer("process 4711 has not answered"), 2, "has not answered; `kill 4711` ends it as well"),
        (Refused("it refuses"), 2, "it refuses; `kill 4711` ends it as well"),
    ],
    ids=["ended", "left", "silent", "refused"],
)
def test_a_living_run_is_asked(
    *,
    answer: Any,
    code: int,
    told: str,
    record: Callable[..., RecordFiles],
    outrider: Outrider,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers(monkeypatch, answer)
    files = record()
    assert outrider("stop", "train") == code
    files.close()
    assert told in capsys.readouterr().err


def test_who_waits_longer_is_told_so(
    record: Callable[..., RecordFiles],
    outrider: Outrider,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = answers(monkeypatch, NoAnswer("process 4711 has not answered", busy=True))
    files = record()
    assert outrider("stop", "train", "--timeout", "30") == 2
    assert capsys.readouterr().err.startswith(f"outrider: waiting for the end of {ID}\noutrider: process 4711 has not")
    assert asked == [5.0, 25.0]
    assert outrider("stop", "train", "--timeout", "2") == 2
    assert asked[2:] == [2.0]
    files.close()


def test_a_run_that_ends_by_itself_meanwhile_has_ended(
    record: Callable[..., RecordFiles],
    outrider: Outrider,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = record()

    def ask(run: Run, request: str, *, within_s: float) -> dict[str, Any]:
        files.replace("status.json", {"state": "ended", "exit": 0})
        raise NoAnswer("it ended before it had answered")

    monkeypatch.setattr(stop_module, "ask", ask)
    assert outrider("stop", ID[:-3]) == 0
    files.close()
    assert capsys.readouterr().err == f"outrider: run {ID} has ended\n"


def test_a_name_whose_newest_run_has_ended_may_mean_an_older_one_that_lives(
    record: Callable[..., RecordFiles],
    outrider: Outrider,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    older = record(began=1.0)
    newer = ID.replace("031113", "041113")
    monkeypatch.setattr("outrider.engine.record.runs.files.new_id", lambda name, at: newer)
    record(began=2.0, state="ended", exit=0).close()
    assert outrider("stop", "train") == 2
    told = f"outrider: run {newer} has ended, and of the same name there is {ID}: write its id\n"
    assert capsys.readouterr().err == told
    assert outrider("stop", newer) == 0
    older.close()
    assert outrider("stop", "train") == 0


@pytest.mark.parametrize(
    ("provider", "code", "told"),
    [
        ("local", 0, "its owner died, and what it had started on this computer ends with it\n"),
        ("ssh", 2, "Whether tasks still run there is not known: they end by the pool's lease.\n"),
        ("", 1, "machines may be left, which `outrider gc` shows and removes\n"),  # it is not known which
        ("aws", 1, "machines may be left, which `outrider gc` shows and removes\n"),
    ],
)
def test_a_run_whose_owner_died_cannot_be_asked(
    *,
    provider: str,
    code: int,
    told: str,
    record: Callable[..., RecordFiles],
    outrider: Outrider,
    capsys: pytest.CaptureFixture[str],
) -> None:
    record(provider=provider).close()
    assert outrider("stop", "train") == code
    assert capsys.readouterr().err.endswith(told)
    assert outrider("wait", "train") == 125
    assert capsys.readouterr().err == f"outrider: run {ID} did not end: its owner died\n"
    waited = outrider.json("wait", "train")
    assert (waited["state"], waited["exit_code"], waited["said"]) == (
        "dead",
        125,
        f"run {ID} did not end: its owner died",
    )


@pytest.mark.parametrize(
    ("silent_s", "told"),
    [
        (
            10.0,
            (
                "Tasks may still run there, and end by the pool's lease within 170 s; "
                "it is not known whether they have ended already."
            ),
        ),
        (
            1e4,
            (
                "The pool's lease of 120 s is over, and hosts end their tasks by themselves when it is; "
                "it is not known whether they have."
            ),
        ),
    ],
)
def test_nothing_is_claimed_of_hosts_whose_owner_died(
    *,
    silent_s: float,
    told: str,
    record: Callable[..., RecordFiles],
    outrider: Outrider,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = record(provider="ssh", written=1000.0)
    files.replace("run.json", {"owner": {"pid": 4711}, "spec": {"lease_s": 120.0}})
    files.close()
    monkeypatch.setattr(stop_module.time, "time", lambda: 1000.0 + silent_s)
    assert outrider("stop", "train") == 2
    nothing = "This has ended nothing, for nobody here holds a connection to its hosts."
    assert capsys.readouterr().err == (f"outrider: run {ID} has ended: its owner died. {nothing} {told}\n")
    assert outrider.json("stop", "train")["stopped"] is False


@pytest.mark.parametrize("owner", ["elsewhere", "unknown"])
def test_runs_of_others_are_left_alone(
    owner: str,
    record: Callable[..., RecordFiles],
    outrider: Outrider,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    record().close()
    monkeypatch.setattr(Run, "owner", owner)
    told = {"elsewhere": "is of another computer", "unknown": "has a lock that cannot be read"}[owner]
    for command in ("stop", "wait"):
        assert outrider(command, "train") == 2
        said = capsys.readouterr().err
        assert told in said
        assert "kill" not in said
    record_said = outrider.json("stop", "train")
    assert (record_said["id"], record_said["stopped"], record_said["exit_code"]) == (ID, False, 2)
    waited = outrider.json("wait", "train")
    assert (waited["state"], waited["exit_code"], told in waited["said"]) == (owner, 2, True)


@pytest.mark.parametrize("command", ["stop", "wait"])
def test_a_run_that_is_not_there_is_refused(
    command: str, record: Callable[..., RecordFiles], outrider: Outrider, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outrider(command, "nobody") == 2
    assert "there is no run 'nobody'" in capsys.readouterr().err


def test_the_end_of_a_run_is_waited_for(
    record: Callable[..., RecordFiles], outrider: Outrider, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = record()
    assert outrider("wait", "train", "--timeout", "0.01") == 124
    late = outrider.json("wait", "train", "--timeout", "0.01")
    assert late.pop("took_s") >= 0.01
    assert late == {"id": ID, "state": "running", "exit_code": 124, "error": "", "said": ""}
    ending = threading.Timer(0.05, lambda: files.replace("status.json", {"state": "ended", "exit": 7}))
    ending.start()
    assert outrider("wait", "train") == 7
    ending.join()
    files.replace("status.json", {"state": "ended", "exit": 7, "error": "BroadcastFailed"})
    ended = outrider.json("wait", "train")
    assert (ended["state"], ended["exit_code"], outrider.status, ended["error"]) == ("ended", 7, 7, "BroadcastFailed")

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    files.replace("status.json", {"state": "running"})
    monkeypatch.setattr(wait_module.time, "sleep", interrupt)
    assert outrider("wait", "train") == 130
    files.close()


@pytest.mark.parametrize("timeout", ["-3", "nan", "-inf"])
@pytest.mark.parametrize("command", ["stop", "wait"])
def test_a_timeout_that_is_no_time_is_refused(
    command: str, timeout: str, record: Callable[..., RecordFiles], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = record()
    monkeypatch.setattr(wait_module.time, "sleep", lambda _: pytest.fail("it waits"))
    with pytest.raises(SpecError, match=r"--timeout takes seconds, not -?(3|nan|inf)"):
        app([command, "train", "--timeout", timeout])
    files.close()


@pytest.mark.parametrize(("timeout", "asked_s"), [("inf", [5.0, 1e8 - 5.0]), ("0", [0.01])])
def test_any_time_can_be_waited_for(
    timeout: str,
    asked_s: list[float],
    record: Callable[..., RecordFiles],
    outrider: Outrider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = answers(monkeypatch, NoAnswer("process 4711 has not answered", busy=True))
    files = record()
    assert outrider("stop", "train", "--timeout", timeout) == 2
    assert asked == asked_s
    files.close()


@pytest.mark.parametrize(
    ("classes", "code"), [(["Local"], 0), (["SSH"], 2), (["AWS"], 1), (["Local", "AWS"], 1), ([], 1)], ids=str
)
def test_an_owner_that_died_before_it_had_machines_is_known_by_its_spec(
    *, classes: list[str], code: int, record: Callable[..., RecordFiles], outrider: Outrider
) -> None:
    files = record(provider="")
    specs = [{"provider": {"class": each}} for each in classes]
    files.replace("run.json", {"owner": {"pid": 4711}, "spec": {"specs": specs}})
    files.close()
    assert outrider("stop", "train") == code

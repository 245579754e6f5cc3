"""The process that sends: nothing of it is left, nobody waits for it long, and who kills it loses nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from tracker_servers import Answer, FakeMLflow, Hook, serving, wait_until

from outrider import Local, Pool, compute, errors, log_metrics, trackers
from outrider.engine.record.runs.metrics import read_metrics
from outrider.engine.record.runs.names import runs_folder
from outrider.engine.record.trackers import process as processes


@compute
def train(steps: int, pause_s: float = 0.0) -> None:
    for step in range(steps):
        log_metrics({"loss": 1 / (step + 1)}, step=step)
        time.sleep(pause_s)


def record() -> Path:
    (found,) = runs_folder().glob("*-*-*")
    return found


def recorded() -> list[tuple[str, int, int, float]]:
    return sorted(("loss", each.step or 0, int(each.at * 1000), each.values["loss"]) for each in read_metrics(record()))


def senders() -> list[int]:
    """The ids of processes that send a record of this test."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            words = (each / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"outrider.engine.record.trackers" in words and any(os.fsencode(runs_folder()) in word for word in words):
            found.append(int(each.name))
    return found


def problem_of(tracker: str) -> str:
    """What keeps a tracker from sending, as it has noted it; empty: nothing so far."""
    state = record() / "trackers" / f"{tracker}.json"
    return json.loads(state.read_text())["problem"] if state.exists() else ""


def said_by_the_process() -> str:
    log = record() / "trackers" / "process.log"
    return log.read_text() if log.exists() else ""


def test_a_tracker_that_is_away_holds_nothing_up(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as nobody:  # listens there, and it has the port: another test's server does not get it
        nobody.bind(("127.0.0.1", 0))
        _end_while_it_is_away(f"http://127.0.0.1:{nobody.getsockname()[1]}")
    told = capfd.readouterr().err
    assert "mlflow lacks 10 points of this run (127.0.0.1:" in told
    assert f"outrider sync {record().name} --to mlflow sends it" in told


def _end_while_it_is_away(address: str) -> None:
    with Pool(
        provider=Local(), run="away", trackers=[trackers.MLflow(address)], flush_timeout=0.5, console="plain"
    ) as pool:
        train(10) >> pool
        wait_until(lambda: problem_of("mlflow"))
        closing = time.monotonic()
    assert time.monotonic() - closing < 100.0  # it would try for ever
    assert senders() == []


def test_no_wait_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "DELAY_S", 0.0)
    with Pool(provider=Local(), run="away", trackers=[trackers.MLflow("http://127.0.0.1:1")], flush_timeout=0) as pool:
        wait_until(senders)
        train(3) >> pool
    assert senders() == []


def test_a_killed_process_is_followed_by_one_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "DELAY_S", 0.0)
    monkeypatch.setattr(processes, "AGAIN_S", 0.1)
    fake = FakeMLflow()
    with (
        serving(fake),
        Pool(provider=Local(), run="killed", trackers=[trackers.MLflow(fake.address)], flush_timeout=100) as pool,
    ):
        job = pool.submit(train(200, 0.01))
        wait_until(lambda: fake.runs and fake.metrics[fake.only()])
        (first,) = senders()
        os.kill(first, signal.SIGKILL)
        job.result()
    assert fake.rows() == recorded()
    assert len(fake.runs) == 1
    assert fake.runs[fake.only()]["status"] == "FINISHED"
    assert senders() == []


def test_one_that_fails_does_not_hold_up_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "DELAY_S", 0.0)
    fake, down = FakeMLflow(), FakeMLflow()

    def fails(method: str, path: str) -> None:
        raise Answer(503, "down")

    down.fails = fails
    with serving(fake), serving(down):
        both = [trackers.MLflow(down.address, name="down"), trackers.MLflow(fake.address)]
        with Pool(provider=Local(), run="both", trackers=both, flush_timeout=0) as pool:
            train(10) >> pool
            wait_until(lambda: fake.runs and len(fake.rows()) == 10 and problem_of("down"))
    assert fake.rows() == recorded()
    assert problem_of("down").endswith("answered 503 down")


def test_a_tracker_of_the_users_own_that_is_wrong_is_told_with_its_place(capfd: pytest.CaptureFixture[str]) -> None:
    class Broken(trackers.Tracker):  # which the process gets as a copy, as of a class of a script
        name = "broken"

        def open(self, run: trackers.TrackedRun) -> trackers.Sender:
            raise ZeroDivisionError("a mistake")

    with Pool(provider=Local(), run="broken", trackers=[Broken()], flush_timeout=0, console="plain") as pool:
        train(3) >> pool
        wait_until(lambda: "ZeroDivisionError" in said_by_the_process())
        wait_until(lambda: (record() / "trackers" / "broken.json").exists())
    assert "broken lacks 3 points of this run (ZeroDivisionError: a mistake)" in capfd.readouterr().err
    log = said_by_the_process()
    assert log.count("Traceback") == 1
    assert 'raise ZeroDivisionError("a mistake")' in log


class Elsewhere(trackers.Tracker):
    """Its module is one that the process cannot import: pytest has named it."""

    name = "elsewhere"


def test_a_process_that_cannot_begin_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    with Pool(provider=Local(), run="broken", trackers=[Elsewhere()], flush_timeout=0, console="plain") as pool:
        train(3) >> pool
        wait_until(lambda: "ModuleNotFoundError: No" in said_by_the_process())
    assert "elsewhere lacks 3 points of this run (ModuleNotFoundError: No module named" in capfd.readouterr().err


def test_one_that_cannot_be_loaded_keeps_no_other_from_sending(capfd: pytest.CaptureFixture[str]) -> None:
    hook = Hook()
    with serving(hook):
        both = [Elsewhere(), trackers.Webhook(hook.address)]
        with Pool(provider=Local(), run="broken", trackers=both, flush_timeout=0, console="plain") as pool:
            train(3) >> pool
            wait_until(lambda: "metrics" in hook.kinds())
            wait_until(lambda: (record() / "trackers" / "elsewhere.json").exists())
    assert "elsewhere lacks 3 points of this run (ModuleNotFoundError: No module named" in capfd.readouterr().err


def _put_a_file_in_place_of(folder: Path) -> None:
    """What the end writes has no place then. Who writes just when the folder is gone makes it anew."""
    for number in count():
        folder.rename(folder.parent / f"elsewhere-{number}")
        with suppress(FileExistsError):
            folder.touch(exist_ok=False)
            return


def test_the_process_of_a_record_that_failed_is_ended_too(capfd: pytest.CaptureFixture[str]) -> None:
    hook = Hook()
    with serving(hook):
        tracker = trackers.Webhook(hook.address)
        with Pool(provider=Local(), run="gone", trackers=[tracker], flush_timeout=0, console="plain") as pool:
            train(3) >> pool
            wait_until(senders)
            _put_a_file_in_place_of(record())
        assert senders() == []
    assert "this run is not recorded" in capfd.readouterr().err


PROGRAM = """
import sys, time
from outrider import Local, Pool, compute, log_metrics, trackers

@compute
def train() -> None:
    for step in range(50):
        log_metrics({"loss": 1 / (step + 1)}, step=step)
    time.sleep(100)

if __name__ == "__main__":
    with Pool(provider=Local(), run="dead", trackers=[trackers.MLflow(sys.argv[1])]) as pool:
        train() >> pool
"""


def test_the_death_of_the_client_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    fake = FakeMLflow()
    with serving(fake):
        client = subprocess.Popen([sys.executable, tmp_path / "program.py", fake.address], stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: fake.runs and len(fake.metrics[fake.only()]) == 50)
        finally:
            client.kill()
            client.wait()
        wait_until(lambda: not senders())
    assert fake.runs[fake.only()]["status"] == "KILLED"
    assert fake.rows() == recorded()


def test_the_log_says_what_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    with Pool(provider=Local(), run="away", trackers=[trackers.MLflow("http://127.0.0.1:1")], flush_timeout=0) as pool:
        train(3) >> pool
    (told,) = (each for each in caplog.records if each.message.startswith("tracker_behind"))
    assert told.levelname == "WARNING"
    assert "points=3" in told.message
    assert f"outrider sync {record().name} --to mlflow" in told.message


def test_trackers_that_cannot_be_are_refused() -> None:
    class Unpicklable(trackers.Tracker):
        name = "mine"

        def __init__(self) -> None:
            self.lock = __import__("threading").Lock()

    one = trackers.MLflow("http://127.0.0.1:1")
    for given, said in (
        (one, "takes a list"),
        ([one, one], "two trackers of this pool are called 'mlflow'"),
        (["mlflow"], "takes trackers, not 'mlflow'"),
        ([trackers.MLflow], r"write trackers.MLflow\(...\)"),
        ([Unpicklable()], "cannot be pickled"),
    ):
        with pytest.raises(errors.SpecError, match=said):
            Pool(provider=Local(), trackers=given)
    with pytest.raises(errors.SpecError, match="MLFLOW_TRACKING_URI"):
        trackers.MLflow()


def test_without_records_a_pool_says_that_nothing_is_sent(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OUTRIDER_RUNS", "0")
    with Pool(provider=Local(), trackers=[trackers.MLflow("http://127.0.0.1:1")], console="plain") as pool:
        train(1) >> pool
    assert "there is no record to send, as OUTRIDER_RUNS=0 is in the environment" in capfd.readouterr().err

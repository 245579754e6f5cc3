"""The driver of a detached run tells its command how it starts; what it does not tell follows from its silence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outrider.engine.record.runs.reader import run_of, runs_in
from outrider.engine.scripts import driver
from outrider.engine.scripts.driver import Start, Starter


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60.0
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def pipe() -> Iterator[tuple[int, Starter]]:
    ours, its = os.pipe()
    starter = Starter(its)
    yield ours, starter
    starter._close()
    os.close(ours)


@pytest.mark.parametrize(
    ("tell", "heard"),
    [
        (lambda driver: (driver.recorded("id"), driver.opened()), Start("id")),
        (lambda driver: (driver.recorded("id"), driver.failed(125, "no machines")), Start("id", 125, "no machines")),
        (lambda driver: driver.failed(125, "no disk"), Start("", 125, "no disk")),
        (
            lambda driver: (driver.recorded("id"), driver._close()),
            Start("id", 125, "its process has ended without a word"),
        ),
        (lambda driver: driver._close(), Start("", 125, "its process has ended without a word")),
        (lambda driver: driver.recorded("id"), Start("id")),
        (lambda driver: None, Start("", 125, "its record was not made within 0.3 s")),
    ],
    ids=["open", "failed", "no record", "killed", "killed at once", "slow", "silent"],
)
def test_a_start_is_heard_of(
    pipe: tuple[int, Starter],
    tell: Callable[[Starter], object],
    heard: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver, "FIRST_MOMENTS_S", 0.1)
    monkeypatch.setattr(driver, "RECORD_S", 0.3)
    tell(pipe[1])
    assert driver._heard(pipe[0]) == heard


def test_a_message_may_come_in_pieces(pipe: tuple[int, Starter]) -> None:
    ours, starter = pipe
    os.write(starter._pipe, b'{"run": "i')
    rest = threading.Timer(0.05, lambda: (os.write(starter._pipe, b'd"}\n'), starter.opened()))
    rest.start()
    assert driver._heard(ours) == Start("id")
    rest.join()  # it closes the pipe after what is heard


def test_nobody_who_waits_any_longer_is_no_error() -> None:
    ours, its = os.pipe()
    os.close(ours)
    starter = Starter(its)
    starter.recorded("id")
    starter.opened()
    starter.failed(1, "later")


def test_it_is_in_a_session_of_its_own_without_the_terminal(tmp_path: Path) -> None:
    program = """
        import os, sys
        from outrider.engine.record.runs.reader import run_of
        from outrider.engine.scripts.driver import detach

        def drive(files, starter):
            print(run_of(files.directory).status["state"], "in session", os.getsid(0) == os.getpid())
            print("from", sys.stdin.read(), "in", os.getcwd(), flush=True)
            os.write(2, b"errors too\\n")
            starter.opened()
            return 7

        start = detach("train", drive)
        print(start.run, os.getsid(0) == os.getpid())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OUTRIDER_STATE": str(tmp_path / "state")},
        check=True,
    )
    (run,) = runs_in(tmp_path / "state" / "runs")
    assert done.stdout == f"{run.id} False\n"
    assert done.stderr == ""
    until(lambda: run.owner == "dead")
    assert (run.directory / "driver.log").read_text() == f"starting in session True\nfrom  in {tmp_path}\nerrors too\n"
    ended = run_of(run.directory)
    assert (ended.name, ended.status["exit"]) == ("train", 7)


def test_what_is_kept_of_its_prints_has_no_secret_in_it(tmp_path: Path) -> None:
    """Also where one comes in pieces, in a traceback, or at the end without a newline, and with stdout closed."""
    program = """
        import sys
        from outrider.engine.api.secrets import Scrubber
        from outrider.engine.scripts.driver import detach

        def drive(files, starter):
            starter.opened()
            print("a hunter2 b", "hun", end="", flush=True)
            print("ter2", "hunt", end="", flush=True)
            sys.stderr.write("\\u00b7 \\ud800 hunter2")
            raise ValueError("hunter2")

        sys.stdout = None
        start = detach("train", drive, Scrubber(["hunter2"]))
        print(start.code, file=sys.stderr)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        env={**os.environ, "OUTRIDER_STATE": str(tmp_path / "state")},
        check=True,
    )
    (run,) = runs_in(tmp_path / "state" / "runs")
    assert done.stderr == "None\n"
    until(lambda: run.owner == "dead")
    said = (run.directory / "driver.log").read_text()
    assert "hunter2" not in said
    assert "ValueError: ****" in said
    assert "a **** b **** hunt" in said


def test_a_run_that_fails_before_its_pool_has_an_end_in_its_record(tmp_path: Path) -> None:
    program = """
        from outrider.engine.scripts.driver import detach

        def drive(files, starter):
            raise ValueError("a defect")

        print(detach("train", drive))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        env={**os.environ, "OUTRIDER_STATE": str(tmp_path / "state")},
        check=True,
    )
    (run,) = runs_in(tmp_path / "state" / "runs")
    until(lambda: run.owner == "dead")
    assert done.stdout == f"{Start(run.id, 125, 'its process has ended without a word')}\n"
    ended = run_of(run.directory)
    assert (ended.ended, ended.status["exit"]) == (True, 1)
    assert "ValueError: a defect" in (run.directory / "driver.log").read_text()


def test_ctrl_c_before_the_run_has_an_id_ends_its_driver(tmp_path: Path) -> None:
    """The record is never made here: the folder's disk does not answer."""
    program = """
        import os, signal, threading, time
        from outrider.engine.scripts import driver

        def make(*given):
            print("driver", flush=True)
            time.sleep(600)

        driver.RecordFiles.make = make
        try:
            driver.detach("train", None)
        except KeyboardInterrupt:
            print(os.waitstatus_to_exitcode(os.wait()[1]))
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OUTRIDER_STATE": str(tmp_path / "state")},
    ) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "driver\n"
        command.send_signal(signal.SIGINT)
        assert command.stdout.read() == f"{-signal.SIGTERM}\n"

"""`outrider run --detach`: the run goes on without its terminal, and is found, waited for and stopped."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import stat
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.record.runs.reader import Run, read_json, runs_in

from .processes import PATIENCE_S, processes, until

OUTRIDER = [sys.executable, "-c", "from outrider.engine.cli.main import main; main()"]
PROGRAM = """
import os, sys, time
from pathlib import Path
steps, exit_code = int(sys.argv[1]), int(sys.argv[2])
for step in range(steps):
    print("step", step, "in", os.getcwd(), flush=True)
    while step == 1 and exit_code == 0 and not Path("go").exists():
        time.sleep(0.02)
sys.exit(exit_code)
"""
FOREVER = "1000000000"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("OUTRIDER_RUNS", "1")
    (tmp_path / "train.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "state"
    try:  # a driver whose run has ended, which is all that `wait` waits for, ends some moments later
        until(lambda: not processes(tmp_path / "state"))
    finally:
        for pid in processes(tmp_path / "state"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def outrider(*words: str) -> tuple[int, str, str]:
    done = subprocess.run([*OUTRIDER, *words], capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    return done.returncode, done.stdout, done.stderr


def detached(*words: str) -> Run:
    code, out, err = outrider("run", "--detach", *words)
    assert code == 0, err
    (run,) = runs_in(Path(os.environ["OUTRIDER_STATE"]) / "runs")
    assert out == f"{run.id}\n"
    assert [line.strip() for line in err.splitlines()] == [
        f"outrider {words} {run.id}" for words in ("logs -f", "wait", "stop")
    ]
    return run


def shown(run: Run) -> Any:
    code, out, _ = outrider("runs", "--json")
    assert code == 0
    (found,) = (each for each in json.loads(out) if each["id"] == run.id)
    return found


def printed(run: Run) -> list[str]:
    return [
        line.partition("] ")[2] for line in outrider("logs", run.id, "--rank", "0")[1].splitlines() if "step" in line
    ]


def test_a_run_goes_on_and_is_waited_for(state: Path, tmp_path: Path) -> None:
    run = detached("--nodes", "2", "train.py", "3", "0")
    assert run.owner == "alive"
    assert outrider("wait", run.id, "--timeout", "0.1")[0] == 124
    until(lambda: len(printed(run)) == 2)
    assert shown(run)["owner"] == "alive"
    (tmp_path / "go").touch()
    assert outrider("wait", "train") == (0, "", "")
    assert (shown(run)["state"], shown(run)["exit"]) == ("ended", 0)
    assert printed(run) == [f"step {step} in {tmp_path}" for step in range(3)]
    log = run.directory / "driver.log"
    assert "outrider: 2 of 2 nodes ready" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    until(lambda: run.owner == "dead")


def test_programs_are_told_where_it_goes_on(state: Path) -> None:
    code, out, err = outrider("run", "--json", "--detach", "train.py", "1", "3")
    (run,) = runs_in(state / "runs")
    said = json.loads(out)
    assert said.pop("took_s") > 0
    assert (code, err) == (0, "")
    where = {"id": run.id, "directory": str(run.directory)}
    assert said == {**where, "exit_code": None, "said": "", "first_failure": None}
    ended = json.loads(outrider("wait", run.id, "--json")[1])
    assert (ended["state"], ended["exit_code"], ended["error"]) == ("ended", 3, "BroadcastFailed")
    until(lambda: run.owner == "dead")


def test_its_exit_code_is_the_ranks(state: Path) -> None:
    run = detached("train.py", "1", "3")
    assert outrider("wait", run.id[:-2])[0] == 3
    assert (shown(run)["exit"], read_json(run.directory / "result.json")["exit"]) == (3, 3)
    assert "failed on rank 0 of 1: it ended with exit code 3" in (run.directory / "driver.log").read_text()


def test_it_outlives_its_terminal_and_its_shell(state: Path, tmp_path: Path) -> None:
    ours, its = pty.openpty()

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    words = " ".join(f"'{word}'" for word in (*OUTRIDER, "run", "--detach", "train.py", "3", "0"))
    with subprocess.Popen(
        ["bash", "-c", f"{words}; echo back at the prompt; read"],
        stdin=its,
        stdout=its,
        stderr=its,
        preexec_fn=own_terminal,  # noqa: PLW1509  there are no other threads
    ) as shell:
        os.close(its)
        seen = b""
        while b"back at the prompt" not in seen:
            seen += os.read(ours, 4096)
        shell.kill()
        shell.wait()
    os.close(ours)  # the kernel sends SIGHUP to all that is left on it
    (run,) = runs_in(state / "runs")
    assert run.id.encode() in seen
    time.sleep(0.2)
    assert run.owner == "alive"
    (tmp_path / "go").touch()
    assert outrider("wait", run.id)[0] == 0
    assert len(printed(run)) == 3
    until(lambda: run.owner == "dead")


@pytest.mark.parametrize("by", ["stop", "SIGTERM", "SIGHUP"])
def test_it_is_ended_in_order_and_leaves_no_process(state: Path, by: str) -> None:
    run = detached("--nodes", "2", "train.py", FOREVER, "0")
    until(lambda: len(printed(run)) == 2)
    if by == "stop":
        code, out, err = outrider("stop", run.id, "--json")
        assert (code, err) == (0, "")
        told = json.loads(out)
        assert (told["stopped"], told["program_ended"]) == (True, True)
        assert told["took_s"] <= PATIENCE_S
    else:
        os.kill(read_json(run.directory / "run.json")["owner"]["pid"], signal.Signals[by])
        until(lambda: run.owner == "dead")
    until(lambda: not processes(state))
    assert list((state / "local").iterdir()) == []
    assert outrider("wait", run.id)[0] == {"stop": 143, "SIGTERM": 143, "SIGHUP": 129}[by]
    code, _, err = outrider("stop", run.id)
    assert (code, "had ended already" in err) == (0, True)


def test_it_can_be_stopped_from_the_first_moment_on(state: Path) -> None:
    (state.parent / "slow.py").write_text(
        "from outrider.engine.cli.main import main\n"
        "from outrider.engine.scripts import driver\n"
        "driver.FIRST_MOMENTS_S = 0.0\n"
        "main()\n"
    )
    words = [sys.executable, "slow.py", "run", "--detach", "train.py", FOREVER, "0"]
    run = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    assert outrider("stop", run)[0] == 0
    until(lambda: not processes(state))
    assert outrider("wait", run)[0] == 143


def test_a_driver_that_is_killed_is_told(state: Path) -> None:
    run = detached("train.py", FOREVER, "0")
    until(lambda: "spec" in read_json(run.directory / "run.json"))  # before that, it is not known where machines may be
    os.kill(read_json(run.directory / "run.json")["owner"]["pid"], signal.SIGKILL)
    code, _, err = outrider("wait", run.id)
    assert (code, "its owner died" in err) == (125, True)
    code, _, err = outrider("stop", run.id)
    assert (code, "has ended: its owner died" in err) == (0, True)
    assert "its owner died" in outrider("runs")[1]
    until(lambda: not processes(state))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["missing.py"], "does not exist"),
        (["--nodes", "0", "train.py"], "nodes must be at least 1"),
        (["--set", "run=false", "train.py"], "it must leave one"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_is_wrong_is_told_at_the_prompt(state: Path, words: list[str], told: str) -> None:
    code, out, err = outrider("run", "--detach", *words)
    assert (code, out, told in err) == (2, "", True), err
    assert not (state / "runs").exists()


def test_without_a_record_there_is_no_detached_run(state: Path) -> None:
    (state / "runs").mkdir(parents=True)
    (state / "runs").chmod(0o777)
    code, out, err = outrider("run", "--detach", "train.py", "1", "0")
    assert (code, out) == (125, "")
    assert "the run has ended at once: its record cannot be written" in err
    assert "others may write in it (mode 777), and they could change the records in it" in err


def test_a_start_that_fails_at_once_is_told_at_the_prompt(state: Path) -> None:
    """Nothing of this computer is an accelerator, which its provider knows at once."""
    code, out, err = outrider("run", "--detach", "--accelerator", "H100:8", "train.py", "1", "0")
    (run,) = runs_in(state / "runs")
    assert out == f"{run.id}\n"
    until(lambda: run.owner == "dead")
    assert "CapacityError" in (run.directory / "driver.log").read_text()
    assert (shown(run)["exit"], shown(run)["error"]) == (125, "CapacityError")
    if code:  # within the first moments, on a computer that is not too busy
        assert (code, "the run has ended at once: CapacityError" in err) == (125, True)

"""Whatever ends a command, there is a line and an exit code, and no traceback."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.engine.api.errors import SpecError
from outrider.engine.cli.common import guarded
from outrider.engine.cli.main import main
from outrider.engine.record.runs.files import RecordFiles
from outrider.providers.errors import JournalError

OUTRIDER = [sys.executable, "-c", "from outrider.engine.cli.main import main; main()"]
DENIED = PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/state/runs")


def ending_with(error: BaseException) -> int:
    def command() -> None:
        raise error

    return guarded(command)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (SystemExit(3), 3, ""),
        (SystemExit(None), 0, ""),
        (SystemExit("why"), 1, "why"),
        (KeyboardInterrupt(), 130, ""),
        (SpecError("nodes is wrong"), 2, "outrider: nodes is wrong"),
        (JournalError("no room"), 2, "outrider: no room"),
        (DENIED, 2, "outrider: /state/runs cannot be used (Permission denied): `ls -ld` says whose it is; $OUTRIDER"),
        (
            NotADirectoryError(errno.ENOTDIR, "Not a directory", "/dev/null/x"),
            2,
            "outrider: /dev/null/x cannot be used",
        ),
    ],
)
def test_each_end_has_an_exit_code_and_a_line(
    error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ending_with(error) == code
    told = capsys.readouterr().err
    assert told.startswith(said)
    assert told.count("\n") == bool(said)


def test_a_working_folder_that_is_gone_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert ending_with(FileNotFoundError(errno.ENOENT, "No such file or directory")) == 2  # as of `Path.cwd()`
    assert capsys.readouterr().err == "outrider: the folder that it runs in is gone: go to one that is there\n"


def test_a_mistake_of_this_program_keeps_its_traceback() -> None:
    with pytest.raises(LookupError):
        ending_with(LookupError("a mistake"))


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def test_closed_output_is_the_exit_code_of_sigpipe(state: Path) -> None:
    for number in range(40):
        RecordFiles.make(state / "runs", f"run{number}", 1e9 + number).close()
    for words in (["runs"], ["runs", "--json"], ["top", "run0"], ["--help"]):
        with subprocess.Popen([*OUTRIDER, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.close()
            assert process.stderr is not None
            assert (process.stderr.read(), process.wait(60)) == (b"", 141), words


def test_a_full_disk_and_a_closed_stdout_are_no_tracebacks(state: Path) -> None:
    with Path("/dev/full").open("w") as full:
        said = subprocess.run([*OUTRIDER, "runs"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (said.returncode, said.stderr.count("\n")) == (2, 1)
    assert "No space left on device" in said.stderr
    closed = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *OUTRIDER, "runs"], capture_output=True, check=False)
    assert (closed.returncode, closed.stderr) == (0, b"")


def test_a_state_folder_that_cannot_be_read_is_named(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def denied(path: Path) -> object:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    (state / "runs").mkdir(parents=True)
    for words in (["runs"], ["logs", "train"]):
        with monkeypatch.context() as patched:
            patched.setattr(sys, "argv", ["outrider", *words])
            patched.setattr(os, "scandir", denied)
            with pytest.raises(SystemExit) as ended:
                main()
        assert ended.value.code == 2
        said = capsys.readouterr().err
        assert said.startswith(f"outrider: {state / 'runs'} cannot be used (Permission denied)")
        assert said.count("\n") == 1


def test_records_that_were_changed_are_shown(state: Path) -> None:
    for number, status in enumerate(
        ("{", '{"began": "x", "nodes": {}, "spent_usd": null}', "[" * 5000, '{"began": 1e999}')
    ):
        record = RecordFiles.make(state / "runs", f"run{number}", 1e9)
        record.replace("status.json", status.encode())
        record.close()
    said = subprocess.run([*OUTRIDER, "runs"], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.count("its owner died") == 4


def test_ctrl_c_ends_what_waits(state: Path) -> None:
    record = RecordFiles.make(state / "runs", "train", 1e9)
    record.append({"logs/rank-000.log": b"2026-11-25T03:42:04.123Z stdout hello\n"})
    process = subprocess.Popen([*OUTRIDER, "logs", "train", "-f"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert b"hello" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert (process.wait(60), process.stderr.read()) == (130, b"")
    record.close()

"""Which processes of ranks get SIGTERM: those that handle it, and live."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from outrider.engine.node import rank_signals
from outrider.engine.node.log_socket import VARIABLE

HANDLES = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "log-1"))
    return tmp_path


@contextmanager
def program(first: str = "") -> Iterator[subprocess.Popen[str]]:
    code = f"import signal, sys\n{first}\nprint('ready', flush=True)\nsys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_only_registered_processes_with_a_handler_get_the_signal(folder: Path) -> None:
    with program(HANDLES) as handles, program() as plain, program(HANDLES) as stranger:
        for each in (handles, plain):
            rank_signals.register(each.pid)
        assert rank_signals.terminate() == [handles.pid]
        assert handles.wait(60) == 7
        assert not rank_signals.still_handling(handles.pid)
        assert (plain.poll(), stranger.poll()) == (None, None)
        assert rank_signals.handling(folder) == []


def test_a_notice_is_sent_once_and_only_that_is_remembered(folder: Path) -> None:
    with program("signal.signal(signal.SIGTERM, lambda *_: print('saved', flush=True))") as process:
        rank_signals.register(process.pid)
        assert not rank_signals.was_notified(process.pid)
        for _ in range(3):
            rank_signals.notify(folder)
        assert rank_signals.was_notified(process.pid)
        process.send_signal(signal.SIGKILL)
        assert process.stdout is not None
        assert process.stdout.read().count("saved") <= 1


def test_a_process_with_the_number_of_a_dead_one_is_a_stranger(folder: Path) -> None:
    with program(HANDLES) as process:
        rank_signals.register(process.pid)
        (folder / f"rank-{process.pid}").write_text("1")  # as of a process that began at another time
        assert rank_signals.terminate() == []


def test_a_shielded_process_shows_by_the_first_signal_that_it_handles_none(folder: Path) -> None:
    """In a child: it is the process itself that registers."""
    code = """
import os, signal
from outrider.engine.node import process, rank_signals
process.shield([signal.SIGTERM])
rank_signals.register(os.getpid())
print(rank_signals.terminate() == [os.getpid()], rank_signals.terminate(), flush=True)
signal.signal(signal.SIGTERM, lambda *_: print("handled"))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, VARIABLE: str(folder / "log-1")},
    )
    assert done.stdout == "True []\n"


def test_outside_of_a_node_there_is_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    rank_signals.register(os.getpid())
    assert rank_signals.terminate() == []
    assert not rank_signals.was_notified(os.getpid())

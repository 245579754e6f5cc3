"""A file and signals as sources; and that signals end none of a node's processes, and all others as ever."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.node.notices import local
from outrider.engine.node.notices.local import PreemptFile, Signals
from outrider.engine.node.process import shield

pytestmark = pytest.mark.anyio


async def test_a_file_is_a_notice_until_it_is_removed(service: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(local, "POLL_S", 0.002)
    file = tmp_path / "preempt"
    service.watch(PreemptFile(file))
    file.write_text("120")
    await service.until(lambda: service.notices == [120.0])
    for nothing_new in ("", "in 3", "nan", "inf"):
        file.write_text(nothing_new)
        await asyncio.sleep(0.005)
    file.write_text("60\n")
    await service.until(lambda: service.notices == [120.0, 60.0])
    file.unlink()
    await service.until(lambda: service.notices == [120.0, 60.0, None])


async def test_signals_announce_and_take_back(service: Any) -> None:
    service.watch(Signals({signal.SIGUSR1: 120.0, signal.SIGTERM: 30.0}, withdrawn=[signal.SIGUSR2]))
    await asyncio.sleep(0)
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR2):
        os.kill(os.getpid(), number)
        await service.until(lambda number=number: service.notices[-1:] == [{10: 120.0, 15: 30.0, 12: None}[number]])


async def test_a_source_that_ends_leaves_the_signals_as_they_were() -> None:
    watching = asyncio.ensure_future(Signals({signal.SIGUSR1: 1.0}).watch(lambda seconds: None))
    await asyncio.sleep(0)
    assert signal.getsignal(signal.SIGUSR1) is not signal.SIG_DFL
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def _ended_by(make: Any, number: int) -> int:
    """The status of a child that does ``make`` and then gets the signal."""
    pid = os.fork()
    if pid == 0:
        try:
            make()
            os.kill(os.getpid(), number)
            os._exit(0)
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _forked_again() -> None:
    """As multiprocessing does: the shielded process is the parent."""
    shield([signal.SIGTERM])
    if (pid := os.fork()) != 0:
        os._exit(-os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def test_our_processes_survive_and_those_they_fork_do_not() -> None:
    assert _ended_by(lambda: shield([signal.SIGUSR1]), signal.SIGUSR1) == 0
    assert _ended_by(lambda: shield([signal.SIGUSR1]), signal.SIGTERM) == -signal.SIGTERM
    assert _ended_by(_forked_again, signal.SIGTERM) == signal.SIGTERM


def test_what_they_execute_is_ended_as_ever() -> None:
    program = (
        "import signal, subprocess; from outrider.engine.node.process import shield; "
        "shield([signal.SIGTERM]); child = subprocess.Popen(['sleep', '60']); child.terminate(); "
        "raise SystemExit(-child.wait())"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == signal.SIGTERM

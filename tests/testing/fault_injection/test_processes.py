"""Only processes that descend from this program are signalled, and only while they are the ones that were seen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outrider.testing.fault_injection import processes
from outrider.testing.fault_injection.processes import Process


@pytest.fixture
def child() -> Iterator[Process]:
    """A process with a child of its own, in another session."""
    code = (
        "import subprocess, sys;"
        "p = subprocess.Popen(['sleep', '60'], start_new_session=True);"
        "print(p.pid, flush=True); sys.stdin.read(); p.kill()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        started.stdout.readline()
        found = processes.owned(started.pid)
        assert found is not None
        yield found
        processes.resume(processes.tree([found]))  # whatever the test has left standing
        started.communicate()


def state(process: Process) -> str:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_foreign_process_is_never_signalled(child: Process) -> None:
    assert processes.owned(child.pid) == child
    assert processes.owned(1) is None
    assert processes.owned(os.getppid()) is None


def test_the_first_process_of_a_container_has_descendants_too(child: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(processes, "_parent", {child.pid: 1}.get)
    assert processes.owned(child.pid) == child
    monkeypatch.setattr(processes, "_parent", {child.pid: 7, 7: 0}.get)  # 0: one that was put into the container
    assert processes.owned(child.pid) is None


def test_reused_pid_is_never_signalled(child: Process) -> None:
    before = child._replace(started=child.started - 1)
    assert not processes.lives(before)
    assert not processes.send(before, signal.SIGKILL)
    assert processes.stop([before]) == []
    assert processes.children(before) == []
    assert processes.lives(child)


def test_a_whole_tree_stands_still_and_goes_on(child: Process) -> None:
    (below,) = processes.children(child)
    stopped = processes.stop([child])
    assert set(stopped) == {child, below}
    until(lambda: [state(process) for process in stopped] == ["T", "T"])
    processes.resume(stopped)
    until(lambda: "T" not in [state(process) for process in stopped])


def test_the_dead_get_no_signal() -> None:
    with subprocess.Popen(["sleep", "60"]) as started:
        found = processes.owned(started.pid)
        assert found is not None
        started.kill()
    assert not processes.send(found, signal.SIGKILL)
    assert processes.owned(started.pid) is None

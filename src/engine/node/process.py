"""Functions for the node's processes: descriptors, signals, children, and kills of a process with its descendants."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_WALKS = 100  # tries to list the children of a process whose threads end during the listing
_libc = ctypes.CDLL(None)


def begin_child(parent: int) -> None:
    """Let the kernel kill this forked process when ``parent`` ends; restore the default handling of SIGCHLD."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent has already ended
        os._exit(1)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def adopt_orphans() -> None:
    """Make this process the parent of its descendants whose own parent has ended, in any session."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def shield(numbers: Iterable[int]) -> None:
    """Make this process ignore the signals that announce a machine's end, which all processes of the machine get.

    Only this process ignores them, not a child that it forks: each process of Outrider calls this function itself. The
    signals are ignored by a handler, not by SIG_IGN: a program that a task executes would inherit SIG_IGN, and SIGTERM
    could not end the program.
    """
    shielded = os.getpid()

    def ignore_here(number: int, _frame: object) -> None:
        if os.getpid() != shielded:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for number in numbers:
        signal.signal(number, ignore_here)


def close_all_but(keep: Iterable[int]) -> None:
    """Close all descriptors except ``keep``. If a pipe's end stayed open here, its reader would wait for ever."""
    low = 0
    for fd in sorted(set(keep)):
        if low < fd:  # closerange(0, 0) would close all descriptors
            os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, os.sysconf("SC_OPEN_MAX"))


def children(pid: int) -> list[int]:
    """Return the direct children of a process, including zombies; [] if the process has ended."""
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():  # the kernel lacks CONFIG_PROC_CHILDREN
        return _children_by_search(pid)
    pids: set[int] = set()  # not set[int](): Python 3.8, in which the installer runs, does not know it
    for _ in range(_WALKS):
        complete = True
        for thread in _threads(pid):
            try:
                pids.update(map(int, (thread / "children").read_text().split()))
            except (FileNotFoundError, ProcessLookupError):
                # the thread has ended; another thread, perhaps already read, got its children: read all again
                complete = False
        if complete:
            break
    return sorted(pids)


def _threads(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []


def descendants(pid: int) -> list[int]:
    pids: list[int] = []
    todo = [pid]
    while todo:
        some = children(todo.pop())
        pids += some
        todo += some
    return pids


def name(pid: int) -> str:
    """Return the name of a process's program; "?" if the process has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return "?"


def kill_tree(root: int) -> None:
    """Send SIGKILL to ``root``, which must be a child of this process, and to all its descendants.

    All of them are stopped before the kill, until no new descendant appears, so that no process escapes by a fork. If a
    process escapes nevertheless, it becomes a child of this process (see `adopt_orphans`): then call this again.
    """
    stopped: set[int] = set()
    while fresh := {root, *descendants(root)} - stopped:
        for pid in fresh:
            _signal(pid, signal.SIGSTOP)
        stopped |= fresh
    for pid in stopped:
        _signal(pid, signal.SIGKILL)


def end_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a child process and all its descendants, and reap them. Do nothing if the child has already ended."""
    if process.poll() is None:
        started = descendants(process.pid)
        kill_tree(process.pid)
        process.wait()
        for pid in started:  # parents first: when a parent has ended, its children become this process's children
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _signal(pid: int, number: signal.Signals) -> None:
    # the process has ended, or runs as another user now, so that only root may signal it
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _children_by_search(parent: int) -> list[int]:
    pids: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            if int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]) == parent:
                pids.append(int(entry.name))
    return pids

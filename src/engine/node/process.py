"""Functions for the node's processes: their end, inherited descriptors, ignored signals, and kills of process trees."""

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
_WALKS = 100  # attempts to list a process's threads, some of which may end during the listing
_libc = ctypes.CDLL(None)


def begin_child(parent: int) -> None:
    """Have the kernel kill this forked process when ``parent`` ends; restore the default handling of signals."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent had already ended
        os._exit(1)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def adopt_orphans() -> None:
    """Make this process the parent of its orphaned descendants, whatever their session."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def shield(numbers: Iterable[int]) -> None:
    """Protect this process from signals that announce a machine's end and are sent to all of its processes.

    Each process of Outrider calls this for itself: a child that another process forks reacts as usual. The signals get
    a handler instead of SIG_IGN, which a program executed by a task would inherit: SIGTERM could not end it.
    """
    shielded = os.getpid()

    def ignore_here(number: int, _frame: object) -> None:
        if os.getpid() != shielded:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for number in numbers:
        signal.signal(number, ignore_here)


def close_all_but(keep: Iterable[int]) -> None:
    """Close all descriptors except ``keep``: an inherited end of a pipe would hide the pipe's end of file for ever."""
    low = 0
    for fd in sorted(set(keep)):
        if low < fd:  # closerange(0, 0) would close everything, as its last descriptor is -1
            os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, os.sysconf("SC_OPEN_MAX"))


def children(pid: int) -> list[int]:
    """Return the direct children of a process, including zombies; empty if the process is gone."""
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():  # the kernel lacks CONFIG_PROC_CHILDREN
        return _children_by_search(pid)
    pids: set[int] = set()  # not set[int](): that is an error in Python 3.8, on which the installer runs this
    for _ in range(_WALKS):
        complete = True
        for thread in _threads(pid):
            try:
                pids.update(map(int, (thread / "children").read_text().split()))
            except (FileNotFoundError, ProcessLookupError):
                # the thread has ended: its children moved to another thread, perhaps one that is already read
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
    """Return the kernel's name of a process; "?" if the process is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return "?"


def kill_tree(root: int) -> None:
    """Send SIGKILL to ``root``, which must be a child of this process, and to all its descendants.

    All of them are stopped first, until no new descendant appears, so that none escapes by forking. A process that
    still escaped becomes this process's child (see `adopt_orphans`): call again until there are no such children.
    """
    stopped: set[int] = set()
    while fresh := {root, *descendants(root)} - stopped:
        for pid in fresh:
            _signal(pid, signal.SIGSTOP)
        stopped |= fresh
    for pid in stopped:
        _signal(pid, signal.SIGKILL)


def end_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a child and all its descendants, and reap them. Do nothing if the child has already ended."""
    if process.poll() is None:
        started = descendants(process.pid)
        kill_tree(process.pid)
        process.wait()
        for pid in started:  # parents first: their children become this process's children then
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _signal(pid: int, number: signal.Signals) -> None:
    # the process is gone; or it has changed its user, and only root may signal it
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _children_by_search(parent: int) -> list[int]:
    pids: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            if int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]) == parent:
                pids.append(int(entry.name))
    return pids

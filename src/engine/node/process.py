"""Processes: how the node's processes end, what they inherit, which signals they survive, and how a tree is killed."""

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
_WALKS = 100  # tries to list a process's threads, as some end meanwhile
_libc = ctypes.CDLL(None)


def begin_child(parent: int) -> None:
    """Have this process, forked by ``parent``, end with it, and restore the default handling of signals."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it had ended before
        os._exit(1)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose parent ends, whatever their session."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def shield(numbers: Iterable[int]) -> None:
    """Keep signals that announce a machine's end, and reach all of its processes, from ending this one.

    Each process of ours calls this for itself: a child that another process forks reacts as usual.

    A handler, and not SIG_IGN, which a program that a task executes would inherit: SIGTERM could not end it.
    """
    shielded = os.getpid()

    def ignore_here(number: int, _frame: object) -> None:
        if os.getpid() != shielded:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for number in numbers:
        signal.signal(number, ignore_here)


def close_all_but(keep: Iterable[int]) -> None:
    """Close all other descriptors: an inherited end of a pipe would hide the pipe's end of file for ever."""
    low = 0
    for fd in sorted(set(keep)):
        if low < fd:  # an empty range from 0 would close everything: it ends at -1
            os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, os.sysconf("SC_OPEN_MAX"))


def children(pid: int) -> list[int]:
    """Return the direct children, zombies too; none of a process that is gone."""
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():  # a kernel without CONFIG_PROC_CHILDREN
        return _children_by_search(pid)
    pids: set[int] = set()  # the installer runs this on Python 3.8, where set[int]() is an error
    for _ in range(_WALKS):
        complete = True
        for thread in _threads(pid):
            try:
                pids.update(map(int, (thread / "children").read_text().split()))
            except (FileNotFoundError, ProcessLookupError):
                complete = False  # the thread has ended: its children are another thread's now, maybe one already read
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
    """Return the process's name as the kernel has it; "?" if the process is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return "?"


def kill_tree(root: int) -> None:
    """Send SIGKILL to ``root``, which must be a child of this process, and to all its descendants.

    They are stopped first, until no new one turns up, so that none escapes by forking. One that still did becomes this
    process's child (see `adopt_orphans`): call again for those until there are none.
    """
    stopped: set[int] = set()
    while fresh := {root, *descendants(root)} - stopped:
        for pid in fresh:
            _signal(pid, signal.SIGSTOP)
        stopped |= fresh
    for pid in stopped:
        _signal(pid, signal.SIGKILL)


def end_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a child with all its descendants, and collect them; nothing happens if it has ended already."""
    if process.poll() is None:
        started = descendants(process.pid)
        kill_tree(process.pid)
        process.wait()
        for pid in started:  # parents first: the children of each become this process's children then
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # gone, or it changed its user, and only root may signal it
        os.kill(pid, number)


def _children_by_search(parent: int) -> list[int]:
    pids: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            if int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]) == parent:
                pids.append(int(entry.name))
    return pids

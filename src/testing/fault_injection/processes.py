"""Find and signal a pool's own processes, and no others. A process is identified by its pid and its start time.

The kernel may reuse a pid for another process. So a process is signalled through a pidfd, and only if it still is the
same process and descends from this program, as all processes of local nodes do.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

# indices into the fields of /proc/<pid>/stat after the process name; index 0 is the process state
STAT_PARENT, STAT_STARTED = 1, 19
PASSES = 5  # `stop` searches for new children at most so many times


class Process(NamedTuple):
    pid: int
    started: int  # clock ticks since boot


def owned(pid: int) -> Process | None:
    """Return the process ``pid``, or None if it does not exist or does not descend from this process."""
    process = _seen(pid)
    above, me = pid, os.getpid()
    while process is not None and above != me:
        above = _parent(above)
        if above < 1:  # pid 1 may be this process: the first process of a container
            return None
    return process


def tree(roots: Iterable[Process]) -> list[Process]:
    """Return the processes ``roots`` and all their descendants, parents before children."""
    below = _below()
    processes = [root for root in roots if lives(root)]
    for process in processes:  # the list grows during the loop
        processes += [child for child in below.get(process.pid, ()) if child not in processes]
    return processes


def children(process: Process) -> list[Process]:
    return _below().get(process.pid, []) if lives(process) else []


def lives(process: Process) -> bool:
    return _seen(process.pid) == process


def send(process: Process, number: int) -> bool:
    """Signal a process if it is still the same process and alive; return whether it was signalled."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if _seen(process.pid) != process:  # checked after pidfd_open, so that the pid cannot be reused in between
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def stop(roots: Iterable[Process]) -> list[Process]:
    """Send SIGSTOP to ``roots`` and all their descendants; return the stopped processes, for `resume`."""
    stopped: dict[Process, None] = {}
    roots = list(roots)
    for _ in range(PASSES):
        new = [process for process in tree(roots) if process not in stopped]
        if not new:
            break
        for process in new:
            if send(process, signal.SIGSTOP):
                stopped[process] = None
    return list(stopped)


def resume(stopped: Iterable[Process]) -> None:
    for process in reversed(list(stopped)):
        send(process, signal.SIGCONT)


def _seen(pid: int) -> Process | None:
    stat = _stat(pid)
    return Process(pid, int(stat[STAT_STARTED])) if stat and stat[0] not in "ZX" else None


def _parent(pid: int) -> int:
    stat = _stat(pid)
    return int(stat[STAT_PARENT]) if stat else 0


def _below() -> dict[int, list[Process]]:
    """Return all living processes, grouped by their parent's pid.

    The kernel's own list, /proc/<pid>/task/<tid>/children, does not exist on some kernels.
    """
    children: dict[int, list[Process]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - names suffice
        if name.isdigit() and (stat := _stat(int(name))) and stat[0] not in "ZX":
            children.setdefault(int(stat[STAT_PARENT]), []).append(Process(int(name), int(stat[STAT_STARTED])))
    return children


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # /proc with hidepid= hides processes
        return []

"""Start a supervisor. This is the first step when a local pool is opened, because it needs no event loop."""

from __future__ import annotations

import fcntl
import os
import socket
import sys
from dataclasses import astuple
from pathlib import Path

from ...lazy_named_tuple import NamedTuple
from ..base import EntryPoints
from ..shared.inherited_files import keep_here

LOWEST_FD = 10  # descriptors to pass on get numbers from here, which do not collide with the numbers in the supervisor
CONTROL_FD, CLIENT_FD = 3, 4  # descriptor numbers in the supervisor
LOG = "supervisor.log"  # file in the pool's directory with the output of the supervisor and its machines


class StartedSupervisor(NamedTuple):
    """A supervisor that was just started. It ends by itself when ``control`` is closed."""

    control: socket.socket
    watchdog: int  # pid of the supervisor's parent, a child of this process


def start_supervisor(directory: Path, entry_points: EntryPoints, work_mib: int | None) -> StartedSupervisor:
    """Start the supervisor in a session of its own, so that Ctrl-C reaches only the client, which then ends the pool.

    No other child inherits the supervisor's descriptors, even if another thread starts a process at the same time.

    Raises:
        OSError: The supervisor cannot be started.
    """
    paths = [os.path.abspath(path) for path in sys.path]  # noqa: PTH100 - "" is this process's directory, not the node's
    fds: list[tuple[int, int]] = []  # (fd in this process, fd in the supervisor)
    control, theirs = socket.socketpair()
    try:
        with theirs:
            _give(fds, theirs.fileno(), CONTROL_FD)
        client = _give_ourselves(fds)
        _give_opened(fds, os.open(os.devnull, os.O_RDWR), 0, 1)
        _give_opened(fds, os.open(directory / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
        arguments = (CONTROL_FD, client, str(directory), work_mib, *astuple(entry_points))
        # Imports are faster without garbage collection.
        start = f"import gc, sys; gc.disable(); sys.path[:] = {paths!r}"
        code = f"{start}; from {__package__}.watchdog import main; main{arguments!r}"
        control.setblocking(False)
        keep_here(control)
        watchdog = os.posix_spawn(
            sys.executable,
            [sys.executable, "-c", code],
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, ours, there) for ours, there in fds],
            setsid=True,
        )
    except BaseException:
        control.close()
        raise
    finally:
        for ours in {ours for ours, _ in fds}:
            os.close(ours)
    return StartedSupervisor(control, watchdog)


def _give(fds: list[tuple[int, int]], fd: int, *there: int) -> None:
    ours = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, LOWEST_FD)
    fds += [(ours, number) for number in there]


def _give_opened(fds: list[tuple[int, int]], fd: int, *there: int) -> None:
    try:
        _give(fds, fd, *there)
    finally:
        os.close(fd)


def _give_ourselves(fds: list[tuple[int, int]]) -> int:
    """Add a pidfd of this process to the descriptors for the supervisor. A pid would not do, because another process
    may get the same pid later.
    """
    try:
        ourselves = os.pidfd_open(os.getpid())
    except OSError:  # before Linux 5.3, and in sandboxes: then only the closed socket shows that the client has ended
        return -1
    _give_opened(fds, ourselves, CLIENT_FD)
    return CLIENT_FD

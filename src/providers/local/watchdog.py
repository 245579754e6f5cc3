"""The watchdog is the parent of the supervisor. It ends the supervisor's processes if the supervisor is killed or
frozen.

    client -- watchdog -- supervisor -- machines

A process that a task has started in a session of its own is tied to its pool only through its ancestors. When its
machine dies, the supervisor adopts the process; when the supervisor dies, the watchdog adopts it. When the watchdog
dies, the supervisor ends everything, as it does when the client dies. Watchdog and supervisor both hold the control
socket, so the client sees the socket's end only when nothing is left.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from . import processes

KILL_DEADLINE_S = 5.0
# Milliseconds to wait before the first imports, because a pool that is being opened needs the processor more.
START_MS = 500
ENDS_S = 15.0  # seconds in which the supervisor has to end after its client has ended; then the watchdog kills it


def main(control_fd: int, client: int, directory: str, work_mib: int | None, *entry_points: Any) -> NoReturn:
    """Run the watchdog of one pool's supervisor. It forks the supervisor, which imports its own code after the fork.

    ``client``: a pidfd of the client; -1: none. ``entry_points``: the fields of a `providers.base.EntryPoints`.
    """
    try:
        control = socket.socket(fileno=control_fd)
        processes.adopt_orphans()
        lifeline = stand_by(control, client, Path(directory))
        from .machine_supervisor import supervise  # imported after the fork, because only the supervisor needs it

        supervise(control, lifeline, client, Path(directory), work_mib, *entry_points)
    except BaseException:  # noqa: BLE001 - the last frame of the process; the client reads the log
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # the interpreter's own cleanup costs 15 ms


def stand_by(control: socket.socket, client: int, directory: Path) -> int:
    """Fork the supervisor, and run its watchdog in this process, without returning.

    In the supervisor, return a descriptor that becomes readable when the watchdog ends. ``client``: a pidfd of the
    client; -1: none.
    """
    lifeline, held = os.pipe2(os.O_CLOEXEC)
    supervisor = os.fork()
    if supervisor:
        os.close(lifeline)
        with suppress(OSError):  # the client is gone
            control.sendall(b'{"op": "supervisor", "pid": %d}\n' % supervisor)
        _Watchdog(supervisor, control, client, directory).guard()
    os.close(held)
    os.setpgid(0, 0)
    return lifeline


class _Watchdog:
    def __init__(self, supervisor: int, control: socket.socket, client: int, directory: Path) -> None:
        self._supervisor, self._control, self._client, self._directory = supervisor, control, client, directory
        self._woken = processes.wake_on_child_death()
        # SIGTERM means that the supervisor is frozen. With a handler, it wakes this loop instead of ending the process.
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def guard(self) -> NoReturn:
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        if self._client >= 0:
            poll.register(self._client, select.POLLIN)
        poll.poll(START_MS)
        processes.prepare_removal()
        end_at = float("inf")
        while True:
            # Check before the first poll: the supervisor may have ended before the wake-up socket existed.
            for pid, status in processes.ended_children():
                if pid == self._supervisor:
                    self._end(status)
            wait_ms = None if end_at == float("inf") else max(0.0, end_at - time.monotonic()) * 1000
            ready = {fd for fd, _ in poll.poll(wait_ms)}
            if self._client in ready:
                poll.unregister(self._client)
                end_at = time.monotonic() + ENDS_S
            if self._woken.fileno() in ready and signal.SIGTERM in self._woken.recv(4096):
                end_at = 0.0
            if time.monotonic() >= end_at:
                processes.kill(self._supervisor)
                end_at = float("inf")

    def _end(self, status: int) -> NoReturn:
        """Kill the supervisor's remaining processes, remove their directories, and exit with its status."""
        deadline = time.monotonic() + KILL_DEADLINE_S
        while processes.kill_children() and time.monotonic() < deadline:
            time.sleep(0.001)
        left = [self._directory] if self._is_alone() else [each for each in self._directory.glob("*") if each.is_dir()]
        for directory in left:
            processes.remove_tree(directory)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            if -code not in {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(abs(code))

    def _is_alone(self) -> bool:
        """Return whether the client is gone. Then the watchdog has to remove the pool's directory."""
        if self._client >= 0 and select.select([self._client], [], [], 0)[0]:
            return True
        try:
            while self._control.recv(4096, socket.MSG_DONTWAIT):
                pass
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

"""The supervisor that keeps a node's volumes mounted as long as the node's executor (its daemon) lives.

It is a separate process, and runs as root if needed::

    python3 -I <runtime> volumes <SOCKET

Its stdin is a socket. It reads one request (a line of JSON), and replies ``ready`` or ``failed``. When all other ends
of the socket are closed, because the installer failed or the executor ended for any reason, the supervisor unmounts and
removes everything, closes its own end and ends. Like the installer, this module and all its imports must run on Python
3.8 or newer.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress

from .mount import MountFailed, VolumeMount

_CHECK_S = 0.5


class _Ended(BaseException):
    """The exception that a signal handler raises to end the supervisor while it is still mounting."""


def main() -> int:
    """Start the supervisor as a background process. Return at once."""
    client = socket.socket(fileno=os.dup(0))
    if os.fork():
        return 0
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        _detach()
        _supervise(client)
    except BaseException:  # noqa: BLE001 - the process ends here
        _answer(client, "failed", "the supervisor of the volumes failed", traceback.format_exc().splitlines())
    finally:
        os._exit(0)


def _detach() -> None:
    """Leave the current folder, the umask and the standard streams that this process has inherited."""
    os.chdir("/")
    os.umask(0o077)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
    os.close(nothing)


def _supervise(client: socket.socket) -> None:
    end_signals: list[int] = []
    mounted: list[VolumeMount] = []
    is_mounting = True

    def end(number: int, _: object) -> None:
        end_signals.append(number)
        # a store may not answer: only an exception ends that wait
        if is_mounting and len(end_signals) == 1:
            raise _Ended

    woken, waker = os.pipe()
    for fd in (woken, waker):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, end)
    try:
        line = client.makefile("rb").readline()
        if not line.endswith(b"\n"):
            raise EOFError("the installer has gone")
        order = json.loads(line)
        threading.Thread(target=_end_when_closed, args=(client, threading.main_thread()), daemon=True).start()
        for volume in order["volumes"]:
            mount = VolumeMount(order, volume)
            mount.begin()
            mounted.append(mount)
        is_mounting = False
    except (MountFailed, _Ended, OSError, EOFError) as error:
        is_mounting = False
        mounted = _end(mounted)
        _answer(client, "failed", str(error), getattr(error, "log", ()))
    else:
        _answer(client, "ready")
        while not end_signals:
            select.select([woken], [], [], _CHECK_S)
            for mount in mounted:
                mount.check()
        mounted = _end(mounted)
    with suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)  # closing would not end the connection while a thread reads from the socket
    client.close()
    while mounted:  # other pools still use these mounts
        select.select([], [], [], _CHECK_S)
        for mount in mounted:
            mount.check()
        mounted = _end(mounted)


def _end(mounted: list[VolumeMount]) -> list[VolumeMount]:
    """End mounts. Return the mounts that other pools still use."""
    return [mount for mount in reversed(mounted) if not mount.end()]


def _end_when_closed(client: socket.socket, main: threading.Thread) -> None:
    """Wait until all other ends of the socket are closed, then end this process."""
    with suppress(OSError):
        while client.recv(4096):
            pass
    signal.pthread_kill(main.ident or 0, signal.SIGTERM)  # a signal wakes the main thread from any wait


def _answer(client: socket.socket, kind: str, reason: str = "", log: Sequence[str] = ()) -> None:
    with suppress(OSError):  # the installer is gone
        client.sendall(json.dumps({"is": kind, "reason": reason, "log": list(log)}).encode() + b"\n")

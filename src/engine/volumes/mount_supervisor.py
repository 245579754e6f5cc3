"""Keep a node's volumes mounted as long as its executor lives, in a separate process, as root if needed.

    python3 -I <runtime> volumes <SOCKET

Its stdin is a socket. It reads one request (a line of JSON), and replies ``ready`` or ``failed``. It ends when all
other ends of the socket are closed, because the installer failed or the executor ended for any reason. It then unmounts
and removes everything, and closes its own end. Like the installer, this module and all its imports must run on Python
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
    """Raised by a signal that ends the supervisor while it is still mounting."""


def main() -> int:
    """Start the supervisor in the background; return at once."""
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
    """Leave the folder, the umask and the standard streams of the process that started this one."""
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
        # otherwise the supervisor could not end while a store does not answer
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
        client.shutdown(socket.SHUT_RDWR)  # closing is not enough, as a thread is reading the socket
    client.close()
    while mounted:  # another pool still uses these mounts
        select.select([], [], [], _CHECK_S)
        for mount in mounted:
            mount.check()
        mounted = _end(mounted)


def _end(mounted: list[VolumeMount]) -> list[VolumeMount]:
    """End mounts; return those that other pools still use."""
    return [mount for mount in reversed(mounted) if not mount.end()]


def _end_when_closed(client: socket.socket, main: threading.Thread) -> None:
    """End this process when all other ends of its socket are closed."""
    with suppress(OSError):
        while client.recv(4096):
            pass
    signal.pthread_kill(main.ident or 0, signal.SIGTERM)  # the signal wakes the main thread from any wait


def _answer(client: socket.socket, kind: str, reason: str = "", log: Sequence[str] = ()) -> None:
    with suppress(OSError):  # the reader is gone
        client.sendall(json.dumps({"is": kind, "reason": reason, "log": list(log)}).encode() + b"\n")

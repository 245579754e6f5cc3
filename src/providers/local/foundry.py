"""The process that local machines' SSH servers are forked from: it imports asyncssh once for all of them."""

from __future__ import annotations

import ctypes.util
import gc
import json
import os
import signal
import socket
from pathlib import Path

from .keeper import FRAME_BYTES, fork, resolve


def foundry(control: socket.socket, home: str) -> None:
    """Import once, then fork an SSH server for each order: {id, group, directory, client_key, accelerators} and its fork server."""
    import_asyncssh()
    from . import server

    make_home = resolve(home)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    while True:
        data, fds, _, _ = socket.recv_fds(control, FRAME_BYTES, 1)
        if not data:
            os._exit(0)
        order = json.loads(data)
        forks = socket.socket(fileno=fds[0])
        try:
            listener, host_key, public = server.prepare(Path(order["directory"]))
        except FileNotFoundError:  # the machine died meanwhile; the keeper says so
            forks.close()
            continue
        pid = fork(lambda: server.serve(order, listener, host_key, forks, make_home), listener, forks)  # noqa: B023  runs now
        listener.close()
        forks.close()
        control.send(json.dumps({"id": order["id"], "group": order["group"], "pid": pid, "host_key": public}).encode())


def import_asyncssh() -> None:
    """asyncssh without its search for liboqs, which runs ldconfig, gcc and ld: 16-20 ms (straced). Ours to do: our own process."""
    found, ctypes.util.find_library = ctypes.util.find_library, lambda _: None  # type: ignore[assignment]
    try:
        import asyncssh  # noqa: F401
    finally:
        ctypes.util.find_library = found

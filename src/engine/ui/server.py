"""The server of the pages: its socket and its end. Needs the extra `ui`."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import stat
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import anyio
import uvicorn

from ...providers.local.sockets import listening, short_name
from ...providers.private import make_private
from ..api.checks import refuse
from .app import Act, Pages, opened

HOST = "127.0.0.1"
SEND_BYTES = 256 * 1024  # size of the system's send buffer, which fills when a page does not read
NICE = 5  # lower priority of the server: tasks of a local pool come first
END_S = 2  # time limit for open requests when the server ends

Announce = Callable[[str, str], object]


def serve(sock: socket.socket, folder: Path, acts: Mapping[str, Act], announce: Announce, metrics: str = "") -> int:
    """Serve the pages of the records in ``folder`` until SIGINT, SIGTERM or SIGHUP, and return that signal's number.

    ``announce``: called when the server is ready, with the address and with an address that works only once.
    ``metrics``: a token that allows only the metrics.
    """
    with contextlib.suppress(OSError):
        os.nice(NICE)
    return anyio.run(_serve, sock, folder, acts, announce, metrics)


async def _serve(sock: socket.socket, folder: Path, acts: Mapping[str, Act], announce: Announce, metrics: str) -> int:
    port = sock.getsockname()[1] if sock.family == socket.AF_INET else None
    token, once, access = opened(port, metrics)
    place = f"http://{HOST if port is not None else 'localhost'}{f':{port}' if port else ''}/?token="
    ended: list[signal.Signals] = []
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        async with anyio.create_task_group() as tasks:
            pages = Pages(folder, acts, tasks)
            config = uvicorn.Config(
                pages.app(access),
                lifespan="off",
                log_config=None,
                access_log=False,
                ws="none",
                http="h11",
                loop="asyncio",
                server_header=False,
                date_header=False,
                timeout_graceful_shutdown=END_S,
            )
            server = uvicorn.Server(config)
            setattr(server, "capture_signals", contextlib.nullcontext)  # noqa: B010  this function handles signals itself, above
            tasks.start_soon(_end, signals, ended, pages, server)
            announce(place + token, place + once)
            await server.serve(sockets=[sock])
            tasks.cancel_scope.cancel()
    return int(ended[0]) if ended else 0


async def _end(
    signals: AsyncIterator[signal.Signals], ended: list[signal.Signals], pages: Pages, server: uvicorn.Server
) -> None:
    async for each in signals:
        ended.append(each)
        pages.close()
        server.should_exit = True


def loopback_socket(port: int) -> socket.socket:
    """Return a socket that listens on 127.0.0.1. ``port``: 0 picks a free one.

    Raises:
        SpecError: the port is in use, or this user may not use it.
    """
    sock = socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        sock.bind((HOST, port))
        sock.listen(128)
    except OSError as error:
        sock.close()
        why = "another program has it" if error.errno == errno.EADDRINUSE else error.strerror
        refuse(f"--port {port} of {HOST} cannot be used: {why}. Without --port one is taken that is free.")
    return sock


def private_socket(path: Path) -> socket.socket:
    """Return a socket that listens at ``path``, in a folder that only this user may enter; create a missing folder.

    Raises:
        SpecError: other users may enter the folder, or ``path`` exists already.
    """
    path = path.absolute()
    try:
        make_private(path.parent)
        mode = stat.S_IMODE(path.parent.stat().st_mode)
        if mode & 0o077:
            refuse(f"--socket {path}: others may enter its folder (mode {mode:o}): `chmod 700 {path.parent}`.")
        if _is_left(path):
            path.unlink()
        return listening(path)
    except OSError as error:
        why = "something is there already" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        refuse(f"--socket {path} cannot be used: {why}.")


def _is_left(path: Path) -> bool:
    """Return whether ``path`` is the socket of a killed server: no process listens on it."""
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX) as sock, short_name(path) as name:
        try:
            sock.connect(name)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False

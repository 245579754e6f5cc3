"""The web server: its socket, its start and its end. It needs the extra `ui`."""

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

from ...providers.shared.paths import make_private
from ...providers.shared.sockets import listening, short_name
from ..api.checks import refuse
from .app import Act, Pages, opened

HOST = "127.0.0.1"
SEND_BYTES = 256 * 1024  # size of the socket's send buffer, which fills if a browser does not read
NICE = 5  # lowers the priority of the server, so that tasks of a local pool come first
END_S = 2  # at the server's end: seconds for which it waits for open requests

Announce = Callable[[str, str], object]


def serve(sock: socket.socket, folder: Path, acts: Mapping[str, Act], announce: Announce, metrics: str = "") -> int:
    """Serve the pages until SIGINT, SIGTERM or SIGHUP. Return the number of that signal.

    Args:
        sock: The listening socket.
        folder: The folder with the records of runs.
        acts: Name of a button -> its action.
        announce: Called when the server is ready, with its address and with an address that works only once.
        metrics: A token that allows only the metrics; "": there is none.
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
    """Return a socket that listens on 127.0.0.1. ``port``: 0 means any free port.

    Raises:
        SpecError: The port is in use, or this user may not use it.
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
    """Return a unix socket that listens at ``path``, in a folder that only this user may enter.

    Create the folder if needed.

    Raises:
        SpecError: Other users may enter the folder, or ``path`` already exists.
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
    """Return whether ``path`` is the socket of a server that was killed: no process listens on it."""
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

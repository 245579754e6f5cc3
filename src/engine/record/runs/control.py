"""Requests to the owner of a run's record: the running program that writes the record.

They go through the unix socket `control` in the record, which only the owner's user may open. A request is one line of
JSON, ``{"request": "stop"}``, with further fields for the request. The owner replies with one line, ``{"answer":
{...}}`` or ``{"refused": "why"}``, and closes the connection. The owner handles requests on the event loop of its pool,
so it does not reply while that loop is blocked.

To add a request, write a coroutine function in `client/open_pool.py` that takes the open pool and the request's
fields, and add it to the table in that file; the function raises `Refused` to refuse a request. A command then calls
``ask(run, "name", within_s=5.0, field=...)``. Answers are values of JSON. If a result is large, write it into the
record, and return its path as the answer.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....providers.shared.sockets import listening, short_name
from ...api.sink import Refused

if TYPE_CHECKING:
    from ...api.sink import Request
    from .reader import Run

CONTROL = "control"
REQUEST_BYTES, ANSWER_BYTES = 64 * 1024, 16 * 1024 * 1024
READ_S = 5.0  # time limit for a client to write its request
CLOSE_S = 1.0  # at the pool's end: longest wait until open requests have their replies
AGAIN_S = 1.0  # pause before the next connection is accepted, if no file descriptor is free
MAKING_S = 10.0  # on a busy computer, a record may exist for this long before its socket does
_PIECE = 64 * 1024


class NoAnswer(Exception):
    """The error for a request without a reply. The message has the reason, and what the user can do.

    ``busy``: True: the owner is alive, but does not reply.
    """

    def __init__(self, message: str, *, busy: bool = False) -> None:
        super().__init__(message)
        self.busy = busy


class ControlSocket:
    """The server socket of a run's record, used by the process that owns the record.

    ``requests``: name of a request -> function that handles it.
    """

    def __init__(self, directory: Path, requests: Mapping[str, Request]) -> None:
        """Accept requests on the running event loop from now on.

        Raises:
            OSError: The socket cannot be created, for example because the record's disk does not support sockets.
        """
        self._path, self._requests = directory / CONTROL, requests
        self._loop = asyncio.get_running_loop()
        self._answering: set[asyncio.Task[None]] = set()
        self._socket = listening(self._path)
        self._socket.setblocking(False)
        self._listen()

    async def close(self) -> None:
        """Accept no more requests, and finish the open requests. Idempotent."""
        if self._socket.fileno() < 0:
            return
        self._loop.remove_reader(self._socket)
        self._socket.close()
        with suppress(OSError):
            self._path.unlink()
        if self._answering:
            await asyncio.wait(self._answering, timeout=CLOSE_S)
        for each in self._answering:
            each.cancel()

    def _listen(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except (BlockingIOError, ConnectionError):
            return
        # No file descriptor is free. The connection stays pending: without a pause, the loop would spin.
        except OSError:
            self._loop.remove_reader(self._socket)
            self._loop.call_later(AGAIN_S, self._listen)
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._serve(connection), name="outrider-control")
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):  # a TimeoutError (the client was too slow), or the client has disconnected
            async with asyncio.timeout(READ_S):
                line = await self._line(connection)
            reply = await self._reply_to(line)
            await self._loop.sock_sendall(connection, json.dumps(reply, default=str).encode() + b"\n")

    async def _line(self, connection: socket.socket) -> bytes:
        line = b""
        while b"\n" not in line and len(line) < REQUEST_BYTES:
            piece = await self._loop.sock_recv(connection, _PIECE)
            if not piece:
                break
            line += piece
        return line

    async def _reply_to(self, line: bytes) -> Mapping[str, Any]:
        try:
            fields = json.loads(line)
            answer = self._requests[fields["request"]]
        except KeyError:
            return {"refused": f"it knows no such request; it takes {', '.join(sorted(self._requests))}"}
        except (ValueError, TypeError, RecursionError):
            return {"refused": 'a request is a line of JSON, as {"request": "stop"}'}
        try:
            return {"answer": await answer(fields)}
        except Refused as refused:
            return {"refused": str(refused)}
        except Exception as error:  # noqa: BLE001  sent to the client of the request
            return {"refused": f"{type(error).__name__}: {error}"}


def ask(run: Run, request: str, *, within_s: float, **fields: Any) -> dict[str, Any]:
    """Send a request to the owner of a run, and return its answer.

    Raises:
        Refused: The owner refuses the request.
        NoAnswer: The owner is dead, on another computer, or does not reply within ``within_s`` seconds.
    """
    match run.owner:
        case "dead":
            state = "has ended" if run.ended else "has ended: its owner died"
            raise NoAnswer(f"run {run.id} {state}")
        case "elsewhere":
            raise NoAnswer(f"run {run.id} is of another computer, {_owner(run, 'host')}: ask there")
        case "unknown":
            raise NoAnswer(f"run {run.id} has a lock that cannot be read, so it is not known who owns it")
        case "alive":
            pass
    silent = f"process {_owner(run, 'pid')}, which runs {run.id},"
    try:
        line = _exchange(run.directory / CONTROL, json.dumps({"request": request, **fields}).encode(), within_s)
    except TimeoutError:
        raise NoAnswer(f"{silent} has not answered for {within_s:g} s", busy=True) from None
    except OSError as error:
        raise NoAnswer(f"{silent} takes no requests ({error.strerror or error})", busy=True) from None
    try:
        reply = json.loads(line)
    except ValueError:
        raise NoAnswer(f"{silent} ended before it had answered") from None
    if "refused" in reply:
        raise Refused(f"{silent} refuses: {reply['refused']}")
    answer: dict[str, Any] = reply["answer"]
    return answer


def _exchange(path: Path, line: bytes, within_s: float) -> bytes:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(within_s)
        _connect(sock, path, min(within_s, MAKING_S))
        sock.sendall(line + b"\n")
        answer = b""
        while len(answer) < ANSWER_BYTES and (piece := sock.recv(_PIECE)):
            answer += piece
        return answer


def _connect(sock: socket.socket, path: Path, within_s: float) -> None:
    """Connect to a record's socket. If the record is new, wait until its socket exists."""
    until = time.monotonic() + within_s
    while True:
        try:
            with short_name(path) as name:
                sock.connect(name)
            return
        # the owner first creates the socket file, and listens a moment later
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


def _owner(run: Run, what: str) -> str:
    from .reader import read_json  # imported here, as the owner of a record does not need it

    owner = read_json(run.directory / "run.json").get("owner")
    return str(owner.get(what, "?")) if isinstance(owner, dict) else "?"

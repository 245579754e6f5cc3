"""A machine's instance metadata, as EC2 serves it: at a link-local address that nobody but the machine reaches.

Documented in the EC2 user guide under "Use the Instance Metadata Service to access instance metadata".
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from email.utils import formatdate
from http import HTTPStatus
from typing import NamedTuple

from netlab.commands import LabError, ip

ADDRESS, PORT = "169.254.169.254", 80
TOKEN, TTL = "x-aws-ec2-metadata-token", "x-aws-ec2-metadata-token-ttl-seconds"
LONGEST_TTL_S = 21600
ITEMS, USER_DATA = "/latest/meta-data", "/latest/user-data"
GOOGLE = "/computeMetadata/v1/"
HEAD_LIMIT = 16384
HEAD_END = b"\r\n\r\n"
CLONE_NEWNET = 0x40000000  # linux/sched.h

_libc = ctypes.CDLL(None, use_errno=True)


class Answer(NamedTuple):
    status: HTTPStatus
    body: str = ""
    headers: Mapping[str, str] = {}


class Metadata:
    """What one machine is told."""

    def __init__(self, items: Mapping[str, str], user_data: str = "", *, tokens_required: bool = True) -> None:
        """``items``: by their path below ``/latest/meta-data/``. ``tokens_required``: IMDSv2."""
        self._items, self._user_data, self._tokens_required = dict(items), user_data, tokens_required
        self._tokens: dict[str, float] = {}  # until when they are valid

    def put(self, path: str, value: str | None) -> None:
        """What it is told from now on; None: there is no such item."""
        if value is None:
            self._items.pop(path, None)
        else:
            self._items[path] = value

    def answer(self, method: str, path: str, headers: Mapping[str, str], now: float) -> Answer:
        """``headers``: with names in lower case. ``now``: monotonic seconds."""
        if method == "PUT":
            return self._new_token(path, headers, now)
        if method != "GET":
            return Answer(HTTPStatus.METHOD_NOT_ALLOWED)
        if path.startswith(GOOGLE):
            return self._as_google(path.partition("?")[0].removeprefix(GOOGLE), headers)
        if (TOKEN in headers or self._tokens_required) and self._tokens.get(headers.get(TOKEN, ""), now) <= now:
            return Answer(HTTPStatus.UNAUTHORIZED)
        found = self._find(path)
        return Answer(HTTPStatus.NOT_FOUND) if found is None else Answer(HTTPStatus.OK, found)

    def _new_token(self, path: str, headers: Mapping[str, str], now: float) -> Answer:
        if path != "/latest/api/token":
            return Answer(HTTPStatus.NOT_FOUND)
        if "x-forwarded-for" in headers:
            return Answer(HTTPStatus.FORBIDDEN)
        ttl = headers.get(TTL, "")
        if not ttl.isdecimal() or not 1 <= int(ttl) <= LONGEST_TTL_S:
            return Answer(HTTPStatus.BAD_REQUEST)
        token = secrets.token_urlsafe(40)
        self._tokens[token] = now + int(ttl)
        return Answer(HTTPStatus.OK, token, {TTL: ttl})

    def _as_google(self, item: str, headers: Mapping[str, str]) -> Answer:
        """ "About VM metadata", Compute Engine. Without an ETag, its client asks again after a second."""
        if headers.get("metadata-flavor") != "Google":
            return Answer(HTTPStatus.FORBIDDEN)
        found = self._items.get(item)
        return (
            Answer(HTTPStatus.NOT_FOUND)
            if found is None
            else Answer(HTTPStatus.OK, found, {"Metadata-Flavor": "Google"})
        )

    def _find(self, path: str) -> str | None:
        if path == USER_DATA:
            return self._user_data or None
        top, _, item = path.rstrip("/").partition(f"{ITEMS}/")
        if top not in {"", ITEMS}:
            return None
        if item in self._items:
            return self._items[item]
        folder = f"{item}/" if item else ""
        below = [each.removeprefix(folder).partition("/") for each in self._items if each.startswith(folder)]
        return "\n".join(sorted({name + slash for name, slash, _ in below})) or None


class MetadataService:
    """One thread that serves all machines, each its own: the sockets that it listens on are in their namespaces."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._servers: dict[int, asyncio.Server] = {}
        self._asked: dict[int, set[asyncio.Transport]] = {}  # a machine may be gone in the middle of its question
        self._thread = threading.Thread(target=self._loop.run_forever, name="metadata", daemon=True)
        self._thread.start()

    def open(self, pid: int, metadata: Metadata) -> None:
        """Serve it in the network namespace of this process."""
        ip(f"addr add {ADDRESS}/32 dev lo", inside=pid)
        listening = _listen(pid, (ADDRESS, PORT))
        asyncio.run_coroutine_threadsafe(self._serve(pid, listening, metadata), self._loop).result()

    def close(self, pid: int) -> None:
        """Safe to repeat. Until then the namespace is there, even if no process is in it."""
        asyncio.run_coroutine_threadsafe(self._stop(pid), self._loop).result()

    def end(self) -> None:
        """Safe to repeat."""
        if self._loop.is_closed():
            return
        for pid in list(self._servers):
            self.close(pid)
        asyncio.run_coroutine_threadsafe(self._end_connections(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self, pid: int, listening: socket.socket, metadata: Metadata) -> None:
        asked: set[asyncio.Transport] = set()
        self._asked[pid] = asked
        self._servers[pid] = await self._loop.create_server(lambda: _Question(metadata, asked), sock=listening)

    async def _stop(self, pid: int) -> None:
        server = self._servers.pop(pid, None)
        if server is not None:
            for listening in server.sockets:
                self._loop.remove_reader(listening.fileno())
            await asyncio.sleep(0)  # a connection that is taken in fails halfway where its server is closed
            server.close()
            _abort(self._asked[pid])

    async def _end_connections(self) -> None:
        """End those too that were taken in just before their server closed: each is a task of the loop for a moment."""
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)
        while left := [transport for asked in self._asked.values() for transport in asked]:
            _abort(left)
            await asyncio.sleep(0)


def _abort(connections: Iterable[asyncio.Transport]) -> None:
    for each in list(connections):
        each.abort()


class _Question(asyncio.Protocol):
    """One connection, and the one request that comes on it. ``asked``: those that are open, this one too."""

    def __init__(self, metadata: Metadata, asked: set[asyncio.Transport]) -> None:
        self._metadata = metadata
        self._asked = asked
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._asked.add(transport)

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self._head += data
        end = self._head.find(HEAD_END)
        if end >= 0:
            with suppress(ValueError):  # who asks like that hears nothing
                self._transport.write(_respond(self._metadata, self._head[: end + len(HEAD_END)]))
        if end >= 0 or len(self._head) > HEAD_LIMIT:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._asked.discard(self._transport)


def _respond(metadata: Metadata, head: bytes) -> bytes:
    """
    Raises:
        ValueError: this is no HTTP.
    """
    request, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = request.split(" ")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    status, body, more = metadata.answer(method, path, headers, time.monotonic())
    sent = body.encode()
    fields = {
        **more,
        "Content-Type": "text/plain",
        "Content-Length": str(len(sent)),
        "Date": formatdate(usegmt=True),
        "Server": "EC2ws",
        "Connection": "close",
    }
    told = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status.value} {status.phrase}\r\n{told}\r\n".encode() + sent


def _listen(pid: int, address: tuple[str, int]) -> socket.socket:
    """A socket of another network namespace. A thread that has entered one is of no other use, so it ends."""
    made: list[socket.socket | OSError] = []

    def enter() -> None:
        try:
            namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                if _libc.setns(namespace, CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            finally:
                os.close(namespace)
            made.append(socket.create_server(address, backlog=64))
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    [answer] = made
    if isinstance(answer, OSError):
        raise LabError(f"nothing can listen at {address} in the namespace of {pid}: {answer}") from answer
    return answer

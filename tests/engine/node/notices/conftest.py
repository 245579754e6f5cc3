"""A metadata service on loopback: it speaks HTTP over real sockets, and does what a test's script says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from email.utils import formatdate
from typing import Any

import pytest

PATIENCE_S = 60.0  # of a test, on a busy machine


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Request:
    def __init__(self, method: str, target: str, headers: dict[str, str]) -> None:
        self.method, self.headers = method, headers
        self.path, _, query = target.partition("?")
        self.query = dict(pair.split("=", 1) for pair in query.split("&") if pair)


Reply = tuple[int, str] | tuple[int, str, dict[str, str]] | bytes | None  # bytes: as they are; None: the line is cut


class Service:
    """``answer`` makes the replies; ``asked`` has every request."""

    def __init__(self) -> None:
        self.answer: Callable[[Request], Awaitable[Reply]] = self._nothing
        self.asked: list[Request] = []
        self.date: float | None = None  # its clock; None: the true one
        self.dated = True
        self.chunked = False
        self._told = asyncio.Condition()
        self.notices: list[float | None] = []
        self.serving: set[asyncio.Task[Any]] = set()

    async def _nothing(self, request: Request) -> Reply:
        return 404, ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.serving.add(task)
        try:
            await self._serve(reader, writer)
        except asyncio.CancelledError:  # the test is over, and nobody awaits this
            pass
        finally:
            self.serving.discard(task)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, target, _ = head[0].split(" ")
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:] if line)}
            request = Request(method, target, headers)
            self.asked.append(request)
            reply = await self.answer(request)
            if isinstance(reply, bytes):
                writer.write(reply)
            elif reply is not None:
                writer.write(self._written(*reply))
            await writer.drain()

    def _written(self, status: int, body: str, headers: dict[str, str] | None = None) -> bytes:
        lines = [f"HTTP/1.1 {status} Whatever", *(f"{name}: {value}" for name, value in (headers or {}).items())]
        if self.dated:
            lines.append(f"Date: {formatdate(self.date, usegmt=True)}")
        data = body.encode()
        if self.chunked:
            lines.append("Transfer-Encoding: chunked")
            half = len(data) // 2
            parts = [part for part in (data[:half], data[half:]) if part]
            data = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        else:
            lines.append(f"Content-Length: {len(data)}")
        return "\r\n".join([*lines, "", ""]).encode() + data

    def tell(self, seconds: float | None) -> None:
        """What the source that is tested says; the same again is not kept."""
        if not self.notices or not _systematic(self.notices[-1], seconds):
            self.notices.append(seconds)

    async def until(self, found: Callable[[], Any]) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            while not (result := found()):
                await asyncio.sleep(0.002)
        return result


def _systematic(one: float | None, other: float | None) -> bool:
    return one == other or (one is not None and other is not None and abs(one - other) < 2.5)


@pytest.fixture
async def service() -> AsyncIterator[Any]:
    """``service.url`` is where it is; ``service.watch(source)`` begins."""
    service: Any = Service()
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    service.url = f"http://127.0.0.1:{port}"
    tasks: list[asyncio.Task[None]] = []
    service.watch = lambda source: tasks.append(asyncio.ensure_future(source.watch(service.tell)))
    yield service
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended
    serving = list(service.serving)
    for task in serving:
        task.cancel()
    await asyncio.gather(*serving)
    server.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asks as often as a test wants to wait."""
    from outrider.engine.node.notices import clouds, sources

    for place, values in (
        (clouds, dict.fromkeys(("AWS_WITHIN_S", "AZURE_WITHIN_S", "AZURE_FIRST_WITHIN_S", "GCP_WITHIN_S"), PATIENCE_S)),
        (clouds, {"GCP_EVERY_S": 0.005}),
        (clouds.Imds, {"every_s": 0.005}),
        (clouds.ScheduledEvents, {"every_s": 0.005}),
        (clouds.Preempted, {"every_s": 0.0}),
        (clouds.Maintenance, {"every_s": 0.0}),
    ):
        for name, value in values.items():
            monkeypatch.setattr(place, name, value)
    monkeypatch.setattr(sources, "FIRST_S", 0.005)
    monkeypatch.setattr(sources, "AT_MOST_S", 0.02)

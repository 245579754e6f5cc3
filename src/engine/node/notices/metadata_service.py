"""A minimal HTTP client for the clouds' metadata services: one request per connection, limited in time and size.

urllib would use the proxies of the environment, which must not see the answers of these services.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from ....lazy_named_tuple import NamedTuple
from .sources import PolledSource, Unanswered

URL = "http://169.254.169.254"  # address of the metadata service in every cloud
OK = 200
MAX_BYTES = 64 * 1024  # maximum size of an answer's body, and of a line of its header


class MetadataService(PolledSource):
    def __init__(self, url: str = URL) -> None:
        self._url = url.rstrip("/")


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]  # names in lower case
    body: str

    @property
    def date(self) -> datetime | None:
        """Return the time of the answer by the service's clock (this machine's clock may be wrong); None if unknown."""
        try:
            date = parsedate_to_datetime(self.headers["date"])
        except (KeyError, ValueError):
            return None
        return date if date.tzinfo is not None else None

    def seconds_until(self, at: datetime) -> float:
        return (at - (self.date or datetime.now(UTC))).total_seconds()


async def request(url: str, *, method: str = "GET", headers: Mapping[str, str] = {}, within_s: float) -> Answer:
    """Send one request and return its answer.

    Raises:
        Unanswered: no valid HTTP answer arrived within ``within_s`` seconds.
    """
    try:
        async with asyncio.timeout(within_s):
            return await _send(url, method, headers)
    except TimeoutError:
        raise Unanswered(f"no answer within {within_s:g} s from {url}") from None
    except (OSError, EOFError, ValueError, LookupError, asyncio.LimitOverrunError) as error:
        raise Unanswered(f"no answer from {url} ({type(error).__name__}: {error})") from error


async def _send(url: str, method: str, headers: Mapping[str, str]) -> Answer:
    where = urlsplit(url)
    target = where.path + (f"?{where.query}" if where.query else "")
    reader, writer = await asyncio.open_connection(where.hostname, where.port or 80, limit=MAX_BYTES)
    try:
        lines = [f"{method} {target or '/'} HTTP/1.1", f"Host: {where.netloc}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if method != "GET":
            lines.append("Content-Length: 0")
        writer.write("\r\n".join([*lines, "", ""]).encode("ascii"))
        await writer.drain()
        version, _, rest = (await _line(reader)).partition(" ")
        if not version.startswith("HTTP/1."):
            raise ValueError(f"{version[:20]!r} is not HTTP")
        answered = await _headers(reader)
        return Answer(int(rest.partition(" ")[0]), answered, (await _body(reader, answered)).decode("utf-8", "replace"))
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _headers(reader: asyncio.StreamReader) -> dict[str, str]:
    headers: dict[str, str] = {}
    while line := await _line(reader):
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
        if len(headers) > 100:
            raise ValueError("more than 100 headers")
    return headers


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = b""
        while size := _size((await _line(reader)).partition(";")[0], 16, len(body)):
            body += (await reader.readexactly(size + 2))[:-2]
        return body
    if "content-length" in headers:
        return await reader.readexactly(_size(headers["content-length"], 10, 0))
    body = b""
    while part := await reader.read(MAX_BYTES):
        body += part
        _size(str(len(body)), 10, 0)
    return body


async def _line(reader: asyncio.StreamReader) -> str:
    return (await reader.readuntil(b"\n")).decode("latin-1").rstrip("\r\n")


def _size(text: str, base: int, before: int) -> int:
    size = int(text, base)
    if not 0 <= size <= MAX_BYTES - before:
        raise ValueError(f"an answer of more than {MAX_BYTES} bytes")
    return size

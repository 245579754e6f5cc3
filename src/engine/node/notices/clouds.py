"""The preemption notices of AWS, Azure and Google Cloud, read from each cloud's metadata service.

`request` is a minimal HTTP client for these services: one request per connection, limited in time and size. (urllib
would use the proxies of the environment, which must not see the answers of these services.) A node imports this module
only if its provider names one of these sources.

AWS: the EC2 instance metadata of a spot instance, read by IMDSv2 only. Documented in the EC2 user guide under "Spot
Instance interruption notices", "EC2 instance rebalance recommendations" and "Use the Instance Metadata Service". The
service sends its token in IP packets whose time-to-live is the instance's hop limit (default 1), so a container behind
a network bridge never receives the token.

Azure: scheduled events that end this machine or all programs on it, documented under "Scheduled Events for Linux VMs".
The machines of an availability set or scale set see each other's events, so only events that name this machine count.
Events are not acknowledged, because Azure starts an acknowledged event earlier.

Google Cloud: preemption and host maintenance, from Compute Engine's metadata server. Documented under "Spot VMs",
"Query metadata server for maintenance event notices" and "About VM metadata". The server delays its answer until the
value changes (``wait_for_change``), so that a notice, which comes 30 s before the end, arrives at once.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from ....lazy_named_tuple import NamedTuple
from .sources import PolledSource, Report, Unanswered

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


AWS_WITHIN_S = 2.0  # time limit of a request: the service answers in milliseconds if it exists
AWS_TOKEN_S = 21600  # lifetime of a token in seconds; the maximum that AWS allows
AWS_NOTICE_S = 120.0  # AWS promises the notice "two minutes before Amazon EC2 stops or terminates"
_UNAUTHORIZED, _NOT_FOUND = 401, 404


class Imds(MetadataService):
    """A reader of the instance metadata (IMDS), with a session token that it renews before the token expires."""

    every_s = 2.0  # AWS recommends 5 seconds
    _token = ""
    _renew_at = 0.0

    async def get(self, path: str) -> Answer | None:
        """Return the metadata at ``path``; None if the service has no such item."""
        for fresh in (False, True):
            headers = {"X-aws-ec2-metadata-token": await self._valid_token(renew=fresh)}
            answer = await request(f"{self._url}{path}", headers=headers, within_s=AWS_WITHIN_S)
            # 401: this machine is a resumed copy of another machine, to which the token belongs; get a new token
            if answer.status != _UNAUTHORIZED:
                break
        if answer.status == _NOT_FOUND:
            return None
        if answer.status != OK:
            raise Unanswered(f"{path} is answered with status {answer.status}")
        return answer

    async def _valid_token(self, *, renew: bool) -> str:
        if renew or time.monotonic() >= self._renew_at:
            try:
                answer = await request(
                    f"{self._url}/latest/api/token",
                    method="PUT",
                    headers={"X-aws-ec2-metadata-token-ttl-seconds": str(AWS_TOKEN_S)},
                    within_s=AWS_WITHIN_S,
                )
            except Unanswered as error:
                raise Unanswered(f"{error}; in a container, the instance's hop limit must be 2") from error
            if answer.status != OK:
                raise Unanswered(f"no token, status {answer.status}: 403 means that instance metadata is turned off")
            self._token = answer.body.strip()
            self._renew_at = time.monotonic() + AWS_TOKEN_S / 2
        return self._token


class SpotAction(Imds):
    """The source of spot interruption notices, which come 120 s before the machine's end (0 s before a hibernation)."""

    name = "aws"

    async def ask(self, report: Report) -> None:
        answer = await self.get("/latest/meta-data/spot/instance-action")
        report(None if answer is None else _aws_seconds_left(answer))


class Rebalance(Imds):
    """The source of rebalance recommendations: AWS says that an interruption is likely, but not when (120 s or more).

    A recommendation may come long before an interruption notice, together with it, or without any interruption.
    Therefore this source is used only if the provider names it.
    """

    name = "aws-rebalance"
    _reported = False

    async def ask(self, report: Report) -> None:
        there = await self.get("/latest/meta-data/events/recommendations/rebalance") is not None
        if there != self._reported:
            self._reported = there
            report(AWS_NOTICE_S if there else None)


def _aws_seconds_left(answer: Answer) -> float:
    """Return the seconds until the interruption, by the service's clock; `AWS_NOTICE_S` if it is unreadable."""
    try:
        action = json.loads(answer.body)
        at = datetime.fromisoformat(action["time"])
        if action.get("action") == "hibernate":
            return 0.0
        left = answer.seconds_until(at)
    except (ValueError, LookupError, TypeError, AttributeError):
        return AWS_NOTICE_S
    if answer.date is None and not 0.0 <= left <= AWS_NOTICE_S:  # this machine's clock is wrong
        return AWS_NOTICE_S
    return min(max(left, 0.0), AWS_NOTICE_S)


AZURE_WITHIN_S = 5.0
AZURE_FIRST_WITHIN_S = 150.0  # time limit of the first request, which activates the service: "up to two minutes"
# Each event that ends the machine, and the shortest time from its notice to its start, in seconds. "Freeze" is left
# out: it is a pause of seconds.
AZURE_LEAST_S = {"Preempt": 30.0, "Terminate": 300.0, "Reboot": 900.0, "Redeploy": 600.0}
_AZURE_HEADERS = {"Metadata": "true"}


class ScheduledEvents(MetadataService):
    name = "azure"
    every_s = 1.0  # Azure recommends this interval: it announces a preemption 30 s before the machine's end
    _own = ""  # this machine's name
    _answered = False

    async def ask(self, report: Report) -> None:
        self._own = self._own or (await self._get("instance/compute/name?api-version=2021-02-01&format=text")).body
        answer = await self._get("scheduledevents?api-version=2020-07-01")
        try:
            events = json.loads(answer.body)["Events"]
            ours = [
                event for event in events if event["EventType"] in AZURE_LEAST_S and self._own in event["Resources"]
            ]
            ends = [_azure_seconds_left(event, answer) for event in ours]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise Unanswered(f"scheduled events that cannot be read ({error})") from error
        report(min(ends, default=None))

    async def _get(self, item: str) -> Answer:
        within_s = AZURE_WITHIN_S if self._answered else AZURE_FIRST_WITHIN_S
        answer = await request(f"{self._url}/metadata/{item}", headers=_AZURE_HEADERS, within_s=within_s)
        if answer.status != OK:
            raise Unanswered(f"/metadata/{item} is answered with status {answer.status}")
        self._answered = self._answered or item.startswith("scheduled")
        return answer


def _azure_seconds_left(event: dict[str, Any], answer: Answer) -> float:
    """Return the seconds until an event starts, by the service's clock; 0 if it has started."""
    if event.get("EventStatus") == "Started" or not event["NotBefore"]:
        return 0.0
    left = answer.seconds_until(parsedate_to_datetime(event["NotBefore"]))
    if answer.date is None and left < 0:  # this machine's clock is wrong
        return AZURE_LEAST_S[event["EventType"]]
    return max(0.0, left)


GCP_HOST_S = 60.0  # the server answers after this time if the value does not change
GCP_WITHIN_S = 10.0  # time limit of a request, in addition to `GCP_HOST_S`
GCP_EVERY_S = 1.0  # polling interval if the server sends no ETag, without which a request cannot wait for a change
GCP_PREEMPTED_S = 30.0  # time from a preemption notice to the machine's end
GCP_MAINTENANCE_S = 60.0  # Google: "60 seconds before a maintenance event starts"; one hour for a machine with GPUs
_GCP_HEADERS = {"Metadata-Flavor": "Google"}


class _GcpValue(MetadataService):
    """A source that reads one metadata value, whose change announces the machine's end.

    The metadata has no time. So the end is expected a fixed time after the first answer with the announcing value.
    """

    every_s = 0.1  # a short pause after an answer, because the next request waits for a change
    item: str
    ends: str  # the value that announces the machine's end
    seconds: float
    _etag = ""
    _at: float | None = None

    async def ask(self, report: Report) -> None:
        value = await self._next()
        if value != self.ends:
            self._at = None
        elif self._at is None:
            self._at = time.monotonic() + self.seconds
        report(None if self._at is None else max(0.0, self._at - time.monotonic()))
        if not self._etag:
            await asyncio.sleep(GCP_EVERY_S)

    async def _next(self) -> str:
        """Return the metadata value; from the second request on, wait until the value changes."""
        url = f"{self._url}/computeMetadata/v1/instance/{self.item}"
        etag, self._etag = self._etag, ""  # if this request fails, the next one must not wait for a change
        query = f"?wait_for_change=true&timeout_sec={GCP_HOST_S:g}&last_etag={etag}" if etag else ""
        answer = await request(url + query, headers=_GCP_HEADERS, within_s=GCP_WITHIN_S + (GCP_HOST_S if query else 0))
        if answer.status != OK or answer.headers.get("metadata-flavor") != "Google":
            raise Unanswered(f"{url} is answered with status {answer.status}, by a server that is busy or another")
        self._etag = answer.headers.get("etag", "")
        return answer.body.strip()


class Preempted(_GcpValue):
    name, item, ends, seconds = "gcp", "preempted", "TRUE", GCP_PREEMPTED_S


class Maintenance(_GcpValue):
    """The source of notices of host maintenance that stops this machine; a live migration does not count."""

    name, item, ends = "gcp-maintenance", "maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE"

    def __init__(self, url: str = URL, *, seconds: float = GCP_MAINTENANCE_S) -> None:
        super().__init__(url)
        self.seconds = seconds

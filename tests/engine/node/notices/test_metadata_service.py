"""The client of metadata services, against a server that answers well, slowly, too much, and with what is not HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outrider.engine.node.notices import clouds
from outrider.engine.node.notices.sources import Unanswered

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("chunked", [False, True])
async def test_an_answer_has_its_status_headers_body_and_the_services_clock(service: Any, chunked: bool) -> None:
    async def answer(request: Any) -> Any:
        return 201, f"{request.method} {request.query['a']} ü", {"ETag": "x:y"}

    service.answer, service.chunked, service.date = answer, chunked, 1e9
    got = await clouds.request(f"{service.url}/p?a=1", method="PUT", headers={"X-Mine": "v"}, within_s=5)
    assert (got.status, got.body, got.headers["etag"]) == (201, "PUT 1 ü", "x:y")
    assert got.date is not None
    assert got.date.timestamp() == 1e9
    assert service.asked[0].headers["x-mine"] == "v"
    assert service.asked[0].headers["host"] == service.url.removeprefix("http://")


async def test_a_body_without_a_length_ends_with_the_connection(service: Any) -> None:
    async def answer(request: Any) -> Any:
        return b"HTTP/1.0 200 OK\r\n\r\nall of it"

    service.answer = answer
    got = await clouds.request(service.url, within_s=5)
    assert (got.body, got.date) == ("all of it", None)


@pytest.mark.parametrize(
    "reply",
    [
        None,
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 two\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-4\r\nabcd\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * clouds.MAX_BYTES,
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"H%d: x\r\n" % n for n in range(200)) + b"\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (clouds.MAX_BYTES + 1),
    ],
    ids=lambda reply: str(reply)[:40],
)
async def test_what_is_no_answer_is_said_to_be_none(service: Any, reply: bytes | None) -> None:
    async def answer(request: Any) -> Any:
        return reply

    service.answer = answer
    with pytest.raises(Unanswered, match="no answer from http://127"):
        await clouds.request(service.url, within_s=5)


async def test_a_service_that_is_silent_or_drips_is_given_up_in_time(service: Any) -> None:
    async def silent(request: Any) -> Any:
        await asyncio.Event().wait()

    service.answer = silent
    with pytest.raises(Unanswered, match=r"within 0\.05 s"):
        await clouds.request(service.url, within_s=0.05)


async def test_nobody_there_is_no_answer() -> None:
    with pytest.raises(Unanswered, match="ConnectionRefused"):
        await clouds.request("http://127.0.0.1:9/", within_s=5)


async def test_the_environments_proxies_are_not_asked(service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert (await clouds.request(service.url, within_s=5)).status == 404
